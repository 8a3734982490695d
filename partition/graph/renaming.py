"""What the types, relations and tables of a source are called in the graph folder that is written (``--rename``)."""

from __future__ import annotations

from collections.abc import Mapping

from atta.errors import ConfigError, UnknownNameError
from atta.partition.names import check_name, check_type_name, join_edge_type, split_edge_type

__all__ = ["Renaming"]


class Renaming:
    """New names by old ones. An old name is that of node types, relations and tables alike, wherever it occurs;
    ``SRC__REL__DST`` is the relation of one edge type, and ``TYPE/TABLE`` the table of one type.

    Types are asked for by their old names. Two of a kind that would get one name are refused.
    """

    def __init__(self, wanted: Mapping[str, str] | None = None) -> None:
        self._wanted = dict(wanted or {})
        self._unused = set(self._wanted)
        self._seen: set[str] = set()
        self._taken: dict[tuple[str, str], str] = {}

    def node_type(self, name: str) -> str:
        """The new name of a node type; raises ConfigError if it cannot be one, or another type has it."""
        new = check_type_name("node type", self._new(name))
        return self._claimed("node types", new, name)

    def edge_type(self, edge_type: str) -> str:
        """An edge type with the new names of its relation and of the types at its ends; errors as ``node_type``."""
        source, relation, target = split_edge_type(edge_type)
        ends = self.node_type(source), self.node_type(target)
        new = join_edge_type(ends[0], self._new(edge_type, relation), ends[1])
        return self._claimed("edge types", new, edge_type)

    def table(self, owner: str, name: str) -> str:
        """The new name of a table of the (old) node type or edge type ``owner``; errors as ``node_type``."""
        new = check_name("table", self._new(f"{owner}/{name}", name))
        return self._claimed(f"tables of {owner!r},", new, name)

    def check_used(self) -> None:
        """Raise UnknownNameError if an old name has not occurred."""
        for name in sorted(self._unused):
            raise UnknownNameError.of("--rename: name in the source", name, self._seen)

    def _new(self, *names: str) -> str:
        """The new name of what is called by each of ``names``, of which the last is the plain one."""
        self._seen.update(names)
        found = next((name for name in names if name in self._wanted), None)
        self._unused.difference_update(names)
        return names[-1] if found is None else self._wanted[found]

    def _claimed(self, kind: str, new: str, old: str) -> str:
        if (other := self._taken.setdefault((kind, new), old)) != old:
            raise ConfigError(f"--rename: {kind} {other!r} and {old!r} would both be called {new!r}")
        return new
