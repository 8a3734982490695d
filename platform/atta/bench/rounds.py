"""What the benchmarks share that run Atta beside another system: settings, hosts, limits, rounds.

Every system runs as its users run it: one server (daemon) and one consumer per partition, each pair on a host of its own. Rounds
alternate between the systems, so that a machine that slows down slows all of them down, and ratios pair the figures of a round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from atta.bench.lab import limits
from atta.bench.lab.drive import Measured
from atta.bench.lab.flow import flow_bytes_per_s
from atta.bench.lab.netlab import Host, NetLab, loopback, no_namespaces
from atta.bench.lab.workfolder import work_folder
from atta.bench.lab.workload import Recipe, Workload
from atta.bench.results import BenchReport
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.observe.extras import need
from atta.partition.dataset import Dataset

__all__ = [
    "BesideBench",
    "Say",
    "System",
    "add_distdgl",
    "alternate",
    "delivery",
    "hosts_of",
    "machine_limits",
    "need_training",
    "settings",
]

PEERS = ("dgl",)
System = Callable[[Path], Measured]
"""Runs one system once; the folder is for its logs."""
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class BesideBench:
    """Settings besides the workload.

    Attributes:
        data: partitioned dataset.
        workload: what every system has to do.
        vs: peers.
        runs: rounds.
        netns: ``"on"``: each partition's processes in a network namespace; ``"off"``: loopback; ``"auto"``: on where possible.
        link: rate of the links between the namespaces, e.g. ``"1gbit"``; None: unshaped.
        cache_share: rows that Atta's daemons keep, in percent of the HALO vertices; None: their default.
        work: folder that keeps graphs converted for peers; None: ``atta`` in the user's cache folder.
    """

    data: str
    workload: Workload
    vs: tuple[str, ...] = ()
    runs: int = 5
    netns: str = "auto"
    link: str | None = None
    cache_share: float | None = None
    work: str | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            *(("peer", peer, PEERS) for peer in self.vs),
            ("--netns", self.netns, ("auto", "on", "off")),
        ):
            if value not in known:
                raise UnknownNameError.of(what, value, known)
        if self.runs < 1:
            raise ConfigError(f"--runs {self.runs}: must be at least 1")
        if self.cache_share is not None and not 0 <= self.cache_share <= 100:
            raise ConfigError(f"--cache-share {self.cache_share}: must be 0 to 100")
        if self.link and self.netns == "off":
            raise ConfigError("--link shapes the links between namespaces: not with --netns off")
        if self.link is not None:
            NetLab(2, rate=self.link)  # says what is wrong with the rate

    @property
    def beside_dgl(self) -> bool:
        """Whether DistDGL is asked for."""
        return "dgl" in self.vs

    @property
    def cache(self) -> Path:
        """Where graphs converted for peers are kept."""
        return work_folder(self.work)


def need_training() -> None:
    """Raise ConfigError where the packages to train with are missing."""
    need("training", "torch", "torch_geometric")


def delivery(beside_dgl: bool) -> str:
    """What consumers turn batches into unless told: a key of ``consumer.DELIVERIES``."""
    if beside_dgl and importlib.util.find_spec("dgl") is not None:
        return "dgl"
    return "pyg" if importlib.util.find_spec("torch_geometric") is not None else "arrays"


@contextlib.contextmanager
def hosts_of(bench: BesideBench, count: int) -> Iterator[list[Host]]:
    """A host per partition, inside the block: network namespaces where asked for or possible, else this machine."""
    wanted = bench.netns == "on" or bench.link is not None
    if bench.netns == "off" or (not wanted and no_namespaces()):
        yield loopback(count)
        return
    with NetLab(count, rate=bench.link) as lab:
        yield list(lab.hosts)


def settings(bench: BesideBench, dataset: Dataset, hosts: Sequence[Host]) -> dict[str, object]:
    """What the report says of the run: all settings, the places and the sizes of the dataset."""
    options = asdict(bench)
    workload = options.pop("workload")
    options["netns"] = "off" if hosts[0].interface is None else "on"
    counts = {"vertices": dataset.schema.node_counts, "edges": dataset.schema.edge_counts}
    return {**options, **workload, "parts": dataset.num_parts, "dataset_id": dataset.dataset_id, **counts}


def add_distdgl(
    bench: BesideBench, hosts: Sequence[Host], report: BenchReport, say: Say, *, recipe: Recipe | None = None
) -> dict[str, System]:
    """DistDGL where it is asked for; if it cannot run, the report says why. ``recipe``: train by it, else only load."""
    if not bench.beside_dgl:
        return {}
    from atta.bench.peers.distdgl.launch import run_distdgl
    from atta.bench.peers.distdgl.partition import prepare

    try:
        if hosts[0].interface is None:
            raise AttaError(no_namespaces() or "DistDGL runs only in network namespaces: not with --netns off")
        say("converting the graph for DistDGL")
        partitions = prepare(Path(bench.data).resolve(), len(hosts), bench.workload.split, bench.cache)
    except AttaError as error:
        report.fail("dgl", str(error))
        return {}
    return {"dgl": lambda folder: run_distdgl(partitions, bench.workload, hosts, folder, recipe=recipe)}


def alternate(
    systems: dict[str, Callable[[Path], T]],
    runs: int,
    report: BenchReport,
    figures: Callable[[T], dict[str, float]],
    *,
    limits_of: Callable[[], dict[str, float]],
    say: Say,
) -> None:
    """Run all rounds, limits of the machine first; a peer that fails leaves ``systems``.

    Raises:
        AttaError: Atta itself failed.
    """
    for number in range(runs):
        say(f"round {number + 1} of {runs}: limits of the machine")
        report.add_limits(limits_of())
        # Every other round runs backwards: whatever drifts favours each system as often as the others.
        for name in list(systems)[:: 1 if number % 2 == 0 else -1]:
            say(f"round {number + 1} of {runs}: {name}")
            with tempfile.TemporaryDirectory(prefix=f"atta-bench-{name}-") as folder:
                try:
                    report.add(name, figures(systems[name](Path(folder))))
                except AttaError as error:
                    if name not in PEERS:
                        raise
                    report.fail(name, str(error))
                    del systems[name]


def machine_limits(bench: BesideBench, dataset: Dataset, hosts: Sequence[Host]) -> dict[str, float]:
    """Copy and gather with as many threads as the daemons have together, TCP and gRPC from the first host to the last."""
    threads = min(len(os.sched_getaffinity(0)), bench.workload.threads * len(hosts))
    tables = dataset.schema.node_tables[dataset.schema.node_types[0]].values()
    return {
        "copy_bytes_per_s": limits.copy_bytes_per_s(threads),
        "gather_bytes_per_s": limits.gather_bytes_per_s(max(1, *(t.row_bytes for t in tables)), threads),
        "link_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "tcp"),
        "grpc_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "grpc"),
    }
