"""What trainers of embeddings share: the embeddings of many vertices, on sampled neighbourhoods."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import atta
from atta.client.loaders.seeds import InputNodes
from atta.train.steps.minibatch import MinibatchTrainer
from atta.train.steps.timing import Stopwatch, on_device
from atta.train.tasks.links.pairs import Split, without_held_out

__all__ = ["EmbeddingTrainer"]


class EmbeddingTrainer(MinibatchTrainer):
    """Trains a model whose outputs are embeddings.

    Attributes:
        held_out: the edges that the model may not read; None: it may read all.
    """

    held_out: Split | None = None

    def readable(self, data: Any) -> Any:
        """PyG's data of a batch without the edges that the model may not read."""
        return data if self.held_out is None else without_held_out(data, self.held_out)

    @property
    def edge_tables(self) -> list[str]:
        """Edge tables that batches need."""
        return [] if self.held_out is None else list(self.held_out.tables)

    def embedded(self, nodes: InputNodes, title: str, **options: Any) -> Iterator[tuple[Any, torch.Tensor]]:
        """Batches of this rank's share of some vertices, and the embeddings of each one's seeds, on its device.

        options: of the loader.
        """
        config = self.config
        loader = atta.NeighborLoader(
            self.cluster, list(config.eval_fan_outs), nodes, pad=False, rank=self.rank, world_size=self.world,
            batch_size=config.eval_batch_size or config.batch_size, seed=config.seed, seed_policy=config.seed_policy,
            tables=["x"], edge_tables=self.edge_tables, edge_ids=False, job=f"train-embeddings-{os.getpid()}",
            **self.norms, **options,
        )  # fmt: skip
        batches = iter(loader)  # before len(), which then knows the number of batches
        with self.display.batches(f"  {title}", len(loader)) as advance:
            for _, drawn in on_device(batches, self.device, Stopwatch(self.device)):
                data = self.readable(drawn)
                yield data, self.model(*self.inputs(data), edge_weight=data.get("edge_weight"))
                advance()

    def embeddings(self, ids: np.ndarray) -> torch.Tensor:
        """float32 [vertices, outputs] of all vertices, whose user ids [vertices] ascend; every rank calls this."""
        found = torch.zeros(len(ids), self.outputs, device=self.device)
        for data, rows in self.embedded(None, "embeddings"):
            places = np.searchsorted(ids, data.n_id[: len(rows)].cpu().numpy())
            found[torch.from_numpy(places).to(self.device)] = rows
        dist.all_reduce(found)
        return found

    def everywhere(self, mine: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, in the order of ranks; every rank calls this."""
        counts = torch.zeros(self.world, dtype=torch.int64, device=self.device)
        counts[self.rank] = len(mine)
        dist.all_reduce(counts)
        ends = counts.cumsum(0).tolist()
        found = torch.zeros(ends[-1], *mine.shape[1:], dtype=mine.dtype, device=self.device)
        found[ends[self.rank] - len(mine) : ends[self.rank]] = mine
        dist.all_reduce(found)
        return found
