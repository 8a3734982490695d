"""What the files in ``raw/`` hold, whatever their layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.importers.reading.rows import FileRows
from atta.partition.schema import join_edge_type, split_edge_type

__all__ = ["OgbGraph", "Relation", "edge_type"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Relation:
    """The edges of a type.

    Attributes:
        edges: [E, 2].
        tables: by OGB's names.
        stated: the file that states the number of edges, and the number; None: there is no such file.
    """

    edges: FileRows
    tables: Mapping[str, FileRows]
    stated: tuple[Path, int] | None = None

    def check(self, count: int) -> None:
        """Check that there are as many edges as stated; raises DataError."""
        if self.stated is not None and self.stated[1] != count:
            path, stated = self.stated
            raise DataError(path, f"states {stated} edges, {self.edges.path.name} has {count}")

    def both_ways(self, edge_type: str) -> Relation:
        """The same with the reverse of each edge behind it, as OGB's loaders give it; raises DataError."""
        source, _, target = split_edge_type(edge_type)
        if source != target:
            raise DataError(self.edges.path, f"'add_inverse_edge' asks for reverses of {edge_type!r} between two types")
        tables = {name: _doubled(rows, swap=False) for name, rows in self.tables.items()}
        stated = None if self.stated is None else (self.stated[0], 2 * self.stated[1])
        return Relation(_doubled(self.edges, swap=True), tables, stated)


def _doubled(rows: FileRows, *, swap: bool) -> FileRows:
    """Each row twice. ``swap``: the second one with its two columns exchanged."""

    def pieces() -> Iterator[Array]:
        for piece in rows.pieces():
            twice = np.repeat(piece, 2, axis=0)
            if swap:
                twice[1::2] = piece[:, ::-1]
            yield twice

    return replace(rows, pieces=pieces, count=None if rows.count is None else 2 * rows.count)


def edge_type(triplet: Sequence[str]) -> str:
    """The edge type of source, relation and target; raises ConfigError if they cannot be one."""
    return join_edge_type(*triplet)


@dataclass(frozen=True)
class OgbGraph:
    """A graph.

    Attributes:
        counts: number of vertices by node type.
        tables: tables of vertices by node type and OGB's name.
        relations: by edge type.
        labels: by node type.
    """

    counts: dict[str, int]
    tables: dict[str, dict[str, FileRows]]
    relations: dict[str, Relation]
    labels: dict[str, FileRows] = field(default_factory=dict)
