"""Memory per trainer of mini-batches and of cooperative batches, and a depth that only the latter can train.

    python -m bench.train.memory [--layers 14,28,56] [--limit 1500MiB] [--limited-layers 28]

Four trainers on one server train ResGCN+ on a power-law graph, without recomputing anything. A step has B training
vertices: each trainer has a mini-batch of B / 4 with full neighbourhoods, or all four share the co-batch of B. Peaks
are those of the trainer processes (VmHWM), in total and above what they held when model and loaders existed, without
daemons.

Then `atta train` runs both strategies with a limit on the memory of every process that it starts (RLIMIT_DATA, by
prlimit). Writes memory.json and memory.md. Bounds: cooperative takes at most 0.4 of mini-batch at 28 layers; within the
limit, mini-batches fail and say why, and cooperative training finishes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import atta
from atta.cli.output import SIZE
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.lab.workload import ints
from atta_bench.results import BenchReport, arguments_of, write_report

MODULE = "atta_bench.train.memory"
TRAINERS, CO_BATCHES, HIDDEN = 4, 2, 64
TRAINING = 0.4
"""Share of the vertices that are training vertices."""
BOUND = 0.4
MIB = 1 << 20
ABOUT = (
    "MiB of the trainer that takes most, of four. `above baseline`: above what the process held when model and loaders"
    " stood. `estimate`: what `cooperative:memory` counts with, for the same step."
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the generated graph."""

    nodes: int
    edges: int
    features: int

    @property
    def batch(self) -> int:
        """Training vertices per step, of all trainers together."""
        return int(TRAINING * self.nodes) // CO_BATCHES


