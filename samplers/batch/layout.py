"""The layout of a batch's arrays in its buffer, a shared-memory slot or plain memory with room for the largest batch
that the DAG can produce. Buffers are reused because a fresh page costs about eight times a copy. Every array has its
own page-aligned region, so hops can append to all arrays in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.partition.schema import Schema
from atta.samplers.dag.plan import EdgeUse
from atta.samplers.dag.spec import Kind, Plan, PlanOp
from atta.samplers.operators.base import Bounds

PAGE = 4096
_NO_BOUND = 1 << 31
"""At most this many vertices, or edges, of one type are in a batch: local ids are int32."""
HEADER_BYTES = PAGE
"""Number of bytes at the start of every buffer that are free for the buffer's owner (a slot writes its nonce there)."""


@dataclass(frozen=True, slots=True)
class Region:
    """Room for at most ``rows`` rows of one array."""

    name: str
    dtype: np.dtype
    row_shape: tuple[int, ...]
    rows: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the full region."""
        return self.rows * self.dtype.itemsize * prod(self.row_shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """All regions of a batch buffer, and the number of bytes that they span."""

    regions: dict[str, Region]
    capacity: int


@dataclass(frozen=True, slots=True)
class BatchArrays:
    """Views into one buffer: ``arrays[name]`` has the region's full length; ``used[name]`` rows of it hold data."""

    layout: Layout
    arrays: dict[str, np.ndarray]
    used: dict[str, int]

    @classmethod
    def over(cls, layout: Layout, buffer: np.ndarray) -> BatchArrays:
        """Map ``layout`` onto ``buffer`` (uint8, at least ``layout.capacity`` bytes)."""
        arrays = {
            r.name: buffer[r.offset : r.offset + r.nbytes].view(r.dtype).reshape(r.rows, *r.row_shape)
            for r in layout.regions.values()
        }
        return cls(layout, arrays, dict.fromkeys(arrays, 0))

    def append(self, name: str, count: int) -> np.ndarray:
        """The next ``count`` rows of array ``name``, now counted as used."""
        start = self.used[name]
        stop = start + count
        if stop > len(self.arrays[name]):
            raise AssertionError(f"batch array {name} outgrows its region: {stop} rows of {len(self.arrays[name])}")
        self.used[name] = stop
        return self.arrays[name][start:stop]

    def filled(self, name: str) -> np.ndarray:
        """The rows of ``name`` that hold data."""
        return self.arrays[name][: self.used[name]]

    @property
    def nbytes(self) -> int:
        """Bytes of data in the batch."""
        return sum(self.filled(name).nbytes for name in self.arrays)


def pair_ops(plan: Plan) -> tuple[PlanOp, ...]:
    """The positive and negative samplers of a plan whose seeds are vertices."""
    return tuple(op for op in plan.ops if op.kind in (Kind.POSITIVE, Kind.NEGATIVE) and op.negatives is None)


