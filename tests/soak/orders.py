"""Random orders of events for the weights of jobs: requests that are lost, late, repeated and overtake each other.

    python -m tests.soak.orders [--orders 100000]

Half of the orders are of trainers that die and start again (``arrival``), half of intervals that several processes
compute (``summed``). Each run checks every answer, as the tests of ``tests/unit/kvstore/test_parameters.py`` do: each
update applied once, no stash left, clocks and versions within their bounds, the backward pass with the version of the
forward pass. The first violation ends the run. Writes async-orders.json and async-orders.md.
"""

from __future__ import annotations

from collections import Counter

from atta_bench.record import command, document, head, parser_of, rows_of, write
from tests.unit.kvstore.parameters_runs import ArrivalRun, Network, SummedRun


def counted(found: Counter[str], network: Network, updates: int) -> None:
    """Add a run that has ended."""
    found.update(orders=1, arrived=network.delivered, lost=network.lost, repeated=network.repeated, updates=updates)


def main() -> None:
    """Play all orders, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--orders", type=int, default=100_000, help="of both kinds together [100000]")
    given = parser.parse_args()
    arrival, summed = Counter[str](), Counter[str]()
    oldest = dict.fromkeys((0, 1, 2), 0)
    for seed in range(given.orders // 2):
        trainers = ArrivalRun(seed)
        trainers.play()
        counted(arrival, trainers.network, len(trainers.applied))
        arrival["restarts"] += sum(trainers.lives) - trainers.members
        intervals = SummedRun(seed)
        intervals.play()
        counted(summed, intervals.network, intervals.epochs)
        oldest[intervals.bound] = max(oldest[intervals.bound], *intervals.ages, 0)
    if oldest[0] != 1 or any(age > bound + 1 for bound, age in oldest.items()):
        raise AssertionError(f"oldest values by bound: {oldest}")
    about = document("orders", command=command(parser, given), arrival=arrival, summed=summed, oldest=oldest)
    names = ("orders", "arrived", "repeated", "lost", "updates")
    lines = [
        *head("Weights of jobs in random orders of events", about),
        *rows_of(
            ("kind", *names, "restarts of trainers"),
            ("on arrival", *(f"{arrival[name]:,}" for name in names), f"{arrival['restarts']:,}"),
            ("summed by interval", *(f"{summed[name]:,}" for name in names), ""),
        ),
        "",
        *rows_of(("bound S", *map(str, oldest)), ("age of the oldest value that an interval read", *oldest.values())),
    ]
    write(given.out / "async-orders.json", about, lines)


if __name__ == "__main__":
    main()
