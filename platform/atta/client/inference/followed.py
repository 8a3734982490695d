"""Rows that follow the versions of a dataset: which of them an update can change, and the tables that have them, of every
layer, so that a reader sees one version while the next one is written.

A row is written in three steps: the present one goes into the table ``NAME.before``; the new one takes its place, with the
number of the coming version; when all rows of all layers are there, one row of ``NAME.version`` says that the version counts.
So whoever reads takes a row that is too new from ``before``. There rows of one version are kept, until the next but one is
begun."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.stages import Rows
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, StaleRowError, blaming
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import update_pb2
from atta.samplers.batch.items import EDGES
from atta.wire.bulk import as_array, bits_of

Marks = npt.NDArray[np.bool_]
"""Some vertices of a type: bool [vertices], by their rows in tables."""
RESULT = ""
"""Name of the rows that a follower gives. Those of layers are named as in ``Stage``."""
_TRIES = 100
MOST_EDGES = 1 << 20
"""Edges that a daemon tells at a time."""


# -- which rows change ---------------------------------------------------------------------------------------------------


def affected(
    hops: int,
    own: str,
    read: Mapping[str, Marks],
    edges: Mapping[str, tuple[str, Marks]],
    targets: Callable[[str, Marks], Marks],
) -> Marks:
    """The vertices of type ``own`` whose rows a layer may give anew.

    Args:
        hops: how far the layer reads.
        read: by node type, the vertices whose rows that it reads have changed.
        edges: by edge type along which it reads, the type of the sources, and the vertices whose in-edges have changed.
        targets: the vertices to which edges of a type lead from others, on the new graph. A vertex to which an edge led that
            has gone is one whose in-edges have changed.
    """
    found = read[own]
    for _ in range(hops):
        grown = found.copy()
        for edge_type, (source, changed) in edges.items():
            grown |= changed
            sources = found if source == own else read[source]
            if sources.any() and not grown.all():
                grown |= targets(edge_type, sources)
        found = grown
    return found


def differing(new: npt.NDArray[Any], old: npt.NDArray[Any], tolerance: float = 0.0) -> Marks:
    """bool [n]: which rows [n, ...] have changed by more than this part of their norm; 0: which are not equal."""
    flat, before = new.reshape(len(new), -1), old.reshape(len(old), -1)
    if not tolerance:
        return np.asarray(np.not_equal(flat, before).any(axis=1))
    with np.errstate(invalid="ignore", over="ignore"):
        off, size = (np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (flat - before, flat))
    return ~np.asarray(off <= tolerance * size)  # so a NaN has changed


def those(
    marks: Marks, at: npt.NDArray[np.int64], rows: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """The marked ones of places and rows, which are not copied if they are all."""
    return (at, rows) if marks.all() else (at[marks], rows[marks])


@dataclass(frozen=True)
class DatasetChanges:
    """What differs between two versions of a dataset.

    Attributes:
        rows: by node type and table, the vertices that have another row, int64 [n].
        edges: by edge type, int64 [3, n]: targets, in ascending order, and sources of edges that came, with 1, or went,
            with -1. Vertices are rows of tables.
    """

    rows: Mapping[tuple[str, str], npt.NDArray[np.int64]]
    edges: Mapping[str, npt.NDArray[np.int64]]

    @classmethod
    def between(cls, cluster: Cluster, since: int, until: int) -> DatasetChanges | None:
        """Ask the daemons. None: the files of a version between them have gone. Raises UnknownNameError: there is no version
        ``until``; RemoteError: a daemon does not answer."""
        replies = cluster.tables.ask_all("UpdateService.Changes", update_pb2.ChangesRequest(since=since, until=until))
        if not all(reply.known for reply in replies):
            return None
        found: dict[tuple[str, str], list[npt.NDArray[np.int64]]] = {}
        for change in (change for reply in replies for change in reply.changes):
            told = as_array(change.changed, wide=True).reshape((3, -1) if change.name == EDGES else -1)
            found.setdefault((change.type, change.name), []).append(told)
        joined = {of: np.concatenate(parts, axis=-1) for of, parts in found.items()}
        edges = {of[0]: told[:, np.argsort(told[0], kind="stable")] for of, told in joined.items() if of[1] == EDGES}
        return cls({of: told for of, told in joined.items() if of[1] != EDGES}, edges)


def newest_version(cluster: Cluster) -> int:
    """The newest version of the dataset that a daemon knows of. Raises RemoteError."""
    replies = cluster.tables.ask_all("UpdateService.Versions", update_pb2.VersionsRequest())
    return max(int(reply.newest) for reply in replies)


def edges_from(
    cluster: Cluster, edge_type: str, sources: Marks, version: int, targets: range, *, most: int = MOST_EDGES
) -> Iterator[npt.NDArray[np.int64]]:
    """The edges of a version from some vertices, int64 [2, n] their sources and targets, which ascend; about ``most`` at a time.
    ``targets``: into which vertices, by rows of tables. Each daemon reads its edges once. Raises RemoteError."""
    request = update_pb2.EdgesFromRequest(edge_type=edge_type, sources=bits_of(sources), version=version, edges=most)
    request.first, request.stop = targets.start, targets.stop
    while request.first < targets.stop:
        found = []
        for reply in cluster.tables.ask_all("UpdateService.EdgesFrom", request):
            counts, at = as_array(reply.counts, wide=False), int(request.first)
            ends = np.repeat(np.arange(at, at + len(counts)), counts)
            found.append(np.stack([as_array(reply.ends, wide=reply.wide), ends]))
            request.first += len(counts)
            if reply.more:
                break
        yield np.concatenate(found, axis=1)


# -- tables --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FollowedState:
    """What the row of ``NAME.version`` says.

    Attributes:
        version: of the dataset, which the rows are of; -1: none, the first pass is not over.
        before: the version before it, which can be read until the next one is begun.
        begun, done: how many versions were begun, and how many of them are complete.
        model: a digest of what rows depend on besides the dataset's version.
        follower: a random number of the process that writes.
    """

    version: int = -1
    before: int = -1
    begun: int = 0
    done: int = 0
    model: int = 0
    follower: int = 0

    def undisturbed(self, version: int, later: FollowedState) -> bool:
        """Whether rows of ``version``, read between this state and a ``later`` one, are all of this version: those that were
        replaced meanwhile were still in ``before``."""
        spare = 1 if version == self.version and self.begun == self.done else 0
        return later.begun <= self.begun + spare


class FollowedTables:
    """The tables of one follower, of all layers."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Open those that a follower keeps under ``name``. Raises UnknownNameError: there are none."""
        self._cluster, self.name = cluster, name
        self._open: dict[str, RemoteTable] = {}
        self._follower = 0

    @classmethod
    def created(cls, cluster: Cluster, name: str, model: int) -> FollowedTables:
        """Create the table of the version, or take it over from a follower that has ended. ``model``: see ``FollowedState``.
        Raises ConfigError: it belongs to another model, or is something else."""
        tables = cls(cluster, name)
        tables._created(MutableSpec(f"{name}.version", 1, "<i8", (len(_FIELDS),)))
        state = tables.state()
        if state.begun and state.model != model:
            raise ConfigError(
                f"--table {name}: follows another model, dataset or kind of prediction: delete it and the tables {name}.*, or "
                "choose another name"
            )
        if not state.done:
            state = replace(FollowedState(), begun=state.begun)
        tables._follower = secrets.randbits(62)
        tables._tell(replace(state, model=model, follower=tables._follower))
        return tables

    def state(self) -> FollowedState:
        """Which version the rows are of now. Raises UnknownNameError: a daemon has lost it; RemoteError."""
        (row,) = self._table(f"{self.name}.version").pull(np.zeros(1, np.int64)).values.tolist()
        return FollowedState(**dict(zip(_FIELDS, row, strict=True)))

    def begin(self) -> FollowedState:
        """Rows of a new version will come; goes on with one that was begun and never completed. Raises AttaError: another
        follower has taken over the tables."""
        state = self._mine()
        return self._tell(replace(state, begun=state.done + 1))

    def commit(self, version: int) -> FollowedState:
        """All rows of ``version`` are there: it counts from now on. Raises as ``begin``."""
        state = self._mine()
        return self._tell(replace(state, version=version, before=state.version, done=state.begun))

    def _mine(self) -> FollowedState:
        state = self.state()
        if state.follower != self._follower:
            raise AttaError(f"table {self.name}: another follower writes it")
        return state

    def _tell(self, state: FollowedState) -> FollowedState:
        row = np.array([list(asdict(state).values())])
        self._table(f"{self.name}.version").push(np.zeros(1, np.int64), row).wait()
        return state

    # -- rows --------------------------------------------------------------------------------------------------------------

    def create(self, rows: Rows, node_type: str, dtype: str = "<f4", *, totals: bool = False) -> None:
        """Create the tables of the rows of one layer, or open them. ``node_type``: if ``rows`` name none. ``totals``: those
        before are not kept. Raises ConfigError: there is another table of that name; QuotaExceededError: no room."""
        node_type = rows.node_type or node_type
        count, shape = self._cluster.schema.node_counts[node_type], () if rows.width is None else (rows.width,)
        spec = MutableSpec(self._name(rows), count, dtype, shape, versioned=True, policy=f"nodes:{node_type}")
        self._created(spec)
        if not totals:
            self._created(replace(spec, name=f"{spec.name}.before", versioned=False))

    def rows(self, rows: Rows) -> RemoteTable:
        """The table of the rows of one layer, with what is newest of each."""
        return self._table(self._name(rows))

    def read(
        self, ids: npt.NDArray[np.int64], version: int | None = None, rows: Rows | None = None
    ) -> tuple[npt.NDArray[Any], int]:
        """Rows [n, ...] of vertices by user id, all of one version of the dataset, and this version.

        ``version``: None: that of now. The one before it can be read, too, until the next one is begun. ``rows``: of a layer;
        None: the result. Raises StaleRowError: the version has gone, or there is none yet; ConfigError: an unknown vertex.
        """
        rows = rows or Rows(RESULT, None)
        return self.read_at(self.rows(rows).locate(ids), version, rows)

    def read_at(
        self, at: npt.NDArray[np.int64], version: int | None = None, rows: Rows | None = None
    ) -> tuple[npt.NDArray[Any], int]:
        """The same by rows of the table."""
        rows = rows or Rows(RESULT, None)
        for _ in range(_TRIES):
            state = self.state()
            wanted = state.version if version is None else version
            if not state.done:
                raise StaleRowError(f"table {self.name}: has no rows yet, its follower is at the first pass")
            if wanted != state.version and (wanted != state.before or state.begun != state.done):
                raise StaleRowError(f"table {self.name}: has version {state.version}, not {wanted}")
            values = self.both(rows, at, wanted)[1]
            if state.undisturbed(wanted, self.state()):
                return values, wanted
        raise StaleRowError(f"table {self.name}: versions come faster than rows can be read")

    def both(self, rows: Rows, at: npt.NDArray[np.int64], version: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The newest rows [n, ...] by rows of the table, and those of ``version``, unless a version is begun meanwhile. These are
        the same array if they are the same rows."""
        found = self.rows(rows).pull(at, versions=True)
        assert found.versions is not None
        late, before = np.flatnonzero(found.versions > version), found.values
        if len(late):
            kept = self._table(f"{self._name(rows)}.before").pull(at[late]).values
            before = kept if len(late) == len(at) else before.copy()
            if before is not kept:
                before[late] = kept
        return found.values, before

    def write(
        self,
        rows: Rows,
        at: npt.NDArray[np.int64],
        new: npt.NDArray[Any],
        *,
        state: FollowedState,
        version: int,
        tolerance: float | None,
    ) -> Marks:
        """Replace those rows of ``at`` that have changed; returns which. ``tolerance``: see ``differing``; None: all count as
        changed. ``state``: the present one; rows of its version are kept for readers."""
        table, changed = self.rows(rows), np.ones(len(at), np.bool_)
        if state.version >= 0:
            found = table.pull(at, versions=True)
            assert found.versions is not None
            if tolerance is not None:
                changed = differing(new, found.values, tolerance)
            kept = changed & (found.versions <= state.version)
            self._table(f"{self._name(rows)}.before").push(*those(kept, at, found.values)).wait()
        table.push(*those(changed, at, new), version=version).wait()
        return changed

    def _name(self, rows: Rows) -> str:
        return f"{self.name}.{rows.name}" if rows.name else self.name

    def _table(self, name: str) -> RemoteTable:
        if name not in self._open:
            self._open[name] = self._cluster.tables.open(name)
        return self._open[name]

    def _created(self, spec: MutableSpec) -> None:
        with blaming(ConfigError, f"--table {self.name}", of=ConfigError):
            self._open[spec.name] = self._cluster.tables.create(spec)


_FIELDS = tuple(asdict(FollowedState()))
