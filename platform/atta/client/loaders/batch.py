"""Mini-batches that a batch operator samples as a whole."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from atta.client.cluster import Cluster
from atta.client.loaders.arguments import shows
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import vertex_ids
from atta.client.loaders.norms import count_norms
from atta.client.loaders.seeds import InputNodes, edge_type_name, node_seeds, sized_seeds, tables_by_type
from atta.client.sessions.cursor import StreamPlace
from atta.errors import ConfigError
from atta.samplers.arguments import names, whole
from atta.samplers.batch.layout import check_draws_alone
from atta.samplers.dag.spec import batch_spec, check_spec
from atta.samplers.operators import OPERATORS

_COUNTED = 1 << 63
"""The first epoch of batches that are only counted. Nobody trains on them."""


@shows()
class BatchLoader(DagLoader):
    """Batches that an operator samples as a whole: ShaDow, GraphSAINT, Cluster-GCN, LADIES, walks, or your own."""

    def __init__(
        self,
        cluster: Cluster,
        operator: str,
        operator_options: Mapping[str, Any] | None = None,
        *,
        input_nodes: InputNodes = None,
        batches: Sequence[ArrayLike] | int | None = None,
        edge_type: Any = None,
        tables: Sequence[str] | str | None = None,
        edge_tables: Sequence[str] | str = (),
        sample_coverage: int = 0,
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration.

        Only daemons know an operator of your own, so its errors are raised by the first iteration.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            operator: its name (docs/guide/samplers.md lists those that come with Atta), known to the daemons.
            operator_options: what it is made with.
            input_nodes: seeds, as for ``NeighborLoader``; vertices of the type that the edges end at.
            batches: instead of ``input_nodes``: the user ids of each batch's seeds, or the number of batches that the operator
                draws by itself. They go round the ranks. With ``pad`` a rank that lacks a last batch repeats its first one.
            edge_type: the edges that the operator sees; may be left out if there is one type.
            tables: names of the node tables to fetch; default: all.
            edge_tables: names of tables of ``edge_type`` whose rows come with the edges. An operator whose edges are none
                of the graph's (``pinsage``, ``pagerank``) has none.
            sample_coverage: the first iteration draws batches, ids only, until they had this many vertices for each of
                the graph, and counts. Then batches have GraphSAINT's ``node_norm`` and ``edge_norm``, as PyG's have. The
                counts take 16 bytes per vertex and 8 per edge here, and are the same for every rank. 0: neither.
            **options: as for ``NeighborLoader``.

        Raises:
            ConfigError: an argument is out of range, or the operator needs seeds.
            UnknownNameError: a type, table, split or option does not exist.
        """
        schema = cluster.schema
        name = edge_type_name(schema, edge_type)
        node_type = schema.endpoints(name)[1]
        if (input_nodes is None) == (batches is None):
            raise ConfigError("give input_nodes or batches")
        wanted = tables_by_type(tables, [node_type])
        dag = batch_spec(
            schema, operator, operator_options or {}, edge_type=name, tables=wanted,
            edge_tables=names("edge_tables", edge_tables),
        )  # fmt: skip
        if batches is None:
            seeds = node_seeds(cluster.ids, _of_type(input_nodes, node_type, name))
        else:
            seeds = sized_seeds(cluster.ids, node_type, batches)
        if operator in [*OPERATORS]:  # only the daemons know what others accept
            plan = check_spec(dag, schema)
            if seeds.WhichOneof("source") == "batches":
                check_draws_alone(plan, schema)
        super().__init__(cluster, dag, input_nodes=seeds, **options)
        self._origin = dataclasses.replace(self._origin, tables=wanted)
        self._coverage = whole("sample_coverage", sample_coverage, 0)
        if self._coverage and not options.get("edge_ids", True):
            raise ConfigError("sample_coverage: edges are counted by their ids, so edge_ids must be on")
        alone = {"rank": 0, "world_size": 1, "transform": None, "epochs": None}
        self._counting = partial(
            BatchLoader, cluster, operator, operator_options, input_nodes=input_nodes, batches=batches, edge_type=edge_type,
            tables=(), **{**options, **alone},
        )  # fmt: skip

    def _batches(self, place: StreamPlace) -> Any:
        if self._coverage and self._origin.norms is None:
            schema = self._cluster.schema
            (edge_type,) = {ref.batch.edge_type for ref in self._request.dag.operators} - {""}
            ids = vertex_ids(self._cluster, schema.endpoints(edge_type)[1])
            loader = self._counting()
            epochs = (loader.resume(epoch, 0) for epoch in itertools.count(_COUNTED))
            norms = count_norms(ids, schema.edge_counts[edge_type], epochs, self._coverage)
            self._origin = dataclasses.replace(self._origin, norms=norms)
        return super()._batches(place)


def _of_type(input_nodes: InputNodes, node_type: str, edge_type: str) -> InputNodes:
    """``input_nodes`` with their node type, which must be the one that the edges end at."""
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        if input_nodes[0] != node_type:
            raise ConfigError(f"input_nodes: {input_nodes[0]!r}, but edges {edge_type} end at {node_type!r}")
        return input_nodes
    if isinstance(input_nodes, Mapping):
        raise ConfigError(f"input_nodes: give ids or the name of a split; the operator's vertices are of {node_type!r}")
    ids: Any = input_nodes
    return node_type, ids
