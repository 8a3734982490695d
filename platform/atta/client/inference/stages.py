"""The stages of an inference: what each one reads, computes and writes. No daemons here.

| stage | reads | writes |
|---|---|---|
| in-degrees (only for layers that ask for them) | edges | ``degrees-k`` |
| layer k of L, for all vertices | features or ``rows-(k-1)``, edges | ``rows-k`` |
| layer L, for the vertices asked for | ``rows-(L-1)``, edges | the result, or ``rows-L`` for pairs |
| sampled, for the vertices asked for, in place of all layers | features and edges of sampled batches | the same |
| pairs (only if pairs are scored) | ``rows-L`` | the result |

Typed graphs have a stage per layer and node type that it computes (``typed_stages``), and one for each type with
learnt embeddings, which writes them as ``rows-0``. Sampled, they have one for each type that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.inference.block import DegreeRule, Floats, Layer, LayerBlock, SummedLayer, TypedBlock, in_degrees
from atta.errors import ConfigError

Targets = npt.NDArray[np.int64] | str | None
"""Vertices to predict: user ids without repeats, the name of a split, or None for all."""


@dataclass(frozen=True)
class Rows:
    """A table of float32 rows on the daemons, for all vertices of a type; empty: the only one. ``width``: numbers per
    row; None: one number without a dimension."""

    name: str
    width: int | None
    node_type: str = ""


@dataclass(frozen=True)
class TypedLayer:
    """One node type of a layer: the node types and edge types that it reads, and what gives a block's targets rows.
    ``sums``: as of a ``Stage``."""

    node_type: str
    reads: tuple[str, ...]
    edge_types: tuple[str, ...]
    compute: Callable[[TypedBlock], Floats]
    sums: SummedLayer | None = None


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        nodes, node_type: the vertices that it computes; an empty type: the only one.
        width: numbers per row that it gives; None: one number without a dimension.
        fan_outs: in-neighbours per vertex and hop, -1 for all; none for pairs.
        compute: rows of a block's targets. The block of several hops has those of all of them.
        reads: by node type the rows that it reads; None: the features.
        edge_types: along which it reads in a typed graph, with one hop to ``node_type``; None: the graph is not typed.
        degrees: the rows with in-degrees that it reads, by the rule that they follow.
        edge_tables: the edge tables that it reads, by the argument of layers that takes them.
        weighed: whether its edges are weighed by degrees of the whole graph, for layers that ask for these.
        row_per_edge: whether ``compute`` makes a row per edge.
        sums: ``compute`` by totals; None: it needs all edges.
        writes: the rows that it writes; None: the result.
        ends: of a stage that scores pairs, the rows of sources and of targets.
    """

    title: str
    nodes: Targets
    width: int | None
    node_type: str = ""
    fan_outs: tuple[int, ...] = ()
    compute: Callable[[Any], Floats] | None = None
    reads: Mapping[str, Rows | None] = field(default_factory=dict)
    edge_types: tuple[str, ...] | None = None
    degrees: Mapping[DegreeRule, Rows] = field(default_factory=dict)
    edge_tables: Mapping[str, str] = field(default_factory=dict)
    weighed: bool = False
    row_per_edge: bool = False
    sums: SummedLayer | None = None
    writes: Rows | None = None
    ends: tuple[Rows, Rows] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Node types whose features it reads."""
        return tuple(node_type for node_type, rows in self.reads.items() if rows is None)

    @property
    def all_reads(self) -> set[Rows]:
        """All rows that it reads."""
        used = (*self.reads.values(), *self.degrees.values(), *(self.ends or ()))
        return {rows for rows in used if rows is not None}


def layerwise_stages(
    layers: Sequence[Layer],
    widths: Sequence[int],
    nodes: Targets,
    *,
    pairs: bool = False,
    edge_tables: Mapping[str, str] | None = None,
) -> list[Stage]:
    """The stages of exact inference. ``widths``: of rows before the first layer and after each. ``edge_tables``: by the
    argument of layers that takes them."""
    degrees, tables = _degrees(layers), edge_tables or {}
    stages = _counting(degrees, tables)
    last = len(layers)
    for number, layer in enumerate(layers, 1):
        stage = Stage(
            f"layer {number} of {last}", nodes if number == last else None, widths[number], fan_outs=(-1,) * layer.hops,
            compute=layer, reads={"": None if number == 1 else Rows(f"rows-{number - 1}", widths[number - 1])},
            degrees={rule: rows for rule, rows in degrees.items() if rule == layer.degrees},
            edge_tables={name: tables[name] for name in layer.edge_arguments}, row_per_edge=layer.row_per_edge,
            sums=layer.sums, writes=Rows(f"rows-{number}", widths[number]),
        )  # fmt: skip
        stages.append(stage)
    return _ended(stages, ("", "") if pairs else None)


def sampled_stages(
    layers: Sequence[Layer],
    widths: Sequence[int],
    nodes: Targets,
    fan_outs: Sequence[int],
    *,
    pairs: bool = False,
    edge_tables: Mapping[str, str] | None = None,
) -> list[Stage]:
    """The stages of inference on sampled batches. ``fan_outs``: one per hop, from the seeds outwards, or one for all.

    Where all layers that ask for in-degrees are as PyG's GCN, the edges are weighed by those of the whole graph, as in
    training. Others get those of the whole graph with all neighbours, and else those within the batch. So with all neighbours
    the rows are those of exact inference. Raises ConfigError: the number of fan-outs is not that of the hops."""
    hops, tables = sum(layer.hops for layer in layers), edge_tables or {}
    fan_outs = list(fan_outs) * hops if len(fan_outs) == 1 else fan_outs
    if len(fan_outs) != hops:
        of_hops = "" if hops == len(layers) else f" of {hops} hops"
        raise ConfigError(f"{len(fan_outs)} fan-outs for {len(layers)} layers{of_hops}: give one for each")
    rules, read = _degrees(layers), {name for layer in layers for name in layer.edge_arguments}
    weighed = {*rules} == {DegreeRule()} and not read
    degrees = rules if not weighed and all(fan_out == -1 for fan_out in fan_outs) else {}
    stage = Stage(
        "sampled", nodes, widths[-1], fan_outs=tuple(fan_outs), compute=partial(_through, layers), reads={"": None},
        degrees=degrees, edge_tables={name: table for name, table in tables.items() if name in read}, weighed=weighed,
        writes=Rows(f"rows-{len(layers)}", widths[-1]),
    )  # fmt: skip
    return _ended([*_counting(degrees, tables), stage], ("", "") if pairs else None)


def _degrees(layers: Sequence[Layer]) -> dict[DegreeRule, Rows]:
    rules = dict.fromkeys(layer.degrees for layer in layers if layer.degrees is not None)
    return {rule: Rows(f"degrees-{number}", None) for number, rule in enumerate(rules, 1)}


def _counting(degrees: Mapping[DegreeRule, Rows], edge_tables: Mapping[str, str]) -> list[Stage]:
    return [
        Stage(
            "in-degrees",
            None,
            None,
            fan_outs=(-1,),
            compute=partial(_count, rule),
            edge_tables={} if rule.weights is None else {rule.weights: edge_tables[rule.weights]},
            sums=_ones(rule),
            writes=rows,
        )
        for rule, rows in degrees.items()
    ]


def typed_stages(
    layers: Sequence[Sequence[TypedLayer]],
    embeddings: Sequence[TypedLayer],
    widths: Sequence[int],
    nodes: Mapping[str, Targets],
    *,
    ends: tuple[str, str] | None = None,
    fan_outs: Sequence[int] | None = None,
) -> list[Stage]:
    """The stages of inference on a typed graph.

    Args:
        layers: for each layer the node types that it computes; the last one those that are asked for.
        embeddings: of the types whose rows before the first layer are learnt. Others have features.
        widths, nodes: as of ``layerwise_stages``, the vertices by node type: of one type, or of both ends of pairs.
        ends: node types of sources and targets, if the last stage scores pairs of them.
        fan_outs: of sampled batches, per hop and of every edge type, for the only layer, which is all of the model at once.
    """
    rows_after, last = _naming([embeddings, *layers], widths), len(layers)
    learnt = {layer.node_type for layer in embeddings}
    stages = [_typed(layer, f"embeddings, {layer.node_type}", rows_after(0, layer.node_type)) for layer in embeddings]
    for number, parts in enumerate(layers, 1):
        for layer in parts:
            of_features = set(layer.reads) - learnt if number == 1 else set()
            title = f"layer {number} of {last}" if fan_outs is None else "sampled"
            stage = _typed(layer, f"{title}, {layer.node_type}", rows_after(number, layer.node_type))
            stages.append(
                replace(
                    stage,
                    nodes=nodes[layer.node_type] if number == last else None,
                    fan_outs=tuple(fan_outs or (-1,) * bool(layer.edge_types)),
                    reads={t: None if t in of_features else rows_after(number - 1, t) for t in layer.reads},
                )
            )
    return _ended(stages, ends)


def _naming(layers: Sequence[Sequence[TypedLayer]], widths: Sequence[int]) -> Callable[[int, str], Rows]:
    """Names the rows of a type after a layer: types may have names that tables cannot have."""
    types = sorted({t for parts in layers for layer in parts for t in (layer.node_type, *layer.reads)})
    return lambda number, node_type: Rows(f"rows-{number}-{types.index(node_type)}", widths[number], node_type)


def _typed(layer: TypedLayer, title: str, rows: Rows) -> Stage:
    return Stage(
        title, None, rows.width, layer.node_type, compute=layer.compute, edge_types=layer.edge_types, row_per_edge=True,
        sums=layer.sums, writes=rows,
    )  # fmt: skip


def _ended(stages: list[Stage], ends: tuple[str, str] | None) -> list[Stage]:
    """The stages of which the last one gives the result, or one that scores pairs of vertices of these types."""
    if ends is None:
        return [*stages[:-1], replace(stages[-1], writes=None)]
    written = {rows.node_type: rows for stage in stages if (rows := stage.writes) is not None}  # of the last stage each
    return [*stages, Stage("pairs", None, None, ends=(written[ends[0]], written[ends[1]]))]


def unread(stages: Sequence[Stage], current: int) -> set[Rows]:
    """Rows that nobody reads any more when all stages before ``current`` are done."""
    written = {stage.writes for stage in stages[:current]}
    later = stages[current:]
    read = set().union(*(stage.all_reads for stage in later))
    return {rows for rows in written - read if rows is not None}


def _count(rule: DegreeRule, block: LayerBlock) -> Floats:
    return in_degrees(block, rule)[: block.targets]


def _ones(rule: DegreeRule) -> SummedLayer | None:
    """In-degrees by totals: each edge adds 1."""
    if rule.weights is not None:
        return None
    return SummedLayer(
        {"": 1},
        lambda _, rows, __: np.ones((len(rows), 1)),
        lambda _, totals, __: (totals[:, 0] + (rule.loop or 0)).astype(np.float32),
        loops=rule.loop is None,
    )


def _through(layers: Sequence[Layer], block: LayerBlock) -> Floats:
    """All layers on a sampled batch: each computes as many hops less than it reads as it has itself. In-degrees that
    nobody gives are those within the batch."""
    x, hops = block.x, len(block.edges_per_hop)
    rules = {layer.degrees for layer in layers if layer.degrees is not None}
    counted = rules - block.degrees.keys() if block.weights is None else ()
    degrees = {rule: in_degrees(block, rule) for rule in counted} | {**block.degrees}
    for layer in layers:
        read, edges = sum(block.nodes_per_hop[: hops + 1]), _edges_for(layer, block, sum(block.edges_per_hop[:hops]))
        hops -= layer.hops
        x = layer(
            LayerBlock(
                x[:read],
                block.edge_index[:, edges],
                sum(block.nodes_per_hop[: hops + 1]),
                {rule: found[:read] for rule, found in degrees.items()},
                {name: block.edge_rows[name][edges] for name in layer.edge_arguments},
                None if block.weights is None or layer.degrees is None else block.weights[edges],
            )
        )
    return x


def _edges_for(layer: Layer, block: LayerBlock, count: int) -> Any:
    """Which of the first edges a layer reads: those that were added only if it asks for their weights."""
    if block.weights is None or layer.degrees is not None:
        return slice(count)
    source, target = block.edge_index[:, :count]
    return np.flatnonzero((source != target) | (block.weights[:count] <= 0))
