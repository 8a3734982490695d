"""``python -m tests.sim --seeds N --from K``: simulate, and print the log of the first seed that fails."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from contextlib import closing

from tests.sim.planted import PLANTED, found
from tests.sim.simulation import SCENARIOS, several


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulate the system under seeded faults.")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--scenario", choices=(*SCENARIOS, "all"), default="all")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes (default: this one alone)")
    parser.add_argument("--log", action="store_true", help="print the log of every seed")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first seed that fails")
    parser.add_argument(
        "--planted", action="store_true", help="look for planted bugs instead, in at most --seeds seeds"
    )
    given = parser.parse_args()
    if given.planted:
        return _planted(given.seeds)
    names = list(SCENARIOS) if given.scenario == "all" else [given.scenario]
    failed, simulated, began, kills, power_cuts = 0, 0.0, time.monotonic(), 0, 0
    digest = hashlib.sha256()
    seeds = range(given.first, given.first + given.seeds)
    with closing(several(names, seeds, jobs=given.jobs, logs=given.log)) as outcomes:
        for outcome in outcomes:
            simulated, kills = simulated + outcome.seconds, kills + outcome.kills
            power_cuts += outcome.power_cuts
            digest.update(outcome.digest)
            if outcome.log:
                print(*outcome.log, sep="\n")
            if outcome.error:
                failed += 1
                print(f"{outcome.scenario}, seed {outcome.seed}: {outcome.error}")
                print(f"again: python -m tests.sim --scenario {outcome.scenario} --from {outcome.seed}", flush=True)
                if not given.go_on:
                    return 1
            if outcome.seed % 1000 == 999 and outcome.scenario == names[-1]:
                print(f"up to seed {outcome.seed}: {failed} failed", file=sys.stderr, flush=True)
    lasted = time.monotonic() - began
    print(f"{given.seeds} seeds of {', '.join(names)}: {failed} failed; {simulated:.0f} simulated s in {lasted:.1f} s")
    print(f"{kills} daemons killed, {power_cuts} of them by a power cut")
    print(f"digest of the logs: {digest.hexdigest()[:16]}")
    return int(failed > 0)


def _planted(seeds: int) -> int:
    missed = 0
    for bug in PLANTED:
        outcome = found(bug, seeds)
        missed += outcome is None
        cause = "not found" if outcome is None else f"seed {outcome.seed}: {outcome.error[:100]}"
        print(f"{bug}: {cause}", flush=True)
    return int(missed > len(PLANTED) // 10)


if __name__ == "__main__":
    sys.exit(main())
