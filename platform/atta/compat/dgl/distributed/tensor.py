"""``DistTensor`` with DGL's arguments: rows on the daemons, one per vertex or edge; and ``g.ndata`` and ``g.edata``: the tables
of the dataset as tensors whose rows are fetched when they are asked for."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np

from atta.client.tables.remote import RemoteTable
from atta.client.tables.tensor import row_values
from atta.compat.dgl.distributed.book import GraphPartitionBook, PartitionPolicy, tensor
from atta.compat.dgl.distributed.recent import BatchRows
from atta.compat.dgl.job import Job, barrier, present
from atta.errors import AttaError, ConfigError, UnknownNameError, blaming
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.partition.names import table_word
from atta.samplers.arguments import integers

InitFunc = Callable[[tuple[int, ...], Any], Any]


def pieces(count: int, together: int = 1 << 16) -> Iterator[slice]:
    """``count`` rows, some at a time."""
    return (slice(first, min(first + together, count)) for first in range(0, count, together))


class DistRows:
    """What can be asked of a distributed tensor. ``tensor[ids]`` gives a torch tensor [n, *row shape], a copy; ``ids``
    are integers [n], a slice, or a mask over all rows."""

    def __init__(self, name: str, policy: PartitionPolicy, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name, self.part_policy = name, policy
        self.shape = (policy.get_size(), *row_shape)
        self._dtype = dtype

    @property
    def dtype(self) -> Any:
        """Of torch."""
        return torch_dtype(self._dtype)

    @property
    def tensor_name(self) -> str:
        """The name without that of its policy."""
        return self.name

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: Any) -> Any:
        raise NotImplementedError

    def __or__(self, other: Any) -> DistTensor:
        """A new tensor without a name, with the values of both (bools or integers) joined bit by bit. All call it."""
        if not isinstance(other, DistRows):
            return NotImplemented
        mine, its = ((rows.part_policy.policy_str, *rows.shape, rows._dtype) for rows in (self, other))
        if mine != its or self._dtype.kind not in "biu":
            raise ConfigError(f"{self!r} | {other!r}: both need the same rows, shape, and dtype of bools or integers")
        made = DistTensor(self.shape, self.dtype, part_policy=self.part_policy)
        if present().rank == 0:
            for piece in pieces(len(self)):
                made[piece] = self[piece] | other[piece]
        barrier()
        return made

    def count_nonzero(self) -> int:
        """Number of values that are not 0. Reads all rows."""
        return sum(int(self[piece].count_nonzero()) for piece in pieces(len(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved, it is a plain tensor of all rows: ``torch.save(pred, "emb.pt")`` needs no daemons to be read."""
        return self[np.arange(len(self))].__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, shape={self.shape}, dtype={self._dtype})"


class MutableRows(DistRows):
    """Rows of a mutable table, read and written."""

    def __init__(self, name: str, policy: PartitionPolicy, table: RemoteTable, owner: Any = None) -> None:
        """``owner``: with which the table would end; it lives as long as these rows."""
        super().__init__(name, policy, table.spec.row_shape, np.dtype(table.spec.dtype))
        self._table, self._owner = table, owner

    @property
    def tensor_name(self) -> str:
        return self.name.removeprefix(_prefix(self.part_policy))

    def __getitem__(self, ids: Any) -> Any:
        return tensor(self._table.pull(self._where(ids)).values)

    def __setitem__(self, ids: Any, values: Any) -> None:
        """Write rows, and return when their owners have them. A single row is written to all ``ids``."""
        rows = self._where(ids)
        self._table.push(rows, row_values(self.name, values, self._dtype, (len(rows), *self.shape[1:]))).wait()
        self.part_policy.partition_book.job.changes += 1

    def _where(self, ids: Any) -> np.ndarray:
        return self.part_policy.order(row_ids(self, ids))


