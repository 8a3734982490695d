"""``atta chaos``: kill, stop, cut off and starve real processes, and check what they deliver.

Records what came of faults: how long consumers were without a batch, and that every batch was right.

    atta chaos --faults kill --daemons-only --minutes 60 --most 200 --every 1s --seed 24 --json chaos.json
    python -m bench.chaos.command chaos.json

writes bench/results/reliability.json and reliability.md. Several documents of the same run with other seeds, one after
another, make one record. ``--name`` gives the files another name.
"""

from __future__ import annotations

import json
import shlex
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atta.cli.options import command
from atta.cli.output import DURATION, NAMES, SIZE, check_folder, echo, json_option, printer, quiet_option, write_json
from atta.errors import AttaError, ConfigError
from atta_bench.results import head, parser_of, rows_of, write

if TYPE_CHECKING:
    from atta_bench.chaos.run import ChaosRun


_GROUPS = {
    "Faults": "minutes faults every most daemons-only spare seed",
    "Cluster": "parts replicas consumers loaders cache links",
    "Output": "out json quiet help",
}


@command(groups=_GROUPS)
@click.option("--minutes", type=click.FloatRange(0.05), default=10.0, help="How long faults come.")
@click.option("--seed", type=click.IntRange(0), show_default="the time", help="Of the faults.")
@click.option("--faults", type=NAMES, show_default="all possible here", help="kill,stop,cut,disk,memory.")
@click.option("--every", type=DURATION.at_least("100ms"), default="4s", help="Mean time between two.")
@click.option("--most", type=click.IntRange(0), default=0, help="End after so many faults; 0: no limit.")
@click.option("--daemons-only", is_flag=True, help="Spare consumers and the trainer.")
@click.option("--parts", type=click.IntRange(1, 16), default=2, help="Partitions.")
@click.option("--replicas", type=click.IntRange(1, 8), default=2, help="Daemons of each partition.")
@click.option("--consumers", type=click.IntRange(1, 16), default=5, help="Beside one trainer.")
@click.option(
    "--loaders",
    type=NAMES,
    default="neighbours,disjoint,temporal,link,operator",
    help="Kinds of loaders; consumers have them in turn.",
)
@click.option("--cache", type=SIZE, show_default="as atta serve", help="What a daemon keeps of other partitions.")
@click.option("--links/--no-links", default=True, help="How daemons exchange rows, as for atta serve.")
@click.option("--spare", type=NAMES, help="Processes that are not killed, such as daemon-0,consumer-0.")
@click.option(
    "--out",
    "folder",
    type=click.Path(),
    show_default="a new one in the temporary folder",
    help="Folder for the log of faults and of processes.",
)
@json_option
@quiet_option
def chaos(
    *, minutes: float, seed: int | None, faults: tuple[str, ...] | None, every: float, folder: str | None,
    json_file: str | None, quiet: bool, loaders: tuple[str, ...], cache: int | None, links: bool,
    spare: tuple[str, ...] | None, **sizes: Any,
) -> None:  # fmt: skip
    """Kill, stop, cut off and starve the processes of a small cluster, and check what they deliver.

    Daemons with replicas, consumers and a trainer run on this machine. A seed decides which fault hits whom and when.
    Each batch must come once and be the one of the local sampler (links and operators: of an undisturbed run), the
    trainer's weights must be those of an undisturbed run, and nothing may leak. cut and disk need root. Exit code 1:
    that was violated; the log says how to repeat it.

    Example: atta chaos --minutes 120 --json chaos.json
    """
    from atta_bench.chaos.plan import kinds_of, loader_kinds
    from atta_bench.chaos.run import ChaosRun, ChaosSettings, possible_kinds

    kinds = tuple(kinds_of(faults)) if faults is not None else possible_kinds()
    found = tuple(loader_kinds(loaders))
    seed = int(time.time()) if seed is None else seed
    place = _folder(folder)
    options = {"minutes": minutes, "faults": ",".join(kind.value for kind in kinds), "every": f"{every:g}s"}
    given = {
        "parts": sizes["parts"],
        "replicas": sizes["replicas"],
        "consumers": sizes["consumers"],
        "most": sizes["most"],
        "loaders": ",".join(kind.value for kind in found),
        **({} if cache is None else {"cache": cache}),
        **({"spare": ",".join(spare)} if spare else {}),
    }
    again = ["atta", "chaos", "--seed", str(seed)]
    again += [word for name, value in {**options, **given}.items() for word in (f"--{name}", str(value))]
    again += ["--daemons-only"] if sizes["daemons_only"] else []
    again += [] if links else ["--no-links"]

    def tell(line: str) -> None:
        if not quiet:
            echo(line, err=json_file == "-")

    (place / "command").write_text(shlex.join(again) + "\n")
    tell(f"seed {seed}; logs in {place}")
    rows: dict[str, Any] = {"loaders": found, "cache_bytes": cache, "links": links, "spare": spare or ()}
    run = ChaosRun(ChaosSettings(seed, minutes, kinds, place, every_s=every, **rows, **sizes), tell)
    try:
        run.run()
    finally:  # also after Ctrl-C: what was seen until then
        document = {**run.to_dict(), "command": shlex.join(again)}
        write_json(str(place / "result.json"), document)
    write_json(json_file, document)
    if not quiet and json_file != "-":
        _show(run)
    if run.violations:
        raise AttaError(
            f"{len(run.violations)} violations: {'; '.join(run.violations[:5])}. Logs: {place}. Again: {shlex.join(again)}"
        )


def _folder(given: str | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="atta-chaos-"))
    check_folder("--out", given)
    place = Path(given)
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise ConfigError(f"--out {given}: the folder is not empty")
    return place.absolute()


def _show(run: ChaosRun) -> None:
    from rich.table import Table

    found, console = run.to_dict(), printer()
    table = Table(title="faults", title_justify="left")
    for name in ("kind", "target", "times", "longest pause"):
        table.add_column(name, justify="left" if name in {"kind", "target"} else "right")
    groups = Counter((note["kind"], note["target"].split("-")[0]) for note in found["faults"])
    for (kind, role), times in sorted(groups.items()):
        pauses = [n["pause_s"] for n in found["faults"] if n["kind"] == kind and n["target"].startswith(role)]
        table.add_row(kind, role, str(times), f"{max(pauses):.1f} s")
    console.print(table)
    errors = ", ".join(f"{count} {name}" for name, count in found["errors"].items()) or "none"
    console.print(
        f"{found['batches']:,} batches and {found['steps']:,} steps ({found['repeated_steps']} of them again) "
        f"were right; errors that workers went on after: {errors}"
    )


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
