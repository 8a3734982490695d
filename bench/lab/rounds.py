"""Settings, hosts, limits and rounds of the benchmarks that compare Atta with other systems.

Every system runs as its users run it: one daemon (or server of DistDGL) and one consumer per partition, each pair on a
host of its own. Systems alternate within a round, so that a machine that slows down slows all of them. Ratios pair the
figures of a round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from atta.client.local.starting import divided_memory
from atta.daemon.security.security import is_loopback
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.observe.extras import need
from atta.partition.dataset import Dataset
from atta.wire.clusterfile import write_cluster
from atta_bench.graphs import work_folder
from atta_bench.lab.flow import copy_bytes_per_s, flow_bytes_per_s, gather_bytes_per_s
from atta_bench.lab.netlab import Host, NetLab, addresses_on, bits_per_s, loopback, no_namespaces
from atta_bench.lab.processes import Measured, SystemProcesses
from atta_bench.lab.workload import BenchWorkload, Recipe
from atta_bench.loader.consumer import ConsumerConfig
from atta_bench.results import BenchReport

PORT, _RENDEZVOUS_PORT = 7070, 7069
"""Of a daemon, and of the place where trainers meet, on hosts that have ports of their own."""


def cache_options(share: float | None) -> list[str]:
    """Options of ``atta serve`` for a cache of ``share`` percent of the HALO vertices; None: the default.

    With 0 every batch pulls its remote rows for itself, as with the peers.
    """
    if share is None:
        return []
    return ["--cache-share", str(share), *(["--no-share-pulls"] if share == 0 else [])]


def run_atta(
    data: Path,
    workload: BenchWorkload,
    hosts: Sequence[Host],
    folder: Path,
    *,
    frontier: str,
    deliver: str,
    recipe: Recipe | None = None,
    serve: Sequence[str] = (),
) -> Measured:
    """Start all processes, measure, and end them. Partition i and rank i are on ``hosts[i]``; logs go to ``folder``.

    Args:
        data: partitioned dataset.
        workload: the batches to load.
        hosts: one per partition.
        folder: for logs and the cluster file.
        frontier: see ``NeighborLoader``.
        deliver: form in which the ranks take batches, see ``consumer.DELIVERIES``.
        recipe: the model that the ranks train; None: they only load.
        serve: further options of ``atta serve``.

    Raises:
        AttaError: a process failed or hangs.
    """
    cluster, dataset = folder / "cluster.toml", Dataset.open(data, parts=[], verify=False)
    groups = [range(part, part + 1) for part in range(len(hosts))]
    places = [*((host, PORT) for host in hosts), (hosts[0], _RENDEZVOUS_PORT)]
    with addresses_on(places) as (*addresses, meeting), SystemProcesses("atta", folder) as processes:
        training = {} if recipe is None else {"rendezvous": f"tcp://{meeting}", "recipe": asdict(recipe)}
        write_cluster(cluster, addresses)
        with divided_memory(dataset, groups, serve, readers=len(hosts)) as memory:
            options = ["--threads", str(workload.threads), *memory, *serve]
        for part, host in enumerate(hosts):
            processes.start_support(
                f"daemon{part}", host, serve_command(data, part, addresses[part], cluster, *options)
            )
        for rank, host in enumerate(hosts):
            config = ConsumerConfig(
                addresses=tuple(addresses),
                rank=rank,
                world_size=len(hosts),
                num_neighbors=workload.num_neighbors,
                batch_size=workload.batch_size,
                split=workload.split,
                frontier=frontier,
                deliver=deliver,
                warm_up=workload.warm_up,
                threads=workload.threads,
                seed=workload.seed,
                think_ms=workload.think_ms,
                seed_policy=workload.seeds,
                drop_last=workload.drop_last,
            )
            module = "atta_bench.train.worker" if training else "atta_bench.loader.consumer"
            command = [sys.executable, "-m", module, json.dumps({**asdict(config), **training})]
            processes.start_rank(host, command, quiet_environment(host, workload.threads))
        return processes.measure(epochs=workload.epochs, seconds=workload.seconds, timeout_s=workload.timeout_s)


def quiet_environment(host: Host, threads: int) -> dict[str, str]:
    """The environment of a consumer or trainer: its number of threads, its network, and no chatter of libraries."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "DGLBACKEND": "pytorch",
        "GLOO_SOCKET_IFNAME": host.interface or "lo",
        "PYTHONWARNINGS": "ignore",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def serve_command(
    data: Path, part: int, address: str, cluster: Path | None, *options: str, python: str = sys.executable
) -> list[str]:
    """The command of a daemon that ends when its standard input ends; ``cluster``: None if there is no other daemon.

    ``python`` is the interpreter of the installation or checkout whose daemon it is.
    """
    peers = [] if cluster is None else ["--peers", str(cluster)]
    if not is_loopback(address.rpartition(":")[0]):  # a namespace of our own
        options = (*options, "--insecure")
    return [
        *(python, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", str(part)),
        *("--listen", address, *peers, *options),
        *("--no-verify", "--log-level", "warning", "--drain", "0", "--exit-with-parent"),
    ]


PEERS = ("dgl",)
"""Of benchmarks whose systems are processes on several hosts."""
System = Callable[[Path], Measured]
"""Runs a system once; the folder is for its logs."""
Say = Callable[[str], None]
"""Is told what happens."""
T = TypeVar("T")


@dataclass(frozen=True)
class ComparisonBench:
    """Settings besides the workload.

    Attributes:
        data: partitioned dataset.
        workload: the work of every system.
        vs: peers.
        runs: number of rounds.
        netns: ``"on"``: a network namespace for the processes of each partition; ``"off"``: loopback; ``"auto"``: on
            where possible.
        link: rate of the links between the namespaces, e.g. ``"1gbit"``; None: unshaped.
        cache_share: rows that Atta's daemons cache, in percent of the HALO vertices; None: their default.
        work: folder that keeps graphs converted for peers; None: ``atta`` in the user's cache folder.
    """

    data: str
    workload: BenchWorkload
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
            bits_per_s(self.link)  # says what is wrong with the rate

    @property
    def beside_dgl(self) -> bool:
        """Whether DistDGL is asked for."""
        return "dgl" in self.vs

    @property
    def cache(self) -> Path:
        """Where graphs converted for peers are kept."""
        return work_folder(self.work)


def need_training() -> None:
    """Raise ConfigError if the packages for training are missing."""
    need("training", "torch", "torch_geometric")


def delivery(beside_dgl: bool) -> str:
    """The default form in which consumers take batches, a key of ``consumer.DELIVERIES``."""
    if beside_dgl and importlib.util.find_spec("dgl") is not None:
        return "dgl"
    return "pyg" if importlib.util.find_spec("torch_geometric") is not None else "arrays"


@contextlib.contextmanager
def hosts_of(bench: ComparisonBench, count: int) -> Iterator[list[Host]]:
    """A host per partition, inside the block: network namespaces if asked for or possible, else this machine."""
    wanted = bench.netns == "on" or bench.link is not None
    if bench.netns == "off" or (not wanted and no_namespaces()):
        yield loopback(count)
        return
    with NetLab(count, rate=bench.link) as lab:
        yield list(lab.hosts)


def settings(bench: ComparisonBench, dataset: Dataset, hosts: Sequence[Host]) -> dict[str, object]:
    """The settings in the report: those of ``bench``, whether namespaces were used, and the sizes of the dataset."""
    options = asdict(bench)
    workload = options.pop("workload")
    options["netns"] = "off" if hosts[0].interface is None else "on"
    counts = {"vertices": dataset.schema.node_counts, "edges": dataset.schema.edge_counts}
    return {**options, **workload, "parts": dataset.num_parts, "dataset_id": dataset.dataset_id, **counts}


def add_distdgl(
    bench: ComparisonBench, hosts: Sequence[Host], report: BenchReport, say: Say, *, recipe: Recipe | None = None
) -> dict[str, System]:
    """DistDGL if asked for; if it cannot run, the report says why. With a ``recipe`` it trains, else it only loads."""
    if not bench.beside_dgl:
        return {}
    from atta_bench.lab.distdgl import prepare, run_distdgl

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
    limits_of: Callable[[], dict[str, float]] | None = None,
    say: Say,
    peers: Sequence[str] = PEERS,
) -> None:
    """Run all rounds, each of which begins with the limits of the machine. A peer that fails leaves ``systems``.

    A peer's name may have more words after a dash, such as its number of threads.

    Raises:
        AttaError: Atta itself failed.
    """
    for number in range(runs):
        if limits_of is not None:
            say(f"round {number + 1} of {runs}: limits of the machine")
            report.add_limits(limits_of())
        # Every other round runs backwards, so that a drift of the machine favours no system.
        for name in list(systems)[:: 1 if number % 2 == 0 else -1]:
            say(f"round {number + 1} of {runs}: {name}")
            with tempfile.TemporaryDirectory(prefix=f"atta-bench-{name}-") as folder:
                try:
                    report.add(name, figures(systems[name](Path(folder))))
                except AttaError as error:
                    if name.partition("-")[0] not in peers:
                        raise
                    report.fail(name, str(error))
                    del systems[name]


def machine_limits(bench: ComparisonBench, dataset: Dataset, hosts: Sequence[Host]) -> dict[str, float]:
    """Limits of copying and gathering with the threads of all daemons, and of TCP and gRPC between two hosts."""
    threads = min(len(os.sched_getaffinity(0)), bench.workload.threads * len(hosts))
    tables = dataset.schema.node_tables[dataset.schema.node_types[0]].values()
    return {
        "copy_bytes_per_s": copy_bytes_per_s(threads),
        "gather_bytes_per_s": gather_bytes_per_s(max(1, *(t.row_bytes for t in tables)), threads),
        "link_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "tcp"),
        "grpc_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "grpc"),
    }
