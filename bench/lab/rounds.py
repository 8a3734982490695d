"""Settings, hosts, limits and rounds of the benchmarks that compare Atta with other systems.

Every system runs as its users run it: one daemon (or server of DistDGL) and one consumer per partition, each pair on a
host of its own. Systems alternate within a round, so that a machine that slows down slows all of them. Ratios pair the
figures of a round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from atta.client.local import divided_memory
from atta.daemon.security import is_loopback
from atta.errors import AttaError, ConfigError
from atta.observe.packages import need
from atta.observe.settings import Option, check_bounds
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
    aggregate: str | None = None,
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
        aggregate: see ``NeighborLoader``.
        recipe: the model that the ranks train; None: they only load.
        serve: further options of ``atta serve``.

    Raises:
        AttaError: a process failed or hangs.
    """
    cluster, dataset = folder / "cluster.toml", Dataset.open(data, parts=[], verify=False)
    groups = [range(part, part + 1) for part in range(len(hosts))]
    places = [*((host, PORT) for host in hosts), (hosts[0], _RENDEZVOUS_PORT)]
    with addresses_on(places) as (*addresses, meeting), SystemProcesses("atta", folder) as processes:
        write_cluster(cluster, addresses)
        with divided_memory(dataset, groups, serve, readers=len(hosts)) as memory:
            options = ["--threads", str(workload.threads), *memory, *serve]
        for part, host in enumerate(hosts):
            words = serve_command(data, part, addresses[part], cluster, *options)
            processes.start_support(f"daemon{part}", host, words)
        module = "atta_bench.train.worker" if recipe else "atta_bench.loader.consumer"
        for rank, host in enumerate(hosts):
            config = ConsumerConfig.of(
                workload,
                rank=rank,
                world_size=len(hosts),
                rendezvous=f"tcp://{meeting}",
                recipe=recipe,
                addresses=tuple(addresses),
                frontier=frontier,
                deliver=deliver,
                aggregate=aggregate,
            )
            command = [sys.executable, "-m", module, config.text()]
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


CacheShare = Annotated[
    float | None,
    Option(
        "Rows that Atta's daemons cache, in percent of the HALO vertices.",
        at_least=0,
        at_most=100,
        unset="what fits into 1 GiB",
    ),
]


@dataclass(frozen=True, kw_only=True)
class PeerBench:
    """Settings of a benchmark whose systems are processes on several hosts."""

    vs: Annotated[tuple[str, ...], Option("Peers to compare with: dgl (needs root and atta[dgl]).", choices=PEERS)] = ()
    netns: Annotated[
        str,
        Option(
            "A network namespace per partition, which needs root; auto: where possible.", choices=("auto", "on", "off")
        ),
    ] = "auto"
    link: Annotated[
        str | None, Option("Rate of the links between namespaces, e.g. 1gbit.", metavar="RATE", unset="not shaped")
    ] = None
    work: Annotated[
        str | None,
        Option("Keep graphs made and converted here.", metavar="DIR", unset="atta in the user's cache folder"),
    ] = None

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.link and self.netns == "off":
            raise ConfigError("--link shapes the links between namespaces: not with --netns off")
        if self.link is not None:
            bits_per_s(self.link)  # says what is wrong with the rate

    @property
    def beside_dgl(self) -> bool:
        """Whether DistDGL is asked for."""
        return "dgl" in self.vs


@dataclass(frozen=True, kw_only=True)
class ComparisonBench(PeerBench, BenchWorkload):
    """A workload and where it runs."""

    data: Annotated[str, Option("Partitioned dataset; one daemon and one consumer per partition.")]
    runs: Annotated[int, Option("Rounds; systems alternate within a round.", at_least=1)] = 5
    cache_share: CacheShare = None
    only: Annotated[tuple[str, ...], Option("Of the systems only these; ratios are of the first.")] = ()

    def __post_init__(self) -> None:
        PeerBench.__post_init__(self)
        BenchWorkload.__post_init__(self)


def need_training() -> None:
    """Raise ConfigError if the packages for training are missing."""
    need("training", "torch", "torch_geometric")


def delivery(beside_dgl: bool) -> str:
    """The default form in which consumers take batches, a key of ``consumer.DELIVERIES``."""
    if beside_dgl and importlib.util.find_spec("dgl") is not None:
        return "dgl"
    return "pyg" if importlib.util.find_spec("torch_geometric") is not None else "arrays"


@contextlib.contextmanager
def hosts_of(bench: PeerBench, count: int) -> Iterator[list[Host]]:
    """A host per partition, inside the block: network namespaces if asked for or possible, else this machine."""
    wanted = bench.netns == "on" or bench.link is not None
    if bench.netns == "off" or (not wanted and no_namespaces()):
        yield loopback(count)
        return
    with NetLab(count, rate=bench.link) as lab:
        yield list(lab.hosts)