def options(strategy: str, layers: int, batch: int) -> dict[str, Any]:
    """Settings of ``TrainConfig``: with either strategy, steps have the same training vertices."""
    common = {
        "model": "resgcn+",
        "layers": layers,
        "hidden": HIDDEN,
        "trainers": TRAINERS,
        "epochs": 1,
        "device": "cpu",
    }
    own: dict[str, dict[str, Any]] = {
        "minibatch": {"num_neighbors": (-1,), "batch_size": batch // TRAINERS},
        "cooperative": {"co_batches": CO_BATCHES},
    }
    return {**common, "strategy": strategy, **own[strategy]}


def as_arguments(settings: dict[str, Any]) -> list[str]:
    """The same settings as options of ``atta train``."""
    from atta_bench.train.settings import option_words

    return option_words(settings)


def measured(settings: dict[str, Any], cluster: atta.LocalCluster) -> list[dict[str, int]]:
    """Peak and baseline in bytes of each trainer of a run, one process each."""
    with tempfile.TemporaryDirectory(prefix="atta-memory-") as folder:
        task = {"settings": {**settings, "cluster": str(cluster.cluster_file), "verbose": False}, "folder": folder}
        words = [sys.executable, "-m", MODULE, "--trainer", json.dumps(task)]
        running = [subprocess.Popen([*words, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(TRAINERS)]
        said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"{settings}: a trainer failed")
    return [json.loads(text) for text in said]


def trainer(task: dict[str, Any], rank: int) -> None:
    """One trainer of ``measured``: an epoch as in ``atta.train.launching.worker``; prints memory before and after."""
    import torch
    import torch.distributed as dist

    from atta.observe.machine.memory import keep_freed
    from atta.train import TrainConfig
    from atta.train.steps.timing import peak_memory
    from atta.train.strategies import STRATEGIES

    keep_freed()
    torch.set_num_threads(1)
    settings, folder = task["settings"], Path(task["folder"])
    config = TrainConfig.from_dict(settings)
    device = torch.device("cpu")
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=config.trainers)
    with atta.connect(settings["cluster"]) as cluster:
        loop = STRATEGIES[config.strategy].trainer(config.own, cluster, device)
        baseline = peak_memory(device)
        loop.train_epoch(0)
        print(json.dumps({"baseline": baseline, "peak": peak_memory(device)}))
    dist.destroy_process_group()


def estimated(settings: dict[str, Any], cluster: atta.LocalCluster) -> int:
    """Bytes that ``cooperative:memory=`` counts for a step of the busiest trainer, whose batch is the whole graph."""
    import numpy as np

    from atta.samplers.operators import Closure
    from atta.train import TrainConfig
    from atta.train.cooperative import TrainingGraph, split_vertices, worker_view
    from atta.train.cooperative.memory import Size, estimate
    from atta.train.models import whole_model
    from atta.train.strategies import STRATEGIES

    config = TrainConfig.from_dict({**settings, "cluster": "-"})
    inner = np.arange(cluster.schema.node_counts["node"])
    graph = TrainingGraph.of(atta.server_subgraph(cluster, inner, Closure(0), part=0, tables=["x", "y"]))
    channels = graph.features.shape[1]
    weights = sum(p.numel() for p in whole_model(config, channels, cluster.schema.num_classes or 2).parameters())
    sharing = "trainers_per_server" in STRATEGIES[config.strategy].own_settings
    shared = config.trainers if sharing else 1
    owner = split_vertices(graph, shared)
    views = [worker_view(graph, owner, each, shared) for each in range(shared)]
    return max(estimate(config, Size.of(view), channels, weights) for view in views)


def limited(settings: dict[str, Any], cluster: atta.LocalCluster, limit: int) -> dict[str, Any]:
    """How ``atta train`` ends when no process that it starts may have more than ``limit`` bytes of data."""
    words = [sys.executable, "-m", "atta.cli.main", "train", "--cluster", str(cluster.cluster_file)]
    words = ["prlimit", f"--data={limit}", *words, *as_arguments(settings)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    return {"exit_code": done.returncode, "last_line": lines[-1] if lines else ""}


def about_limit(found: dict[str, dict[str, Any]], layers: int, limit: int) -> str:
    """What happened under the limit, in words."""
    said = [
        f"{strategy} {'finished' if f['exit_code'] == 0 else 'failed'}: `{f['last_line'].strip()}`."
        for strategy, f in found.items()
    ]
    return f"With {limit / MIB:,.0f} MiB of data per process (RLIMIT_DATA) and {layers} layers: {' '.join(said)}"


def main() -> None:
    """Measure and write the record."""
    arguments = arguments_of(
        __file__, __doc__, layers="14,28,56", nodes=5000, edges=100000, features=100, limit="1500MiB", limited_layers=28
    )
    shape, limit = (
        Shape(arguments.nodes, arguments.edges, arguments.features),
        int(SIZE.convert(arguments.limit, None, None)),
    )
    shown = ("layers", "nodes", "edges", "features", "limit", "limited_layers")
    config = {name: getattr(arguments, name) for name in shown} | {
        "trainers": TRAINERS,
        "hidden": HIDDEN,
        "batch": shape.batch,
    }
    report = BenchReport("memory", config, ours="cooperative")
    strategies = ("minibatch", "cooperative")
    figures: dict[str, dict[str, float]] = {strategy: {} for strategy in strategies}
    with tempfile.TemporaryDirectory(prefix="atta-memory-") as folder:
        made = GenerateOptions(
            nodes=shape.nodes, edges=shape.edges, features=shape.features, train=TRAINING, val=0.0, test=0.0
        )
        generate("powerlaw", Path(folder, "graph"), made)
        partition_graph(Path(folder, "graph"), Path(folder, "parts"), parts=1, method="random")
        with atta.local(Path(folder, "parts"), threads=1) as cluster:
            for layers in ints(arguments.layers):
                for strategy in strategies:
                    settings = options(strategy, layers, shape.batch)
                    trainers = measured(settings, cluster)
                    figures[strategy] |= {
                        f"{layers} layers/above baseline": max(t["peak"] - t["baseline"] for t in trainers) / MIB,
                        f"{layers} layers/peak": max(t["peak"] for t in trainers) / MIB,
                        f"{layers} layers/baseline": max(t["baseline"] for t in trainers) / MIB,
                        f"{layers} layers/estimate": estimated(settings, cluster) / MIB,
                    }
                    print(layers, strategy, trainers, flush=True)
            depth = arguments.limited_layers
            under_limit = {s: limited(options(s, depth, shape.batch), cluster, limit) for s in strategies}
    for strategy in strategies:
        report.add(strategy, figures[strategy])
    about = f"{ABOUT} Bound: {BOUND} above the baseline at 28 layers.\n\n{about_limit(under_limit, depth, limit)}"
    document = report.to_json() | {"title": "Memory per trainer", "about": about, "under_limit": under_limit}
    write_report(arguments.out / "memory.json", document, arguments.typed)
    for name, ratio in document["ratios"].items():
        print(f"{name}: cooperative / mini-batch {ratio['minibatch']:.2f}")
    print(about_limit(under_limit, depth, limit))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trainer"]:
        trainer(json.loads(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
