"""Mini-batches of typed graphs with as many vertices of each type as asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from atta.client.cluster import Cluster
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import edge_tables_by_type
from atta.client.loaders.seeds import InputNodes, node_seeds, numbered, tables_by_type, typed
from atta.samplers.dag.spec import budget_spec

__all__ = ["HGTLoader"]


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
        edge_tables: Mapping[Any, Sequence[str] | str] | Sequence[str] | str = (),
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
        seed_type = typed(schema, input_nodes).node_type
        wanted = tables_by_type(tables, [seed_type])
        rows = edge_tables_by_type(schema, edge_tables)
        dag = budget_spec(schema, num_samples, seed_type=seed_type, tables=wanted, edge_tables=rows)
        super().__init__(cluster, dag, input_nodes=node_seeds(schema, numbered(cluster.ids, input_nodes)), **options)
        self._origin = dataclasses.replace(self._origin, tables=wanted)
