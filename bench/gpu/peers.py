"""Epochs of GraphSAGE beside PyG's NeighborLoader on the same GPU, in turn.

    python -m bench.gpu.peers --work DIR

The same model, fan-outs (15,10,5), batches of 1,024 seeds and optimiser. Atta: one daemon with --threads workers, and
`on_device`. PyG: NeighborLoader with torch-sparse (pyg-lib is on no package index) and --threads worker processes, which
pin their batches; its graph lies sorted in its process. With torch-sparse it does not say which vertices belong to which
hop, so every layer computes all of them. Seconds of every epoch, by turns; `alone` is an epoch of batches without steps.
GraphBolt: whether it can be imported at all.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atta.partition.graph import Graph
from atta.train.steps.timing import Stopwatch, on_device
from atta_bench.gpu.common import (
    FAN_OUTS,
    Record,
    Step,
    batches_of,
    dataset_of,
    gpu_arguments,
    graph_of,
    serve,
    sizes_of,
)


def graphbolt() -> str:
    """Whether DGL's GraphBolt is there."""
    try:
        importlib.import_module("dgl.graphbolt")
    except BaseException as error:  # it may end the process in more than one way
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    return "imported"


def pyg_data(folder: Path) -> tuple[Any, torch.Tensor]:
    """The graph as PyG's data, edges sorted by target, and the training vertices."""
    from torch_geometric.data import Data

    graph = Graph.open(folder, verify=False)
    edges = graph.edges(graph.schema.edge_types[0])
    source, target = (torch.from_numpy(np.asarray(ids).astype(np.int64)) for ids in (edges.src, edges.dst))
    order = torch.argsort(target.cuda()).cpu()
    x, y = (torch.from_numpy(np.array(graph.table("node", name))) for name in ("x", "y"))
    data = Data(x=x, y=y.long(), edge_index=torch.stack([source[order], target[order]]))
    return data, torch.from_numpy(np.array(graph.split("node", "train"), np.int64))


def pyg_epochs(folder: Path, workers: int) -> Callable[[], Iterable[Any]]:
    """Epochs of PyG's batches on the GPU."""
    from torch_geometric.loader import NeighborLoader

    data, seeds = pyg_data(folder)
    loader = NeighborLoader(
        data, list(FAN_OUTS), input_nodes=seeds, batch_size=1024, shuffle=True, num_workers=workers, pin_memory=True,
        persistent_workers=True, filter_per_worker=True, is_sorted=True,
    )  # fmt: skip

    def epoch() -> Iterable[Any]:
        for batch in loader:
            yield batch.to("cuda", non_blocking=True)

    return epoch


def timed(epoch: Iterable[Any], step: Callable[[Any], object]) -> dict[str, float]:
    """Seconds of an epoch, and what its batches have."""
    begun, steps, vertices, edges = time.perf_counter(), 0, 0, 0
    for data in epoch:
        step(data)
        steps += 1
        vertices += len(data.x)
        edges += data.edge_index.shape[1]
    torch.cuda.synchronize()
    return {"s": time.perf_counter() - begun, "batches": steps, "vertices": vertices / steps, "edges": edges / steps}


def main() -> None:
    """Measure and write the record."""
    arguments = gpu_arguments(__file__, __doc__, epochs=(3, "measured epochs of each"))
    record = Record("gpu-peers", "Epochs on a GPU beside peers", __doc__, arguments)
    record.notes["dgl.graphbolt"] = graphbolt()
    with serve(dataset_of(arguments, 1), arguments.threads) as cluster:
        sizes, device = sizes_of(cluster), torch.device("cuda", 0)
        moved = on_device(batches_of(cluster, 1024), device, Stopwatch(device))
        seeds = len(Graph.open(graph_of(arguments), verify=False).split("node", "train"))
        systems: dict[str, Callable[[], Iterable[Any]]] = {
            "pyg": pyg_epochs(graph_of(arguments), arguments.threads),
            "atta": lambda: (next(moved).data for _ in range(-(-seeds // 1024))),
        }
        steps = {name: Step(*sizes) for name in systems}
        for number, (name, batches) in product(range(arguments.epochs + 1), systems.items()):
            record.add("epochs", {"system": name, "number": number, **timed(batches(), steps[name])})
        for name, batches in systems.items():
            record.add("epochs", {"system": name, "number": "alone", **timed(batches(), lambda data: None)})


if __name__ == "__main__":
    main()
