"""``g.ndata`` and ``g.edata``: the tables of the dataset as tensors whose rows are fetched when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np

from atta.compat.dgl.distributed.book import PartitionPolicy, tensor
from atta.compat.dgl.distributed.recent import BatchRows
from atta.compat.dgl.distributed.tensor import DistRows, DistTensor, row_ids
from atta.errors import ConfigError, UnknownNameError

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
        self.split, self._fetch = split, members
        self._found: np.ndarray | None = None

    def members(self) -> np.ndarray:
        """int64: ids of the vertices that it marks, ascending."""
        if self._found is None:
            self._found = self._fetch()
        return self._found

    def __getitem__(self, ids: Any) -> Any:
        rows = row_ids(self, ids)
        book, policy = self.part_policy.partition_book, self.part_policy.rows
        if book.places(policy) is not None:  # else daemons would have to be asked
            book.order(policy, rows)  # raises for a vertex that does not exist
        return tensor(np.isin(rows, self.members()))

    def count_nonzero(self) -> int:
        """Number of members."""
        policy = self.part_policy
        return policy.partition_book.types.schema.splits[policy.type_name][self.split]


class EdgeRows(ReadOnlyRows):
    """An edge table. The whole column is fetched when a row is first asked for: daemons find edges by vertices."""

    def __init__(self, name: str, policy: PartitionPolicy, column: Callable[[], np.ndarray]) -> None:
        """``column()`` gives all rows by edge id."""
        spec = policy.partition_book.types.schema.edge_tables[policy.type_name][name]
        super().__init__(name, policy, spec.row_shape, np.dtype(spec.dtype))
        self._column = column
        self._found: np.ndarray | None = None

    def __getitem__(self, ids: Any) -> Any:
        rows = row_ids(self, ids)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            odd = rows[(rows < 0) | (rows >= len(self))][0]
            raise ConfigError(f"{self.name}: there is no edge {odd}: edges of a type count from 0 to {len(self) - 1}")
        if self._found is None:
            self._found = self._column()
        return tensor(self._found[rows])


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
