"""``DistEmbedding`` with DGL's arguments. The daemons hold the rows and step them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from atta.compat.dgl.distributed.book import PartitionPolicy
from atta.compat.dgl.distributed.tensor import InitFunc, MutableRows, _drop, create, policy_of
from atta.compat.dgl.job import present
from atta.errors import ConfigError
from atta.kvstore.spec import OptimiserSpec

__all__ = ["DistEmbedding"]


class DistEmbedding:
    """A learnable row per vertex or edge. ``embedding(ids)`` gives rows; an optimiser of ``distributed.optim`` steps them.

    The table is made when the optimiser is, since daemons step rows: so make the optimiser before the first use. An
    embedding that is used without one cannot learn.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str | None = None,
        init_func: InitFunc | None = None,
        part_policy: PartitionPolicy | None = None,
    ) -> None:
        """Describe the embedding; arguments as of ``DistTensor``. Rows are zeros at first without ``init_func``."""
        self.num_embeddings, self.embedding_dim = int(num_embeddings), int(embedding_dim)
        self._given_name, self._init_func = name, init_func
        self.part_policy = policy_of((self.num_embeddings,), part_policy)
        self._made: Any = None
        self._learns = False

    def bind(self, optimiser: OptimiserSpec) -> None:
        """Make the table, to be stepped by ``optimiser``; raises ConfigError if it has been used already."""
        if self._made is not None:
            raise ConfigError(f"DistEmbedding {self.name!r}: make its optimiser before it is used, and only one")
        self._make(optimiser)
        self._learns = True

    @property
    def name(self) -> str:
        """Of the table."""
        return str(self._module().name)

    @property
    def weight(self) -> MutableRows:
        """The rows, to be read and written."""
        module = self._module()
        return MutableRows(module.name, self.part_policy, self._table)

    def __call__(self, ids: Any, device: Any = None) -> Any:
        """Rows [n, embedding_dim], float32, of ``ids``, on ``device`` (default: the CPU)."""
        rows = self._module()(ids)
        return rows if device is None else rows.to(device)

    def step(self) -> None:
        """Push the gradients since the last step, and wait until the owners have applied them.

        Raises:
            ConfigError: there is no optimiser.
        """
        if not self._learns:
            raise ConfigError("DistEmbedding: no optimiser steps it")
        self._made.step()
        self._made.flush()

    def _module(self) -> Any:
        if self._made is None:
            self._make(OptimiserSpec.sgd())
        return self._made

    def _make(self, optimiser: OptimiserSpec) -> None:
        from atta.client.tables.embedding import DistEmbedding as OnDaemons

        job, policy = present(), self.part_policy
        self._table, owns = create(
            job, policy, self._given_name, row_shape=(self.embedding_dim,), dtype=np.dtype(np.float32),
            init_func=self._init_func, optimiser=optimiser,
        )  # fmt: skip
        spec = self._table.spec
        self._made = OnDaemons(
            job.open(None), spec.rows, self.embedding_dim, name=spec.name, optimizer=optimiser, policy=spec.policy,
            init=spec.init, push="manual",
        )  # fmt: skip
        if owns:
            weakref.finalize(self, _drop, job, spec.name)
