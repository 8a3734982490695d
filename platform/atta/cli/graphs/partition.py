"""``atta partition`` and ``atta plan``: cut graphs, and estimate what that takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from atta.cli import output
from atta.cli.figures import COLOURS, figure, hand_out
from atta.cli.options import NameOf, command, config_option, plugin_option
from atta.cli.strategy import plan_strategy
from atta.errors import ConfigError
from atta.observe.lastwords import counted
from atta.observe.machine.memory import total_bytes
from atta.observe.settings import named_settings
from atta.partition.cutting.plan import METHODS as PLANNED
from atta.partition.cutting.plan import Estimate, GraphSize, estimate
from atta.partition.cutting.run import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.methods import METHODS, check_balance, make_method
from atta.samplers.local.predict import predict
from atta.train.settings.common import MODELS

_GROUPS = {
    "Cutting": "parts method plugin balance seed fallback engine room",
    "Comparing methods": "compare num-neighbors plot json",
    "Output": "overwrite quiet config help",
}


@command("partition", groups=_GROUPS, epilog="Example: atta partition graphs/demo data/demo-2p --parts 2")
@config_option
@plugin_option
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--parts", type=int, required=True, help="Number of partitions.")
@click.option(
    "--method",
    type=NameOf(METHODS, settings=True),
    default="metis",
    metavar="NAME[:OPTION=VALUE,...]",
    help="Decides which partition owns which vertices.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="Where it runs: in this process, or by tasks on all machines of a Ray cluster (only ldg; same result).",
)
@click.option("--fallback", type=NameOf(METHODS), help="Method to use if the first one fails or needs too much memory.")
@click.option("--seed", type=int, default=0, help="Seed of the method.")
@click.option(
    "--balance",
    type=output.NAMES,
    metavar="NAMES",
    show_default="nodes,edges,train",
    help="What to divide equally: nodes, edges, types, splits.",
)
@click.option(
    "--room",
    default="0",
    metavar="NUMBER",
    help="Vertices per type that `atta update nodes` can give to new ones: 1000, 5%, or user=1000,film=5%.",
)
@click.option(
    "--compare",
    "methods",
    type=output.NAMES,
    default=(),
    help="Compare several methods instead of one; each writes DST/METHOD.",
)
@click.option(
    "--num-neighbors", type=output.INTS, default=(), help="With --compare: what batches with these fan-outs need."
)
@output.plot_option("With --compare: draw the figures.")
@output.overwrite_option
@output.json_option
@output.quiet_option
def partition(
    src: str,
    dst: str,
    *,
    method: str,
    engine: str,
    fallback: str | None,
    methods: tuple[str, ...],
    num_neighbors: tuple[int, ...],
    room: str,
    plot: str | None,
    json_file: str | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Cut the graph folder SRC into the partitioned dataset DST."""
    method, options = named_settings(method)
    if engine == "ray" and (method != "ldg" or fallback or methods):
        raise ConfigError("--engine ray: takes --method ldg alone, without --fallback and --compare")
    if (methods or engine == "ray") and room != "0":
        raise ConfigError("--room: goes without --compare and --engine ray")
    if methods:
        if options or fallback:
            raise ConfigError("--compare: goes without options of --method and --fallback, which belong to one method")
        entries = compare(src, dst, methods, num_neighbors=num_neighbors, say=output.teller(quiet), **given)
        hand_out(_Comparison(given["parts"], num_neighbors, entries), json_file, plot, quiet=quiet)
        return
    if num_neighbors or plot or json_file:
        raise ConfigError("--num-neighbors, --plot and --json go with --compare; `atta inspect` describes a dataset")
    with output.work_progress(quiet) as progress:
        given |= {"options": options, "progress": progress}
        if engine == "ray":
            from atta.train.launching.on_ray.partitioning import partition as partition_on_ray

            made = partition_on_ray(src, dst, **given)
        else:
            made = partition_graph(src, dst, method=method, fallback=fallback, room=room, **given)
            if failed := made.get("failed"):
                method = made["method"]
                output.echo(f"note: {failed}; {method} took its place", err=True)
    for line in made["missed"]:
        output.echo(f"note: {line}", err=True)
    output.say(
        quiet, f"{dst}: {counted(given['parts'], 'partition')} by {method}; look at it with `atta inspect {dst}`"
    )


