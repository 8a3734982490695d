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

from atta.compat.dgl.distributed.embedding import DistEmbedding, step
from atta.compat.dgl.distributed.split import share
from atta.compat.dgl.job import barrier, present
from atta.compat.dgl.offered import refuse
from atta.errors import ConfigError, DataError
from atta.kvstore.spec import OptimiserSpec

__all__ = ["SparseAdagrad", "SparseAdam"]

_ABOUT = "about"
_VERSION = 1


class OptimiserFile:
    """State of consecutive ids of some embeddings. Embeddings go by their names, or by their numbers without one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, why: str) -> DataError:
        """The error that names the file."""
        return DataError(self.path, why)

    def write(self, spec: OptimiserSpec, embeddings: Sequence[DistEmbedding], rank: int, world: int) -> None:
        """Write the share of a rank. Under its name stands a whole file or none."""
        arrays: dict[str, np.ndarray] = {}
        held: list[dict[str, Any]] = []
        for number, embedding in enumerate(embeddings):
            ids = np.arange(embedding.num_embeddings)
            ids = ids[share(ids, rank, world)]
            held.append({
                "name": embedding.given_name, "policy": embedding.part_policy.policy_str, "width": embedding.embedding_dim,
                "of": embedding.num_embeddings, "first": int(ids[0]) if len(ids) else 0, "count": len(ids),
            })  # fmt: skip
            arrays.update({f"{number}.{name}": values for name, values in embedding.rows.state(ids).items()})
        about = {"version": _VERSION, "optimiser": dataclasses.asdict(spec), "world": world, "embeddings": held}
        arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            with partial.open("wb") as out:
                np.savez(out, allow_pickle=False, **arrays)
            partial.replace(self.path)
        except OSError as error:
            raise self.error(f"cannot be written: {error}") from error

    def about(self) -> tuple[OptimiserSpec, int]:
        """The settings, and how many trainers wrote."""
        found = self._about()
        try:
            return OptimiserSpec.from_dict(found["optimiser"]), int(found["world"])
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise self.error(f"not the state of an optimiser: {error}") from None

    def check(self, spec: OptimiserSpec, world: int, embeddings: Sequence[DistEmbedding]) -> None:
        """Raises DataError unless the file holds a share of these embeddings, of the same save."""
        if self.about() != (spec, world):
            raise self.error("has other settings than the file of rank 0: not of the same save")
        if self._wanted() != [_key(embedding) for embedding in embeddings]:
            raise self.error(f"the state of embeddings {self._wanted()}, not {[_key(e) for e in embeddings]}")

    def read_into(self, embeddings: Sequence[DistEmbedding]) -> None:
        """Write the state to the daemons."""
        held = self._about()["embeddings"]
        with self._opened() as archive:
            for number, (embedding, of) in enumerate(zip(embeddings, held, strict=True)):
                first, count = int(of["first"]), int(of["count"])
                spec = embedding.rows.optimiser
                assert spec is not None
                state = {name: self._array(archive, f"{number}.{name}") for name in spec.state_names}
                for name, values in state.items():
                    if values.shape != (count, embedding.embedding_dim) or values.dtype != np.float32:
                        raise self.error(f"{name}: {values.dtype} {list(values.shape)}")
                embedding.rows.write_state(np.arange(first, first + count), state)

    def _wanted(self) -> list[tuple[Any, ...]]:
        try:
            return [(of["name"], of["policy"], of["of"], of["width"]) for of in self._about()["embeddings"]]
        except (KeyError, TypeError) as error:
            raise self.error(f"not the state of an optimiser: {error}") from None

    def _about(self) -> dict[str, Any]:
        with self._opened() as archive:
            raw = self._array(archive, _ABOUT)
        try:
            found = json.loads(raw.tobytes())
        except ValueError as error:
            raise self.error(f"not the state of an optimiser: {error}") from None
        if not isinstance(found, dict):
            raise self.error("not the state of an optimiser")
        if found.get("version") != _VERSION:
            raise self.error(f"format version {found.get('version')!r}; this release reads version {_VERSION}")
        return found

    def _opened(self) -> Any:
        try:
            found = np.load(self.path, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise self.error(f"not the state of an optimiser: {error}") from None
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise self.error("not the state of an optimiser")
        return found

    def _array(self, archive: Any, name: str) -> np.ndarray:
        try:
            return np.asarray(archive[name])
        except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise self.error(f"{name}: cannot be read: {error}") from None


def _key(embedding: DistEmbedding) -> tuple[Any, ...]:
    return (
        embedding.given_name, embedding.part_policy.policy_str, embedding.num_embeddings, embedding.embedding_dim
    )  # fmt: skip


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
    raise refuse(__name__, name, __all__)
