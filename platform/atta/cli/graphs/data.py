"""``atta import``, ``generate`` and ``inspect``: graphs on disk."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from atta.cli import output
from atta.cli.options import NameOf, command, plugin_option
from atta.errors import ConfigError
from atta.observe.lastwords import counted
from atta.partition.cutting.balance import missed_lines
from atta.partition.dataset import Dataset
from atta.partition.describe import degree_counts, describe
from atta.partition.generate import KINDS, TARGETS, GenerateOptions, generate
from atta.partition.importers import IMPORTERS, called, guess, import_graph
from atta.partition.schema import Schema
from atta.samplers.local.predict import predict
from atta.samplers.seed_plan import placement

# The tables show these splits; the JSON has all of them.
_MAIN_SPLITS = ("train", "val", "test")
_MOST_TYPES = 20
"""Number of types that the end of an import shows; a set of facts may have thousands of relations."""
_BALANCED = ("nodes", "edges", *_MAIN_SPLITS)
_SHOWN_CLASSES = 8
_DEFAULTS = {f.name: f.default for f in fields(GenerateOptions)}


def _read_renames(_: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        old, equals, new = text.rpartition("=")
        if not (old and equals and new) or found.setdefault(old, new) != new:
            raise click.BadParameter(f"{text!r}: give OLD=NEW, each OLD once", param=option)
    return found


rename_option = click.option(
    "--rename",
    multiple=True,
    metavar="OLD=NEW",
    callback=_read_renames,
    help="Call the node types, relations and tables OLD NEW. SRC__REL__DST=NEW and TYPE/TABLE=NEW rename one.",
)

_FORMATS = textwrap.fill(", ".join(sorted(IMPORTERS)), 72, break_on_hyphens=False)
_IMPORT_HELP = f"""Turn the dataset at SRC into the graph folder DST.

FORMAT says what SRC is. Without it, it is guessed from the content of SRC. Contents that a graph folder cannot hold are
refused by name. An edge list may have several files SRC, which are read in this order. The formats are

