"""``python -m tests.sim --seeds N --from K``: simulate, and print the log of the first seed that fails."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time

from tests.sim.planted import PLANTED, found
from tests.sim.simulation import SCENARIOS, simulate


def main() -> int:
    """Run the seeds; 1: one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulate the system under seeded faults.")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--scenario", choices=(*SCENARIOS, "all"), default="all")
    parser.add_argument("--log", action="store_true", help="print the log of every seed")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first seed that fails")
    parser.add_argument(
        "--planted", action="store_true", help="look for planted bugs instead, in at most --seeds seeds"
    )
    given = parser.parse_args()
    if given.planted:
        return _planted(given.seeds)
    names = list(SCENARIOS) if given.scenario == "all" else [given.scenario]
    failed, simulated, began = 0, 0.0, time.process_time()
    digest = hashlib.sha256()
    for seed in range(given.first, given.first + given.seeds):
        for name in names:
            outcome = simulate(name, seed)
            simulated += outcome.seconds
            digest.update("\n".join(outcome.log).encode())
            if outcome.error or given.log:
                print(*outcome.log, sep="\n")
            if outcome.error:
                failed += 1
                print(f"{name}, seed {seed}: {outcome.error}")
                print(f"again: python -m tests.sim --scenario {name} --from {seed}")
                if not given.go_on:
                    return 1
    spent = time.process_time() - began
    print(f"{given.seeds} seeds of {', '.join(names)}: {failed} failed; {simulated:.0f} simulated s in {spent:.1f} s")
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
