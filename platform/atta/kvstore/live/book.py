"""Which versions of a dataset there are, who reads which, and whose rows and edges a daemon needs. Pure.

Version 0 is the dataset itself. For everything that differs, a version names its *source*: the version whose files hold
it. It is *prepared* on all daemons, then *committed* on the disk. Sessions open the newest committed version and read
it to their end. Peers name the source that they want, also a prepared one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from atta.errors import QuotaExceededError, UnknownNameError
from atta.partition.dataset import Dataset, VertexTimes
from atta.partition.graph.part import GraphDegrees
from atta.partition.schema import Schema
from atta.samplers.batch.items import EDGES, TIME
from atta.samplers.shard import PartEdges, Shard

TableName = tuple[str, str]
"""Node type and table name; of edges: edge type and ``EDGES``; of how many vertices are in use: node type and ``USED``. No
edge type has the name of a node type, no table one of these names."""
USED = "ids"
Sources = Mapping[TableName, int]
"""The version whose files hold a table's rows, or edges; what is not there is the dataset's own."""
Rows = tuple[str, str, int]
"""Node type, name, source (or edge type, ``EDGES``, source): what a daemon has in memory, or has not."""

DATASET: Sources = {}
MOST_IN_USE = 8
"""At most so many versions may be read at once, the newest included: each may take the memory of its tables."""
IDLE_S = 30.0
"""How long rows stay that only peers have asked for, after the latest pull. Their sessions are not known here."""


def source_of(sources: Sources, node_type: str, tables: Iterable[str]) -> int:
    """The version that a pull of ``tables`` names: the newest of their sources. It has the same rows of all of them."""
    return max((sources.get((node_type, name), 0) for name in tables), default=0)


def edges_only(sources: Sources) -> Sources:
    """Those of edges."""
    return {of: source for of, source in sources.items() if of[1] == EDGES}


@dataclass
class VersionBook:
    """Attributes:
    known: the committed versions; always the dataset, too.
    prepared: the number and the sources of the version that is about to be committed; None: there is none.
    readers: open sessions, by version.
    """

    known: dict[int, Sources] = field(default_factory=lambda: {0: DATASET})
    prepared: tuple[int, Sources] | None = None
    readers: Counter[int] = field(default_factory=Counter)
    _asked: dict[Rows, float] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The version that a session opens."""
        return max(self.known)

    @property
    def readable(self) -> list[int]:
        """The versions that a session may open. A version may be on the disk only because a later one has rows there; rows
        that it has elsewhere itself may be gone."""
        there = self.known.keys()
        open_now = {self.newest, *self.readers}
        return sorted(n for n, of in self.known.items() if n in open_now or {*of.values()} <= there)

    def refresh(self, committed: Mapping[int, Sources]) -> None:
        """Take note of what is committed on the disk. A version that is read stays known even if its files are gone."""
        kept = {number: sources for number, sources in self.known.items() if self.readers[number]}
        self.known = {0: DATASET, **kept, **committed}
        if self.prepared is not None and self.prepared[0] in committed:
            self.prepared = None

    def prepare(self, number: int, sources: Sources) -> None:
        """Be ready for ``number``. It takes the place of a version that was prepared before and never committed. Raises
        UnknownNameError: it is not newer than what is committed; QuotaExceededError: too many versions are read."""
        if number <= self.newest:
            raise UnknownNameError(f"version {number} cannot be prepared: version {self.newest} is committed")
        self._check_room()
        self.prepared = number, sources

    def _check_room(self) -> None:
        used = {*self.readers, self.newest}
        if len(used) >= MOST_IN_USE:
            raise QuotaExceededError(
                f"sessions read {len(used)} versions of the dataset, the most that are served at once; wait for them to end"
            )

    def abort(self, number: int) -> None:
        """Forget what was prepared, if it is this version."""
        if self.prepared is not None and self.prepared[0] == number:
            self.prepared = None

    def sources(self, number: int) -> Sources:
        """Where the rows of a version are, also of the prepared one. Raises UnknownNameError: there is no such version;
        names those that exist."""
        if self.prepared is not None and number == self.prepared[0]:
            return self.prepared[1]
        if number not in self.known:
            raise UnknownNameError.of("version of the dataset", number, self.known)
        return self.known[number]

    def open(self, number: int | None) -> int:
        """A session begins to read ``number`` (None: the newest). ``close`` must follow. Raises UnknownNameError: it is
        not committed, or was dropped; names those that can be read; QuotaExceededError: too many versions are read."""
        number = self.newest if number is None else number
        if number not in self.readable:
            raise UnknownNameError.of("version of the dataset", number, self.readable)
        if number != self.newest and number not in self.readers:
            self._check_room()
        self.readers[number] += 1
        return number

    def close(self, number: int) -> None:
        """A session has ended."""
        self.readers[number] -= 1
        if not self.readers[number]:
            del self.readers[number]

    def asked(self, rows: Iterable[Rows], now: float) -> None:
        """A peer has asked for these; ``now`` in seconds. What sessions read here goes with them."""
        read = self._rows_of(self.readers)
        for one in rows:
            if one[2] and one not in read:
                self._asked[one] = now

    def needed(self, now: float) -> set[Rows]:
        """What has to be in memory, beside the dataset's own rows: of versions that are read, of the newest, of the
        prepared one, and what peers have asked for lately."""
        self._asked = {rows: at for rows, at in self._asked.items() if now - at < IDLE_S}
        prepared = () if self.prepared is None else (self.prepared[0],)
        return self._rows_of({*self.readers, self.newest, *prepared}) | {*self._asked}

    def _rows_of(self, numbers: Iterable[int]) -> set[Rows]:
        return {(t, name, source) for n in numbers for (t, name), source in self.sources(n).items()}

    def in_use(self) -> list[int]:
        """The versions that sessions read, ascending."""
        return sorted(self.readers)


