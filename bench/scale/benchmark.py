"""``atta bench scale``: processor time per seed and per batch as partitions grow, with and without a cache.

All of it runs on this machine, one daemon and one consumer per partition. The cost of a seed should be sampling plus
moving its rows, whatever the number of partitions.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from atta.errors import AttaError, ConfigError
from atta.observe.settings import Option
from atta.partition.dataset import Dataset
from atta_bench.command import measured
from atta_bench.graphs import GraphSource, cut, graph_folder, graph_sizes, work_folder
from atta_bench.lab.netlab import Host
from atta_bench.lab.rounds import (
    PEERS,
    ComparisonBench,
    PeerBench,
    Say,
    add_distdgl,
    delivery,
    hosts_of,
    machine_limits,
)
from atta_bench.lab.workload import check_fan_outs
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


@dataclass(frozen=True, kw_only=True)
class ScaleBench(GraphSource, Batches, PeerBench):
    """Settings of the benchmark."""

    parts: Annotated[tuple[int, ...], Option("Numbers of partitions.", at_least=1)] = (1, 2, 4, 8, 16)
    caches: Annotated[tuple[str, ...], Option("With a cache, without one, or both.", choices=tuple(CACHES))] = tuple(
        CACHES
    )
    against: Annotated[
        str | None,
        Option("Another checkout of Atta with its own .venv, measured in the same rounds.", metavar="CHECKOUT"),
    ] = None
    rounds: Annotated[int, Option("Systems alternate in each.", also="runs", at_least=1)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("parts", "caches", "batch_sizes"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise ConfigError(f"--{name.replace('_', '-')} {','.join(map(str, given))}: name different ones")
        check_fan_outs(self.num_neighbors)
        if self.against is not None and not self.python_of_other.exists():
            raise ConfigError(f"--against {self.against}: there is no {self.python_of_other}: make setup")

    @property
    def python_of_other(self) -> Path:
        """The interpreter of the other checkout."""
        return Path(self.against or "").resolve() / ".venv/bin/python"

    @property
    def delivered(self) -> str:
        """The form in which consumers take batches."""
        return self.deliver or (delivery(True) if self.beside_dgl else "arrays")

    def compared(self, data: Path, parts: int, size: int, seeds: int) -> ComparisonBench:
        """The settings for peers at one number of partitions and one size of batches; ``seeds``: those of the split."""
        per_epoch = max(1, seeds // (parts * size))
        shared = {f.name: getattr(self, f.name) for f in fields(PeerBench)}
        return ComparisonBench(
            self.num_neighbors, size, split=self.split, threads=self.threads, timeout_s=self.timeout_s,
            warm_up=epochs_for(min(self.warm_up, _PEER_WARM_UP), per_epoch),
            epochs=epochs_for(self.measured, per_epoch), seconds=0.0,
            seed=self.seed, seeds=self.seeds, drop_last=True, data=str(data), runs=self.rounds, **shared,
        )  # fmt: skip


def run(bench: ScaleBench, say: Say = lambda _: None) -> ScaleReport:
    """Make graph and partitionings, and run all rounds; ``say`` is told what happens.

    Raises DataError, ConfigError: the graph or a setting is wrong; AttaError: Atta itself failed; a peer that fails
    only appears with its error in the report.
    """
    work = work_folder(bench.work)
    graph = graph_folder(bench, work / "scale", say)
    data = {parts: cut(graph, parts, bench, work / "scale", say) for parts in bench.parts}
    for parts, folder in data.items():
        check_seeds(_seeds(folder, bench.split), parts, bench.batch_sizes, bench.split)
    why = no_perf() if bench.profiled else "not asked for"
    notes = [] if why is None else [f"Time is not divided by kind of code: {why}."]
    report = ScaleReport(
        "scale",
        _config(bench, graph),
        ours="atta" if "on" in bench.caches else "atta-uncached",
        parts=sorted(bench.parts),
        batch_sizes=bench.batch_sizes,
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
        with hosts_of(of.bench.compared(folder, parts, of.bench.batch_sizes[0], 1), parts) as hosts:
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
    batches = replace(bench, deliver=bench.delivered)
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
    seeds = _seeds(folder, of.bench.split)
    systems = {}
    for size in of.bench.batch_sizes:
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
    compared = bench.compared(folder, len(hosts), bench.batch_sizes[0], 1)
    return machine_limits(compared, Dataset.open(folder, verify=False), hosts)


def _seeds(folder: Path, split: str) -> int:
    schema = Dataset.open(folder, parts=[], verify=False).schema
    schema.split_size(schema.node_types[0], split)
    return schema.splits[schema.node_types[0]][split]


def _config(bench: ScaleBench, graph: Path) -> dict[str, object]:
    left_out = {"against", *(f.name for f in fields(GraphSource) if f.name != "seed")}
    named = {name: value for name, value in asdict(bench).items() if name not in left_out}
    other = {} if bench.against is None else {"against": _commit(Path(bench.against))}
    return {**named, "deliver": bench.delivered, **graph_sizes(bench, graph), **other}


def _commit(checkout: Path) -> str:
    """The commit of a checkout, or its folder's name where git does not know."""
    asked = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() if asked.returncode == 0 else checkout.resolve().name


@measured(ScaleBench, run, "Draw processor time per seed over the number of partitions.")
def scale() -> None:
    """What a seed costs as the number of partitions grows, with and without a cache.

    Example: atta bench scale --parts 1,2,4,8,16 --vs dgl --json scale.json --plot scale.png
    """
