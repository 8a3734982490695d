"""``atta import``, ``generate``, ``partition`` and ``inspect``: graphs on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

import click
import psutil
from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table

from atta.cli.output import INTS, NAMES, json_option, progress_bars, quiet_option, write_json
from atta.compare import compare, plot
from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta.partition.generate import KINDS, GenerateOptions, generate
from atta.partition.importers import IMPORTERS, import_graph
from atta.partition.methods import METHODS
from atta.partition.plan import METHODS as PLANNED
from atta.partition.plan import GraphSize, estimate
from atta.partition.progress import Progress
from atta.partition.report import describe
from atta.partition.run import partition_graph
from atta.samplers.predict import predict

__all__ = ["COMMANDS"]

# The tables show these splits; the JSON has all of them.
_MAIN_SPLITS = ("train", "val", "test")
_BALANCED = ("nodes", "edges", *_MAIN_SPLITS)
_DEFAULTS = {f.name: f.default for f in fields(GenerateOptions)}


class _RichProgress:
    """Shows one bar per stage on standard error."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: Any = None

    def stage(self, name: str, total: int | None) -> None:
        self.finish()
        self._task = self._bars.add_task(name, total=total)

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)

    def finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[-1].total
            self._bars.update(self._task, total=total or 1, completed=total or 1)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Yield a progress receiver: bars on a terminal, silence elsewhere."""
    with progress_bars(quiet) as bars:
        receiver = _RichProgress(bars)
        yield receiver
        receiver.finish()


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        click.echo(text)


_overwrite = click.option("--overwrite", is_flag=True, help="Replace DST if it is a folder that Atta wrote.")


@click.command("import", epilog="Example: atta import npz data/cora graphs/cora --undirected")
@click.argument("format_", metavar="FORMAT", type=click.Choice(sorted(IMPORTERS)))
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--undirected", is_flag=True, help="Add the missing reverse edges, once each.")
@click.option(
    "--reverse", is_flag=True, help="Add the reverses of every edge type as a type of their own, rev_RELATION."
)
@click.option("--normalize-features", is_flag=True, help="Divide each feature row by the sum of its absolute values.")
@_overwrite
@quiet_option
def import_(
    format_: str,
    src: str,
    dst: str,
    *,
    undirected: bool,
    reverse: bool,
    normalize_features: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Turn a dataset in FORMAT (npz, ogb, planetoid, pyg) at SRC into the graph folder DST."""
    with _progress(quiet) as progress:
        import_graph(
            format_,
            src,
            dst,
            undirected=undirected,
            reverse=reverse,
            normalize_features=normalize_features,
            overwrite=overwrite,
            progress=progress,
        )
    _say(quiet, f"{dst}: imported from {src}")


def _generate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Attach one option per field of GenerateOptions."""
    helps = {
        "nodes": "Number of vertices.",
        "edges": "Stored directed edges, about (both directions are stored).",
        "features": "Columns of the feature table x.",
        "classes": "Number of classes.",
        "seed": "Same seed, same graph.",
        "communities": "Planted communities  [default: one per class for sbm, 2,000 vertices each for powerlaw].",
        "inter": "Share of edges drawn without regard to communities.",
        "exponent": "Of the power law of degrees.",
        "signal": "Strength of the class in one vertex's features, in standard deviations of the noise.",
        "train": "Share of training vertices.",
        "val": "Share of validation vertices.",
        "test": "Share of test vertices.",
    }
    shares = {"inter", "exponent", "signal", "train", "val", "test"}
    for name, text in reversed(helps.items()):
        required = name in ("nodes", "edges")
        given: dict[str, Any] = {} if required else {"default": _DEFAULTS[name]}
        kind = float if name in shares else int
        show = not required and _DEFAULTS[name] is not None
        command = click.option(f"--{name}", type=kind, required=required, show_default=show, help=text, **given)(
            command
        )
    return command


@click.command(
    "generate", epilog="Example: atta generate powerlaw graphs/demo --nodes 245000 --edges 12000000 --features 100"
)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("dst", type=click.Path())
@_generate_options
@_overwrite
@quiet_option
def generate_(kind: str, dst: str, *, overwrite: bool, quiet: bool, **options: Any) -> None:
    """Generate the graph folder DST with features, labels and splits that a GNN can learn from."""
    with _progress(quiet) as progress:
        generate(kind, dst, GenerateOptions(**options), overwrite=overwrite, progress=progress)
    _say(quiet, f"{dst}: generated")


def _pairs(options: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` options as a mapping."""
    for text in options:
        if "=" not in text:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--option")
    return dict(text.split("=", 1) for text in options)


