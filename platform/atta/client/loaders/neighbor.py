"""Mini-batches of sampled neighbourhoods around vertices."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.client.cluster import Cluster
from atta.client.loaders.arguments import level_outside, shows, split_off
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.sampled import Origin
from atta.client.loaders.seeds import (
    InputNodes,
    edge_type_name,
    ids_by_type,
    node_seeds,
    tables_by_type,
    typed,
    typed_seeds,
)
from atta.client.loaders.subgraphs import check_rows, reverses_of, subgraph_name
from atta.errors import ConfigError, UnknownNameError, known_name
from atta.partition.schema import Schema
from atta.samplers.arguments import fan_outs_of, flag, integers, names
from atta.samplers.dag.plan import EdgeNorm, EdgeWeights, Reduce
from atta.samplers.dag.spec import Hops, budget_spec, neighbor_spec
from atta.samplers.methods import Method

_TOGETHER = 1 << 14
"""Vertices per batch where they come without edges."""
_TEMPORAL = {"uniform": Method.TEMPORAL, "last": Method.LAST}


RowsOfEdges = Mapping[Any, Sequence[str] | str] | Sequence[str] | str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Keywords that all loaders of sampled neighbourhoods take; ``NeighborLoader`` says what they mean."""

    replace: bool = False
    method: str | None = None
    weight_attr: str | None = None
    time_attr: str | None = None
    temporal_strategy: str = "uniform"
    disjoint: bool = False
    subgraph_type: Any = "directional"
    edge_tables: RowsOfEdges = ()
    frontier: str = "new"
    edge_norm: str | Mapping[Any, str] | None = None
    norm_attr: str | None = None
    unbiased: bool = False
    dependency: int = 1
    aggregate: str | None = None

    def hops(self, schema: Schema, num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]]) -> Hops:
        """What they make of a DAG. Raises ConfigError: two of them contradict each other; UnknownNameError: a name does
        not exist."""
        drawn, subgraph = self._method(schema), subgraph_name(self.subgraph_type)
        weights = edge_weights_of(
            schema, self.edge_norm, unbiased=flag("unbiased", self.unbiased), norm_attr=self.norm_attr
        )
        if weights and subgraph == "bidirectional":
            raise ConfigError(
                "edge_norm, unbiased: not with subgraph_type='bidirectional', whose edges need not be the graph's"
            )
        if self.aggregate is not None and subgraph != "directional":
            raise ConfigError("aggregate: only along drawn edges, so with subgraph_type='directional'")
        if any(what.norm is not EdgeNorm.NONE for what in weights) and not self.unbiased and _leaves_out(num_neighbors):
            warnings.warn(
                "edge_norm: sums over the edges that fan-outs leave are smaller than on the graph, which costs accuracy "
                "(bench/results/degrees.md); unbiased=True makes up for it",
                stacklevel=level_outside(),
            )
        rows = edge_tables_by_type(schema, self.edge_tables)
        own = {edge_type_name(schema, e) for e, found in rows.items() if "weight" in names("edge_tables", found)}
        if own & {what.edge_type for what in weights}:
            warnings.warn(
                "edge_tables: data.edge_weight is made by edge_norm, norm_attr and unbiased; the table 'weight' comes as "
                "data.table_edge_weight",
                stacklevel=level_outside(),
            )
        return Hops(
            num_neighbors, flag("replace", self.replace), drawn, self.frontier, flag("disjoint", self.disjoint), rows,
            subgraph == "induced", "" if self.weight_attr in (None, "weight") else str(self.weight_attr), weights,
            self.dependency, self._reduce(),
        )  # fmt: skip

    def _reduce(self) -> Reduce:
        """What becomes of the last hop's rows."""
        known = {reduce.name.lower(): reduce for reduce in Reduce if reduce}
        if self.aggregate is not None and self.aggregate not in [*known]:
            why = "; attention and maxima need every row" if self.aggregate in ("max", "gat", "attention") else ""
            raise ConfigError(f"aggregate {self.aggregate!r}: must be one of {', '.join(known)}{why}")
        return Reduce.NONE if self.aggregate is None else known[self.aggregate]

    def origin(self, schema: Schema, origin: Origin) -> Origin:
        """``origin`` of batches with such edges; raises ConfigError for edge tables that the reverses would lack."""
        if subgraph_name(self.subgraph_type) != "bidirectional":
            return origin
        reverses = reverses_of(schema)
        check_rows(reverses, origin.edge_tables)
        return dataclasses.replace(origin, reverses=reverses, by_hop=False)

    def _method(self, schema: Schema) -> Method:
        """The one way in which edges are drawn."""
        if self.time_attr not in (None, "time"):
            raise UnknownNameError.of("attribute (time_attr)", str(self.time_attr), ("time",))
        tables = {name: spec for of_type in schema.edge_tables.values() for name, spec in of_type.items()}
        if self.weight_attr is not None and self.weight_attr not in [*tables]:
            raise UnknownNameError.of("attribute (weight_attr)", str(self.weight_attr), tables)
        if self.weight_attr is not None and tables[self.weight_attr].row_shape:
            raise ConfigError(
                f"weight_attr {self.weight_attr!r}: edges are drawn by one number each, it has rows of several"
            )
        known_name("temporal strategy", self.temporal_strategy, [*_TEMPORAL])
        named = Method.UNIFORM if self.method is None else Method(self.method)
        if named.table is not None:
            raise ConfigError(f"method {named.value!r}: reads edge tables: give weight_attr or time_attr in its place")
        ways = {
            "method": named if named is not Method.UNIFORM else None,
            "weight_attr": Method.WEIGHTED if self.weight_attr else None,
            "time_attr": _TEMPORAL[self.temporal_strategy] if self.time_attr else None,
        }
        chosen = {name: way for name, way in ways.items() if way is not None}
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)}: edges are drawn in one way")
        return next(iter(chosen.values()), Method.UNIFORM)