class DistTensor(MutableRows):
    """A tensor with a row per vertex or edge, on the daemons that own these. Arguments as in DGL.

    All trainers create the same tensors in the same order. A tensor that is not persistent ends with the object that
    has created it. A persistent one can be opened again by its name as long as the job goes on.
    """

    def __init__(  # noqa: PLR0917 - as in DGL
        self,
        shape: tuple[int, ...],
        dtype: Any,
        name: str | None = None,
        init_func: InitFunc | None = None,
        part_policy: PartitionPolicy | None = None,
        persistent: bool = False,
        is_gdata: bool = True,
        attach: bool = True,
    ) -> None:
        """Create the tensor, or open the one of this name.

        Args:
            shape: number of rows, then the shape of a row.
            dtype: of torch.
            name: letters, digits, dots, dashes, single underscores; None: one is made.
            init_func: ``(shape, dtype)`` gives the first contents, some rows at a time in the order of their ids;
                default: zeros. Rank 0 calls it.
            part_policy: of ``DistGraph``; None: the only type with as many members as there are rows.
            persistent: whether it outlives its object.
            is_gdata, attach: mean nothing here.

        Raises ConfigError if it exists with another shape or dtype.
        """
        job = present()
        if name is None and persistent:
            raise ConfigError("DistTensor: a persistent tensor needs a name")
        shape = tuple(int(n) for n in shape)
        policy = policy_of(shape, part_policy)
        table, owns = create(job, policy, name, row_shape=shape[1:], dtype=numpy_dtype(dtype), init_func=init_func)
        super().__init__(table.spec.name, policy, table)
        self.persistent = persistent
        if owns and not persistent:
            weakref.finalize(self, drop, job, table.spec.name)


def create(
    job: Job,
    policy: PartitionPolicy,
    name: str | None,
    *,
    row_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    init_func: InitFunc | None,
    optimiser: OptimiserSpec | None = None,
) -> tuple[RemoteTable, bool]:
    """The table of a tensor, and whether it is new to this job. What an earlier job has left under the name goes."""
    if name is None:
        name, job.anonymous = f"anonymous-{job.anonymous}", job.anonymous + 1
    spec = MutableSpec(
        f"{_prefix(policy)}{name}", policy.get_size(), dtype.newbyteorder("<").str, row_shape,
        optimiser, policy=policy.rows,
    )  # fmt: skip
    tables = job.open(None).tables
    if spec.name in job.tensors:
        return tables.create(spec), False
    if job.rank == 0:
        tables.delete(spec.name)
        table = tables.create(spec)
        if init_func is not None:
            _initialise(table, policy, init_func)
    barrier()
    job.tensors.add(spec.name)
    return (table if job.rank == 0 else tables.create(spec)), True


def _prefix(policy: PartitionPolicy) -> str:
    """What the names of the tables of a job's tensors begin with."""
    return f"dgl.{policy.partition_book.job.group}.{policy.kind}.{table_word(policy.type_name)}."


def policy_of(shape: tuple[int, ...], given: PartitionPolicy | None) -> PartitionPolicy:
    """The policy of a tensor of this shape; see ``DistTensor``."""
    job = present()
    if not shape:
        raise ConfigError("DistTensor: a shape needs a number of rows")
    if given is None:
        book = GraphPartitionBook(job.open(None), job)
        schema = book.types.schema
        every = [*map(book.nodes, schema.node_types), *map(book.edges, schema.edge_types)]
        found = [policy for policy in every if policy.get_size() == shape[0]]
        if len(found) != 1:
            what = ", ".join(policy.policy_str for policy in found) or "no type of vertices or edges"
            raise ConfigError(f"DistTensor of {shape[0]} rows: {what} has so many members: give a part_policy")
        return found[0]
    if given.get_size() != shape[0]:
        raise ConfigError(f"DistTensor of {shape[0]} rows: {given.policy_str} has {given.get_size()}")
    return given


def row_ids(rows: DistRows, ids: Any) -> np.ndarray:
    """int64 [n]: the rows that integers, a slice or a mask mean."""
    if isinstance(ids, slice):
        return np.arange(*ids.indices(len(rows)))
    given = ids.detach().cpu().numpy() if hasattr(ids, "detach") else np.asarray(ids)
    if given.dtype == bool:
        if given.shape != (len(rows),):
            raise ConfigError(f"{rows.name}: a mask of {list(given.shape)} for {len(rows)} rows")
        return np.flatnonzero(given)
    return integers(f"{rows.name}: ids", given).reshape(-1)


