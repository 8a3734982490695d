"""Records what came of faults: how long consumers were without a batch, and that every batch was right.

    atta chaos --faults kill --daemons-only --minutes 60 --most 200 --every 1s --seed 24 --json chaos.json
    python -m bench.reliability chaos.json

writes bench/results/reliability.json and reliability.md. Several documents of the same run with other seeds, one after
another, make one record. ``--name`` gives the files another name.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atta_bench.record import head, parser_of, rows_of, write

BOUND_S = 5.0
"""With a replica the next batch is to come within this."""
BACK_S = 2.0
"""Without one, within this once the daemon serves again."""


def figures(pauses: Sequence[float], bound_s: float) -> dict[str, float]:
    """Of times in seconds: how many there are, how many are within a bound, and how long they are."""
    ordered = sorted(pauses)
    return {
        "faults": len(ordered),
        "within": sum(pause <= bound_s for pause in ordered),
        "median_s": round(statistics.median(ordered), 3),
        "p95_s": ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))],
        "longest_s": ordered[-1],
    }


def groups(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Figures of pauses by what was done to whom, and whether a consumer or the trainer used it at that moment."""
    kinds: dict[str, list[float]] = {}
    for fault in document["faults"]:
        use = "in use" if fault["in_use"] else "not in use"
        kinds.setdefault(f"{fault['kind']}, {fault['target'].split('-')[0]} {use}", []).append(fault["pause_s"])
    return {name: figures(found, BOUND_S) for name, found in sorted(kinds.items())}


def after_serving(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Figures of the time from when a killed daemon serves again to the last consumer's next batch, by use."""
    found: dict[str, list[float]] = {}
    for fault in document["faults"]:
        if "after_serving_s" in fault:
            name = f"daemon {'in use' if fault['in_use'] else 'not in use'}"
            found.setdefault(name, []).append(fault["after_serving_s"])
    return {name: figures(times, BACK_S) for name, times in sorted(found.items())}


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One document of several that differ in their seeds. Faults keep the times of their own run."""
    first = dict(documents[0])
    if len(documents) == 1:
        return first
    seeds = [document["settings"]["seed"] for document in documents]
    first["settings"] = {**first["settings"], "seed": seeds}
    first["command"] = first["command"].replace(f"--seed {seeds[0]}", f"--seed {'|'.join(map(str, seeds))}")
    for name in ("batches", "steps", "repeated_steps"):
        first[name] = sum(document[name] for document in documents)
    for name in ("starts", "errors"):
        first[name] = dict(sum((Counter(document[name]) for document in documents), Counter()))
    for name in ("faults", "violations", "lives"):
        first[name] = [one for document in documents for one in document[name]]
    first["load_average"] = [max(values) for values in zip(*(d["load_average"] for d in documents), strict=True)]
    return first


def report(document: Mapping[str, Any]) -> list[str]:
    """The text of the record, above what it means."""
    settings = document["settings"]
    names = ("faults", f"next batch within {BOUND_S:g} s", "median s", "95 % s", "longest s")
    table = rows_of(["fault", *names], *([name, *found.values()] for name, found in groups(document).items()))
    errors = ", ".join(f"{count} {name}" for name, count in document["errors"].items()) or "none"
    lines = [
        *head("Faults and the time to the next batch", document),
        f"Partitions: {settings['parts']}, daemons of each: {settings['replicas']}, consumers: "
        f"{settings['consumers']}, and a trainer. Load average of the machine at the end (1, 5, 15 minutes): "
        f"{', '.join(map(str, document['load_average']))}.",
        "",
        f"Batches checked: {document['batches']:,}. Steps of the trainer checked: {document['steps']:,}, of which "
        f"{document['repeated_steps']} again after a restart. Violations: {len(document['violations'])}. Errors that "
        f"workers went on after: {errors}.",
        "",
        "Times are the longest that any consumer, or the trainer, was without a batch after a fault. One that was "
        "killed itself does not count until its process has had its first batch.",
        "",
        *table,
    ]
    back = after_serving(document) if settings["replicas"] == 1 else {}
    if back:
        waits = [fault["serves_s"] for fault in document["faults"] if "serves_s" in fault]
        names = ("kills", f"next batch within {BACK_S:g} s", "median s", "95 % s", "longest s")
        lines += [
            "",
            f"Without a replica: a killed daemon served again after {statistics.median(waits):.1f} s (median; at most "
            f"{max(waits):.1f} s). From then until the last consumer had its next batch:",
            "",
            *rows_of(["killed", *names], *([name, *found.values()] for name, found in back.items())),
        ]
    return lines


def main() -> None:
    """Write the record of the documents of ``atta chaos --json``."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("documents", type=Path, nargs="+", help="what atta chaos --json has written")
    parser.add_argument("--name", default="reliability", help="of the two files [reliability]")
    arguments = parser.parse_args()
    document = joined([json.loads(path.read_text()) for path in arguments.documents])
    document["settings"].pop("folder", None)  # of the machine that it ran on
    write(arguments.out / f"{arguments.name}.json", document, report(document))


if __name__ == "__main__":
    main()
