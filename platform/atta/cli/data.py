"""``atta import``, ``generate``, ``partition`` and ``inspect``: graphs on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table

from atta.cli.output import NAMES, json_option, progress_bars, quiet_option, write_json
from atta.partition.generate import KINDS, GenerateOptions, generate
from atta.partition.importers import IMPORTERS, import_graph
from atta.partition.methods import METHODS
from atta.partition.progress import Progress
from atta.partition.report import describe
from atta.partition.run import partition_graph

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
@_overwrite
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
    overwrite: bool,
    quiet: bool,
) -> None:
    """Cut the graph folder SRC into the partitioned dataset DST."""
    with _progress(quiet) as progress:
        partition_graph(
            src, dst, parts=parts, method=method, options=_pairs(options), fallback=fallback, seed=seed, balance=balance,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    _say(quiet, f"{dst}: {parts} partitions by {method}; look at it with `atta inspect {dst}`")


@click.command("inspect", epilog="Example: atta inspect data/demo --json -")
@click.argument("path", type=click.Path())
@click.option("--part", "parts", type=int, multiple=True, help="Check only these partitions (default: all).")
@json_option
@quiet_option
def inspect_(path: str, parts: tuple[int, ...], *, json_file: str | None, quiet: bool) -> None:
    """Verify and describe the graph folder or partitioned dataset PATH."""
    report = describe(path, parts or None)
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


COMMANDS: list[click.Command] = [import_, generate_, partition, inspect_]
