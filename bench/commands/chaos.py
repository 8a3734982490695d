"""``atta chaos``: kill, stop, cut off and starve real processes, and check what they deliver."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atta.cli.output import DURATION, NAMES, SIZE, check_folder, echo, json_option, printer, quiet_option, write_json
from atta.errors import AttaError, ConfigError

if TYPE_CHECKING:
    from atta_bench.chaos.run import ChaosRun


@click.command()
@click.option("--minutes", type=click.FloatRange(0.05), default=10.0, show_default=True, help="How long faults come.")
@click.option("--seed", type=click.IntRange(0), help="Of the faults; default: the time.")
@click.option("--faults", type=NAMES, help="kill,stop,cut,disk,memory; default: all that are possible here.")
@click.option(
    "--every", type=DURATION.at_least("100ms"), default="4s", show_default=True, help="Mean time between two."
)
@click.option("--most", type=click.IntRange(0), default=0, help="End after so many faults; 0: no limit.")
@click.option("--daemons-only", is_flag=True, help="Spare consumers and the trainer.")
@click.option("--parts", type=click.IntRange(1, 16), default=2, show_default=True, help="Partitions.")
@click.option("--replicas", type=click.IntRange(1, 8), default=2, show_default=True, help="Daemons of each partition.")
@click.option("--consumers", type=click.IntRange(1, 16), default=5, show_default=True, help="Beside one trainer.")
@click.option(
    "--loaders",
    type=NAMES,
    default="neighbours,disjoint,temporal,link,operator",
    show_default=True,
    help="Kinds of loaders; consumers have them in turn.",
)
@click.option("--cache", type=SIZE, help="What a daemon keeps of other partitions; default: that of atta serve.")
@click.option(
    "--links/--no-links", default=True, show_default=True, help="How daemons exchange rows, as for atta serve."
)
@click.option("--spare", type=NAMES, help="Processes that are not killed, such as daemon-0,consumer-0.")
@click.option(
    "--out",
    "folder",
    type=click.Path(),
    help="Folder for the log of faults and of processes; default: a new one in the temporary folder.",
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
    from atta_bench.chaos.loaders import loader_kinds
    from atta_bench.chaos.plan import kinds_of
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
