"""Which vertices each operator has added to a batch, where their rows are fetched, and which a hop expands; and what
becomes of drawn edges that do not just join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta.samplers.batch.items import Joined
from atta.samplers.batch.vertices import Degree, KeptEdges, KeptRows, NewVertices, Vertices, grouped, together
from atta.samplers.dag.instance import Kind, OwnedVertices
from atta.samplers.dag.spec import Plan, PlanOp
from atta.samplers.operators.draws import draw, streams, unit
from atta.samplers.shard import Answer, only


class Growths:
    """The growth of each operator, by node type: the vertices that it has added."""

    def __init__(
        self, plan: Plan, dataset: Dataset, *, home: int, degree: Degree, kept: KeptEdges | None, rows: KeptRows | None
    ) -> None:
        self._plan, self._dataset, self._home, self._degree, self._rows = plan, dataset, home, degree, rows
        hops = [(op.method, plan.drawn_tables(edge_type)) for op in plan.neighborhoods for edge_type, _ in op.fan_outs]
        self._kept = kept if kept is not None and all(kept.serves(*hop) for hop in hops) else None
        self._grown: dict[str, dict[str, NewVertices]] = {}  # by operator and node type
        self.seeds: Mapping[str, NewVertices] = {}  # of these, the growth of the seeds
        self.fetched: dict[str, dict[str, NewVertices]] = {}  # the same vertices, divided by where their table rows are
        self.frontiers: dict[str, dict[str, NewVertices]] = {}  # by hop whose inputs are joined: what it expands
        self._expansions: dict[tuple[str, int], NewVertices] = {}  # growths as hops expand them, by type and start

    def grouped(self, node_type: str, ids: np.ndarray, trees: np.ndarray | None, start: int) -> NewVertices:
        """Vertices with local ids from ``start`` on, by owner."""
        return grouped(ids, trees, start=start, offsets=self._dataset.book.offsets[node_type], home=self._home)

    def add(self, op_id: str, grown: dict[str, NewVertices], known: Mapping[str, Vertices]) -> Joined:
        """Record what an operator has added, and report it by owner. ``known``: all vertices of the batch."""
        self._grown[op_id] = grown
        self.seeds = self._grown[self._plan.seed.id]
        fetched = self.fetched[op_id] = self._as_fetched(op_id, grown)
        children = [self._plan.op(child) for child in self._plan.op(op_id).children]
        following = next((child for child in children if child.kind is Kind.NEIGHBORHOOD), None)
        if following is not None and all(i in self._grown for i in following.inputs):
            self._note_frontier(following, known)
        # An operator with several inputs (seed, positive, negative) expands the growths of all of them anyway.
        alone = following is not None and len(following.inputs) == 1
        expanded = self.frontiers[following.id] if following is not None and alone else grown
        row_bytes = self._row_bytes(op_id)
        if expanded.keys() == fetched.keys() and all(expanded[t] is fetched[t] for t in expanded):
            return Joined(self._by_owner(fetched, following, row_bytes), None)
        return Joined(self._by_owner(fetched, None, row_bytes), self._by_owner(expanded, following, {}))

    def _note_frontier(self, op: PlanOp, vertices: Mapping[str, Vertices]) -> None:
        chosen = [*self._grown.values()] if op.frontier_all else [self._grown[i] for i in op.inputs]
        # With several inputs, each reports on its own what is to be expanded. So the owners stay as they are.
        kept = self._kept if len(op.inputs) == 1 else None
        frontier = self.frontiers[op.id] = {}
        for node_type, known in vertices.items():
            growths = sorted((g[node_type] for g in chosen if node_type in g), key=lambda g: g.start)
            pieces = growths if kept is None else [self._expanded(node_type, growth, kept) for growth in growths]
            if len(pieces) == 1:
                frontier[node_type] = pieces[0]
            elif pieces and all(piece.alone for piece in pieces):
                frontier[node_type] = together(pieces)
            elif pieces:
                start = growths[0].start
                ids, trees = known.internal(start, growths[-1].stop)
                found = self.grouped(node_type, ids, trees, start).within(growths)
                frontier[node_type] = found if kept is None else found.expanded_with(kept, node_type)

    def _expanded(self, node_type: str, growth: NewVertices, kept: KeptEdges) -> NewVertices:
        """``growth`` as hops expand it. Several may: each hop of the frontier "all" does."""
        key = node_type, growth.start
        if key not in self._expansions:
            self._expansions[key] = growth.expanded_with(kept, node_type)
        return self._expansions[key]

    def _as_fetched(self, op_id: str, grown: dict[str, NewVertices]) -> dict[str, NewVertices]:
        refs = dict.fromkeys(ref for child in self._plan.op(op_id).children for ref in self._plan.op(child).tables)
        if self._rows is None or not refs:
            return grown
        tables = {t: [name for owner, name in refs if owner == t] for t in grown}
        return {t: new.fetched_with(self._rows, t, tables[t]) if tables[t] else new for t, new in grown.items()}

    def _row_bytes(self, op_id: str) -> dict[str, int]:
        total: dict[str, int] = {}
        for child in self._plan.op(op_id).children:
            for node_type, name in self._plan.op(child).tables:
                spec = self._dataset.schema.node_tables[node_type][name]
                total[node_type] = total.get(node_type, 0) + spec.row_bytes
        return total

    def _by_owner(
        self, grown: Mapping[str, NewVertices], op: PlanOp | None, row_bytes: Mapping[str, int]
    ) -> list[OwnedVertices]:
        """Each owner's share of ``grown``. ``op``: the hop that expands it; ``row_bytes``: to fetch for each vertex.
        Degrees are exact for vertices of home. For others they are the mean of the graph, because only an owner knows
        the degrees of its vertices."""
        schema, parts, home = self._dataset.schema, self._dataset.num_parts, self._home
        rows, degrees, nbytes = [0] * parts, [0.0] * parts, [0.0] * parts  # plain lists: arrays this short are slower
        at_home = 0.0
        for node_type, new in grown.items():
            counts, each, mean = new.counts(), row_bytes.get(node_type, 0), 0.0
            into = [e for e, _ in op.fan_outs if schema.endpoints(e)[1] == node_type] if op is not None else []
            if into:
                mean = sum(schema.edge_counts[e] for e in into) / max(1, schema.node_counts[node_type])
                own = float(self._degree(into, new.rows[new.starts[-1] :])) if counts[home] else 0.0
                at_home += len(new.kept_rows) * mean + own
            for owner, count in enumerate(counts):
                if count:
                    rows[owner] += count
                    degrees[owner] += count * mean
                    nbytes[owner] += count * each
        degrees[home] = at_home
        return [OwnedVertices(p, rows[p], degrees[p], nbytes[p]) for p in range(parts) if rows[p]]


_WHOLE = 1 << 30
"""The vote of a vertex. Its edges share it in whole units, so that sums do not depend on the order of answers."""


def among(answer: Answer, sources: Vertices, trees: np.ndarray | None) -> Answer:
    """``answer`` without edges whose source is not in the batch. ``trees`` int32 [rows]: the trees that the rows are
    in; None: there are none. A source must be in the tree of its row."""
    of_edges = None if trees is None else np.repeat(trees, answer.counts)
    return only(answer, sources.find(answer.neighbors, of_edges) >= 0)


def rows_of_edges(edge_ids: np.ndarray, answers: Sequence[Answer], name: str, out: np.ndarray) -> None:
    """Write the rows of an edge table for ``edge_ids`` [E] to ``out`` [E, *row shape]. Raises ConfigError: an edge is
    not among the answers, so it is none of the graph's."""
    if not len(edge_ids):
        return
    given = np.concatenate([answer.edge_ids for answer in answers])
    order = np.argsort(given, kind="stable")
    at = np.minimum(np.searchsorted(given, edge_ids, sorter=order), len(given) - 1)
    found = order[at] if len(given) else at
    if not len(given) or not np.array_equal(given[found], edge_ids):
        raise ConfigError(f"edge table {name!r}: the operator makes edges of its own, which have no rows")
    out[:] = np.concatenate([answer.tables[name] for answer in answers])[found]


