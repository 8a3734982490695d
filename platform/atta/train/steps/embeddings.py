"""Learnable rows of node types without features: tables of the run on the daemons, which step them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import atta
from atta.client.tables.embedding import DistEmbedding
from atta.errors import DataError
from atta.kvstore.initial import Normal
from atta.train.checkpoint import NO_EMBEDDINGS
from atta.train.meeting.run import run_here, tables_of

__all__ = ["TypeEmbeddings"]

LEASE_S = 900.0
"""After this time without a request the daemons drop the tables of a run that has died. Longer than a checkpoint takes
to be written."""
_SEEDS = 1 << 62


class TypeEmbeddings:
    """A ``DistEmbedding`` for each of some node types. All ranks make and use the same tables, which are the run's own.

    A vertex keeps its row with the daemon that owns it. Trainers push gradients without waiting for each other.
    """

    def __init__(
        self,
        cluster: atta.Cluster,
        node_types: Sequence[str],
        width: int,
        *,
        lr: float,
        seed: int,
        rank: int,
        world: int,
        device: torch.device,
    ) -> None:
        """Create or open the tables; every rank calls this. ``device``: of the process group's tensors.

        Raises:
            QuotaExceededError: the daemons have no room for them (``atta serve --tables``).
        """
        run = run_here()
        if rank == 0 and run:  # an attempt that failed may have left tables: they would stay until their lease ends
            for name in cluster.tables.specs():
                if name.startswith(tables_of(run)):
                    cluster.tables.delete(name)
        name = _of_first(run or uuid.uuid4().hex, device)
        self._cluster, self._rank, self._world = cluster, rank, world
        self._tables = {
            node_type: DistEmbedding(
                cluster,
                cluster.schema.node_counts[node_type],
                width,
                name=f"{tables_of(name)}{number}",
                optimizer="adam",
                lr=lr,
                policy=f"nodes:{node_type}",
                init=Normal(0.0, 1.0, (seed * 31 + number) % _SEEDS),
                push="manual",
                lease_s=LEASE_S,
            )
            for number, node_type in enumerate(node_types)
        }

    def rows(self, n_ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """float32 [n, width] per type: the rows of the vertices with these ids. All are asked for at once."""
        for node_type, n_id in n_ids.items():
            self._tables[node_type].prefetch(n_id)
        return {node_type: self._tables[node_type](n_id) for node_type, n_id in n_ids.items()}

    def step(self) -> None:
        """Begin to push what backward passes have found since the last step."""
        for table in self._tables.values():
            table.step()

    def settle(self) -> None:
        """Wait until the pushes of all ranks are applied; every rank calls this."""
        for table in self._tables.values():
            table.flush()
        dist.barrier()

    def state(self) -> dict[str, Any]:
        """This rank's share of rows and of the optimiser's state, for its file of a checkpoint."""
        tables = {
            t: {**table.pull_state(self._share(table)), "steps": table.get_extra_state()["steps"]}
            for t, table in self._tables.items()
        }
        return {"dataset_id": self._cluster.dataset_id, "tables": tables}

    def load_state(self, folder: str, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` has returned; every rank calls this.

        Raises:
            DataError: it is of another partitioning, or of other types.
        """
        tables = state.get("tables", {})
        if state.get("dataset_id") != self._cluster.dataset_id or tables.keys() != self._tables.keys():
            raise DataError(folder, "the embeddings in it are those of another partitioned dataset")
        for node_type, table in self._tables.items():
            saved = dict(tables[node_type])
            extra = {**table.get_extra_state(), "steps": saved.pop("steps")}
            table.push_state(self._share(table), saved)
            table.set_extra_state(extra)
        dist.barrier()

    def weights(self) -> dict[str, torch.Tensor]:
        """All rows of every type, [vertices, width], in the order of the tables."""
        return {t: table.pull_state(range(table.num_embeddings))["weight"] for t, table in self._tables.items()}

    def load_weights(self, path: str, weights: Mapping[str, torch.Tensor], dataset_id: object) -> None:
        """Begin with the rows of another run; every rank calls this.

        Raises:
            DataError: they are of another partitioning, or of other types or sizes.
        """
        shapes = {t: (table.num_embeddings, table.embedding_dim) for t, table in self._tables.items()}
        if shapes and not weights:
            raise DataError(path, f"--init-from: {NO_EMBEDDINGS}")
        if dataset_id != self._cluster.dataset_id or {t: tuple(w.shape) for t, w in weights.items()} != shapes:
            raise DataError(
                path,
                "--init-from: its embeddings do not fit: they are of other types, or of another partitioned dataset",
            )
        if self._rank == 0:
            for node_type, table in self._tables.items():
                table.push_state(range(table.num_embeddings), {"weight": weights[node_type]})
        dist.barrier()

    def delete(self) -> None:
        """Give the daemons' memory back; every rank calls this when it does not need the tables any more."""
        self.settle()
        if self._rank == 0:
            for table in self._tables.values():
                self._cluster.tables.delete(table.name)

    def _share(self, table: DistEmbedding) -> range:
        rows = table.num_embeddings
        return range(rows * self._rank // self._world, rows * (self._rank + 1) // self._world)


def _of_first(name: str, device: torch.device) -> str:
    """The name that the first rank gives; every rank calls this, with names of one length.

    Bytes travel: an object would be unpickled, which runs whatever the sender wants.
    """
    told = torch.tensor(list(name.encode()), dtype=torch.uint8, device=device)
    dist.broadcast(told, 0)
    return bytes(told.tolist()).decode()