def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """Torch's dtype for numpy's."""
    return tensor(np.empty(0, dtype)).dtype


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Numpy's dtype for torch's or its own; raises ConfigError for those that numpy lacks."""
    import torch

    with blaming(ConfigError, f"dtype {dtype}", of=TypeError):
        return torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)


def _initialise(table: RemoteTable, policy: PartitionPolicy, init_func: InitFunc) -> None:
    """Write what ``init_func`` gives. Its row i belongs to id i, wherever the partitions have it."""
    spec = table.spec
    for piece in pieces(spec.rows):
        count = piece.stop - piece.start
        made = init_func((count, *spec.row_shape), torch_dtype(np.dtype(spec.dtype)))
        values = made.detach().cpu().numpy() if hasattr(made, "detach") else np.asarray(made)
        if values.shape != (count, *spec.row_shape):
            raise ConfigError(f"init_func gave {list(values.shape)} for {[count, *spec.row_shape]}")
        table.push(policy.order(np.arange(piece.start, piece.stop)), values.astype(spec.dtype, copy=False)).wait()


def drop(job: Job, name: str) -> None:
    """End a table with its object; all trainers forget its name, and rank 0 deletes it."""
    job.tensors.discard(name)
    if job.rank == 0 and job.cluster is not None:
        with contextlib.suppress(AttaError, ValueError):  # the daemons have gone, or the connection is closed
            job.cluster.tables.delete(name)


Fetch = Callable[[str, str, np.ndarray], np.ndarray]


class ReadOnlyRows(DistRows):
    """A table of the dataset. DGL would let a script change it; here ``DistTensor`` is for what changes."""

    def __setitem__(self, ids: Any, values: Any) -> None:
        raise ConfigError(f"{self.name!r} is a table of the dataset, read-only: write into a DistTensor of this shape")


class NodeRows(ReadOnlyRows):
    """A node table. Rows of a batch that a loader has just given come with the batch."""

    def __init__(self, name: str, policy: PartitionPolicy, table: str, recent: BatchRows, fetch: Fetch) -> None:
        """``fetch(node type, table, ids)`` gives rows that did not come with a batch."""
        spec = policy.partition_book.types.schema.table(policy.type_name, table)
        super().__init__(name, policy, spec.row_shape, np.dtype(spec.dtype))
        self._table, self._recent, self._fetch = table, recent, fetch

    def __getitem__(self, ids: Any) -> Any:
        which = self.part_policy.type_name, self._table
        found = self._recent.find(*which, ids)
        return tensor(self._fetch(*which, row_ids(self, ids)) if found is None else found)


class NodeMask(ReadOnlyRows):
    """The mask of a split. Its members are fetched once, when they are first asked for."""

    def __init__(self, name: str, policy: PartitionPolicy, split: str, members: Callable[[], np.ndarray]) -> None:
        """``members()`` gives the ids of the split, ascending."""
        super().__init__(name, policy, (), np.dtype(bool))
        self.split, self.members = split, functools.cache(members)

    def __getitem__(self, ids: Any) -> Any:
        rows = row_ids(self, ids)
        if self.part_policy.places is not None:  # else daemons would have to be asked
            self.part_policy.order(rows)  # raises for a vertex that does not exist
        return tensor(np.isin(rows, self.members()))

    def count_nonzero(self) -> int:
        """Number of members."""
        policy = self.part_policy
        return policy.partition_book.types.schema.splits[policy.type_name][self.split]


class EdgeRows(ReadOnlyRows):
    """An edge table. The whole column is fetched when a row is first asked for: daemons find edges by vertices."""

    def __init__(self, name: str, policy: PartitionPolicy, column: Callable[[], np.ndarray]) -> None:
        spec = policy.partition_book.types.schema.edge_tables[policy.type_name][name]
        super().__init__(name, policy, spec.row_shape, np.dtype(spec.dtype))
        self._column = functools.cache(column)

    def __getitem__(self, ids: Any) -> Any:
        rows = row_ids(self, ids)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            odd = rows[(rows < 0) | (rows >= len(self))][0]
            raise ConfigError(f"{self.name}: there is no edge {odd}: edges of a type count from 0 to {len(self) - 1}")
        return tensor(self._column()[rows])


class Frame(MutableMapping[str, DistRows]):
    """Tensors by name. Those of the dataset are there from the start; ``DistTensor`` can be put beside them."""

    def __init__(self, what: str, names: list[str], make: Callable[[str], DistRows | None]) -> None:
        """``make`` gives a tensor of the dataset by one of ``names`` or another name of it; None: there is none."""
        self._what, self._names, self._make = what, names, make
        self._tensors: dict[str, DistRows] = {}

    def __getitem__(self, name: str) -> DistRows:
        if name not in self._tensors:
            found = self._make(name)
            if found is None:
                raise _NoTensorError.of(f"tensor of {self._what}:", name, list(self))
            self._tensors[name] = found
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __setitem__(self, name: str, value: DistRows) -> None:
        if not isinstance(value, DistTensor):
            raise ConfigError(f"{self._what} {name!r}: give a DistTensor")
        self._tensors[name] = value

    def __delitem__(self, name: str) -> None:
        if not isinstance(self[name], DistTensor):
            raise ConfigError(f"{name!r} is a table of the dataset, which stays")
        del self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._names, *(n for n, t in self._tensors.items() if isinstance(t, DistTensor))]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _NoTensorError(UnknownNameError, KeyError):
    """A name that a frame lacks; a KeyError, as mappings need it."""

    __str__ = Exception.__str__