class Votes:
    """HGT's budget of one node type: vertices that are not in the batch, with the votes of those that are (Hu et al.,
    WWW 2020, algorithm 2)."""

    def __init__(self) -> None:
        self._ids, self._votes = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, answer: Answer, sources: Vertices) -> None:
        """Every row gives its drawn in-neighbours equal votes, together one. Vertices of the batch get none."""
        ids = answer.neighbors.astype(np.int64)
        votes = np.repeat(_WHOLE // np.maximum(answer.counts, 1).astype(np.int64), answer.counts)
        new = sources.find(ids) < 0
        self._ids, at = np.unique(np.concatenate([self._ids, ids[new]]), return_inverse=True)
        votes = np.concatenate([self._votes, votes[new]])
        self._votes = np.zeros(len(self._ids), np.int64)
        np.add.at(self._votes, at, votes)

    def draw(self, count: int, keys: np.ndarray, key: int) -> np.ndarray:
        """Take out ``count`` vertices (int64 internal ids), one after another by the squares of their votes. A vertex
        arrives after an exponential time of this rate; the first ones win. ``keys``: user ids by internal id, on which
        the times depend."""
        users = np.asarray(keys[self._ids])
        times = -np.log1p(-unit(draw(streams(key, users), 0))) / (self._votes / _WHOLE) ** 2
        order = np.lexsort((users, times))
        chosen, left = self._ids[order[:count]], np.sort(order[count:])
        self._ids, self._votes = self._ids[left], self._votes[left]
        return chosen
