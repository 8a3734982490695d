"""Which vertices each operator has added to a batch, where their rows are fetched, and which a hop expands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from atta.samplers.batch.items import Joined
from atta.samplers.batch.new_vertices import Degree, KeptEdges, KeptRows, NewVertices, by_owner, grouped, together
from atta.samplers.dag.instance import Kind, OwnedVertices

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.samplers.batch.vertices import Vertices
    from atta.samplers.dag.spec import Plan, PlanOp

__all__ = ["Growths"]


class Growths:
    """The growth of each operator, by node type: the vertices that it has added."""

    def __init__(
        self,
        plan: Plan,
        dataset: Dataset,
        *,
        home: int,
        degree: Degree,
        kept: KeptEdges | None,
        rows: KeptRows | None,
    ) -> None:
        """The arguments are those of ``BatchState``."""
        self._plan, self._dataset, self._home, self._degree, self._rows = plan, dataset, home, degree, rows
        hops = [(op.method, plan.drawn_tables(edge_type)) for op in plan.neighborhoods for edge_type, _ in op.fan_outs]
        self._kept = kept if kept is not None and all(kept.serves(*hop) for hop in hops) else None
        self._grown: dict[str, dict[str, NewVertices]] = {}  # by operator and node type
        self._fetched: dict[str, dict[str, NewVertices]] = {}  # the same vertices, divided as their rows are fetched
        self._frontiers: dict[str, dict[str, NewVertices]] = {}  # by hop and node type: what it expands
        self._expansions: dict[tuple[str, int], NewVertices] = {}  # growths as hops expand them, by type and start

    @property
    def seeds(self) -> Mapping[str, NewVertices]:
        """The growth of the seeds."""
        return self._grown[self._plan.seed.id]

    def frontier(self, hop: str) -> Mapping[str, NewVertices]:
        """What a hop expands. All of its inputs are joined."""
        return self._frontiers[hop]

    def fetched(self, op_id: str) -> Mapping[str, NewVertices]:
        """The growth of an operator, divided by where the table rows are."""
        return self._fetched[op_id]

    def drop_fetched(self) -> None:
        """Let go of table rows that are kept at home: all have been copied."""
        self._fetched = {}

    def grouped(self, node_type: str, ids: np.ndarray, trees: np.ndarray | None, start: int) -> NewVertices:
        """Vertices with local ids from ``start`` on, by owner."""
        return grouped(ids, trees, start=start, offsets=self._dataset.book.offsets[node_type], home=self._home)

    def add(self, op_id: str, grown: dict[str, NewVertices], known: Mapping[str, Vertices]) -> Joined:
        """Record what an operator has added, and report it by owner. ``known``: all vertices of the batch."""
        self._grown[op_id] = grown
        fetched = self._fetched[op_id] = self._as_fetched(op_id, grown)
        following = self._following(op_id)
        if following is not None and all(i in self._grown for i in following.inputs):
            self._note_frontier(following, known)
        # An operator with several inputs (seed, positive, negative) expands the growths of all of them anyway.
        alone = following is not None and len(following.inputs) == 1
        expanded = self._frontiers[following.id] if following is not None and alone else grown
        row_bytes = self._row_bytes(op_id)
        if expanded.keys() == fetched.keys() and all(expanded[t] is fetched[t] for t in expanded):
            return Joined(self._by_owner(fetched, following, row_bytes), None)
        return Joined(self._by_owner(fetched, None, row_bytes), self._by_owner(expanded, following, {}))

    def _note_frontier(self, op: PlanOp, vertices: Mapping[str, Vertices]) -> None:
        """Group what ``op`` expands."""
        chosen = [*self._grown.values()] if op.frontier_all else [self._grown[i] for i in op.inputs]
        # With several inputs, each reports on its own what is to be expanded. So the owners stay as they are.
        kept = self._kept if len(op.inputs) == 1 else None
        frontier = self._frontiers[op.id] = {}
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
        """Number of bytes to fetch for each vertex that ``op_id`` adds, by node type."""
        total: dict[str, int] = {}
        for child in self._plan.op(op_id).children:
            for node_type, name in self._plan.op(child).tables:
                spec = self._dataset.schema.node_tables[node_type][name]
                total[node_type] = total.get(node_type, 0) + spec.row_bytes
        return total

    def _following(self, op_id: str) -> PlanOp | None:
        """The hop that expands what ``op_id`` adds."""
        children = (self._plan.op(c) for c in self._plan.op(op_id).children)
        return next((c for c in children if c.kind is Kind.NEIGHBORHOOD), None)

    def _by_owner(
        self, grown: Mapping[str, NewVertices], following: PlanOp | None, row_bytes: Mapping[str, int]
    ) -> list[OwnedVertices]:
        return by_owner(grown, following, row_bytes, dataset=self._dataset, home=self._home, degree=self._degree)
