"""A sampled batch as numpy arrays over shared memory: sizes, ids, edges, tables and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError
from atta.partition.graph.strings import NAME, string_width, to_strings
from atta.protos.v1 import dag_pb2
from atta.samplers.batch.scratch import Scratch, widen_into

if TYPE_CHECKING:
    from atta.client.loaders.norms import SaintNorms
    from atta.client.sessions.stream import RawBatch
    from atta.partition.schema import Schema


@dataclass(frozen=True)
class LinkLabels:
    """What the user said about the edges that are seeds: ``label`` and ``time`` [E] by position in the input, the
    ``mode`` of negatives (``"binary"`` or ``"triplet"``), and how many a triplet has."""

    edge_type: str
    mode: str | None
    amount: int
    label: np.ndarray | None
    time: np.ndarray | None


@dataclass(frozen=True)
class Origin:
    """What a loader knows of all its batches and their arrays do not say.

    Attributes:
        seed_type: node type of the seeds; of their targets if the seeds are edges.
        redrawn: for each hop, whether it draws for all known vertices (``frontier="all"``), not only for new ones.
        drawing: for each hop, whether it draws edges of any type.
        whole: an operator samples the batch as a whole, without hops.
        edge_ids: whether batches have edge ids.
        edge_tables: (edge type, table) pairs that were asked for.
        tables: node tables that were asked for, by node type; None: all.
        labels: of seeds that are edges; None if the seeds are vertices.
        input_time: int [seeds], of seeds that are vertices, by position in the input; None: no times were given.
        by_hop: whether edges come hop by hop; else they are all those among the vertices, or have reverses beside them.
        reverses: type of the reverses of each edge type that join the batch; None: there are none.
        norms: GraphSAINT's counts; None: they were not asked for.
        edge_weights: edge types whose edges have weights.
        seed_firsts: where the ids of each seed type begin in the input; None: the seeds are of one type.
    """

    seed_type: str = ""
    redrawn: tuple[bool, ...] = ()
    whole: bool = False
    edge_ids: bool = True
    edge_tables: tuple[tuple[str, str], ...] = ()
    tables: Mapping[str, Sequence[str]] | None = None
    labels: LinkLabels | None = None
    input_time: np.ndarray | None = None
    by_hop: bool = True
    reverses: Mapping[str, str] | None = None
    norms: SaintNorms | None = None
    seed_firsts: Mapping[str, int] | None = None
    edge_weights: frozenset[str] = frozenset()
    drawing: tuple[bool, ...] = ()

    @classmethod
    def of(cls, dag: dag_pb2.DagSpec, *, edge_ids: bool) -> Origin:
        """What the DAG tells."""
        kinds = {op.WhichOneof("kind"): op for op in dag.operators}
        every = sorted((op.neighborhood for op in dag.operators if op.HasField("neighborhood")), key=lambda op: op.hop)
        hops = [op for op in every if op.use == dag_pb2.JOIN]
        return cls(
            kinds["seed"].seed.node_type if "seed" in kinds else "",
            tuple(op.frontier == dag_pb2.FRONTIER_ALL for op in hops),
            "batch" in kinds,
            edge_ids,
            tuple((ref.edge_type, ref.name) for ref in dag.edge_tables),
            by_hop=all(op.use in (dag_pb2.JOIN, dag_pb2.ROWS) for op in every),
            edge_weights=frozenset(weights.edge_type for weights in dag.edge_weights),
            drawing=tuple(len(op.fan_outs) > 0 for op in hops),
        )


UNKNOWN_ORIGIN = Origin()


class SampledBatch:
    """The arrays of a sampled subgraph; ``atta.MiniBatch`` adds how they are turned into objects of other libraries.

    Attributes:
        batch_id: number of the batch in its epoch, counted over all ranks.
        schema: of the graph that the batch is sampled from.
        version: of the tables that its rows are from; 0: the dataset as it was partitioned.
        stats: how the batch was made.
    """

    def __init__(
        self, raw: RawBatch, schema: Schema, scratch: Scratch | None = None, origin: Origin = UNKNOWN_ORIGIN
    ) -> None:
        """``scratch`` lends memory for converted arrays; None: new memory every time."""
        self._raw, self.schema, self._scratch = raw, schema, scratch or Scratch()
        self.origin, self._labels = origin, origin.labels
        self.batch_id = raw.batch
        self.version = raw.version
        self.stats: dict[str, float] = raw.stats

    # -- sizes ---------------------------------------------------------------------------------------------------------

    @cached_property
    def batch_size(self) -> int:
        """Number of different seeds: the first vertices of the seed type, or edges."""
        return len(self.input_id)

    @property
    def num_nodes(self) -> int:
        """Number of vertices of all types."""
        return sum(len(a) for name, a in self._raw.arrays.items() if name.startswith("n_id/"))

    @property
    def num_edges(self) -> int:
        """Number of edges of all types."""
        return sum(len(a) for name, a in self._raw.arrays.items() if name.startswith("row/"))

    @property
    def node_types(self) -> tuple[str, ...]:
        """Node types that the DAG can reach."""
        return tuple(t for t in self.schema.node_types if f"n_id/{t}" in self._raw.arrays)

    @property
    def edge_types(self) -> tuple[str, ...]:
        """Edge types that the DAG samples, ``"src__rel__dst"``."""
        return tuple(e for e in self.schema.edge_types if f"row/{e}" in self._raw.arrays)

    # -- arrays --------------------------------------------------------------------------------------------------------

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """All arrays as they arrived, by their names on the wire; for code that moves batches as a whole."""
        return self._raw.arrays

    @property
    def input_id(self) -> np.ndarray:
        """int64 [batch_size]: position of each seed in ``input_nodes`` (for a split or all vertices: in their ascending
        user ids). Seeds of several types stand type after type; see ``seeds_of``."""
        return self._raw.arrays["input_id"]

    def seeds_of(self, node_type: str) -> np.ndarray:
        """int64 [seeds of the type]: position of each in the type's ``input_nodes``. They are its first vertices."""
        firsts, input_id = self.origin.seed_firsts, self.input_id
        if firsts is None:
            return input_id if node_type == self.origin.seed_type else input_id[:0]
        if node_type not in firsts:
            return input_id[:0]
        types = [t for t in self.schema.node_types if t in firsts]
        ends = np.cumsum([int(self._array(f"hops/{t}")[0]) for t in types]).tolist()
        at = types.index(node_type)
        return np.asarray(input_id[ends[at - 1] if at else 0 : ends[at]] - firsts[node_type])

    @property
    def seed_time(self) -> np.ndarray | None:
        """int [batch_size]: the seeds' entries of ``input_time``; None if no times were given."""
        times = self.origin.input_time
        return None if times is None else times[self.input_id]

    @property
    def node_norm(self) -> np.ndarray | None:
        """float32 [nodes]: GraphSAINT's weights in the loss; None without ``sample_coverage``."""
        norms = self.origin.norms
        return None if norms is None else norms.of_vertices(self.n_id())

    @property
    def edge_norm(self) -> np.ndarray | None:
        """float32 [edges]: GraphSAINT's weights in aggregation; None without ``sample_coverage``."""
        norms, e_id = self.origin.norms, None if self.origin.norms is None else self.e_id()
        return None if norms is None or e_id is None else norms.of_edges(e_id, self.n_id()[self.edge_index()[0]])

    def n_id(self, node_type: str | None = None) -> np.ndarray:
        """int64 [nodes]: user ids of the vertices; empty for a type that the DAG cannot reach."""
        return self._array(f"n_id/{self._node_type(node_type)}")

    def strings(self, node_type: str | None = None) -> np.ndarray:
        """str [nodes]: the users' string ids of the vertices, in the order of ``n_id``, from the fetched table
        ``name``. Of the seeds only if it was fetched for these alone. Raises ConfigError: the table was not fetched,
        or the vertices have no string ids."""
        owner = self._node_type(node_type)
        if string_width(self.schema, owner) is None:
            raise ConfigError(f"the vertices of node type {owner!r} have no string ids: their ids are integers")
        return to_strings(self.table(NAME, owner))

    def edge_index(self, edge_type: str | None = None) -> np.ndarray:
        """int64 [2, edges]: local ids, sources first. Each row is contiguous; the whole array may not be."""
        name = self._edge_type(edge_type)
        row, col = self._array(f"row/{name}"), self._array(f"col/{name}")
        if row.dtype == np.int64 and row.base is not None and row.base is col.base:
            first, apart = row.ctypes.data - row.base.ctypes.data, col.ctypes.data - row.ctypes.data
            return np.ndarray((2, len(row)), np.int64, buffer=row.base, offset=first, strides=(apart, 8))
        out = self._scratch.empty((2, len(row)), np.int64)
        widen_into(out[0], row)
        widen_into(out[1], col)
        return out

    def e_id(self, edge_type: str | None = None) -> np.ndarray | None:
        """int64 [edges]: the users' edge ids; None if the loader leaves them out."""
        name = self._edge_type(edge_type)
        ids = self._raw.arrays.get(f"e_id/{name}")
        if ids is None and self.origin.edge_ids and name not in self.edge_types:
            return np.empty(0, np.int64)
        return ids if ids is None or ids.dtype == np.int64 else self._scratch.widened(ids)

    def edge_weight(self, edge_type: str | None = None) -> np.ndarray | None:
        """float32 [edges]: what the loader's ``edge_norm`` and ``unbiased`` make each edge weigh; None: neither was given
        for the type."""
        name = self._edge_type(edge_type)
        found = self._raw.arrays.get(f"edge_weight/{name}")
        return np.empty(0, np.float32) if found is None and name in self.origin.edge_weights else found

    def table(self, name: str, node_type: str | None = None) -> np.ndarray:
        """[nodes, *row_shape]: rows of a node table in the order of ``n_id``; seeds only if fetched for these alone. The
        vertices of the last hop have none if the loader aggregates."""
        owner = self._node_type(node_type)
        found = self._raw.arrays.get(f"table/{owner}/{name}")
        if found is None:
            found = self.tables[owner].get(name)
        if found is None:
            raise ConfigError(f"table {name!r} was not fetched: name it in the loader's tables")
        return found

    def aggregated(self, name: str = "x", edge_type: str | None = None) -> np.ndarray:
        """float32 [vertices before the last hop, *row_shape]: for each of these the sum (or mean, as the loader's ``aggregate``
        says) of the rows of table ``name`` at the sources of its drawn edges of the type. With ``frontier="all"`` only the
        edges of the last hop count, as in DGL's first block. Raises ConfigError: the loader does not aggregate this table."""
        found = self._raw.arrays.get(f"sum/{self._edge_type(edge_type)}/{name}")
        if found is None:
            raise ConfigError(f"table {name!r} is not aggregated: ask the loader for aggregate of a table of float32")
        return found

    @property
    def hops_known(self) -> int:
        """Number of hops whose vertices have rows: all, or all but the last if the loader aggregates."""
        return self._hops() - bool(self.aggregates)

    def num_known(self, node_type: str | None = None) -> int:
        """Number of the vertices of these hops and of the seeds."""
        return sum(self.num_sampled_nodes(node_type)[: self.hops_known + 1])

    @property
    def aggregates(self) -> dict[str, dict[str, np.ndarray]]:
        """All that ``aggregated`` can give: edge type → table → rows."""
        found: dict[str, dict[str, np.ndarray]] = {}
        for key, array in self._under("sum/").items():
            edge_type, _, name = key.rpartition("/")
            found.setdefault(edge_type, {})[name] = array
        return found

    @property
    def tables(self) -> dict[str, dict[str, np.ndarray]]:
        """All fetched tables: node type → name → rows. Node types that the DAG cannot reach have 0 rows."""
        found: dict[str, dict[str, np.ndarray]] = {t: {} for t in self.schema.node_types}
        for key, array in self._under("table/").items():
            node_type, _, name = key.rpartition("/")  # no table has a "/"
            found[node_type][name] = array
        for node_type in set(self.schema.node_types) - set(self.node_types):
            specs, wanted = self.schema.node_tables[node_type], self.origin.tables
            for name in specs if wanted is None else wanted.get(node_type, ()):
                found[node_type][name] = np.empty((0, *specs[name].row_shape), specs[name].dtype)
        return found

    def edge_table(self, name: str, edge_type: str | None = None) -> np.ndarray:
        """[edges, *row_shape]: rows of an edge table, in the order of ``edge_index``."""
        found = self.edge_tables(edge_type)
        if name not in found:
            raise ConfigError(f"edge table {name!r} was not fetched: name it in the loader's edge_tables")
        return found[name]

    def edge_tables(self, edge_type: str | None = None) -> dict[str, np.ndarray]:
        """All fetched tables of an edge type by name. They have 0 rows if the DAG does not sample the type."""
        name = self._edge_type(edge_type)
        if name not in self.edge_types:
            specs = {table: self.schema.edge_tables[name][table] for t, table in self.origin.edge_tables if t == name}
            return {table: np.empty((0, *spec.row_shape), spec.dtype) for table, spec in specs.items()}
        return {table: array for table, array in self._under(f"edge/{name}/").items() if "/" not in table}

    def tree(self, node_type: str | None = None) -> np.ndarray:
        """int32 [nodes]: position of the seed whose tree a vertex belongs to; only if trees are disjoint.

        If the seeds are edges, the trees are those of all sources, then of all targets, then of the negatives' sources
        and targets. Triplets have the positives' sources: of their negatives only the targets have trees, first those of
        the first negative of each positive."""
        found = self._trees(node_type)
        if found is None:
            raise ConfigError("the batch's trees are not disjoint: ask the loader for disjoint=True")
        return found

    def tree_of_seed(self, node_type: str | None = None) -> np.ndarray | None:
        """int64 [nodes]: position of the seed that a vertex belongs to (PyG's ``batch``); None if trees are not disjoint.

        If the seeds are edges, the trees of both ends and of the negatives belong to the positive edge."""
        found = self._trees(node_type)
        if found is None:
            return None
        tree, positives = found.astype(np.int64), max(1, self.batch_size)
        if self._labels is None:
            return tree
        negatives = max(1, len(self._raw.arrays.get("link/neg_src", ())))
        return np.where(tree < 2 * positives, tree, (tree - 2 * positives) % negatives) % positives

    @property
    def extra(self) -> dict[str, np.ndarray]:
        """Arrays that a batch operator returns besides the subgraph, by name."""
        return self._under("extra/")

    def links(self) -> dict[str, np.ndarray]:
        """The edges that are seeds, and their negatives, under PyG's names.

        Without or with binary negatives: ``edge_label_index`` int64 [2, n] (local ids, positives first) and
        ``edge_label``. With triplets: ``src_index`` and ``dst_pos_index`` int64 [batch_size], ``dst_neg_index``
        [batch_size] or [batch_size, amount]. ``edge_label_time`` if times were given. Raises ConfigError: the seeds are
        vertices."""
        labels, arrays = self._labels, self._raw.arrays
        if labels is None:
            raise ConfigError("the seeds are vertices: edges come from a LinkNeighborLoader")
        ends = np.stack([arrays["link/src"], arrays["link/dst"]])
        of_input = self.input_id
        found = {} if labels.time is None else {"edge_label_time": labels.time[of_input]}
        if labels.mode == "triplet":
            negative = arrays["link/neg_dst"]
            shaped = negative if labels.amount == 1 else negative.reshape(-1, labels.amount)
            return {**found, "src_index": ends[0], "dst_pos_index": ends[1], "dst_neg_index": shaped}
        label = None if labels.label is None else labels.label[of_input]
        if labels.mode == "binary":
            negative = np.stack([arrays["link/neg_src"], arrays["link/neg_dst"]])
            if label is None:
                label = np.ones(ends.shape[1], dtype=np.float32)
            elif labels.label is not None and labels.label.min(initial=1) == 0:
                label = label + 1
            missing = np.zeros((negative.shape[1], *label.shape[1:]), dtype=label.dtype)
            ends, label = np.concatenate([ends, negative], axis=1), np.concatenate([label, missing])
        found["edge_label_index"] = ends
        return found if label is None else {**found, "edge_label": label}

    @property
    def pairs(self) -> dict[str, np.ndarray]:
        """Positive and negative samples by operator: int64 [batch_size, count] local ids."""
        return self._under("pairs/")

    def num_sampled_nodes(self, node_type: str | None = None) -> list[int]:
        """Number of new vertices per hop. The first entry counts the seeds and their positive and negative samples."""
        steps = [int(n) for n in self._array(f"hops/{self._node_type(node_type)}")]
        if not steps:
            return [0] * (self._hops() + 1)
        first = len(steps) - self._hops()
        return [sum(steps[:first]), *steps[first:]]

    def num_sampled_edges(self, edge_type: str | None = None) -> list[int]:
        """Number of edges per hop; one number for all edges if the batch does not have them by hop."""
        name = self._edge_type(edge_type)
        return [int(n) for n in self._array(f"hops/{name}")] if name in self.edge_types else [0] * self._hops()

    def _hops(self) -> int:
        """Number of hops: steps that added vertices, except those of seeds and of positive and negative samples."""
        steps = next((len(self._raw.arrays[f"hops/{t}"]) for t in self.node_types), 1)
        return steps - 1 - len(self.pairs) - ("link/neg_src" in self._raw.arrays)

    def _under(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with ``prefix``, by the rest of their names."""
        return {name.removeprefix(prefix): a for name, a in self._raw.arrays.items() if name.startswith(prefix)}

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _node_type(self, name: str | None) -> str:
        return _only("a node type", self.node_types) if name is None else self.schema.check_node_type(name)

    def _edge_type(self, name: str | None) -> str:
        if name is not None:
            return self.schema.check_edge_type(name)
        return _only("an edge type", self.edge_types or self.schema.edge_types)

    def _trees(self, node_type: str | None) -> np.ndarray | None:
        name = self._node_type(node_type)
        disjoint = any(key.startswith("tree/") for key in self._raw.arrays)
        return self._array(f"tree/{name}", np.int32) if disjoint else None

    def _array(self, name: str, dtype: type = np.int64) -> np.ndarray:
        """An array of the batch; empty if the DAG does not reach its type."""
        found = self._raw.arrays.get(name)
        return np.empty(0, dtype) if found is None else found


def _only(what: str, types: Sequence[str]) -> str:
    if len(types) != 1:
        raise ConfigError(f"name {what}: {', '.join(types)}")
    return types[0]
