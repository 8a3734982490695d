"""``DistEmbedding`` with DGL's arguments. The daemons hold the rows and step them."""

from __future__ import annotations

from typing import Any

from atta.compat.dgl.distributed.book import PartitionPolicy
from atta.compat.dgl.distributed.learned import LearnedRows, step
from atta.compat.dgl.distributed.tensor import InitFunc, MutableRows, policy_of
from atta.compat.dgl.job import present
from atta.errors import ConfigError


class DistEmbedding:
    """A learnable row per vertex or edge. ``embedding(ids)`` gives rows; an optimiser of ``distributed.optim`` steps them.

    The table is made when the optimiser is, or at the first use: all trainers do either together. If it is used before
    it has an optimiser, the daemons copy its rows when it gets one; gradients of these uses make no step.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str | None = None,
        init_func: InitFunc | None = None,
        part_policy: PartitionPolicy | None = None,
    ) -> None:
        """Describe the embedding; arguments as of ``DistTensor``. Rows are zeros at first without ``init_func``.

        An embedding of a name that exists shares its rows.

        Raises:
            ConfigError: no type, or several, have that many members, or the embedding exists with another width.
        """
        self.num_embeddings, self.embedding_dim = int(num_embeddings), int(embedding_dim)
        self.given_name = name
        self.part_policy = policy = policy_of((self.num_embeddings,), part_policy)
        job = present()
        known = None if name is None else job.embeddings.get((policy.policy_str, name))
        if known is not None and known.width != self.embedding_dim:
            raise ConfigError(
                f"DistEmbedding {name!r} exists with {known.width} columns; it cannot have {self.embedding_dim}"
            )
        self.rows = known or LearnedRows(job, policy, name, self.embedding_dim, init_func)
        if name is not None:
            job.embeddings[policy.policy_str, name] = self.rows

    @property
    def name(self) -> str:
        """Of the table."""
        return self.rows.table.spec.name

    @property
    def weight(self) -> MutableRows:
        """The rows, to be read and written."""
        return MutableRows(self.name, self.part_policy, self.rows.table, self.rows)

    def __call__(self, ids: Any, device: Any = None) -> Any:
        """Rows [n, embedding_dim], float32, of ``ids``, on ``device`` (default: the CPU)."""
        import torch

        rows = self.rows.rows(torch.as_tensor(ids))
        return rows if device is None else rows.to(device)

    def step(self) -> None:
        """Step the rows that any trainer has used since the last step, once, with the mean of the gradients of all uses.
        All trainers call it.

        Raises:
            ConfigError: there is no optimiser.
        """
        step([self.rows])
