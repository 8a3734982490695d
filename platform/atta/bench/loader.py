"""``atta bench loader``: mini-batches per second, sampling and feature fetching included, with nobody training.

Every system runs as its users run it: one server (daemon) and one consumer per partition, each pair on a host of its own. Rounds
alternate between the systems, so that a machine that slows down slows all of them down, and ratios pair the figures of a round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from atta.bench import limits
from atta.bench.consumer import DELIVERIES
from atta.bench.drive import Measured
from atta.bench.flow import flow_bytes_per_s
from atta.bench.netlab import Host, NetLab, loopback, no_namespaces
from atta.bench.platform_run import run_atta
from atta.bench.report import BenchReport
from atta.bench.workload import Workload
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition.dataset import Dataset

__all__ = ["LoaderBench", "figures", "run"]

PEERS = ("dgl",)
System = Callable[[Path], Measured]


@dataclass(frozen=True)
class LoaderBench:
    """Settings of the benchmark besides the workload.

    Attributes:
        data: partitioned dataset.
        workload: what every system has to do.
        vs: peers.
        runs: rounds.
        netns: ``"on"``: each partition's processes in a network namespace; ``"off"``: loopback; ``"auto"``: on where possible.
        link: rate of the links between the namespaces, e.g. ``"1gbit"``; None: unshaped.
        frontier: see ``NeighborLoader``; None: ``"all"`` beside DGL, which expands every known vertex in each hop, else ``"new"``.
        deliver: what a consumer turns a batch into; None: DGL blocks beside DGL, else PyG's Data where PyG is there, else arrays.
        cache_share: percent of the HALO vertices whose rows Atta's daemons keep.
        work: folder that keeps graphs converted for peers; None: ``atta`` in the user's cache folder.
    """

    data: str
    workload: Workload
    vs: tuple[str, ...] = ()
    runs: int = 5
    netns: str = "auto"
    link: str | None = None
    frontier: str | None = None
    deliver: str | None = None
    cache_share: float = 20
    work: str | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            *(("peer", peer, PEERS) for peer in self.vs),
            ("--netns", self.netns, ("auto", "on", "off")),
            ("--frontier", self.frontier or "new", ("new", "all")),
            ("--deliver", self.deliver or "arrays", tuple(DELIVERIES)),
        ):
            if value not in known:
                raise UnknownNameError.of(what, value, known)
        if self.runs < 1:
            raise ConfigError(f"--runs {self.runs}: must be at least 1")
        if self.link and self.netns == "off":
            raise ConfigError("--link shapes the links between namespaces: not with --netns off")

    @property
    def cache(self) -> Path:
        """Where graphs converted for peers are kept."""
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(self.work or Path(base) / "atta").resolve()


def run(bench: LoaderBench, say: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
        AttaError: Atta itself failed; a peer that fails only appears with its error in the report.
    """
    dataset = Dataset.open(bench.data, verify=False)
    _check_split(dataset, bench.workload.split)
    with contextlib.ExitStack() as stack:
        hosts = _hosts(bench, dataset.num_parts, stack)
        report = BenchReport(
            "loader", _config(bench, dataset, hosts), limit_of={"feature_bytes_per_s": "gather_bytes_per_s"}
        )
        systems = _systems(bench, hosts)
        _add_peers(bench, hosts, systems, report, say)
        for number in range(bench.runs):
            say(f"round {number + 1} of {bench.runs}: limits of the machine")
            report.add_limits(_limits(bench, dataset, hosts))
            # Every other round runs backwards: whatever drifts favours each system as often as the others.
            for name in list(systems)[:: 1 if number % 2 == 0 else -1]:
                say(f"round {number + 1} of {bench.runs}: {name}")
                _round(report, systems, name)
    return report


def figures(measured: Measured) -> dict[str, float]:
    """Figures of one round, over all ranks; rates refer to the time from the first rank's start to the last one's end."""
    seeds, window = measured.total("seeds"), measured.window_s
    found = {
        "seeds_per_s": seeds / window,
        "edges_per_s": measured.total("edges") / window,
        "feature_bytes_per_s": measured.total("feature_bytes") / window,
        "batches_per_s": measured.total("batches") / window,
        "vertices_per_seed": measured.total("nodes") / seeds,
        "edges_per_seed": measured.total("edges") / seeds,
    }
    if (remote := measured.per_seed("remote_rows")) is not None:
        found["remote_rows_per_seed"] = remote
    if (remote := measured.per_seed("remote_bytes")) is not None:
        found["remote_bytes_per_seed"] = remote
    if measured.sent_bytes:
        found["link_bytes_per_seed"] = measured.sent_bytes / seeds
    found["cpu_percent"] = 100 * measured.cpu_s / (measured.wall_s * len(os.sched_getaffinity(0)))
    found["cpu_us_per_seed"] = 1e6 * measured.cpu_s / seeds
    found["consumer_cpu_us_per_seed"] = 1e6 * measured.rank_cpu_s / seeds
    if sampling := measured.total("sampling_s"):
        found["sampling_share"] = sampling / (sampling + measured.total("fetch_s"))
    found["measured_s"] = window
    return found


