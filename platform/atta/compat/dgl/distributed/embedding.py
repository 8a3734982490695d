"""``DistEmbedding`` with DGL's arguments. The daemons hold the rows and step them. The table is made late, and made
anew when its optimiser changes. As DGL applies gradients, a row makes one step per batch of all trainers, with the mean
of its uses."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.client.tables.remote import RemoteTable
from atta.compat.dgl.distributed.book import PartitionPolicy
from atta.compat.dgl.distributed.tensor import InitFunc, MutableRows, create, drop, pieces, policy_of
from atta.compat.dgl.job import Job, barrier, meeting, present
from atta.errors import ConfigError
from atta.kvstore.spec import OptimiserSpec

if TYPE_CHECKING:
    from atta.client.tables.embedding import Gradients


class LearnedRows:
    """The table of an embedding. Daemons step rows, so the optimiser (None: not yet known) is part of its specification.
    ``node_type``: whose rows they are; None: those of edges. ``asked``: the ids that the script has asked for last."""

    def __init__(
        self, job: Job, policy: PartitionPolicy, name: str | None, width: int, init_func: InitFunc | None
    ) -> None:
        """Describe the table; nothing is made yet."""
        self.width = width
        self.optimiser: OptimiserSpec | None = None
        self._stepper: weakref.ref[Any] | None = None
        self.node_type = policy.type_name if policy.kind == "nodes" else None
        self.asked: weakref.ref[Any] | None = None
        self._job, self._policy, self._name, self._init_func = job, policy, name, init_func
        self._prefetched_at = -1
        job.learned.add(self)

    @cached_property
    def table(self) -> RemoteTable:
        """The table, which is made when it is first asked for. Without an optimiser nobody may step it."""
        table, owns = create(
            self._job, self._policy, self._name, row_shape=(self.width,), dtype=np.dtype(np.float32),
            init_func=self._init_func, optimiser=self.optimiser or OptimiserSpec.sgd(),
        )  # fmt: skip
        if owns:
            weakref.finalize(self, drop, self._job, table.spec.name)
        return table

    @cached_property
    def module(self) -> Any:
        """Atta's own embedding on the table."""
        from atta.client.tables.embedding import DistEmbedding as OnDaemons

        spec = self.table.spec
        assert spec.optimiser is not None
        return OnDaemons(
            self._job.open(None), spec.rows, self.width, name=spec.name, optimizer=spec.optimiser, policy=spec.policy,
            init=spec.init, push="manual", locate=self._policy.order,
        )  # fmt: skip

    def rows(self, ids: Any) -> Any:
        """Rows of ``ids`` (a tensor), with their gradients."""
        self.asked = weakref.ref(ids)
        if self._job.changes != self._prefetched_at:
            self.module.forget()
        return self.module(ids)

    def prefetch(self, ids: Any) -> None:
        """Begin to pull rows, which ``rows`` of this very tensor takes if nothing has changed any."""
        self.module.prefetch(ids)
        self._prefetched_at = self._job.changes

    def forget(self) -> None:
        """Give up what ``prefetch`` has begun."""
        if "module" in self.__dict__:
            self.module.forget()

    def bind(self, optimiser: OptimiserSpec, stepper: Any) -> None:
        """Let ``optimiser`` step the rows as long as ``stepper`` lives; raises ConfigError if another one does."""
        if self._stepper is not None and self._stepper() is not None:
            raise ConfigError(f"DistEmbedding {self.table.spec.name!r}: it has an optimiser, and only one can step it")
        self._stepper = weakref.ref(stepper)
        self.set(optimiser)

    def set(self, optimiser: OptimiserSpec) -> None:
        """Let ``optimiser`` step the rows from now on. A table that exists is made anew with the same rows; those of
        its state that both optimisers have stay."""
        made, self.optimiser = "table" in self.__dict__, optimiser
        if not made or self.table.spec.optimiser == optimiser:
            return
        self.module.forget()
        self.module.flush()
        old, tables = self.table, self._job.open(None).tables
        new = dataclasses.replace(old.spec, optimiser=optimiser)
        barrier()  # nobody steps the old table any more
        if self._job.rank == 0:
            name = f"{old.spec.name}.aside"
            tables.delete(name)  # of a job that ended at this place
            aside = tables.create(dataclasses.replace(old.spec, name=name))
            _copy(old, aside)
            tables.delete(old.spec.name)
            _copy(aside, tables.create(new))
            tables.delete(name)
        barrier()
        self.__dict__["table"] = tables.create(new)
        self.__dict__.pop("module", None)

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """int64 [n]: the trainer that pushes each row. It is one of the part that owns it."""
        book = self._policy.partition_book
        parts = np.searchsorted(self.table.first_rows, rows, side="right") - 1
        found = np.empty(len(rows), np.int64)
        for part in np.unique(parts):
            mine, trainers = parts == part, np.array(book.trainers(int(part)))
            found[mine] = trainers[rows[mine] % len(trainers)]
        return found

    def state(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The optimiser's arrays of ``ids`` (int64 [n]): float32 [n, width] each, by name."""
        assert self.optimiser is not None
        where = self._policy.order(ids)
        found = {name: np.empty((len(ids), self.width), np.float32) for name in self.optimiser.state_names}
        for name, values in found.items():
            for piece in pieces(len(ids)):
                values[piece] = self.table.pull(where[piece], array=name).values
        return found

    def write_state(self, ids: np.ndarray, state: dict[str, np.ndarray]) -> None:
        """Write what ``state`` gave."""
        where = self._policy.order(ids)
        for name, values in state.items():
            for piece in pieces(len(ids)):
                self.table.push(where[piece], values[piece], array=name).wait()


def step(embeddings: Sequence[LearnedRows]) -> None:
    """Step each row of ``embeddings`` that any trainer has used, once, and return when all that this one pushes are
    stepped. All trainers call it. The gradient of a row is the mean over its uses by all trainers; those of the part
    that owns it push it."""
    if any(rows.optimiser is None for rows in embeddings):
        raise ConfigError("DistEmbedding: no optimiser steps it")
    if not embeddings:
        return
    mine = [rows.module.gradients() for rows in embeddings]
    given, world = [[one] for one in mine], present().world
    if world > 1:
        given = exchanged(mine, [rows.owners(one.rows) for rows, one in zip(embeddings, mine, strict=True)], world)
    for rows, of in zip(embeddings, given, strict=True):
        distinct, gradients = mean_of_uses(of)
        if len(distinct):
            rows.module.push(distinct, gradients)
    for rows in embeddings:
        rows.module.flush()
    present().changes += 1


def _copy(source: RemoteTable, target: RemoteTable) -> None:
    """Copy values, and the arrays of the optimiser that both have."""
    of = [() if table.spec.optimiser is None else table.spec.optimiser.state_names for table in (source, target)]
    for array in ("", *(name for name in of[0] if name in of[1])):
        for piece in pieces(source.rows):
            rows = np.arange(piece.start, piece.stop)
            target.push(rows, source.pull(rows, array=array).values, array=array).wait()


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
        """Arguments as of ``DistTensor``. An embedding of a name that exists shares its rows. Raises ConfigError if it
        has another width."""
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
        """As an optimiser's ``step``, for this embedding alone."""
        step([self.rows])


def mean_of_uses(given: Sequence[Gradients]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows int64 [n], and float32 [n, columns]: the mean of the gradients of all their uses."""
    import torch

    rows, inverse = np.unique(np.concatenate([one.rows for one in given]), return_inverse=True)
    gradients = torch.from_numpy(np.concatenate([one.sums for one in given]))
    sums = torch.zeros(len(rows), gradients.shape[1]).index_add_(0, torch.from_numpy(inverse), gradients)
    uses = np.bincount(inverse, np.concatenate([one.uses for one in given]), len(rows))
    return rows, sums.numpy() / uses[:, None].astype(np.float32)


def exchanged(mine: Sequence[Gradients], ranks: Sequence[np.ndarray], world: int) -> list[list[Gradients]]:
    """What all trainers have for this one, for each of ``mine``: gradients of the same embeddings at all trainers.
    ``ranks``: int64 [n] for each, the trainers that its rows go to. Every trainer calls it alike, in torch's process
    group. All of it travels in one message per pair of trainers."""
    import torch

    from atta.client.tables.embedding import Gradients

    dist, sent, counts = meeting(), [], np.empty((world, len(mine)), np.int64)
    kinds = [np.dtype([("rows", "<i8"), ("uses", "<i8"), ("sums", "<f4", one.sums.shape[1:])]) for one in mine]
    for number, (one, of, kind) in enumerate(zip(mine, ranks, kinds, strict=True)):
        records, order = np.empty(len(of), kind), np.argsort(of, kind="stable")
        for name in kind.names or ():
            records[name] = getattr(one, name)[order]
        counts[:, number] = np.bincount(of, minlength=world)
        sent.append(np.split(records, np.cumsum(counts[:-1, number])))
    coming = torch.empty(counts.shape, dtype=torch.int64)
    dist.all_to_all_single(coming, torch.from_numpy(counts))
    sizes, come = np.array([kind.itemsize for kind in kinds]), coming.numpy()
    message = np.concatenate(
        [records.view(np.uint8) for of_trainer in zip(*sent, strict=True) for records in of_trainer]
    )
    received = torch.empty(int((come @ sizes).sum()), dtype=torch.uint8)
    dist.all_to_all_single(received, torch.from_numpy(message), (come @ sizes).tolist(), (counts @ sizes).tolist())
    pieces = np.split(received.numpy(), np.cumsum(come * sizes)[:-1])
    views = [[piece.view(kind) for piece in pieces[number :: len(mine)]] for number, kind in enumerate(kinds)]
    return [[Gradients(one["rows"], one["sums"], one["uses"]) for one in of] for of in views]
