"""A trainer of ``bench.training.loading`` without a model: makes the batches of an epoch, and asks for their features.

    python loading_worker.py SYSTEM TASK ADDRESSES PARTITIONS OUT

SYSTEM is ``dgl`` (DistDGL), ``compat`` (``atta.compat.dgl``) or ``native`` (Atta's own loaders on the same graph). As
DistDGL's servers run their trainers' script, this file is their program too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FAN_OUTS = [10, 10]
BATCH = 1000
WARM, EPOCHS = 2, 3
"""Epochs before the clock starts, and measured ones."""
BEGUN = WARM + EPOCHS + 1
"""Epochs that Atta's loaders are told of. Daemons begin an epoch while the one before ends. So what was done for the first
measured epoch before the clock starts is done for a later one before it ends."""
SEEDS = {"links": 20_000, "typed": 15_000}
"""Seeds of a trainer in an epoch: edges, and papers."""


@dataclass
class Made:
    """What the batches of an epoch held: seeds, sampled edges, rows of features."""

    seeds: int = 0
    edges: int = 0
    rows: int = 0

    def add(self, seeds: int, edges: int, features: Any) -> None:
        """Count a batch; touches its last row, so that it must be there."""
        assert float(features[-1].sum()) != 0
        self.seeds, self.edges, self.rows = self.seeds + seeds, self.edges + edges, self.rows + len(features)


def chosen(count: int, of: int) -> Any:
    """A mask that chooses ``count`` of ``of``."""
    import torch

    mask: np.ndarray = np.zeros(of, bool)
    mask[np.random.default_rng(5).permutation(of)[:count]] = True
    return torch.from_numpy(mask)


def links(dgl: Any, g: Any, world: int) -> Iterator[Made]:
    """Epochs of edges with a uniform negative each, on DistDGL or through its interface."""
    edges = dgl.distributed.edge_split(chosen(SEEDS["links"] * world, g.num_edges()), g.get_partition_book())
    sampler = dgl.dataloading.NeighborSampler(FAN_OUTS)
    loader = dgl.dataloading.DistEdgeDataLoader(
        g, edges, sampler, batch_size=BATCH, shuffle=True, drop_last=False, exclude="self",
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )  # fmt: skip
    while True:
        made = Made()
        for inputs, pairs, _, blocks in loader:
            made.add(pairs.num_edges(), sum(block.num_edges() for block in blocks), g.ndata["features"][inputs])
        yield made


def typed(dgl: Any, g: Any, world: int) -> Iterator[Made]:
    """Epochs of papers of the typed graph, on DistDGL or through its interface."""
    mask = chosen(SEEDS["typed"] * world, g.num_nodes("paper"))
    papers = dgl.distributed.node_split(mask, g.get_partition_book(), ntype="paper")
    loader = dgl.dataloading.DistNodeDataLoader(
        g, {"paper": papers}, dgl.dataloading.NeighborSampler(FAN_OUTS), batch_size=BATCH, shuffle=True, drop_last=False
    )
    while True:
        made = Made()
        for inputs, seeds, blocks in loader:
            rows = g.nodes["paper"].data["feat"][inputs["paper"]]
            made.add(len(seeds["paper"]), sum(block.num_edges() for block in blocks), rows)
        yield made


def native_links(dgl: Any, g: Any, world: int) -> Iterator[Made]:
    """The edges of ``links``, by Atta's loader."""
    import torch

    import atta

    edges = dgl.distributed.edge_split(chosen(SEEDS["links"] * world, g.num_edges()), g.get_partition_book())
    loader = atta.LinkNeighborLoader(
        g.cluster, FAN_OUTS, np.stack([end.numpy() for end in g.find_edges(edges)]), batch_size=BATCH, shuffle=True,
        neg_sampling="triplet", exclude_edges="self", tables="features", frontier="all", rank=0, world_size=1, home=g.home,
        epochs=BEGUN,
    )  # fmt: skip
    while True:
        made = Made()
        for batch in loader:
            blocks = batch.to_dgl()
            made.add(len(batch.input_id), sum(b.num_edges() for b in blocks), torch.from_numpy(batch.table("features")))
        yield made


def native_typed(dgl: Any, g: Any, world: int) -> Iterator[Made]:
    """The papers of ``typed``, by Atta's loader; batches become PyG's, as ``to_dgl`` takes one type."""
    import atta

    mask = chosen(SEEDS["typed"] * world, g.num_nodes("paper"))
    papers = dgl.distributed.node_split(mask, g.get_partition_book(), ntype="paper").numpy()
    loader = atta.NeighborLoader(
        g.cluster, FAN_OUTS, ("paper", papers), batch_size=BATCH, shuffle=True, tables={"paper": ["x"]}, frontier="all",
        rank=0, world_size=1, home=g.home, epochs=BEGUN,
    )  # fmt: skip
    while True:
        made = Made()
        for batch in loader:
            data = batch.to_pyg()
            made.add(batch.batch_size, data.num_edges, data["paper"].x)
        yield made


TASKS = {"links": links, "typed": typed}
NATIVE = {"links": native_links, "typed": native_typed}


def main() -> None:
    """Warm up, meet, and measure."""
    system, task, addresses, partitions, out = sys.argv[1:]
    if system == "dgl":
        import dgl
    else:
        from atta.compat import dgl  # type: ignore[no-redef]
    import torch

    torch.set_num_threads(1)
    dgl.distributed.initialize(addresses)
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(rank)
    g = dgl.distributed.DistGraph(Path(partitions).stem, part_config=partitions)
    epochs = (NATIVE if system == "native" else TASKS)[task](dgl, g, world)
    for _ in range(WARM):
        next(epochs)
    torch.distributed.barrier()
    start = time.monotonic()
    made = [next(epochs) for _ in range(EPOCHS)]
    end = time.monotonic()
    counts = {name: sum(vars(epoch)[name] for epoch in made) for name in vars(Made())}
    Path(f"{out}{rank}.json").write_text(json.dumps({"start": start, "end": end, **counts}))
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