def graph_rows(schema: Schema, sources: Sources) -> set[Rows]:
    """Those of ``sources`` that say what is drawn: edges, times of vertices, and which vertices are in use."""
    of_types = schema.node_tables
    return {
        (name, kind, source)
        for (name, kind), source in sources.items()
        if kind in (EDGES, USED) or (kind == TIME and name in of_types and schema.timed(name))
    }


@dataclass(frozen=True)
class HeldEdges:
    """The edges of one type that a version brought. ``ids``: one more than the largest edge id, in all partitions;
    ``degrees``: gives those of all vertices."""

    edges: PartEdges
    ids: int
    degrees: Callable[[], GraphDegrees]


HeldGraph = HeldEdges | VertexTimes | int
"""Edges, times, or how many vertices of the room are in use."""


@dataclass
class LiveEdges:
    """Attributes:
    dataset, shard: the dataset and this daemon's partition, with the dataset's own edges and times.
    """

    dataset: Dataset
    shard: Shard
    _held: dict[Rows, HeldGraph] = field(default_factory=dict)
    _made: dict[frozenset[Rows], tuple[Dataset, Shard]] = field(default_factory=dict)

    @property
    def live(self) -> frozenset[Rows]:
        """Which edges and times of later versions are here."""
        return frozenset(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of these."""
        held = [one.edges if isinstance(one, HeldEdges) else one for one in self._held.values()]
        return sum(one.nbytes for one in held if not isinstance(one, int))

    def add(self, of: Rows, held: HeldGraph) -> None:
        """Hold edges, times of vertices, or how many are in use, of a later version."""
        self._held[of] = held

    def drop(self, of: Rows) -> None:
        """Let go of them. Who reads them right now keeps them until it has done."""
        self._held.pop(of, None)
        self._made = {key: made for key, made in self._made.items() if of not in key}

    def of(self, sources: Sources) -> tuple[Dataset, Shard]:
        """The dataset and the partition of a version whose edges and times are here. ``edge_counts`` of the schema are
        then those of the ids that were given out: bounds, as removed edges count, too. ``room`` is what is left. Raises
        UnknownNameError: they are not here."""
        key = frozenset(graph_rows(self.dataset.schema, sources))
        if not key:
            return self.dataset, self.shard
        if key not in self._made:
            self._made[key] = self._with({one: self._here(one) for one in key})
        return self._made[key]

    def _here(self, of: Rows) -> HeldGraph:
        name, kind, source = of
        if of not in self._held:
            here = sorted(number for known, of_kind, number in self._held if (known, of_kind) == (name, kind))
            raise UnknownNameError.of(f"version of the {kind} {name}", source, [0, *here])
        return self._held[of]

    def _with(self, changed: Mapping[Rows, HeldGraph]) -> tuple[Dataset, Shard]:
        edges = {name: held for (name, _, _), held in changed.items() if isinstance(held, HeldEdges)}
        times = {name: held for (name, _, _), held in changed.items() if isinstance(held, VertexTimes)}
        used = {name: held for (name, _, _), held in changed.items() if isinstance(held, int)}
        dataset = self.dataset.with_times(times).with_used(used) if used else self.dataset.with_times(times)
        if edges:
            schema = dataset.schema
            dataset = dataset.with_degrees({edge_type: held.degrees for edge_type, held in edges.items()})
            counts = {**schema.edge_counts, **{edge_type: held.ids for edge_type, held in edges.items()}}
            dataset.schema = dataclasses.replace(schema, edge_counts=counts)
        return dataset, self.shard.with_changes({name: held.edges for name, held in edges.items()}, times)
