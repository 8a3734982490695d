"""DistDGL beside the strategies, with the same model."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from atta.errors import AttaError
from atta.partition.dataset import Dataset
from atta_bench.lab.netlab import Host, no_namespaces
from atta_bench.lab.rounds import Say
from atta_bench.lab.workfolder import work_folder
from atta_bench.lab.workload import BenchWorkload, Recipe
from atta_bench.results import BenchReport
from atta_bench.strategies.figures import Figures, accuracies, epochs_of
from atta_bench.strategies.settings import StrategiesBench

__all__ = ["distdgl"]


def distdgl(
    bench: StrategiesBench, dataset: Dataset, hosts: Sequence[Host], report: BenchReport, say: Say
) -> dict[str, Callable[[Path], Figures]]:
    """DistDGL's mini-batches if they are asked for; if it cannot run, the report says why."""
    if "dgl" not in bench.vs:
        return {}
    from atta_bench.peers.distdgl.launch import run_distdgl
    from atta_bench.peers.distdgl.partition import prepare
    from atta_bench.train import benchmark as train

    workload = BenchWorkload(
        bench.fan_outs,
        bench.batch_size,
        warm_up=1,  # only its last warm-up epoch is reported, and the time to an accuracy counts all epochs
        epochs=bench.warm_up + bench.epochs - 1,
        seconds=0.0,
        timeout_s=bench.timeout_s,
        seed=bench.seed,
    )
    schema = dataset.schema
    channels = schema.node_tables[schema.node_types[0]]["x"].row_shape[0]
    recipe = Recipe(channels, schema.num_classes or 2, bench.layers, bench.hidden, lr=bench.lr, dropout=bench.dropout)
    seeds = itertools.count(bench.seed)
    try:
        if hosts[0].interface is None:
            raise AttaError(no_namespaces() or "DistDGL runs only in network namespaces")
        say("converting the graph for DistDGL")
        partitions = prepare(Path(bench.data).resolve(), len(hosts), workload.split, work_folder(bench.work))
    except AttaError as error:
        report.fail("dgl", str(error))
        return {}

    def measure(folder: Path) -> Figures:
        measured = run_distdgl(
            partitions,
            workload,
            hosts,
            folder,
            recipe=dataclasses.replace(recipe, seed=next(seeds)),
            trainers=bench.trainers_per_server,
            eval_every=bench.eval_every or bench.warm_up + bench.epochs,
        )
        found = train.figures(measured)
        phases = {f"phases/{phase}_s": found[f"trainer/{phase}_s"] for phase in train.PHASES}
        epochs = epochs_of(measured)
        same = {
            "epoch_seconds": statistics.median(e["seconds"] for e in epochs[bench.warm_up :]),
            "steps": found["steps"],
            "link_bytes": statistics.median(e["sent_bytes"] for e in epochs[bench.warm_up :]),
            "loss": found["loss"],
        }
        return same | phases | accuracies(epochs, bench.target)

    return {"dgl": measure}
