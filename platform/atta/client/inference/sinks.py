"""Where the results of an inference go: arrays, or a table on the daemons. ``files`` has those on disk."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.errors import ConfigError
from atta.kvstore.spec import MutableSpec

__all__ = ["MemorySink", "Predictions", "ShareWriter", "Sink", "TableSink", "UserIds"]

UserIds = npt.NDArray[np.int64] | npt.NDArray[np.str_]
"""Vertices as users name them: by numbers or by strings."""


@dataclass(frozen=True)
class Predictions:
    """Results in memory.

    Attributes:
        ids: int64 or str [n], user ids of vertices; [n, 2], sources and targets, where pairs are scored.
        values: [n, width] float32 embeddings or scores, or int64 [n] classes; float32 [n] for pairs.
    """

    ids: UserIds
    values: npt.NDArray[Any]


class ShareWriter(Protocol):
    """Takes the results of one share."""

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        """Take some rows: ids [n] or [n, 2], and their values [n, ...]."""


class Sink(Protocol):
    """Takes the results of all shares. A share counts as finished when its ``open`` block is left without an error.

    Attributes:
        takes_strings: whether it takes string ids, where vertices have them; numbers otherwise.
        run: which processes work together: those whose sinks have the same.
    """

    takes_strings: bool
    run: str

    def finished(self, share: int) -> bool:
        """Whether an earlier run, or this one, has finished the share."""

    def open(self, share: int) -> AbstractContextManager[ShareWriter]:
        """Begin a share. After an error nothing of it is to be seen."""


class MemorySink:
    """Keeps results as arrays."""

    takes_strings = True

    def __init__(self) -> None:
        self.run = secrets.token_hex(8)
        self._shares: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def finished(self, share: int) -> bool:
        """See ``Sink``."""
        return share in self._shares

    @contextmanager
    def open(self, share: int) -> Iterator[ShareWriter]:
        """See ``Sink``."""
        taken = _Kept([])
        yield taken
        self._shares[share] = taken.pieces

    def result(self) -> Predictions:
        """All shares one after another."""
        pieces = [piece for _, taken in sorted(self._shares.items()) for piece in taken]
        return Predictions(np.concatenate([ids for ids, _ in pieces]), np.concatenate([rows for _, rows in pieces]))


@dataclass(frozen=True)
class _Kept:
    pieces: list[tuple[np.ndarray, np.ndarray]]

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        self.pieces.append((ids.copy(), values.copy()))


class TableSink:
    """Writes rows of vertices into a mutable table, which stays for the next job. A repeated run writes all rows again."""

    takes_strings = False

    def __init__(self, cluster: Cluster, node_type: str, name: str, width: int | None) -> None:
        """``width``: numbers per row; None: one class, int64.

        Raises:
            ConfigError: the name is not possible, or a table of that name has other rows.
            QuotaExceededError: a daemon has no room for it.
        """
        spec = MutableSpec(
            name,
            cluster.schema.node_counts[node_type],
            dtype="<i8" if width is None else "<f4",
            row_shape=() if width is None else (width,),
            policy=f"nodes:{node_type}",
        )
        try:
            self.table = cluster.tables.create(spec)
        except ConfigError as error:
            raise ConfigError(f"--table {name}: {error}") from None
        self.run = name
        self._shares: set[int] = set()

    def finished(self, share: int) -> bool:
        """See ``Sink``."""
        return share in self._shares

    @contextmanager
    def open(self, share: int) -> Iterator[ShareWriter]:
        """See ``Sink``."""
        yield self
        self._shares.add(share)

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        """See ``ShareWriter``."""
        self.table.push(self.table.locate(ids), values).wait()
