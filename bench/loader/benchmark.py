"""``atta bench loader``: mini-batches per second with sampling and fetching of features, but without training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from atta.kvstore.cache import RANKS
from atta.observe.settings import Option
from atta.partition.dataset import Dataset
from atta.samplers.dag.plan import SpecLimits
from atta.samplers.methods import Method
from atta_bench.command import measured
from atta_bench.lab.netlab import Host
from atta_bench.lab.processes import Measured
from atta_bench.lab.rounds import ComparisonBench, Say, System, atta_on, compared, delivery
from atta_bench.loader.consumer import DELIVERIES
from atta_bench.results import BenchReport

METHODS = tuple(method.value for method in Method if method.table is None)
"""Of ``NeighborLoader``, without edge tables."""


@dataclass(frozen=True, kw_only=True)
class LoaderBench(ComparisonBench):
    """Settings of the benchmark."""

    frontier: Annotated[
        str | None, Option("What a hop expands.", choices=("new", "all"), unset="all beside dgl, else new")
    ] = None
    aggregate: Annotated[
        str | None,
        Option(
            "Also the time until trainers hold the first layer's means: made by daemons, and by trainers from all rows.",
            choices=("mean",),
        ),
    ] = None
    deliver: Annotated[
        str | None,
        Option(
            "Form in which consumers take batches.",
            choices=tuple(DELIVERIES),
            unset="dgl beside dgl, else pyg if installed",
        ),
    ] = None
    method: Annotated[str, Option("How Atta draws neighbours.", choices=METHODS)] = "uniform"
    dependency: Annotated[
        int,
        Option("In so many of Atta's batches every vertex draws anew once.", at_least=1, at_most=SpecLimits.dependency),
    ] = 1
    cache_rank: Annotated[str, Option("Whose rows Atta's daemons cache.", choices=RANKS)] = "degree"


def run(bench: LoaderBench, say: Say = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens. Raises as ``compared``."""
    dataset = Dataset.open(bench.data, verify=False)
    dataset.schema.split_size(dataset.schema.node_types[0], bench.split)
    frontier = bench.frontier or ("all" if bench.beside_dgl else "new")
    deliver = bench.deliver or delivery(bench.beside_dgl)
    report = BenchReport(
        "loader",
        {"frontier": frontier, "deliver": deliver},
        drawn="seeds_per_s",
        limit_of={"feature_bytes_per_s": "gather_bytes_per_s"},
        about=f"Atta draws by {bench.method}, dependency {bench.dependency}; its cache ranks by {bench.cache_rank}.",
    )

    def systems_on(hosts: Sequence[Host]) -> dict[str, System]:
        """Atta with the chosen settings and, beside DGL, also as users of PyG run it."""
        rank = "--cache-rank", bench.cache_rank
        systems = {"atta": atta_on(bench, hosts, frontier, deliver, *rank)}
        if bench.cache_share != 0:
            systems["atta-uncached"] = atta_on(bench, hosts, frontier, deliver, cached=False)
        if bench.aggregate is not None:
            for name, cached in (("atta", True), ("atta-uncached", False)):
                if cached or bench.cache_share != 0:
                    on = partial(atta_on, bench, hosts, frontier, cached=cached)
                    serve = rank if cached else ()
                    systems[f"{name}-aggregate"] = on("arrays", *serve, aggregate=bench.aggregate)
                    systems[f"{name}-mean"] = on("mean", *serve)
        if bench.beside_dgl and frontier == "all":
            systems["atta-new"] = atta_on(bench, hosts, "new", bench.deliver or delivery(False), *rank)
        return systems

    return compared(bench, dataset, report, systems_on, figures, say=say, means=bench.aggregate is not None)


def figures(measured: Measured) -> dict[str, float]:
    """Figures of one round, over all ranks. Rates refer to the time from the first start to the last end of a rank."""
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
    used = measured.whole
    if sent := sum(used.sent_bytes):
        found["link_bytes_per_seed"] = sent / seeds
    found["cpu_percent"] = 100 * used.cpu_s / (used.seconds * len(os.sched_getaffinity(0)))
    found["cpu_us_per_seed"] = 1e6 * used.cpu_s / seeds
    found["consumer_cpu_us_per_seed"] = 1e6 * used.rank_cpu_s / seeds
    if sampling := measured.total("sampling_s"):
        found["sampling_share"] = sampling / (sampling + measured.total("fetch_s"))
    found["measured_s"] = window
    return found


@measured(LoaderBench, run, "Draw seeds per second.")
def loader() -> None:
    """Mini-batches per second, features included, without training.

    Unless the cache is 0, Atta also runs without one.

    Example: atta bench loader --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json loader.json
    """
