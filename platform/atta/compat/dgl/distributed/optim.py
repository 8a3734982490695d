"""``dgl.distributed.optim``: optimisers of distributed embeddings. Daemons apply them to the rows that they own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from atta.compat.dgl.distributed.embedding import DistEmbedding
from atta.compat.dgl.distributed.learned import step
from atta.compat.dgl.distributed.saved import OptimiserFile
from atta.compat.dgl.job import barrier, present
from atta.compat.dgl.offered import refuse
from atta.errors import ConfigError
from atta.kvstore.spec import OptimiserSpec


class _SparseOptimiser:
    """Steps the rows that were used since the last step.

    One optimiser steps an embedding. One that is made when the last has gone goes on with its state.
    """

    def __init__(self, params: Iterable[DistEmbedding], spec: OptimiserSpec) -> None:
        self._params, self._spec = list(params), spec
        for embedding in self._params:
            if not isinstance(embedding, DistEmbedding):
                raise ConfigError(f"{type(self).__name__}: {type(embedding).__name__} is not a DistEmbedding")
            embedding.rows.bind(spec, self)

    @property
    def spec(self) -> OptimiserSpec:
        """Its settings: those given, or those that were loaded."""
        return self._spec

    def step(self) -> None:
        """Apply the gradients. All trainers call it, and go on when all rows are stepped.

        As in DGL, a row that several trainers have used makes one step, with the mean of the gradients of all uses.
        """
        step([embedding.rows for embedding in self._params])
        barrier()

    def zero_grad(self) -> None:
        """Do nothing: every step begins with no gradients."""

    def save(self, f: str | Path) -> None:
        """Write settings and state, without the embeddings' rows, into ``F_RANK``. All trainers call it.

        Each writes the state of its share of the rows, as a NumPy archive. ``load`` needs all files: with trainers on
        several machines, name a folder that they share.

        Raises:
            DataError: the file cannot be written.
        """
        job = present()
        barrier()
        OptimiserFile(Path(f"{f}_{job.rank}")).write(self._spec, self._params, job.rank, job.world)
        barrier()

    def load(self, f: str | Path) -> None:
        """Read what ``save`` wrote: settings, and the state of the embeddings of the same names. All trainers call it,
        and there may be more or fewer than there were.

        Raises:
            DataError: a file is missing or damaged, or is of another optimiser or embedding.
        """
        job = present()
        barrier()
        first = OptimiserFile(Path(f"{f}_0"))
        spec, world = first.about()
        if spec.kind != self._spec.kind:
            raise first.error(f"the state of {spec.kind}, not of {self._spec.kind}")
        files = [OptimiserFile(Path(f"{f}_{rank}")) for rank in range(world)]
        for file in files:
            file.check(spec, world, self._params)
        self._spec = spec
        for embedding in self._params:
            embedding.rows.set(spec)
        for file in files[job.rank :: job.world]:
            file.read_into(self._params)
        barrier()


class SparseAdagrad(_SparseOptimiser):
    """Adagrad, as ``torch.optim.Adagrad`` does it."""

    def __init__(self, params: Iterable[DistEmbedding], lr: float, eps: float = 1e-10) -> None:
        super().__init__(params, OptimiserSpec.adagrad(lr, eps=eps))


class SparseAdam(_SparseOptimiser):
    """Adam in which every row counts its own steps, as in DGL."""

    def __init__(
        self,
        params: Iterable[DistEmbedding],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
    ) -> None:
        super().__init__(params, OptimiserSpec.row_adam(lr, betas=(betas[0], betas[1]), eps=eps))


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, ("SparseAdagrad", "SparseAdam"))
