"""``MiniBatch``: what a loader gives, turned into objects of PyG, DGL or networkx on request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atta.client.loaders.sampled import SampledBatch
from atta.errors import ConfigError
from atta.observe.extras import need

__all__ = ["MiniBatch"]


class MiniBatch(SampledBatch):
    """The sampled subgraph of some seeds, with the table rows of its vertices.

    Vertices are numbered per node type in the order in which they were reached: seeds first, then hop by hop. The
    arrays lie in memory shared with the daemon and stay valid as long as any of them is referenced.
    """

    def to_pyg(self, *, plain: bool = False) -> Any:
        """The batch as PyG's NeighborLoader delivers it: ``HeteroData``, or ``Data`` if the graph's only types are those
        of ``Data``, ``node`` and ``node__to__node``. ``plain``: ``Data`` for any graph with one node and one edge type.

        It has every fetched table under its name (``x``, ``y``, ...), ``edge_index``, ``n_id``, ``e_id``, ``input_id``,
        ``batch_size``, ``num_sampled_nodes``, ``num_sampled_edges``, ``edge_weight`` if the edges have weights, and
        ``seed_time`` if there was an ``input_time``. Table rows share the batch's memory. A table that is called like one
        of these others comes as ``table_<name>``.
        ``HeteroData`` has every node type and edge type of the graph; types that the batch does not reach have 0 rows.
        Arrays of ``extra`` and ``pairs`` have their own names (``data.walks``, ``data.positive``), or ``extra_<name>``
        and ``pairs_<name>`` if a table has that name.

        Raises:
            ConfigError: PyG is missing.
        """
        try:
            from atta.client.loaders.pyg_data import to_pyg
        except ModuleNotFoundError:
            need("to_pyg", "torch", "torch_geometric")
            raise

        return to_pyg(self, plain=plain)

    def to_dgl(self) -> list[Any]:
        """The batch as DGL blocks, input side first (extra ``atta[dgl]``; homogeneous graphs).

        With ``frontier="all"`` the blocks equal those of DGL's NeighborSampler: each hop draws anew for every known
        vertex. With ``"new"`` a vertex' edges are drawn once, and every block has the edges of all its destinations. A
        network over these blocks computes what PyG's layers compute on ``to_pyg()``. With fan-outs of -1 both are whole
        neighbourhoods. Weights of edges are ``edata["edge_weight"]``: those of the block's draws alone.

        Raises:
            ConfigError: DGL is missing, the graph has several types, or an operator has sampled the batch as a whole,
                without hops.
        """
        try:
            import dgl  # noqa: F401 - imported before the module that needs it, for a clear error
        except ImportError as error:
            raise ConfigError("to_dgl needs DGL: install atta[dgl]") from error
        from atta.client.loaders.dgl import to_blocks

        return to_blocks(self)

    def to_networkx(self, tables: Iterable[str] = ()) -> Any:
        """The batch as a ``networkx.MultiDiGraph`` for drawing it; the rows of ``tables`` become attributes of
        vertices.

        See ``atta.client.loaders.drawing``.
        """
        from atta.client.loaders.drawing import to_networkx

        return to_networkx(self, tables)

    def __repr__(self) -> str:
        counts = f"{self.batch_size} seeds, {self.num_nodes} nodes, {self.num_edges} edges"
        return f"MiniBatch({counts})"