def _round(report: BenchReport, systems: dict[str, System], name: str) -> None:
    with tempfile.TemporaryDirectory(prefix=f"atta-bench-{name}-") as folder:
        try:
            report.add(name, figures(systems[name](Path(folder))))
        except AttaError as error:
            if name not in PEERS:
                raise
            report.fail(name, str(error))
            del systems[name]


def _systems(bench: LoaderBench, hosts: Sequence[Host]) -> dict[str, System]:
    """Atta as asked for and, beside DGL, also in the way that PyG users run it."""
    beside_dgl = "dgl" in bench.vs
    frontier = bench.frontier or ("all" if beside_dgl else "new")
    deliver = bench.deliver or _delivery(beside_dgl)

    def atta_as(frontier: str, deliver: str, *, cached: bool = True) -> System:
        return lambda folder: run_atta(
            Path(bench.data).resolve(),
            bench.workload,
            hosts,
            folder,
            frontier=frontier,
            deliver=deliver,
            cache_share=bench.cache_share if cached else 0,
        )

    systems = {"atta": atta_as(frontier, deliver)}
    if bench.cache_share:
        systems["atta-uncached"] = atta_as(frontier, deliver, cached=False)
    if beside_dgl and frontier == "all":
        systems["atta-new"] = atta_as("new", bench.deliver or _delivery(False))
    return systems


def _add_peers(
    bench: LoaderBench,
    hosts: Sequence[Host],
    systems: dict[str, System],
    report: BenchReport,
    say: Callable[[str], None],
) -> None:
    if "dgl" not in bench.vs:
        return
    from atta.bench.peers.distdgl.launch import run_distdgl
    from atta.bench.peers.distdgl.partition import prepare

    try:
        if hosts[0].interface is None:
            raise AttaError(no_namespaces() or "DistDGL runs only in network namespaces: not with --netns off")
        say("converting the graph for DistDGL")
        partitions = prepare(Path(bench.data).resolve(), len(hosts), bench.workload.split, bench.cache)
    except AttaError as error:
        report.fail("dgl", str(error))
        return
    systems["dgl"] = lambda folder: run_distdgl(partitions, bench.workload, hosts, folder)


def _delivery(beside_dgl: bool) -> str:
    if beside_dgl and importlib.util.find_spec("dgl") is not None:
        return "dgl"
    return "pyg" if importlib.util.find_spec("torch_geometric") is not None else "arrays"


def _hosts(bench: LoaderBench, count: int, stack: contextlib.ExitStack) -> list[Host]:
    wanted = bench.netns == "on" or bench.link is not None
    if bench.netns == "off" or (not wanted and no_namespaces()):
        return loopback(count)
    return list(stack.enter_context(NetLab(count, rate=bench.link)).hosts)


def _limits(bench: LoaderBench, dataset: Dataset, hosts: Sequence[Host]) -> dict[str, float]:
    """Copy and gather with as many threads as the daemons have together, TCP and gRPC from the first host to the last."""
    threads = min(len(os.sched_getaffinity(0)), bench.workload.threads * len(hosts))
    tables = dataset.schema.node_tables[dataset.schema.node_types[0]].values()
    return {
        "copy_bytes_per_s": limits.copy_bytes_per_s(threads),
        "gather_bytes_per_s": limits.gather_bytes_per_s(max(1, *(t.row_bytes for t in tables)), threads),
        "link_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "tcp"),
        "grpc_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "grpc"),
    }


def _config(bench: LoaderBench, dataset: Dataset, hosts: Sequence[Host]) -> dict[str, object]:
    options = asdict(bench)
    workload = options.pop("workload")
    options["frontier"] = bench.frontier or ("all" if "dgl" in bench.vs else "new")
    options["deliver"] = bench.deliver or _delivery("dgl" in bench.vs)
    options["netns"] = "off" if hosts[0].interface is None else "on"
    counts = {"vertices": dataset.schema.node_counts, "edges": dataset.schema.edge_counts}
    return {**options, **workload, "parts": dataset.num_parts, "dataset_id": dataset.dataset_id, **counts}


def _check_split(dataset: Dataset, split: str) -> None:
    dataset.schema.check_split(dataset.schema.node_types[0], split)