@click.command("partition", epilog="Example: atta partition graphs/demo data/demo --parts 2 --method metis")
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--parts", type=int, required=True, help="Number of partitions.")
@click.option("--method", type=click.Choice(sorted(METHODS)), default="metis", show_default=True, help="Who owns what.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="Of the method; may be given several times."
)
@click.option(
    "--fallback", type=click.Choice(sorted(METHODS)), help="Method to use where the first one fails or would not fit."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the method.")
@click.option(
    "--balance",
    type=NAMES,
    metavar="NAMES",
    help="Share out equally: nodes, edges, types, splits  [default: nodes,edges,train].",
)
@click.option(
    "--compare",
    "methods",
    type=NAMES,
    default=(),
    help="Instead of one method: several, into DST/METHOD, side by side.",
)
@click.option(
    "--num-neighbors", type=INTS, default=(), help="With --compare: predict what batches with these fan-outs need."
)
@click.option("--plot", "picture", metavar="FILE.png", help="With --compare: draw the figures.")
@_overwrite
@json_option
@quiet_option
def partition(
    src: str,
    dst: str,
    *,
    parts: int,
    method: str,
    options: tuple[str, ...],
    fallback: str | None,
    seed: int,
    balance: tuple[str, ...] | None,
    methods: tuple[str, ...],
    num_neighbors: tuple[int, ...],
    picture: str | None,
    overwrite: bool,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Cut the graph folder SRC into the partitioned dataset DST."""
    if methods:
        say = Console(stderr=True, quiet=quiet, highlight=False).print
        entries = compare(
            src, dst, methods, parts=parts, num_neighbors=num_neighbors, seed=seed, overwrite=overwrite, say=say
        )
        write_json(json_file, {"schema": 1, "parts": parts, "num_neighbors": list(num_neighbors), "methods": entries})
        if picture:
            plot(entries, picture)
        if not quiet and json_file != "-":
            Console(highlight=False).print(_comparison_table(entries))
        return
    if num_neighbors or picture or json_file:
        raise ConfigError("--num-neighbors, --plot and --json go with --compare; `atta inspect` describes a dataset")
    with _progress(quiet) as progress:
        partition_graph(
            src, dst, parts=parts, method=method, options=_pairs(options), fallback=fallback, seed=seed, balance=balance,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    _say(quiet, f"{dst}: {parts} partitions by {method}; look at it with `atta inspect {dst}`")


@click.command("inspect", epilog="Example: atta inspect data/demo --num-neighbors 15,10,5 --json -")
@click.argument("path", type=click.Path())
@click.option("--part", "parts", type=int, multiple=True, help="Check only these partitions (default: all).")
@click.option(
    "--num-neighbors",
    type=INTS,
    default=(),
    help="Also predict what batches with these fan-outs need from other partitions.",
)
@click.option("--batch-size", type=int, default=1024, show_default=True, help="Seeds per predicted batch.")
@click.option("--batches", type=int, default=8, show_default=True, help="Sampled per partition for the prediction.")
@click.option("--split", default="train", show_default=True, help="Whose vertices are the seeds of these batches.")
@json_option
@quiet_option
def inspect_(
    path: str,
    parts: tuple[int, ...],
    *,
    num_neighbors: tuple[int, ...],
    batch_size: int,
    batches: int,
    split: str,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Verify and describe the graph folder or partitioned dataset PATH."""
    report = describe(path, parts or None)
    if num_neighbors:
        if report["kind"] != "dataset" or parts:
            raise ConfigError("--num-neighbors: needs a partitioned dataset with all its partitions")
        dataset = Dataset.open(path, verify=False)
        found = predict(dataset, num_neighbors, batch_size=batch_size, batches=batches, split=split)
        report["prediction"] = {"num_neighbors": list(num_neighbors), "parts": [asdict(p) for p in found]}
    write_json(json_file, report)
    if not quiet and json_file != "-":
        _print_report(report)


def _print_report(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    what = "graph" if report["kind"] == "graph" else f"dataset {report['dataset_id']}, {report['num_parts']} partitions"
    console.print(f"{report['path']}: {what}; {report['files']} files, {_size(report['bytes'])}, checksums verified")
    console.print(_types_table(report))
    if report["kind"] == "dataset":
        console.print(_parts_table(report))
        quality = report["quality"]
        balance = ", ".join(
            f"{name} {quality['balance'][name]:.3f}" for name in _BALANCED if name in quality["balance"]
        )
        console.print(f"edge cut {quality['edge_cut']:.2%}, HALO ratio {quality['halo_ratio']:.3f}")
        console.print(f"balance (maximum / mean): {balance}")
    if "prediction" in report:
        console.print(_prediction_table(report["prediction"]))


def _comparison_table(entries: list[dict[str, Any]]) -> Table:
    names = list(entries[0]["balance"])
    remote = "remote_rows" in entries[0]
    extra = ("remote rows per batch", "remote data per batch") if remote else ()
    table = Table("method", "seconds", "edge cut", "HALO ratio", *(f"balance {n}" for n in names), *extra)
    for e in entries:
        figures = [f"{e['seconds']:.1f}", f"{e['edge_cut']:.2%}", f"{e['halo_ratio']:.3f}"]
        figures += [f"{e['balance'][n]:.3f}" for n in names]
        figures += [f"{e['remote_rows']:,.0f}", _size(e["remote_bytes"])] if remote else []
        table.add_row(e["method"], *figures)
    return table


def _prediction_table(prediction: dict[str, Any]) -> Table:
    fan_outs = ",".join(map(str, prediction["num_neighbors"]))
    table = Table(
        "part", "seeds", "rows", "remote rows", "share", "remote data", "remote frontier", "HALO share per hop",
        title=f"Predicted per batch, fan-out {fan_outs} (mean ± standard error)",
    )  # fmt: skip
    for part in prediction["parts"]:
        rows, remote, data, frontier = (part[k] for k in ("rows", "remote_rows", "remote_bytes", "remote_frontier"))
        table.add_row(
            str(part["part"]),
            f"{part['seeds']:,.0f}",
            f"{rows[0]:,.0f} ± {rows[1]:,.0f}",
            f"{remote[0]:,.0f} ± {remote[1]:,.0f}",
            f"{remote[0] / max(1.0, rows[0]):.1%}",
            _size(data[0]),
            f"{frontier[0]:,.0f}",
            ", ".join(f"{h:.1%}" for h in part["halo_per_hop"]),
        )
    return table


def _types_table(report: dict[str, Any]) -> Table:
    table = Table("type", "count", "tables", "splits", title="Contents")
    for kind in ("node_types", "edge_types"):
        for name, entry in report[kind].items():
            specs = (f"{t} {s['dtype'][1:]}{s['row_shape'] or ''}" for t, s in entry["tables"].items())
            splits = (f"{s} {size:,}" for s, size in entry.get("splits", {}).items())
            table.add_row(name, f"{entry['count']:,}", "\n".join(specs), ", ".join(splits))
    return table


def _parts_table(report: dict[str, Any]) -> Table:
    parts = report["quality"]["parts"]
    known = {s for part in parts for sizes in part["splits"].values() for s in sizes}
    splits = [s for s in _MAIN_SPLITS if s in known]
    table = Table("part", "nodes", "edges", *splits, "HALO", "cut edges", title="Partitions")
    for index, part in enumerate(parts):
        per_split = (sum(sizes.get(s, 0) for sizes in part["splits"].values()) for s in splits)
        sums = (sum(part[key].values()) for key in ("nodes", "edges"))
        figures = (*sums, *per_split, sum(part["halo"].values()), part["cut_edges"])
        table.add_row(str(index), *(f"{figure:,}" for figure in figures))
    return table


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


@click.command("plan", epilog="Example: atta plan --nodes 111000000 --edges 3200000000 --row-bytes 512 --parts 16")
@click.option("--nodes", type=click.IntRange(0), required=True, help="Vertices.")
@click.option(
    "--edges",
    type=click.IntRange(0),
    required=True,
    help="Stored edges; an undirected one in both directions counts twice.",
)
@click.option(
    "--row-bytes", type=click.IntRange(0), default=400, show_default=True, help="Of all node tables, per vertex."
)
@click.option(
    "--edge-bytes", type=click.IntRange(0), default=0, show_default=True, help="Of all edge tables, per edge."
)
@click.option("--directed", is_flag=True, help="Not every edge is stored in both directions.")
@click.option(
    "--halo-ratio", type=click.FloatRange(0), default=1.5, show_default=True, help="HALO vertices per vertex."
)
@click.option("--parts", type=click.IntRange(1), default=4, show_default=True, help="Partitions.")
@json_option
@quiet_option
def plan_(
    nodes: int,
    edges: int,
    *,
    row_bytes: int,
    edge_bytes: int,
    directed: bool,
    halo_ratio: float,
    parts: int,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Estimate memory, disk and time that partitioning a graph takes, from its counts alone."""
    size = GraphSize(nodes, edges, row_bytes, edge_bytes, symmetric=not directed, halo_ratio=halo_ratio)
    found = [estimate(size, method, parts) for method in PLANNED]
    here = psutil.virtual_memory().total
    report = {
        "schema": 1,
        "size": asdict(size),
        "parts": parts,
        "folder_bytes": size.folder_bytes,
        "dataset_bytes": size.dataset_bytes,
        "machine_memory": here,
        "methods": [asdict(e) | {"fits": e.memory <= here} for e in found],
    }
    write_json(json_file, report)
    if quiet or json_file == "-":
        return
    console = Console(highlight=False)
    console.print(f"on disk: graph folder {_size(size.folder_bytes)}, dataset {_size(size.dataset_bytes)}")
    console.print(f"in memory of each of {parts} daemons: about {_size(size.dataset_bytes / parts)}")
    table = Table("method", "peak memory", "fits here", "time", title="Partitioning, estimated")
    for e in found:
        table.add_row(e.method, _size(e.memory), "yes" if e.memory <= here else "no", _duration(e.seconds))
    console.print(table)


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


COMMANDS: list[click.Command] = [import_, generate_, partition, inspect_, plan_]