def compare(
    src: str | Path,
    dst: str | Path,
    methods: Sequence[str],
    *,
    parts: int,
    num_neighbors: Sequence[int] = (),
    seed: int = 0,
    balance: Sequence[str] | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Write the datasets ``DST/METHOD`` and return one entry per method.

    An entry has ``method``, ``seconds``, ``edge_cut``, ``halo_ratio``, ``balance`` (maximum / mean, by what is
    balanced) and ``missed`` (a line for each bound that the method missed). With ``num_neighbors`` it also has
    ``remote_rows``, ``contested_rows`` (see ``Prediction``) and ``remote_bytes``. These three are per batch, means over
    the partitions. Raises ConfigError: an unknown method, one that needs options, what cannot be balanced, or a folder
    that may not be written."""
    for name in methods:
        check_balance(make_method(name), balance)
    found: list[dict[str, Any]] = []
    for name in methods:
        say(f"{name} ({len(found) + 1} of {len(methods)})")
        started = time.perf_counter()
        target = Path(dst) / name
        made = partition_graph(src, target, parts=parts, method=name, seed=seed, balance=balance, overwrite=overwrite)
        dataset = Dataset.open(target, verify=False)
        entry: dict[str, Any] = {"method": name, "seconds": time.perf_counter() - started, "missed": made["missed"]}
        entry |= {key: dataset.quality[key] for key in ("edge_cut", "halo_ratio", "balance")}
        if num_neighbors:
            predicted = predict(dataset, num_neighbors, seed=seed)
            for key in ("remote_rows", "remote_bytes"):
                entry[key] = statistics.mean(getattr(p, key)[0] for p in predicted) if predicted else 0.0
            entry["contested_rows"] = statistics.mean(p.contested_rows for p in predicted) if predicted else 0.0
        found.append(entry)
    return found


def explain(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Say why other methods need more remote rows than the best one: because of their seeds, or of where rows lie."""
    if len(entries) < 2 or "remote_rows" not in entries[0]:
        return []
    best = min(entries, key=lambda e: float(e["remote_rows"]))
    lines = [f"{best['method']} needs the fewest remote rows."]
    for entry in entries:
        more = entry["remote_rows"] - best["remote_rows"]
        if entry is best or more < 0.01 * best["remote_rows"]:
            continue
        seeds = entry["contested_rows"] - best["contested_rows"]
        lines.append(
            f"{entry['method']}: {more:+,.0f} rows; {seeds:+,.0f} as its partitions' seeds ask for the same vertices"
            f" (hubs, split communities), {more - seeds:+,.0f} as rows lie elsewhere than where they are asked for most."
        )
    return lines


@dataclass(frozen=True)
class _Comparison:
    parts: int
    num_neighbors: tuple[int, ...]
    entries: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        about = {"parts": self.parts, "num_neighbors": list(self.num_neighbors)}
        return {"schema": 1, **about, "methods": self.entries}

    def show(self) -> Group:
        missed = [f"{e['method']}: {line}" for e in self.entries for line in e["missed"]]
        return Group(self._table(), *map(Text, explain(self.entries) + missed))

    def plot(self, path: str) -> None:
        drawn = [key for key in ("edge_cut", "halo_ratio", "remote_rows") if key in self.entries[0]]
        with figure(path, (3.4 * len(drawn), 3.0), columns=len(drawn)) as axes:
            for axis, key in zip(axes, drawn, strict=True):
                axis.bar([e["method"] for e in self.entries], [e[key] for e in self.entries], color=COLOURS[0])
                axis.set_title(key.replace("_", " "))
                axis.tick_params(axis="x", rotation=45)

    def _table(self) -> Table:
        names = list(self.entries[0]["balance"])
        remote = "remote_rows" in self.entries[0]
        extra = ("remote rows per batch", "of them contested", "remote data per batch") if remote else ()
        table = Table("method", "seconds", "edge cut", "HALO ratio", *(f"balance {n}" for n in names), *extra)
        for e in self.entries:
            figures = [f"{e['seconds']:.1f}", f"{e['edge_cut']:.2%}", f"{e['halo_ratio']:.3f}"]
            figures += [f"{e['balance'][n]:.3f}" for n in names]
            if remote:
                figures += [f"{e['remote_rows']:,.0f}", f"{e['contested_rows']:,.0f}", output.size(e["remote_bytes"])]
            table.add_row(e["method"], *figures)
        return table


def _strategy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    here = "this machine's, divided by a server's trainers"
    choices: dict[str, dict[str, Any]] = {
        "--strategy": {"type": click.Choice(["auto"]), "help": "Rank training strategies instead of partitionings."},
        "--data": {"help": "Partitioned dataset to train on."},
        "--servers": {"type": _COUNT, "default": 1, "help": "Number of servers."},
        "--trainers-per-server": {"type": _COUNT, "default": 1, "help": "Trainers of each server."},
        "--model": {"type": click.Choice(MODELS), "default": "sage", "help": "Model to train."},
        "--layers": {"type": _COUNT, "default": 3, "help": "Layers of the model."},
        "--hidden": {"type": _COUNT, "default": 256, "help": "Width of hidden layers."},
        "--link": {"type": output.RATE, "help": "What one server's link carries, such as 1gbit."},
        "--memory": {"type": output.SIZE, "show_default": here, "help": "Memory per trainer."},
        "--num-neighbors": {
            "type": output.INTS, "show_default": "15,10,5; or 10 per layer", "help": "Fan-outs of mini-batches.",
        },
        "--batch-size": {"type": _COUNT, "default": 1024, "help": "Seeds per trainer and mini-batch."},
        "--aggregate": {
            "type": click.Choice(["auto", "on", "off"]), "default": "auto", "help": "As in atta train.",
        },
        "--eas": {
            "type": output.INTS, "multiple": True, "metavar": "MAX_HOP,FANOUT", "show_default": "1,5 1,15 2,15 3,25",
            "help": "Expansion-aware sampling to consider; may be given several times.",
        },
        "--co-batches": {"type": output.INTS, "default": "2,4,8,16", "help": "Numbers of co-batches to consider."},
        "--daemon-memory": {"type": output.SIZE, "help": "Of each daemon (`atta serve --memory SIZE`): the rest is on the disk."},
        "--probe": {"type": output.DURATION, "default": 10.0, "help": "How long to measure this machine."},
    }  # fmt: skip
    for name, given in reversed(choices.items()):
        command = click.option(name, **given)(command)
    return command


_COUNT = click.IntRange(1)
_OF_PARTITIONING = ("nodes", "edges", "row_bytes", "edge_bytes", "directed", "halo_ratio", "parts")
"""Options of ``atta plan`` without ``--strategy``."""


_PLAN_GROUPS = {
    "Partitioning a graph": "nodes edges parts row-bytes edge-bytes directed halo-ratio",
    "Training on a dataset": "strategy data servers trainers-per-server model layers hidden link memory num-neighbors "
    "batch-size aggregate eas co-batches daemon-memory probe",
    "Output": "json quiet config help",
}


@command(
    "plan",
    groups=_PLAN_GROUPS,
    epilog="Example: atta plan --nodes 111000000 --edges 3200000000 --row-bytes 512 --parts 16",
)
@config_option
@click.option("--nodes", type=click.IntRange(0), help="Vertices.")
@click.option("--edges", type=click.IntRange(0), help="Stored edges; an undirected one counts twice.")
@click.option("--row-bytes", type=click.IntRange(0), default=400, help="Bytes of all node tables per vertex.")
@click.option("--edge-bytes", type=click.IntRange(0), default=0, help="Bytes of all edge tables per edge.")
@click.option("--directed", is_flag=True, help="The graph does not store every edge in both directions.")
@click.option("--halo-ratio", type=click.FloatRange(0), default=1.5, help="HALO vertices per vertex.")
@click.option("--parts", type=click.IntRange(1), default=4, help="Partitions.")
@_strategy_options
@output.json_option
@output.quiet_option
def plan_(
    nodes: int | None,
    edges: int | None,
    *,
    parts: int,
    directed: bool,
    strategy: str | None,
    data: str | None,
    json_file: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Estimate what partitioning a graph takes, from its counts alone, or with --strategy how to train on a dataset.

    With --strategy auto the command counts sizes in the dataset --data, measures this machine for about --probe
    seconds, and ranks training strategies by predicted seconds per epoch."""
    if strategy is not None:
        output.refuse_given(_OF_PARTITIONING, "goes without --strategy auto, which counts what is in --data")
        plan_strategy(data, json_file=json_file, quiet=quiet, **options)
        return
    sizes = {name: options.pop(name) for name in ("row_bytes", "edge_bytes", "halo_ratio")}
    output.refuse_given({"data", *options}, "goes with --strategy auto")
    if nodes is None or edges is None:
        raise click.UsageError(f"Missing option '--{'nodes' if nodes is None else 'edges'}'.")
    size = GraphSize(nodes, edges, symmetric=not directed, **sizes)
    found = [estimate(size, method, parts) for method in PLANNED]
    here = total_bytes()
    report = {
        "schema": 1,
        "size": asdict(size),
        "parts": parts,
        "folder_bytes": size.folder_bytes,
        "dataset_bytes": size.dataset_bytes,
        "machine_memory": here,
        "methods": [asdict(e) | {"fits": e.memory <= here} for e in found],
    }
    output.write_json(json_file, report)
    if not quiet and json_file != "-":
        _print_plan(size, found, parts, here)


def _print_plan(size: GraphSize, found: list[Estimate], parts: int, here: int) -> None:
    console = output.printer()
    console.print(f"on disk: graph folder {output.size(size.folder_bytes)}, dataset {output.size(size.dataset_bytes)}")
    console.print(f"in memory of each of {parts} daemons: about {output.size(size.dataset_bytes / parts)}")
    table = Table("method", "peak memory", "fits here", "time", title="Partitioning, estimated")
    for e in found:
        table.add_row(e.method, output.size(e.memory), "yes" if e.memory <= here else "no", output.duration(e.seconds))
    console.print(table)


COMMANDS: list[click.Command] = [partition, plan_]
