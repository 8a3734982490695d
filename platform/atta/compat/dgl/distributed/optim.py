"""``dgl.distributed.optim``: optimisers of distributed embeddings. Daemons apply them to the rows that they own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atta.compat.dgl.distributed.embedding import DistEmbedding
from atta.compat.dgl.offered import refuse
from atta.errors import ConfigError
from atta.kvstore.spec import OptimiserSpec

__all__ = ["SparseAdagrad", "SparseAdam"]


class _SparseOptimiser:
    """Steps the rows that were used since the last step."""

    def __init__(self, params: Iterable[DistEmbedding], spec: OptimiserSpec) -> None:
        self._params = list(params)
        for embedding in self._params:
            if not isinstance(embedding, DistEmbedding):
                raise ConfigError(f"{type(self).__name__}: {type(embedding).__name__} is not a DistEmbedding")
            embedding.bind(spec)

    def step(self) -> None:
        """Apply the gradients. They are summed over all uses of a row."""
        for embedding in self._params:
            embedding.step()

    def zero_grad(self) -> None:
        """Do nothing: every step begins with no gradients."""


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
    raise refuse(__name__, name, __all__)