def layout_of(plan: Plan, schema: Schema, batch_size: int, *, edge_ids: bool, wide_ids: bool = False) -> Layout:
    """Lay out a buffer for any batch of ``plan`` with up to ``batch_size`` seeds. The bounds follow from the fan-outs.
    They never exceed the number of vertices (edges) in the graph: the vertices of a batch are unique, and without
    replacement one hop cannot deliver an edge twice. ``wide_ids``: ids of edges and of their ends take 8 bytes, as
    PyTorch wants them, even if 4 bytes would be enough."""
    vertices, edges = _bounds(plan, schema, batch_size, plan.neighborhoods)
    held = vertices if plan.summed is None else _bounds(plan, schema, batch_size, plan.neighborhoods[:-1])[0]
    seeds = _seed_bounds(plan, schema, batch_size, dict.fromkeys(schema.node_counts, _NO_BOUND))
    regions: dict[str, Region] = {}
    offset = HEADER_BYTES

    def add(name: str, rows: int, dtype: npt.DTypeLike = np.int64, row_shape: tuple[int, ...] = ()) -> None:
        nonlocal offset
        regions[name] = Region(name, np.dtype(dtype), row_shape, rows, offset)
        offset += -(-regions[name].nbytes // PAGE) * PAGE

    add("input_id", batch_size)
    for prefix, count in _link_counts(plan, batch_size):
        add(f"{prefix}src", count)
        add(f"{prefix}dst", count)
    made = [_operator_bounds(op, schema, batch_size).extra for op in plan.ops if op.operator is not None]
    for name, (dtype, shape) in (pair for extra in made for pair in extra.items()):
        add(f"extra/{name}", shape[0], dtype, tuple(shape[1:]))
    for node_type, rows in vertices.items():
        add(f"n_id/{node_type}", rows)
        add(f"hops/{node_type}", len(plan.ops))
        if plan.disjoint:
            add(f"tree/{node_type}", rows, np.int32)
        for name in (n for t, n in plan.tables if t == node_type):
            spec = schema.node_tables[node_type][name]
            most = seeds[node_type] if (node_type, name) in plan.tables_of_seeds else held.get(node_type, 0)
            room = min(rows, most)
            add(f"table/{node_type}/{name}", room, spec.dtype, spec.row_shape)
    for edge_type, count in edges.items():
        for part in ("row", "col"):
            add(f"{part}/{edge_type}", count, np.int64 if wide_ids else np.int32)
        add(f"hops/{edge_type}", plan.hops)
        if edge_ids:
            wide = wide_ids or schema.edge_counts[edge_type] > np.iinfo(np.int32).max
            add(f"e_id/{edge_type}", count, np.int64 if wide else np.int32)
        if any(weights.edge_type == edge_type for weights in plan.edge_weights):
            add(f"edge_weight/{edge_type}", count, np.float32)
        for name in plan.tables_of(edge_type):
            spec = schema.edge_tables[edge_type][name]
            add(f"edge/{edge_type}/{name}", count, spec.dtype, spec.row_shape)
    for edge_type, name in plan.sums(schema):
        source, target = schema.endpoints(edge_type)
        spec = schema.node_tables[source][name]
        add(f"sum/{edge_type}/{name}", held.get(target, 0), spec.dtype, spec.row_shape)
    for op in pair_ops(plan):
        add(f"pairs/{op.id}", batch_size, row_shape=(op.count,))
    return Layout(regions, offset)


def check_draws_alone(plan: Plan, schema: Schema) -> None:
    """Raise ConfigError unless a plan's operator can sample batches without seeds."""
    for op in plan.ops:
        if op.operator is not None and _operator_bounds(op, schema, 0).vertices < 1:
            raise ConfigError(
                f"operator {type(op.operator).__name__} samples around seeds, a number of batches gives it none: give "
                "input_nodes, or as batches the ids of each batch's seeds"
            )


def _link_counts(plan: Plan, batch_size: int) -> list[tuple[str, int]]:
    """The prefixes of the arrays with local ids of the ends of seed edges and of negatives, and how many there are at most."""
    negatives = [("link/neg_", op.negatives.count(batch_size)) for op in plan.ops if op.negatives is not None]
    return [("link/", batch_size), *negatives] if plan.links else []


def _operator_bounds(op: PlanOp, schema: Schema, batch_size: int) -> Bounds:
    assert op.operator is not None
    node_type = schema.endpoints(op.edge_type)[0]
    try:
        bounds = op.operator.bounds(batch_size, schema.node_counts[node_type], schema.edge_counts[op.edge_type])
        extra = {str(n): (np.dtype(d).str, tuple(int(i) for i in shape)) for n, (d, shape) in bounds.extra.items()}
        return Bounds(int(bounds.vertices), int(bounds.edges), extra)
    except Exception as error:  # users write operators
        raise ConfigError(f"operator {type(op.operator).__name__}: bounds: {type(error).__name__}: {error}") from error


def _bounds(
    plan: Plan, schema: Schema, batch_size: int, hops: Sequence[PlanOp]
) -> tuple[dict[str, int], dict[str, int]]:
    """At most so many vertices and edges, by type, are in the batch after ``hops``."""
    # Trees may hold a vertex many times. Other batches hold each vertex of the graph once at most.
    total = dict.fromkeys(schema.node_counts, _NO_BOUND) if plan.disjoint else schema.node_counts
    fresh = _seed_bounds(plan, schema, batch_size, total)
    known, edges = dict(fresh), dict.fromkeys(plan.edge_types, 0)
    looped = {weights.edge_type for weights in plan.edge_weights if weights.loops}
    for op in plan.ops:
        if op.kind is Kind.BATCH:
            bounds, node_type = _operator_bounds(op, schema, batch_size), schema.endpoints(op.edge_type)[0]
            known[node_type] += min(total[node_type], bounds.vertices)
            edges[op.edge_type] = bounds.edges
    for op in hops:
        if op.use is EdgeUse.ROWS:
            continue
        if op.use is EdgeUse.BUDGET:
            known |= {t: min(total[t], known[t] + count) for t, count in op.budgets}
            continue
        frontier = dict(known) if op.frontier_all else fresh
        fresh = dict.fromkeys(schema.node_types, 0)
        for edge_type, fan_out in op.fan_outs:
            source, target = schema.endpoints(edge_type)
            loops = frontier[target] if edge_type in looped else 0
            exists = schema.edge_counts[edge_type] * (max(1, known[target]) if plan.disjoint else 1)
            drawn = exists if fan_out < 0 or not op.method.bounded else frontier[target] * fan_out
            drawn = min(drawn if op.replace else min(drawn, exists), _NO_BOUND)
            if op.use is EdgeUse.WITHIN:
                edges[edge_type] = max(edges[edge_type], drawn + loops)
                continue
            edges[edge_type] += drawn + loops
            fresh[source] = min(total[source], fresh[source] + drawn)
        known = {t: min(total[t], known[t] + fresh[t]) for t in known}
    return {t: n for t, n in known.items() if n or t in (plan.seed.node_type, *plan.seed.others)}, edges


def _seed_bounds(plan: Plan, schema: Schema, batch_size: int, total: Mapping[str, int]) -> dict[str, int]:
    """At most this many vertices, by node type, are in the batch before the first hop."""
    fresh = dict.fromkeys(schema.node_types, 0)
    if plan.links:
        pairs = sum(count for _, count in _link_counts(plan, batch_size))
        for node_type in schema.endpoints(plan.seed.edge_type):
            fresh[node_type] = min(total[node_type], fresh[node_type] + pairs)
        return fresh
    for node_type in (plan.seed.node_type, *plan.seed.others):
        fresh[node_type] = min(batch_size, total[node_type])
    for op in pair_ops(plan):
        source = schema.endpoints(op.edge_type)[0]
        fresh[source] = min(total[source], fresh[source] + batch_size * op.count)
    return fresh
