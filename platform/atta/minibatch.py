"""A mini-batch as its consumer sees it: numpy arrays over shared memory, turned into PyG or DGL objects on request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.errors import ConfigError
from atta.samplers.scratch import Scratch, widen_into

if TYPE_CHECKING:
    from atta.client.stream import RawBatch
    from atta.partition.schema import Schema

__all__ = ["LinkLabels", "MiniBatch"]


@dataclass(frozen=True)
class LinkLabels:
    """What the user has said of the edges that are seeds.

    Attributes:
        edge_type: of all of them.
        mode: ``"binary"`` or ``"triplet"`` negatives, or None.
        amount: negatives per positive of a triplet.
        label, time: [E] by position in the input, or None.
    """

    edge_type: str
    mode: str | None
    amount: int
    label: np.ndarray | None
    time: np.ndarray | None


class MiniBatch:
    """The sampled subgraph of some seeds, with the table rows of its vertices.

    Vertices are numbered per node type in the order in which they were reached: seeds first, then hop by hop. The arrays lie in
    memory shared with the daemon and stay valid as long as any of them is referenced.
    """

    def __init__(
        self, raw: RawBatch, schema: Schema, scratch: Scratch | None = None, labels: LinkLabels | None = None
    ) -> None:
        """``scratch`` lends the memory of converted arrays; None: fresh memory every time. ``labels`` where the seeds are edges."""
        self._raw, self._schema, self._scratch, self._labels = raw, schema, scratch or Scratch(), labels
        self.batch_id = raw.batch
        self.stats: dict[str, float] = raw.stats

    # -- sizes ---------------------------------------------------------------------------------------------------------

    @cached_property
    def batch_size(self) -> int:
        """Number of (different) seeds: the first vertices of the seed type, or edges."""
        return len(self.input_id)

    @property
    def num_nodes(self) -> int:
        """Vertices of all types."""
        return sum(len(a) for name, a in self._raw.arrays.items() if name.startswith("n_id/"))

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(len(a) for name, a in self._raw.arrays.items() if name.startswith("row/"))

    @property
    def node_types(self) -> tuple[str, ...]:
        """Node types that the DAG can reach."""
        return tuple(t for t in self._schema.node_types if f"n_id/{t}" in self._raw.arrays)

    @property
    def edge_types(self) -> tuple[str, ...]:
        """Edge types that the DAG samples, ``"src__rel__dst"``."""
        return tuple(e for e in self._schema.edge_types if f"row/{e}" in self._raw.arrays)

    # -- arrays --------------------------------------------------------------------------------------------------------

    @property
    def input_id(self) -> np.ndarray:
        """int64 [batch_size]: position of each seed in ``input_nodes`` (for a split: in its ascending user ids)."""
        return self._raw.arrays["input_id"]

    def n_id(self, node_type: str | None = None) -> np.ndarray:
        """int64 [nodes]: user ids of the vertices."""
        return self._raw.arrays[f"n_id/{self._node_type(node_type)}"]

    def edge_index(self, edge_type: str | None = None) -> np.ndarray:
        """int64 [2, edges]: local ids, source row first. The rows are contiguous, but need not follow each other."""
        name = self._edge_type(edge_type)
        row, col = self._raw.arrays[f"row/{name}"], self._raw.arrays[f"col/{name}"]
        if row.dtype == np.int64 and row.base is not None and row.base is col.base:
            first, apart = row.ctypes.data - row.base.ctypes.data, col.ctypes.data - row.ctypes.data
            return np.ndarray((2, len(row)), np.int64, buffer=row.base, offset=first, strides=(apart, 8))
        out = self._scratch.empty((2, len(row)), np.int64)
        widen_into(out[0], row)
        widen_into(out[1], col)
        return out

    def e_id(self, edge_type: str | None = None) -> np.ndarray | None:
        """int64 [edges]: the users' edge ids; None when the loader was told to leave them out."""
        ids = self._raw.arrays.get(f"e_id/{self._edge_type(edge_type)}")
        return ids if ids is None or ids.dtype == np.int64 else self._scratch.widened(ids)

    def table(self, name: str, node_type: str | None = None) -> np.ndarray:
        """[nodes, *row_shape]: rows of a node table, in the order of ``n_id``; of the seeds where it is fetched for them alone."""
        array = self._raw.arrays.get(f"table/{self._node_type(node_type)}/{name}")
        if array is None:
            raise ConfigError(f"table {name!r} was not fetched: name it in the loader's tables")
        return array

    @property
    def tables(self) -> dict[str, dict[str, np.ndarray]]:
        """All fetched tables: node type → name → rows."""
        found: dict[str, dict[str, np.ndarray]] = {t: {} for t in self.node_types}
        for key, array in self._raw.arrays.items():
            if key.startswith("table/"):
                _, node_type, name = key.split("/", 2)
                found[node_type][name] = array
        return found

    def edge_table(self, name: str, edge_type: str | None = None) -> np.ndarray:
        """[edges, *row_shape]: rows of an edge table, in the order of ``edge_index``."""
        array = self._raw.arrays.get(f"edge/{self._edge_type(edge_type)}/{name}")
        if array is None:
            raise ConfigError(f"edge table {name!r} was not fetched: name it in the loader's edge_tables")
        return array

    def edge_tables(self, edge_type: str | None = None) -> dict[str, np.ndarray]:
        """All fetched tables of an edge type by name."""
        prefix = f"edge/{self._edge_type(edge_type)}/"
        return {key.removeprefix(prefix): a for key, a in self._raw.arrays.items() if key.startswith(prefix)}

    def tree(self, node_type: str | None = None) -> np.ndarray:
        """int32 [nodes]: the seed (by position) whose tree a vertex stands in; only where trees are disjoint.

        Where the seeds are edges, trees are those of all sources, then of all targets, then of the negatives' sources and targets.
        """
        found = self._raw.arrays.get(f"tree/{self._node_type(node_type)}")
        if found is None:
            raise ConfigError("the batch's trees are not disjoint: ask the loader for disjoint=True")
        return found

    def tree_of_seed(self, node_type: str | None = None) -> np.ndarray | None:
        """int64 [nodes]: position of the seed that a vertex belongs to, PyG's ``batch``; None where trees are not disjoint.

        Where the seeds are edges, the trees of both ends and of negatives belong to the positive edge.
        """
        found = self._raw.arrays.get(f"tree/{self._node_type(node_type)}")
        if found is None:
            return None
        tree, positives = found.astype(np.int64), max(1, self.batch_size)
        if self._labels is None:
            return tree
        negatives = max(1, len(self._raw.arrays.get("link/neg_src", ())))
        negative = (tree - 2 * positives) % negatives
        owner = negative // self._labels.amount if self._labels.mode == "triplet" else negative % positives
        return np.where(tree < 2 * positives, tree % positives, owner)

    @property
    def extra(self) -> dict[str, np.ndarray]:
        """What a batch operator returns besides the subgraph, by name."""
        return {k.removeprefix("extra/"): a for k, a in self._raw.arrays.items() if k.startswith("extra/")}

    def links(self) -> dict[str, np.ndarray]:
        """The edges that are seeds, and their negatives, under PyG's names.

        Without or with binary negatives: ``edge_label_index`` int64 [2, n] (local ids, positives first) and ``edge_label``. With
        triplets: ``src_index`` and ``dst_pos_index`` int64 [batch_size], ``dst_neg_index`` [batch_size] or [batch_size, amount].
        ``edge_label_time`` where times were given.

        Raises:
            ConfigError: the seeds are vertices.
        """
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
        return {k.removeprefix("pairs/"): a for k, a in self._raw.arrays.items() if k.startswith("pairs/")}

    def num_sampled_nodes(self, node_type: str | None = None) -> list[int]:
        """New vertices per hop; the first entry counts the seeds (and their positive and negative samples)."""
        steps = [int(n) for n in self._raw.arrays[f"hops/{self._node_type(node_type)}"]]
        first = 1 + len(self.pairs) + ("link/neg_src" in self._raw.arrays)
        return [sum(steps[:first]), *steps[first:]]

    def num_sampled_edges(self, edge_type: str | None = None) -> list[int]:
        """Edges per hop."""
        return [int(n) for n in self._raw.arrays[f"hops/{self._edge_type(edge_type)}"]]

    # -- conversion ----------------------------------------------------------------------------------------------------

    def to_pyg(self) -> Any:
        """The batch as PyG's NeighborLoader delivers it: ``Data``, or ``HeteroData`` for several node or edge types.

        Attributes: every fetched table under its name (``x``, ``y``, ...), ``edge_index``, ``n_id``, ``e_id``, ``input_id``,
        ``batch_size``, ``num_sampled_nodes``, ``num_sampled_edges``. Table rows share the batch's memory.
        """
        import torch
        from torch_geometric.data import Data, HeteroData

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array)

        if len(self._schema.node_types) == 1 and len(self._schema.edge_types) == 1:
            data = Data()
            self._fill(data, None, None, tensor)
            data.input_id = tensor(self.input_id)
            data.batch_size = self.batch_size
            data.num_sampled_nodes = self.num_sampled_nodes()
            data.num_sampled_edges = self.num_sampled_edges()
            for name, array in {**self.extra, **(self.links() if self._labels else {})}.items():
                data[name] = tensor(array)
            return data
        hetero = HeteroData()
        for node_type in self.node_types:
            self._fill(hetero[node_type], node_type, "", tensor)
        for edge_type in self.edge_types:
            key = tuple(edge_type.split("__"))
            hetero[key].edge_index = tensor(self.edge_index(edge_type))
            if (ids := self.e_id(edge_type)) is not None:
                hetero[key].e_id = tensor(ids)
            self._fill_edges(hetero[key], edge_type, tensor)
        seeds = hetero[tuple(self._labels.edge_type.split("__")) if self._labels else self._seed_type()]
        seeds.input_id, seeds.batch_size = tensor(self.input_id), self.batch_size
        if self._labels:
            for name, array in self.links().items():
                # As PyG does it: ends of triplets belong to their node types.
                place = {"src_index": 0, "dst_pos_index": 2, "dst_neg_index": 2}.get(name)
                store = seeds if place is None else hetero[self._labels.edge_type.split("__")[place]]
                store[name] = tensor(array)
        hetero.num_sampled_nodes = {t: self.num_sampled_nodes(t) for t in self.node_types}
        hetero.num_sampled_edges = {tuple(e.split("__")): self.num_sampled_edges(e) for e in self.edge_types}
        return hetero

    def _fill(self, store: Any, node_type: str | None, edge_type: str | None, tensor: Any) -> None:
        for name, rows in self.tables[self._node_type(node_type)].items():
            store[name] = tensor(rows)
        store.n_id = tensor(self.n_id(node_type))
        store.num_nodes = len(self.n_id(node_type))
        if f"tree/{self._node_type(node_type)}" in self._raw.arrays:
            store.batch = tensor(self.tree_of_seed(node_type))
        if edge_type is None:
            store.edge_index = tensor(self.edge_index())
            if (ids := self.e_id()) is not None:
                store.e_id = tensor(ids)
            self._fill_edges(store, None, tensor)

    def _fill_edges(self, store: Any, edge_type: str | None, tensor: Any) -> None:
        for name, rows in self.edge_tables(edge_type).items():
            store[name if name.startswith("edge") else f"edge_{name}"] = tensor(rows)

    def to_dgl(self) -> list[Any]:
        """The batch as DGL blocks, input side first (extra ``atta[dgl]``; homogeneous graphs).

        Sampled with ``frontier="all"`` the blocks equal those of DGL's NeighborSampler; with ``"new"`` a hop's block holds
        the edges of the vertices first reached in the hop before.
        """
        try:
            import dgl
            import torch

            from atta.blocks import block
        except ImportError as error:
            raise ConfigError("to_dgl needs DGL: install atta[dgl]") from error
        row, col = self.edge_index()
        nodes = np.cumsum(self.num_sampled_nodes())
        edges = np.concatenate([[0], np.cumsum(self.num_sampled_edges())])
        ids, e_id = torch.from_numpy(self.n_id()), self.e_id()
        blocks: list[Any] = []
        for hop in range(len(edges) - 1):
            part = slice(edges[hop], edges[hop + 1])
            made = block(row[part], col[part], int(nodes[hop + 1]), int(nodes[hop]))
            made.srcdata[dgl.NID], made.dstdata[dgl.NID] = ids[: nodes[hop + 1]], ids[: nodes[hop]]
            if e_id is not None:
                made.edata[dgl.EID] = torch.from_numpy(e_id[part])
            blocks.insert(0, made)
        return blocks

    def to_networkx(self, tables: Iterable[str] = ()) -> Any:
        """The batch as a ``networkx.MultiDiGraph`` for drawing (``atta.drawing``); ``tables``: whose rows to put on vertices."""
        return import_module("atta.drawing").to_networkx(self, tables)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _seed_type(self) -> str:
        return next(t for t in self.node_types if self.num_sampled_nodes(t)[0] > 0)

    def _node_type(self, name: str | None) -> str:
        if name is None:
            if len(self.node_types) != 1:
                raise ConfigError(f"name a node type: {', '.join(self.node_types)}")
            return self.node_types[0]
        return name

    def _edge_type(self, name: str | None) -> str:
        if name is None:
            if len(self.edge_types) != 1:
                raise ConfigError(f"name an edge type: {', '.join(self.edge_types)}")
            return self.edge_types[0]
        return name

    def __repr__(self) -> str:
        counts = f"{self.batch_size} seeds, {self.num_nodes} nodes, {self.num_edges} edges"
        return f"MiniBatch({counts})"
