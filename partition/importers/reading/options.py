"""Options of all importers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atta.errors import ConfigError, DataError
from atta.observe.progress import Progress, Silent
from atta.partition.names import is_table_name

__all__ = ["ImportOptions"]


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import, and its notes for the user.

    Attributes:
        undirected: add the missing reverse edges, once each.
        reverse: add an edge type ``rev_<relation>`` with the reverses of every edge type.
        normalize_features: divide each row of ``x`` by the sum of its absolute values.
        progress: receives the stages.
        drop: names of data to leave out if a graph folder cannot hold it.
        rename: new names of types, relations and tables by old ones, see ``Renaming``.
        more: further files that are read after the source.
        columns: what is which column of an edge list: ``src``, ``dst``, ``relation`` or the name of an edge table ->
            the column's name, or its number from 1.
        string_ids: ids of an edge list are strings although they look like numbers.
        dropped: names in ``drop`` that were left out.
        notes: sentences that the user should read.
    """

    undirected: bool = False
    reverse: bool = False
    normalize_features: bool = False
    progress: Progress = field(default_factory=Silent)
    drop: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    more: tuple[Path, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    string_ids: bool = False
    dropped: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.undirected and self.reverse:
            raise ConfigError("undirected or reverse: not both, an undirected graph has its reverse edges already")
        if self.normalize_features and "x" in self.rename.values():
            raise ConfigError("normalize_features: divides what the source calls x, not what is renamed to it")

    def is_table_name(self, name: object) -> bool:
        """Whether a node or edge table can be called ``name``, or what it is renamed to."""
        return is_table_name(self.rename.get(str(name), name))

    def refuse(self, where: str | Path, name: object, why: str) -> None:
        """Raise DataError: ``name`` of the source cannot be imported. Return if the user said to leave it out."""
        if str(name) not in self.drop:
            raise DataError(
                where, f"{str(name)!r} is not imported: {why} (--drop {shlex.quote(str(name))} leaves it out)"
            )
        self.dropped.add(str(name))

    def check_dropped(self) -> None:
        """Raise ConfigError if a name in ``drop`` is not there, or is imported."""
        if unused := sorted(self.drop - self.dropped):
            raise ConfigError(f"--drop {shlex.quote(unused[0])}: the source holds nothing of this name that is refused")