\b
{_FORMATS}"""


@command("import", help=_IMPORT_HELP, epilog="Example: atta import npz data/cora graphs/cora --undirected")
@click.argument("paths", metavar="[FORMAT] SRC... DST", nargs=-1, required=True)
@plugin_option
@click.option("--format", "format_", type=NameOf(IMPORTERS), help="What SRC is, if the guess is wrong.")
@click.option("--undirected", is_flag=True, help="Add missing reverse edges once each; beside times, once per time.")
@click.option("--reverse", is_flag=True, help="Add the reverse of every edge type as a type of its own, rev_RELATION.")
@click.option("--normalize-features", is_flag=True, help="Divide each feature row by the sum of its absolute values.")
@click.option(
    "--columns",
    type=output.COLUMNS,
    default={},
    metavar="NAME=COLUMN,...",
    help="What is which column of an edge list, such as src=a,dst=b,weight=3: its name, or its number from 1.",
)
@click.option("--string-ids", is_flag=True, help="Take ids of an edge list as strings although they look like numbers.")
@click.option(
    "--bipartite", is_flag=True, help="Take sources and destinations of an edge list as two node types, left and right."
)
@click.option(
    "--drop",
    multiple=True,
    metavar="NAME",
    show_default="refuse it",
    help="Leave out NAME, which a graph folder cannot hold.",
)
@rename_option
@output.overwrite_option
@output.quiet_option
def _import(paths: tuple[str, ...], *, format_: str | None, quiet: bool, **options: Any) -> None:
    format_, sources, dst = _format_and_paths(paths, format_, quiet=quiet)
    written: list[Schema] = []
    with output.work_progress(quiet) as progress:
        notes = import_graph(format_, sources, dst, progress=progress, contents=written.append, **options)
    for note in notes:
        output.echo(f"note: {note}", err=True)
    if not quiet:
        output.printer().print(*(_types_table(schema.to_json(), _MOST_TYPES) for schema in written))
    output.say(quiet, f"{dst}: imported from {', '.join(sources)}")


def _format_and_paths(paths: tuple[str, ...], format_: str | None, *, quiet: bool) -> tuple[str, tuple[str, ...], str]:
    """The format, what is read and what is written. A format that nobody named is guessed, and told."""
    if format_ is None and len(paths) > 2 and (paths[0] in IMPORTERS or not Path(paths[0]).exists()):
        format_, paths = NameOf(IMPORTERS)(paths[0]), paths[1:]
    if len(paths) < 2 or (format_ is None and paths[0] in IMPORTERS and not Path(paths[0]).exists()):
        raise click.UsageError("Missing argument 'DST'.")
    if format_ is None:
        format_ = guess(paths[0])
        if not quiet:
            what = called(paths[0], format_)
            output.echo(f"{paths[0]}: taken for {format_} ({what}); --format corrects this", err=True)
    return format_, tuple(paths[:-1]), paths[-1]


def _generate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    helps = {
        "nodes": "Number of vertices.",
        "edges": "Stored directed edges, about (both directions are stored).",
        "features": "Columns of the feature table x.",
        "classes": "Number of classes.",
        "targets": "What y holds: the class, a row of labels (0 or 1) that follow from it, or a number.",
        "seed": "Same seed, same graph.",
        "communities": "Planted communities; unless given, one per class for sbm, 2,000 vertices each for powerlaw.",
        "inter": "Share of edges that ignore communities.",
        "exponent": "Exponent of the power law of degrees.",
        "signal": "Strength of the class in the features of a vertex, in standard deviations of the noise.",
        "train": "Share of training vertices.",
        "val": "Share of validation vertices.",
        "test": "Share of test vertices.",
    }
    for name, text in reversed(helps.items()):
        default = _DEFAULTS[name]
        given: dict[str, Any] = {"required": True} if default is MISSING else {"default": default}
        kind: Any = click.Choice(TARGETS) if name == "targets" else float if isinstance(default, float) else int
        command = click.option(f"--{name}", type=kind, help=text, **given)(command)
    return command


@command("generate", epilog="Example: atta generate powerlaw graphs/demo --nodes 245000 --edges 12000000")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("dst", type=click.Path())
@_generate_options
@output.overwrite_option
@output.quiet_option
def generate_(kind: str, dst: str, *, overwrite: bool, quiet: bool, **options: Any) -> None:
    """Generate the graph folder DST with features, labels and splits that a GNN can learn from."""
    with output.work_progress(quiet) as progress:
        generate(kind, dst, GenerateOptions(**options), overwrite=overwrite, progress=progress)
    output.say(quiet, f"{dst}: generated")


@command("inspect", epilog="Example: atta inspect data/demo-2p --num-neighbors 15,10,5 --json -")
@click.argument("path", type=click.Path())
@click.option("--part", "parts", type=int, multiple=True, show_default="all", help="Check only these partitions.")
@click.option(
    "--num-neighbors",
    type=output.INTS,
    default=(),
    help="Also predict what batches with these fan-outs need from other partitions.",
)
@click.option("--batch-size", type=int, default=1024, help="Seeds per predicted batch.")
@click.option("--batches", type=int, default=8, help="Batches per partition to sample for the prediction.")
@click.option(
    "--split",
    show_default="train; all vertices if it is empty",
    help="Split whose vertices are the seeds of these batches.",
)
@click.option(
    "--trainers-per-server",
    type=int,
    show_default="1",
    help="Show the placement with this number of trainers per partition.",
)
@click.option(
    "--sample",
    metavar="VERTEX",
    help="Draw the sampled tree of this vertex (an id, or TYPE:ID) with the owners of its vertices, and nothing else; "
    "fan-outs: --num-neighbors, or 3,2.",
)
@output.json_option
@output.plot_option("Draw degrees, and the sizes and edge cut of partitions.")
@output.quiet_option
def inspect_(
    path: str,
    parts: tuple[int, ...],
    *,
    num_neighbors: tuple[int, ...],
    batch_size: int,
    batches: int,
    split: str | None,
    trainers_per_server: int | None,
    sample: str | None,
    json_file: str | None,
    plot: str | None,
    quiet: bool,
) -> None:
    """Verify and describe the graph folder or partitioned dataset PATH."""
    if sample is not None:
        output.refuse_given({"plot"}, "goes without --sample")
        _sample(path, sample, num_neighbors or (3, 2), json_file, quiet=quiet)
        return
    report = describe(path, parts or None)
    if report["kind"] == "dataset":
        servers = placement(report["quality"]["parts"], 1 if trainers_per_server is None else trainers_per_server)
        report["placement"] = [asdict(server) for server in servers]
    elif trainers_per_server is not None:
        raise ConfigError("--trainers-per-server: needs a partitioned dataset, servers have partitions")
    elif parts:
        raise ConfigError("--part: needs a partitioned dataset, a graph folder has no partitions")
    if num_neighbors:
        if report["kind"] != "dataset" or parts:
            raise ConfigError("--num-neighbors: needs a partitioned dataset with all its partitions")
        dataset = Dataset.open(path, verify=False)
        found = predict(dataset, num_neighbors, batch_size=batch_size, batches=batches, split=split)
        report["prediction"] = {"num_neighbors": list(num_neighbors), "parts": [asdict(p) for p in found]}
    output.write_json(json_file, report)
    if plot is not None:
        from atta.cli.pictures import draw_graph

        draw_graph(plot, report, degree_counts(path, parts or None))
    if not quiet and json_file != "-":
        _print_report(report)


def _sample(path: str, vertex: str, fan_outs: tuple[int, ...], json_file: str | None, *, quiet: bool) -> None:
    from atta.cli.graphs.tree import draw_tree, sample_tree

    drawn = sample_tree(path, vertex, fan_outs)
    output.write_json(json_file, {"schema": 1, "kind": "sample", "num_neighbors": list(fan_outs), **drawn.to_json()})
    if not quiet and json_file != "-":
        output.printer().print(draw_tree(drawn))


def _print_report(report: dict[str, Any]) -> None:
    console = output.printer()
    what, files = "graph", counted(report["files"], "file")
    if report["kind"] != "graph":
        what = f"dataset {report['dataset_id']}, {counted(report['num_parts'], 'partition')}"
    console.print(f"{report['path']}: {what}; {files}, {output.size(report['bytes'])}, checksums verified")
    console.print(_types_table(report))
    if report["kind"] == "dataset":
        console.print(_parts_table(report))
        quality = report["quality"]
        balance = ", ".join(
            f"{name} {quality['balance'][name]:.3f}" for name in _BALANCED if name in quality["balance"]
        )
        console.print(f"edge cut {quality['edge_cut']:.2%}, HALO ratio {quality['halo_ratio']:.3f}")
        console.print(f"balance, max/mean: {balance}")
        for line in missed_lines(quality):
            console.print(line)
        console.print(_placement_table(report["placement"]))
    if "prediction" in report:
        console.print(_prediction_table(report["prediction"]))
        parts = report["prediction"]["parts"]
        remote, contested = sum(p["remote_rows"][0] for p in parts), sum(p["contested_rows"] for p in parts)
        console.print(
            f"{min(1.0, contested / max(1.0, remote)):.0%} of the remote rows are contested: "
            "batches of several partitions ask for them, so they are remote for some of these wherever they lie"
        )


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
            output.size(data[0]),
            f"{frontier[0]:,.0f}",
            ", ".join(f"{h:.1%}" for h in part["halo_per_hop"]),
        )
    return table


def _types_table(report: dict[str, Any], most: int | None = None) -> Table:
    """Types, counts, tables and splits; of node types and of edge types at most ``most`` by themselves."""
    table = Table("type", "count", "tables", "splits", title="Contents")
    for kind in ("node_types", "edge_types"):
        shown = dict(list(report[kind].items())[:most])
        for name, entry in shown.items():
            specs = [f"{t} {s['dtype'][1:]}{s['row_shape'] or ''}" for t, s in entry["tables"].items()]
            specs += [f"{t}: {_listed(names)}" for t, names in report.get("classes", {}).get(name, {}).items()]
            sizes = entry.get("splits", {})
            splits = (f"{s} {sizes[s]:,}" for s in sorted(sizes, key=lambda s: (*_MAIN_SPLITS, s).index(s)))
            count = f"{entry['count']:,}"
            if room := report.get("room", {}).get(name, 0):
                count += f", of them {room:,} are room"
            table.add_row(name, count, "\n".join(specs), ", ".join(splits))
        if rest := [entry["count"] for name, entry in report[kind].items() if name not in shown]:
            table.add_row(f"{len(rest):,} more {kind.replace('_', ' ')}", f"{sum(rest):,}")
    return table


def _listed(names: list[str]) -> str:
    shown = [f"{number} {name}" for number, name in enumerate(names[:_SHOWN_CLASSES])]
    return ", ".join(shown + (["..."] if len(names) > len(shown) else []))


def _parts_table(report: dict[str, Any]) -> Table:
    parts = report["quality"]["parts"]
    known = {s for part in parts for sizes in part["splits"].values() for s in sizes}
    splits = [s for s in _MAIN_SPLITS if s in known]
    table = Table("part", "nodes", "edges", *splits, "HALO", "cut edges", "disk", "memory", title="Partitions")
    for index, part in enumerate(parts):
        per_split = (sum(sizes.get(s, 0) for sizes in part["splits"].values()) for s in splits)
        sums = (sum(part[key].values()) for key in ("nodes", "edges"))
        figures = (*sums, *per_split, sum(part["halo"].values()), part["cut_edges"])
        sizes = (output.size(report["parts"][index][key]) for key in ("disk_bytes", "memory_bytes"))
        table.add_row(str(index), *(f"{figure:,}" for figure in figures), *sizes)
    return table


def _placement_table(servers: list[dict[str, Any]]) -> Table:
    table = Table("partition", "training vertices", "trainer ranks", "each trains on", title="Placement by atta train")
    for place in servers:
        trainers = (_span([t[key] for t in place["trainers"]]) for key in ("rank", "training_vertices"))
        table.add_row(str(place["server"]), f"{place['training_vertices']:,}", *trainers)
    return table


def _span(numbers: list[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


COMMANDS: list[click.Command] = [_import, generate_, inspect_]