def atta_on(
    bench: ComparisonBench,
    hosts: Sequence[Host],
    frontier: str,
    deliver: str,
    *options: str,
    cached: bool = True,
    aggregate: str | None = None,
    recipe: Recipe | None = None,
) -> System:
    """Atta as a system of ``compared``, see ``run_atta``. ``options``: of ``atta serve``; ``cached``: by ``bench``."""
    serve = (*cache_options(bench.cache_share if cached else 0), *options)
    data = Path(bench.data).resolve()
    return lambda folder: run_atta(
        data, bench, hosts, folder, frontier=frontier, deliver=deliver, aggregate=aggregate, recipe=recipe, serve=serve
    )


def compared(
    bench: ComparisonBench,
    dataset: Dataset,
    report: BenchReport,
    systems_on: Callable[[Sequence[Host]], dict[str, System]],
    figures: Callable[[Measured], dict[str, float]],
    *,
    say: Say,
    recipe: Recipe | None = None,
    means: bool = False,
) -> BenchReport:
    """Run all rounds of Atta's systems and of DistDGL if asked for, see ``add_distdgl``, and fill ``report``.

    Raises DataError, ConfigError: the dataset or a setting is wrong; AttaError: Atta itself failed; a peer that fails
    only appears with its error in the report.
    """
    with hosts_of(bench, dataset.num_parts) as hosts:
        report.config = {**settings(bench, dataset, hosts), **report.config}
        systems = systems_on(hosts) | add_distdgl(bench, hosts, report, say, recipe=recipe, means=means)
        if unknown := set(bench.only) - set(systems) - set(report.errors):
            raise ConfigError(f"--only {unknown.pop()}: the systems are {', '.join(systems)}")
        systems = {name: systems[name] for name in bench.only or systems if name in systems}
        report.ours = next(iter(systems), report.ours)
        limits_of = partial(machine_limits, bench, dataset, hosts)
        alternate(systems, bench.runs, report, figures, limits_of=limits_of, say=say)
    return report


def settings(bench: ComparisonBench, dataset: Dataset, hosts: Sequence[Host]) -> dict[str, object]:
    """The settings in the report: those of ``bench``, whether namespaces were used, and the sizes of the dataset."""
    netns = "off" if hosts[0].interface is None else "on"
    about = {"netns": netns, "parts": dataset.num_parts, "dataset_id": dataset.dataset_id}
    return {**asdict(bench), **about, "vertices": dataset.schema.node_counts, "edges": dataset.schema.edge_counts}


def add_distdgl(
    bench: ComparisonBench,
    hosts: Sequence[Host],
    report: BenchReport,
    say: Say,
    *,
    recipe: Recipe | None = None,
    means: bool = False,
) -> dict[str, System]:
    """DistDGL if asked for; if it cannot run, the report says why. With a ``recipe`` it trains, else it only loads, and once
    more with the first layer's means if these are asked for."""
    if not bench.beside_dgl:
        return {}
    from atta_bench.lab.distdgl import run_distdgl

    try:
        partitions = partitions_for_dgl(bench.data, hosts, bench.split, bench.work, say=say)
    except AttaError as error:
        report.fail("dgl", str(error))
        return {}
    found: dict[str, System] = {"dgl": lambda folder: run_distdgl(partitions, bench, hosts, folder, recipe=recipe)}
    if means:
        found["dgl-aggregate"] = lambda folder: run_distdgl(partitions, bench, hosts, folder, means=True)
    return found


def partitions_for_dgl(data: str, hosts: Sequence[Host], split: str, work: str | None, *, say: Say) -> Path:
    """The folder of a dataset's partitions for DistDGL. Raises AttaError: it cannot run on these hosts."""
    from atta_bench.lab.distdgl import prepare

    if hosts[0].interface is None:
        raise AttaError(no_namespaces() or "DistDGL runs only in network namespaces: not with --netns off")
    say("converting the graph for DistDGL")
    return prepare(Path(data).resolve(), len(hosts), split, work_folder(work))


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

    A peer's name may have more words after a dash, such as its number of threads. Raises AttaError: Atta itself failed.
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
    threads = min(len(os.sched_getaffinity(0)), bench.threads * len(hosts))
    tables = dataset.schema.node_tables[dataset.schema.node_types[0]].values()
    return {
        "copy_bytes_per_s": copy_bytes_per_s(threads),
        "gather_bytes_per_s": gather_bytes_per_s(max(1, *(t.row_bytes for t in tables)), threads),
        "link_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "tcp"),
        "grpc_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "grpc"),
    }
