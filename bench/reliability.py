"""Records what came of faults: how long consumers were without a batch, and that every batch was right.

    atta chaos --faults kill --daemons-only --minutes 60 --most 200 --every 1s --seed 24 --json chaos.json
    python -m bench.reliability chaos.json

writes bench/results/reliability.json and reliability.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.record import head, parser_of, rows_of, write

BOUND_S = 5.0
"""With a replica the next batch is to come within this."""


def figures(faults: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the longest time without a batch after each fault, in seconds."""
    pauses = sorted(float(fault["pause_s"]) for fault in faults)
    return {
        "faults": len(pauses),
        "within_5_s": sum(pause <= BOUND_S for pause in pauses),
        "median_s": round(statistics.median(pauses), 3),
        "p95_s": pauses[min(len(pauses) - 1, round(0.95 * len(pauses)))],
        "longest_s": pauses[-1],
    }


def groups(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Figures by what was done to whom, and whether a consumer used the process at that moment."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for fault in document["faults"]:
        use = "in use" if fault["in_use"] else "not in use"
        kinds.setdefault(f"{fault['kind']}, {fault['target'].split('-')[0]} {use}", []).append(fault)
    return {name: figures(found) for name, found in sorted(kinds.items())}


def report(document: Mapping[str, Any]) -> list[str]:
    """The text of the record, above what it means."""
    settings = document["settings"]
    names = ("faults", f"next batch within {BOUND_S:g} s", "median s", "95 % s", "longest s")
    table = rows_of(["fault", *names], *([name, *found.values()] for name, found in groups(document).items()))
    errors = ", ".join(f"{count} {name}" for name, count in document["errors"].items()) or "none"
    return [
        *head("Faults and the time to the next batch", document),
        f"Partitions: {settings['parts']}, daemons of each: {settings['replicas']}, consumers: "
        f"{settings['consumers']}, and a trainer. Load average of the machine at the end (1, 5, 15 minutes): "
        f"{', '.join(map(str, document['load_average']))}.",
        "",
        f"Batches checked: {document['batches']:,}. Steps of the trainer checked: {document['steps']:,}, of which "
        f"{document['repeated_steps']} again after a restart. Violations: {len(document['violations'])}. Errors that "
        f"workers went on after: {errors}.",
        "",
        "Times are the longest that any consumer, or the trainer, was without a batch after a fault.",
        "",
        *table,
    ]


def main() -> None:
    """Write the record of the document of ``atta chaos --json``."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("document", type=Path, help="what atta chaos --json has written")
    arguments = parser.parse_args()
    document = json.loads(arguments.document.read_text())
    document["settings"].pop("folder", None)  # of the machine that it ran on
    write(arguments.out / "reliability.json", document, report(document))


if __name__ == "__main__":
    main()
