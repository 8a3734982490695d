"""``python -m tests.sim --seeds N --from K``: simulate, and print the log of the first seed that fails."""

from __future__ import annotations

import argparse
import hashlib
import sys
from contextlib import closing

from tests.sim.planted import PLANTED, found
from tests.sim.seeds import several
from tests.sim.simulation import SCENARIOS


def main() -> int:
    """Run the seeds; 1: one has failed."""
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
    failed, simulated, spent, kills, power_cuts = 0, 0.0, 0.0, 0, 0
    digest = hashlib.sha256()
    seeds = range(given.first, given.first + given.seeds)
    with closing(several(names, seeds, jobs=given.jobs, logs=given.log)) as results:
        for result in results:
            simulated, spent = simulated + result.simulated_s, spent + result.cpu_s
            kills, power_cuts = kills + result.kills, power_cuts + result.power_cuts
            for ended in result.ended:
                digest.update(ended.digest)
                if ended.log:
                    print(*ended.log, sep="\n")
                if ended.error:
                    failed += 1
                    print(f"{ended.scenario}, seed {ended.seed}: {ended.error}")
                    print(f"again: python -m tests.sim --scenario {ended.scenario} --from {ended.seed}", flush=True)
                    if not given.go_on:
                        return 1
            if result.next % 1000 == 0:
                print(f"up to seed {result.next - 1}: {failed} failed", file=sys.stderr, flush=True)
    print(f"{given.seeds} seeds of {', '.join(names)}: {failed} failed; {simulated:.0f} simulated s in {spent:.1f} s")
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