@shows(Drawing)
class NeighborLoader(DagLoader):
    """Mini-batches of sampled neighbourhoods, with the arguments and results of PyG's ``NeighborLoader``."""

    def __init__(
        self,
        cluster: Cluster,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        input_nodes: InputNodes = "train",
        *,
        input_time: Any = None,
        tables: Mapping[str, Sequence[str] | str] | Sequence[str] | str | None = None,
        seed_tables: Sequence[str] | str = (),
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration, unless string ids are looked up.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            num_neighbors: fan-outs: in-neighbours per vertex, hop by hop from the seeds; -1: all. A mapping gives them
                by edge type.
            input_nodes: the seeds: name of a split (``"train"``), user ids (numbers or strings), or None for every vertex.
                ``(node_type, one of these)`` names their type; ids need that if there are several types. ``{node_type: ids}``
                makes batches of seeds of several types; ``MiniBatch.seeds_of`` tells which are of a type.
            input_time: int [seeds], with ``time_attr``, by position in ``input_nodes`` (a split's or all vertices': by
                ascending user id): no sampled edge in a seed's tree, and no vertex but the seed itself, is later than
                its time. Default: the seeds' own times, the node table ``time`` of their type.
            batch_size: seeds per batch. A seed that occurs twice in a batch counts once, unless trees are disjoint.
            shuffle: permute the seeds anew in every epoch.
            drop_last: leave out the last batch if it is not full.
            replace: draw neighbours with replacement.
            method: name of a neighbour method that reads no edge table (docs/guide/samplers.md); None: ``"uniform"``.
            weight_attr: an edge table, such as ``"weight"``, by whose numbers neighbours are drawn; those of 0 (or False)
                never come. None draws uniformly.
            time_attr: ``"time"`` hides vertices and edges that are later than their seed. Types without a table ``time``
                are never hidden. Trees are disjoint then. docs/guide/samplers.md has the rules.
            temporal_strategy: ``"uniform"`` draws among the edges that are not hidden, ``"last"`` takes the latest of
                them.
            disjoint: every seed grows a tree of its own. ``MiniBatch.tree`` tells which tree a vertex belongs to.
            subgraph_type: ``"directional"``: the drawn edges; ``"induced"``: all edges among the sampled vertices;
                ``"bidirectional"``: the drawn edges and their reverses, each pair of ends once. Only the first has the
                edges by hop.
            tables: names of the node tables to fetch, or one name; a mapping gives them by node type. Without one they
                are tables of the seeds' type. Default: all.
            seed_tables: names of tables to fetch for the seeds alone, such as labels. They have one row per seed and
                need not be named in ``tables``.
            edge_tables: names of edge tables whose rows come with the sampled edges; a mapping gives them by edge type.
            frontier: ``"new"`` expands every vertex once (PyG), ``"all"`` expands every known vertex in each hop (DGL).
                ``to_dgl`` makes blocks of both.
            edge_norm: ``MiniBatch.edge_weight`` by degrees of the whole graph: ``"gcn"`` (what PyG's ``gcn_norm`` gives,
                with an edge of every expanded vertex to itself), ``"row"`` (1 / in-degree of the target), ``"both"``
                (DGL's). A mapping gives it by edge type; edges of others have no weight. docs/guide/samplers.md has the rules.
            norm_attr: ``"weight"``: weights of edges, and their sums into a vertex, take the place of 1 and of degrees, as
                PyG's ``gcn_norm`` has it with an ``edge_weight``. Without an ``edge_norm`` they are as they are.
            unbiased: each drawn edge weighs as much more as there are edges that were not drawn, so that sums of weighed
                messages are those over all edges, on average over draws.
            dependency: in so many batches every vertex draws its in-edges anew once; 1: each batch draws anew. A batch then has
                most of the draws, and so most of the rows, of the one before it; alone it has the same distribution, and
                batches that lie ``dependency`` apart have no draw in common. docs/guide/samplers.md says when it pays.
            aggregate: ``"mean"``, ``"sum"`` (each row times the weight of its edge, if edges have weights) or ``"gcn"`` (what
                PyG's ``GCNConv`` passes on): float32 rows of the last hop do not come. Owners add them up, and
                ``MiniBatch.aggregated`` has what a model's first layer would make of them, the same bits wherever rows lie.
                ``atta.nn`` has layers that take it; docs/guide/samplers.md says when it pays. Without ``edge_ids`` the last
                hop's edges and vertices do not come either, unless weights need them.
            **options: ``seed`` (of all randomness); ``seed_policy`` (``"local"``: a rank gets the seeds near it; ``"global"``:
                all ranks share one permutation); ``rank`` and ``world_size`` (default: those of torch's process group, or
                torchrun's RANK and WORLD_SIZE); ``pad`` (repeat a few seeds so that all ranks get equally many batches; switch
                it off for evaluation); ``edge_ids``; ``edge_order`` (``"source"``: the edges into a vertex stand by their
                sources' ids; ``"file"``: by their own, the order of the user's file, for layers that read a sequence);
                ``transform`` (called on every MiniBatch); ``codec`` (fp16, bf16 or int8: float32 rows cross the network between
                daemons in fewer bytes and with less precision; rows at home and labels stay exact); ``job`` (a name for logs);
                ``share`` (of the daemons' workers, relative to other loaders that keep them busy: 2.0 gets twice as much as
                1.0); ``home`` (the partition whose daemon makes the batches; default: that of the rank's seeds, or one on this
                machine); ``epochs`` and ``reconnect`` (see ``DagLoader``). Arguments of PyTorch's loaders that mean nothing
                here, such as ``num_workers``, are ignored with a warning.

        Raises:
            ConfigError: an argument is out of range; UnknownNameError: a node type, edge type, table or split does not
                exist.
        """
        schema, drawing, firsts = cluster.schema, split_off(Drawing, options), None
        if isinstance(input_nodes, Mapping):
            by_type = ids_by_type(cluster.ids, input_nodes)
            if input_time is not None or drawing.time_attr is not None:
                raise ConfigError("time_attr, input_time: seeds of several types have no times, take a loader for each")
            seeds, (seed_type, *others) = typed_seeds(schema, by_type), by_type
            sizes = [len(ids) for ids in by_type.values()]
            firsts = dict(zip(by_type, np.cumsum([0, *sizes]).tolist(), strict=False))
        else:
            seeds = node_seeds(cluster.ids, input_nodes, input_time)
            seed_type, others = seeds.node_type, []
        wanted = tables_by_type(tables, [seed_type, *others])
        dag = neighbor_spec(
            schema, drawing.hops(schema, num_neighbors), seed_type=seed_type, other_types=others, tables=wanted,
            seed_tables=names("seed_tables", seed_tables),
        )  # fmt: skip
        super().__init__(cluster, dag, input_nodes=seeds, **options)
        times = None if input_time is None else integers("input_time", input_time)
        origin = dataclasses.replace(self._origin, tables=wanted, input_time=times, seed_firsts=firsts)
        self._origin = drawing.origin(schema, origin)


def _leaves_out(num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]]) -> bool:
    """Whether fan-outs leave edges out."""
    by_type = num_neighbors.values() if isinstance(num_neighbors, Mapping) else [num_neighbors]
    return any(count != -1 for counts in by_type for count in fan_outs_of(counts))


def edge_weights_of(
    schema: Schema, edge_norm: str | Mapping[Any, str] | None, *, unbiased: bool, norm_attr: str | None = None
) -> tuple[EdgeWeights, ...]:
    """What edges weigh, for the edge types that have weights; raises UnknownNameError."""
    if norm_attr not in (None, "weight"):
        raise UnknownNameError.of("attribute (norm_attr)", str(norm_attr), ("weight",))
    known = {norm.value: norm for norm in EdgeNorm if norm is not EdgeNorm.NONE}
    given = edge_norm if isinstance(edge_norm, Mapping) else dict.fromkeys(schema.edge_types, edge_norm)
    by_type = {edge_type_name(schema, edge_type): norm for edge_type, norm in given.items()}
    for norm in by_type.values():
        if norm is not None and norm not in [*known]:
            raise UnknownNameError.of("edge_norm", str(norm), known)
    norms = {e: EdgeNorm.NONE if by_type.get(e) is None else known[str(by_type[e])] for e in schema.edge_types}
    summed = {e: norm_attr is not None and "weight" in schema.edge_tables[e] for e in schema.edge_types}
    if norm_attr is not None and not any(summed.values()):
        raise ConfigError("norm_attr 'weight': no edge type has a table 'weight'")
    weighed = {e: norm for e, norm in norms.items() if unbiased or summed[e] or norm is not EdgeNorm.NONE}
    return tuple(EdgeWeights(e, norm, unbiased, summed[e]) for e, norm in weighed.items())


def edge_tables_by_type(schema: Schema, given: RowsOfEdges) -> dict[Any, Sequence[str] | str]:
    """Names of edge tables by edge type. A list or a single name stands for the only edge type."""
    if isinstance(given, Mapping):
        return dict(given)
    wanted = names("edge_tables", given)
    return {edge_type_name(schema, None): wanted} if wanted else {}


def vertices_alone(
    cluster: Cluster, node_type: str, nodes: np.ndarray | str | None, tables: Sequence[str] = ()
) -> NeighborLoader:
    """Batches of vertices without edges, with rows of ``tables``. ``nodes``: ids int64, a split, or None for all of the type."""
    return NeighborLoader(
        cluster, [], (node_type, nodes), batch_size=_TOGETHER, tables={node_type: tables}, rank=0, world_size=1,
        seed_policy="global", edge_ids=False,
    )  # fmt: skip


def in_edges(
    cluster: Cluster, edge_type: str, targets: np.ndarray | str | None, *, batch_size: int = _TOGETHER, **options: Any
) -> NeighborLoader:
    """Batches that together have all in-edges of a type of ``targets``, without rows of vertices."""
    fan_outs = {other: [-1 if other == edge_type else 0] for other in cluster.schema.edge_types}
    alone = {"rank": 0, "world_size": 1, "seed_policy": "global", **options}
    seeds = (cluster.schema.endpoints(edge_type)[1], targets)
    return NeighborLoader(cluster, fan_outs, seeds, batch_size=batch_size, tables={}, **alone)


def vertex_ids(cluster: Cluster, node_type: str, split: str | None = None) -> np.ndarray:
    """The user ids of all vertices of a type that are in use, or of a split, ascending: int64 [n]."""
    schema = cluster.schema
    if not (
        schema.in_use(node_type) if split is None else schema.splits[node_type][schema.check_split(node_type, split)]
    ):
        return np.empty(0, np.int64)
    return np.sort(np.concatenate([batch.n_id(node_type) for batch in vertices_alone(cluster, node_type, split)]))


def row_ids(cluster: Cluster, node_type: str) -> np.ndarray:
    """The user ids of all vertices of a type for which tables have rows, ascending: int64 [n]. The last ones may be room."""
    found = vertex_ids(cluster, node_type)
    return np.append(found, found.max(initial=-1) + 1 + np.arange(cluster.schema.node_counts[node_type] - len(found)))


@shows()
class HGTLoader(DagLoader):
    """Batches by HGT's budgets (Hu et al., WWW 2020), with the arguments and the rule of PyG's ``HGTLoader``.

    Every vertex that joins shares a vote among its in-neighbours of each edge type, 50 of them at most. In each hop some
    vertices of every type join, drawn by the squares of their votes. A batch has the edges among its vertices, at most 50
    per vertex and edge type.
    """

    def __init__(
        self,
        cluster: Cluster,
        num_samples: Sequence[int] | Mapping[str, Sequence[int]],
        input_nodes: InputNodes = "train",
        *,
        tables: Mapping[str, Sequence[str] | str] | Sequence[str] | str | None = None,
        edge_tables: RowsOfEdges = (),
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration, unless string ids are looked up.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            num_samples: vertices that join in each hop: for every node type, or by node type. Fewer join if there are no
                more neighbours.
            input_nodes, tables, edge_tables: as for ``NeighborLoader``.
            **options: ``batch_size``, ``shuffle``, ``drop_last`` and what ``NeighborLoader`` takes.

        Raises:
            ConfigError: an argument is out of range; UnknownNameError: a type, table or split does not exist.
        """
        schema = cluster.schema
        seed_type, _ = typed(schema, input_nodes)
        wanted = tables_by_type(tables, [seed_type])
        rows = edge_tables_by_type(schema, edge_tables)
        dag = budget_spec(schema, num_samples, seed_type=seed_type, tables=wanted, edge_tables=rows)
        super().__init__(cluster, dag, input_nodes=node_seeds(cluster.ids, input_nodes), **options)
        self._origin = dataclasses.replace(self._origin, tables=wanted)
