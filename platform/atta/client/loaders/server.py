"""``server_subgraph``: extracts what the trainers of a server compute on from a running cluster, once (GraNNDis)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atta.client.cluster import Cluster
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import vertex_ids
from atta.client.loaders.seeds import edge_type_name, part_seeds, sized_seeds
from atta.client.sessions.stream import RawBatch
from atta.errors import ConfigError
from atta.samplers.dag.spec import batch_spec
from atta.samplers.local.server import DEFAULT_RULE, Rule, ServerGraph
from atta.samplers.operators.server import Closure


class ServerLoader(DagLoader):
    """The subgraphs of a server's vertices, one after another, as ``ServerGraph``: several if it trains on them in turn.

    Attributes:
        node_type, edge_type: of the vertices and edges.
    """

    _wide_ids = False  # a server has many edges

    def __init__(
        self,
        cluster: Cluster,
        inner: Sequence[ArrayLike] | None,
        rule: Rule = DEFAULT_RULE,
        *,
        part: int = 0,
        edge_type: Any = None,
        tables: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """Describe the subgraphs; nothing is sent before the first iteration. ``inner``: user ids of each subgraph's inner
        vertices; None: one subgraph, of those of partition ``part``. Others, and what is raised, as of
        ``server_subgraph``, what the daemon refuses by the iteration.
        """
        if not 0 <= part < cluster.num_parts:
            raise ConfigError(f"part {part}: the cluster has partitions 0 to {cluster.num_parts - 1}")
        schema = cluster.schema
        self.edge_type = edge_type_name(schema, edge_type)
        self.node_type = schema.endpoints(self.edge_type)[1]
        name = "closure" if isinstance(rule, Closure) else "expansion-aware"
        wanted = None if tables is None else {self.node_type: list(tables)}
        dag = batch_spec(schema, name, dataclasses.asdict(rule), edge_type=self.edge_type, tables=wanted)
        seeds = part_seeds(self.node_type, part)
        if inner is not None:
            # Batches go round the ranks, and rank r gets its batches from partition r's daemon. Those of other ranks
            # are empty.
            others: ArrayLike = ()
            rounds = [[ids if rank == part else others for rank in range(cluster.num_parts)] for ids in inner]
            seeds = sized_seeds(cluster.ids, self.node_type, [ids for ranks in rounds for ids in ranks])
        super().__init__(cluster, dag, input_nodes=seeds, rank=part, world_size=cluster.num_parts, home=part, **options)

    def _made(self, raw: RawBatch) -> Any:
        arrays = raw.arrays
        owners = {key: key.rpartition("/") for key in arrays}
        e_id = arrays.get(f"e_id/{self.edge_type}")
        made = ServerGraph(
            arrays[f"n_id/{self.node_type}"],
            arrays["extra/hop"],
            arrays[f"row/{self.edge_type}"],
            arrays[f"col/{self.edge_type}"],
            None if e_id is None else e_id.astype(np.int64, copy=False),
            arrays["extra/degree"],
            {name: arrays[key] for key, (of, _, name) in owners.items() if of == f"table/{self.node_type}"},
        )
        transform: Any = self._transform  # takes what this loader makes, a ServerGraph
        return made if transform is None else transform(made)


def server_subgraph(
    cluster: Cluster,
    inner: ArrayLike | None = None,
    rule: Rule = DEFAULT_RULE,
    *,
    splits: Sequence[str] | None = None,
    **options: Any,
) -> ServerGraph:
    """Extract what a server computes on, with the table rows of all its vertices: shared preloading (GraNNDis, section 4.2).

    The arrays are the same, bit for bit, however the graph is partitioned;
    ``atta.samplers.local.server.server_subgraph`` makes them of a local graph. They lie in memory shared with the
    daemon if it runs on this machine, and stay valid as long as any of them is referenced.

    Args:
        cluster: from ``atta.connect`` or ``atta.local``.
        inner: user ids of the server's own vertices, int [m]; repeated ids count once. None: those of partition
            ``part``.
        rule: ``Closure(hops)`` or ``ExpansionAware(max_hop, fanout, select, resample)`` of ``atta.samplers.operators``.
        splits: which splits' members to mark; default all of the node type.
        **options: ``part`` (0), the partition whose daemon does the work: the server's own is best, because most edges lie
            there; ``edge_type``, if there are several: both ends must be of one type; ``tables``, names of the node
            tables to fetch, by default all; ``seed`` (of the uniform choice), ``codec``, ``job``, ``share``,
            ``edge_ids``, ``transform``, as for ``NeighborLoader``.

    Raises:
        ConfigError: an argument is out of range, an id does not exist, there are more than 2**20 of them.
        UnknownNameError: a type, table or split does not exist.
        QuotaExceededError: the daemon's buffers cannot hold the subgraph.
        RemoteError: a daemon does not answer.
    """
    loader = ServerLoader(cluster, None if inner is None else [inner], rule, **options)
    found: ServerGraph
    (found,) = loader
    node_type = loader.node_type
    names = cluster.schema.splits.get(node_type, {}) if splits is None else splits
    masks = {name: np.isin(found.n_id, vertex_ids(cluster, node_type, name)) for name in names}
    return dataclasses.replace(found, splits=masks)
