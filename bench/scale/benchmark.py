"""``atta bench scale``: processor time per seed and per batch as partitions grow, with and without a cache.

All of it runs on this machine, one daemon and one consumer per partition. The cost of a seed should be sampling plus
moving its rows, whatever the number of partitions.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from atta.cli.output import DURATION, INTS, NAMES
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition.dataset import Dataset
from atta_bench.command import (
    COUNT,
    SEED,
    THREADS,
    Run,
    link_option,
    measured,
    netns_option,
    split_option,
    vs_option,
)
from atta_bench.graphs import GraphSource, cut, graph_folder, graph_sizes, work_folder
from atta_bench.lab.netlab import Host
from atta_bench.lab.rounds import PEERS, ComparisonBench, Say, add_distdgl, delivery, hosts_of, machine_limits
from atta_bench.lab.workload import BenchWorkload
from atta_bench.loader import benchmark as loader
from atta_bench.scale.cell import UNCACHED, Batches, Cell, Figures, check_seeds, epochs_for, run_cell
from atta_bench.scale.clocks import no_perf
from atta_bench.scale.report import ScaleReport, SystemRound

CACHES: dict[str, tuple[str, ...]] = {"on": (), "off": UNCACHED}
"""By name: options of daemons that keep what is hot of other partitions (by default), or nothing."""
_PEER_WARM_UP = 20
"""Batches after which DistDGL, which caches nothing, has opened all its connections."""
_SAME = ("seeds_per_s", "cpu_us_per_seed", "consumer_cpu_us_per_seed", "vertices_per_seed", "edges_per_seed")
_IF_COUNTED = ("remote_rows_per_seed", "sampling_share")


@dataclass(frozen=True)
class ScaleBench:
    """Settings of the benchmark.

    Attributes:
        source: the graph.
        batches: what consumers take; its form of delivery is that of ``deliver``.
        parts: numbers of partitions.
        caches: some of ``CACHES``.
        vs: peers.
        against: folder of another checkout with its own ``.venv``, whose daemons and consumers run in the same rounds;
            None: there is none.
        rounds: systems alternate within each.
        deliver: form in which consumers take batches; None: DGL's blocks beside DGL, else arrays.
        netns, link: see ``ComparisonBench``.
        work: folder that keeps graphs, partitionings and graphs converted for peers; None: see ``work_folder``.
    """

    source: GraphSource = field(default_factory=GraphSource)
    batches: Batches = field(default_factory=Batches)
    parts: tuple[int, ...] = (1, 2, 4, 8, 16)
    caches: tuple[str, ...] = tuple(CACHES)
    vs: tuple[str, ...] = ()
    against: str | None = None
    rounds: int = 3
    deliver: str | None = None
    netns: str = "auto"
    link: str | None = None
    work: str | None = None

    def __post_init__(self) -> None:
        if not self.parts or min(self.parts) < 1 or len(set(self.parts)) < len(self.parts):
            raise ConfigError(f"--parts {_listed(self.parts)}: name different numbers, each at least 1")
        for name in self.caches:
            if name not in CACHES:
                raise UnknownNameError.of("--caches", name, CACHES)
        if not self.caches or len(set(self.caches)) < len(self.caches):
            raise ConfigError("--caches: on, off or both")
        sizes_given = self.batches.batch_sizes
        if not sizes_given or min(sizes_given) < 1 or len(set(sizes_given)) < len(sizes_given):
            raise ConfigError(f"--batch-sizes {_listed(sizes_given)}: name different numbers, each at least 1")
        for option, value, least in (
            ("--rounds", self.rounds, 1),
            ("--warm-up", self.batches.warm_up, 1),
            ("--batches", self.batches.measured, 1),
            ("--profiled", self.batches.profiled, 0),
        ):
            if value < least:
                raise ConfigError(f"{option} {value}: must be at least {least}")
        if self.against is not None and not self.python_of_other.exists():
            raise ConfigError(f"--against {self.against}: there is no {self.python_of_other}: make setup")
        self.compared(Path(), self.parts[0], sizes_given[0], 1)  # says what is wrong with the rest

    @property
    def python_of_other(self) -> Path:
        """The interpreter of the other checkout."""
        return Path(self.against or "").resolve() / ".venv/bin/python"

    @property
    def delivered(self) -> str:
        """The form in which consumers take batches."""
        return self.deliver or (delivery(True) if "dgl" in self.vs else "arrays")

    def compared(self, data: Path, parts: int, size: int, seeds: int) -> ComparisonBench:
        """The settings for peers at one number of partitions and one size of batches; ``seeds``: those of the split."""
        per_epoch = max(1, seeds // (parts * size))
        batches = self.batches
        workload = BenchWorkload(
            batches.num_neighbors, size, split=batches.split, threads=batches.threads, timeout_s=batches.timeout_s,
            warm_up=epochs_for(min(batches.warm_up, _PEER_WARM_UP), per_epoch),
            epochs=epochs_for(batches.measured, per_epoch), seconds=0.0,
            seed=batches.seed, seeds=batches.seeds, drop_last=True,
        )  # fmt: skip
        return ComparisonBench(str(data), workload, self.vs, self.rounds, self.netns, self.link, work=self.work)


def run(bench: ScaleBench, say: Say = lambda _: None) -> ScaleReport:
    """Make graph and partitionings, and run all rounds; ``say`` is told what happens.

    Raises:
        DataError, ConfigError: the graph or a setting is wrong.
        AttaError: Atta itself failed; a peer that fails only appears with its error in the report.
    """
    work = work_folder(bench.work)
    graph = graph_folder(bench.source, work / "scale", say)
    data = {parts: cut(graph, parts, bench.source, work / "scale", say) for parts in bench.parts}
    for parts, folder in data.items():
        check_seeds(_seeds(folder, bench.batches.split), parts, bench.batches.batch_sizes, bench.batches.split)
    why = no_perf() if bench.batches.profiled else "not asked for"
    notes = [] if why is None else [f"Time is not divided by kind of code: {why}."]
    report = ScaleReport(
        "scale",
        _config(bench, graph),
        ours="atta" if "on" in bench.caches else "atta-uncached",
        parts=sorted(bench.parts),
        batch_sizes=bench.batches.batch_sizes,
        notes=notes,
    )
    for number in range(bench.rounds):
        _round(_Round(bench, number, report, say, profiled=why is None), data)
    return report


@dataclass(frozen=True)
class _Round:
    bench: ScaleBench
    number: int
    report: ScaleReport
    tell: Say
    profiled: bool

    def say(self, words: str) -> None:
        self.tell(f"round {self.number + 1} of {self.bench.rounds}: {words}")


Runs = dict[str, Callable[[Path], dict[int | None, Figures]]]
"""System -> runs it at one number of partitions."""


def _round(of: _Round, data: Mapping[int, Path]) -> None:
    found: dict[str, SystemRound] = {}
    for parts, folder in data.items():
        with hosts_of(of.bench.compared(folder, parts, of.bench.batches.batch_sizes[0], 1), parts) as hosts:
            if parts == max(data):
                of.say("limits of the machine")
                of.report.add_limits(_limits(of.bench, folder, hosts))
            runs = _atta(of, folder, hosts) | _peers(of, folder, hosts)
            # Every other round runs backwards, so that a drift of the machine favours no system.
            for name in list(runs)[:: 1 if of.number % 2 == 0 else -1]:
                of.say(f"{parts} parts: {name}")
                with tempfile.TemporaryDirectory(prefix=f"atta-bench-{name}-") as logs:
                    try:
                        cells = runs[name](Path(logs))
                    except AttaError as error:
                        if name not in PEERS:
                            raise
                        of.report.fail(name, str(error))
                        found.pop(name, None)
                        continue
                for size, figures in cells.items():
                    found.setdefault(name, {})[parts, size] = figures
    of.report.add_round(found)


def _atta(of: _Round, folder: Path, hosts: Sequence[Host]) -> Runs:
    """This checkout and the other one, with and without a cache."""
    bench, say = of.bench, lambda words: of.say(f"{len(hosts)} parts: {words}")
    batches = Batches(**{**asdict(bench.batches), "deliver": bench.delivered})
    found: Runs = {}
    for cache in bench.caches:
        suffix = "" if cache == "on" else "-uncached"
        cells = [Cell(f"atta{suffix}", folder, CACHES[cache], profiled=of.profiled)]
        if bench.against is not None:
            python = str(bench.python_of_other)
            cells.append(Cell(f"before{suffix}", folder, CACHES[cache], python, profiled=of.profiled))
        found |= {cell.name: partial(run_cell, cell, batches, hosts, say=say) for cell in cells}
    return found


def _peers(of: _Round, folder: Path, hosts: Sequence[Host]) -> Runs:
    """DistDGL, which starts anew for each size of batches."""
    if "dgl" in of.report.errors:
        return {}
    seeds = _seeds(folder, of.bench.batches.split)
    systems = {}
    for size in of.bench.batches.batch_sizes:
        compared = of.bench.compared(folder, len(hosts), size, seeds)
        systems[size] = add_distdgl(compared, hosts, of.report, of.say).get("dgl")
    if None in systems.values():
        return {}

    def load(logs: Path) -> dict[int | None, Figures]:
        found: dict[int | None, Figures] = {}
        for size, system in systems.items():
            assert system is not None
            own = logs / str(size)
            own.mkdir()
            figures = loader.figures(system(own))
            found[size] = {name: figures[name] for name in (*_SAME, *_IF_COUNTED) if name in figures}
            found[size]["cpu_ms_per_batch"] = figures["cpu_us_per_seed"] * size / 1e3
        return found

    return {"dgl": load}


def _limits(bench: ScaleBench, folder: Path, hosts: Sequence[Host]) -> Figures:
    compared = bench.compared(folder, len(hosts), bench.batches.batch_sizes[0], 1)
    return machine_limits(compared, Dataset.open(folder, verify=False), hosts)


def _seeds(folder: Path, split: str) -> int:
    schema = Dataset.open(folder, parts=[], verify=False).schema
    schema.split_size(schema.node_types[0], split)
    return schema.splits[schema.node_types[0]][split]


def _config(bench: ScaleBench, graph: Path) -> dict[str, object]:
    options = asdict(bench)
    named = {**options.pop("batches"), **{k: v for k, v in options.items() if k not in ("source", "against")}}
    other = {} if bench.against is None else {"against": _commit(Path(bench.against))}
    return {**named, "deliver": bench.delivered, **graph_sizes(bench.source, graph), **other}


def _commit(checkout: Path) -> str:
    """The commit of a checkout, or its folder's name where git does not know."""
    asked = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() if asked.returncode == 0 else checkout.resolve().name


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@click.command()
@click.option("--parts", type=INTS, default="1,2,4,8,16", show_default=True, help="Numbers of partitions.")
@click.option("--graph", metavar="FOLDER", help="Graph folder  [default: a power-law graph is generated].")
@click.option("--nodes", type=COUNT, default=244_903, show_default=True, help="Vertices of the generated graph.")
@click.option(
    "--edges",
    type=click.IntRange(0),
    default=12_000_000,
    show_default=True,
    help="Edges of the generated graph, about.",
)
@click.option(
    "--features", type=click.IntRange(0), default=100, show_default=True, help="Columns of the generated feature table."
)
@click.option("--method", default="metis", show_default=True, help="Partitioning method.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-sizes", type=INTS, default="1024,128", show_default=True, help="Seeds per batch, one by one.")
@click.option("--caches", type=NAMES, default="on,off", show_default=True, help="With a cache, without one, or both.")
@click.option(
    "--seeds",
    type=click.Choice(["global", "local"]),
    default="global",
    show_default=True,
    help="global: consumers share every epoch's batches, which are the same at all numbers of partitions.",
)
@vs_option
@click.option(
    "--against", metavar="CHECKOUT", help="Another checkout of Atta with its own .venv, measured in the same rounds."
)
@click.option(
    "--rounds", "--runs", "rounds", type=COUNT, default=3, show_default=True, help="Systems alternate in each."
)
@click.option(
    "--warm-up", "--warmup", "warm_up", type=COUNT, default=100, show_default=True, help="Batches per consumer before."
)
@click.option(
    "--batches", "measured", type=COUNT, default=50, show_default=True, help="Measured per consumer, in whole epochs."
)
@click.option(
    "--profiled",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Batches per consumer sampled by perf; 0: none.",
)
@split_option
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of every daemon and peer process.")
@netns_option
@link_option
@click.option(
    "--frontier", type=click.Choice(["new", "all"]), default="all", show_default=True, help="What a hop expands."
)
@click.option(
    "--deliver",
    type=click.Choice(["arrays", "pyg", "dgl"]),
    help="Form in which consumers take batches  [default: dgl beside dgl, else arrays].",
)
@click.option("--work", metavar="DIR", help="Keep graphs and partitionings here  [default: atta in the user's cache].")
@click.option("--timeout", "timeout_s", type=DURATION, default="20m", show_default=True, help="Per stretch of batches.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of graph, partitioning and sampling.")
@click.option(
    "--filled/--not-filled",
    "filled",
    default=True,
    show_default=True,
    help="The first batches begin when the caches are filled, or as soon as the daemons serve.",
)
@measured("Draw processor time per seed over the number of partitions.")
def scale(**options: Any) -> tuple[Run, Any]:
    """What a seed costs as the number of partitions grows, with and without a cache.

    Example: atta bench scale --parts 1,2,4,8,16 --vs dgl --json scale.json --plot scale.png
    """
    source = GraphSource(**{f.name: options[f.name] for f in fields(GraphSource)})
    batches = Batches(**{f.name: options[f.name] for f in fields(Batches) if f.name != "deliver"})
    chosen = {f.name: options[f.name] for f in fields(ScaleBench) if f.name in options}
    return run, ScaleBench(source, batches, **chosen)
