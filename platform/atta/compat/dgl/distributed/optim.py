"""``dgl.distributed.optim``: optimisers of distributed embeddings, and the files of their state. Daemons apply them to the rows
that they own."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atta.compat import refuse
from atta.compat.dgl.distributed.embedding import DistEmbedding, step
from atta.compat.dgl.distributed.split import share
from atta.compat.dgl.job import barrier, present
from atta.errors import ConfigError, DataError, blaming
from atta.kvstore.spec import OptimiserSpec

__all__ = ["SparseAdagrad", "SparseAdam"]

_VERSION = 1
_DAMAGED = (OSError, EOFError, LookupError, TypeError, ValueError, zipfile.BadZipFile, ConfigError)


class _SavedShare:
    """A trainer's share of an optimiser's state: that of consecutive ids of some embeddings. The file is a NumPy archive, in
    which nothing can run code. Embeddings go by their names, or by their numbers without one."""

    def __init__(self, path: Path) -> None:
        """Raises DataError for a file that is missing or damaged."""
        self.path = path
        with blaming(DataError, path, "not the state of an optimiser", of=_DAMAGED):
            self._arrays = np.load(path, allow_pickle=False)
            about = json.loads(self._arrays["about"].tobytes())
            version = about["version"]
            if version == _VERSION:
                self.spec, self.world = OptimiserSpec.from_dict(about["optimiser"]), int(about["world"])
                self._shares = [(int(of["first"]), int(of["count"])) for of in about["embeddings"]]
                self.keys = [(of["name"], of["policy"], of["of"], of["width"]) for of in about["embeddings"]]
        if version != _VERSION:
            raise DataError(path, f"format version {version!r}; this release reads version {_VERSION}")

    @staticmethod
    def write(path: Path, spec: OptimiserSpec, embeddings: Sequence[DistEmbedding], rank: int, world: int) -> None:
        """Write the share of a rank. Under its name stands a whole file or none."""
        arrays: dict[str, np.ndarray] = {}
        held: list[dict[str, Any]] = []
        for number, embedding in enumerate(embeddings):
            ids = np.arange(embedding.num_embeddings)
            ids = ids[share(ids, rank, world)]
            names = dict(zip(("name", "policy", "of", "width"), _key(embedding), strict=True))
            held.append({**names, "first": int(ids[0]) if len(ids) else 0, "count": len(ids)})
            arrays.update({f"{number}.{name}": values for name, values in embedding.rows.state(ids).items()})
        about = {"version": _VERSION, "optimiser": dataclasses.asdict(spec), "world": world, "embeddings": held}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        partial = path.with_name(f"{path.name}.partial")
        with blaming(DataError, path, "cannot be written", say=str):
            with partial.open("wb") as out:
                np.savez(out, allow_pickle=False, **arrays)
            partial.replace(path)

    def read_into(self, embeddings: Sequence[DistEmbedding]) -> None:
        """Write the state to the daemons."""
        for number, (embedding, (first, count)) in enumerate(zip(embeddings, self._shares, strict=True)):
            state = {}
            for name in self.spec.state_names:
                with blaming(DataError, self.path, f"{number}.{name}: cannot be read", of=_DAMAGED):
                    values = np.asarray(self._arrays[f"{number}.{name}"])
                if values.shape != (count, embedding.embedding_dim) or values.dtype != np.float32:
                    raise DataError(self.path, f"{name}: {values.dtype} {list(values.shape)}")
                state[name] = values
            embedding.rows.write_state(np.arange(first, first + count), state)


def _key(embedding: DistEmbedding) -> tuple[Any, ...]:
    return embedding.given_name, embedding.part_policy.policy_str, embedding.num_embeddings, embedding.embedding_dim


class _SparseOptimiser:
    """Steps the rows that were used since the last step. One optimiser steps an embedding; one that is made when the
    last has gone goes on with its state. ``spec``: its settings, those given or those that were loaded."""

    def __init__(self, params: Iterable[DistEmbedding], spec: OptimiserSpec) -> None:
        self._params, self.spec = list(params), spec
        for embedding in self._params:
            if not isinstance(embedding, DistEmbedding):
                raise ConfigError(f"{type(self).__name__}: {type(embedding).__name__} is not a DistEmbedding")
            embedding.rows.bind(spec, self)

    def step(self) -> None:
        """Apply the gradients. All trainers call it, and go on when all rows are stepped. As in DGL, a row that several
        trainers have used makes one step, with the mean of the gradients of all uses."""
        step([embedding.rows for embedding in self._params])
        barrier()

    def zero_grad(self) -> None:
        """Do nothing: every step begins with no gradients."""

    def save(self, f: str | Path) -> None:
        """Write settings and state, without the embeddings' rows, into ``F_RANK``: each trainer the state of its share
        of the rows, as a NumPy archive. All trainers call it. ``load`` needs all files, so name a folder that all
        machines share."""
        job = present()
        barrier()
        _SavedShare.write(Path(f"{f}_{job.rank}"), self.spec, self._params, job.rank, job.world)
        barrier()

    def load(self, f: str | Path) -> None:
        """Read what ``save`` wrote, for embeddings of the same names. All trainers call it, and there may be more or
        fewer than there were. Raises DataError if a file is missing or damaged, or is of another optimiser or
        embedding."""
        job = present()
        barrier()
        first = _SavedShare(Path(f"{f}_0"))
        if first.spec.kind != self.spec.kind:
            raise DataError(first.path, f"the state of {first.spec.kind}, not of {self.spec.kind}")
        files, keys = [_SavedShare(Path(f"{f}_{rank}")) for rank in range(first.world)], [*map(_key, self._params)]
        for file in files:
            if (file.spec, file.world) != (first.spec, first.world):
                raise DataError(file.path, "has other settings than the file of rank 0: not of the same save")
            if file.keys != keys:
                raise DataError(file.path, f"the state of embeddings {file.keys}, not {keys}")
        self.spec = first.spec
        for embedding in self._params:
            embedding.rows.set(first.spec)
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
        self, params: Iterable[DistEmbedding], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-08
    ) -> None:
        super().__init__(params, OptimiserSpec.row_adam(lr, betas=(betas[0], betas[1]), eps=eps))


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)
