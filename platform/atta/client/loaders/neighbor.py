"""Mini-batches of sampled neighbourhoods around vertices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from atta.client.cluster import Cluster
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.seeds import InputNodes, edge_type_name, node_seeds, numbered, tables_by_type, typed
from atta.errors import ConfigError, UnknownNameError
from atta.samplers.arguments import flag, integers, names
from atta.samplers.dag.spec import Hops, neighbor_spec
from atta.samplers.methods import Method

__all__ = ["NeighborLoader", "hops_of"]

_TEMPORAL = {"uniform": Method.TEMPORAL, "last": Method.LAST}


class NeighborLoader(DagLoader):
    """Mini-batches of sampled neighbourhoods, with the arguments and results of PyG's ``NeighborLoader``."""

    def __init__(
        self,
        cluster: Cluster,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        input_nodes: InputNodes = "train",
        *,
        input_time: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        method: str | None = None,
        weight_attr: str | None = None,
        time_attr: str | None = None,
        temporal_strategy: str = "uniform",
        disjoint: bool = False,
        tables: Mapping[str, Sequence[str] | str] | Sequence[str] | str | None = None,
        seed_tables: Sequence[str] | str = (),
        edge_tables: Mapping[Any, Sequence[str] | str] | Sequence[str] | str = (),
        frontier: str = "new",
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration, unless string ids are looked up.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            num_neighbors: fan-outs: in-neighbours per vertex, hop by hop from the seeds; -1: all. A mapping gives them
                by edge type.
            input_nodes: the seeds: name of a split (``"train"``), user ids (numbers or strings), or None for every vertex.
                ``(node_type, one of these)`` names their type; ids need that if there are several types.
            input_time: int [seeds], with ``time_attr`` and ids: no sampled edge in a seed's tree, and no vertex but the
                seed itself, is later than its time. Default: the seeds' own times, the node table ``time`` of their type.
            batch_size: seeds per batch. A seed that occurs twice in a batch counts once, unless trees are disjoint.
            shuffle: permute the seeds anew in every epoch.
            drop_last: leave out the last batch if it is not full.
            replace: draw neighbours with replacement.
            method: name of a neighbour method that reads no edge table (docs/samplers.md); None: ``"uniform"``.
            weight_attr: ``"weight"`` draws neighbours by the weights of their edges; None draws uniformly.
            time_attr: ``"time"`` hides vertices and edges that are later than their seed. Types without a table ``time``
                are never hidden. Trees are disjoint then. docs/samplers.md has the rules.
            temporal_strategy: ``"uniform"`` draws among the edges that are not hidden, ``"last"`` takes the latest of
                them.
            disjoint: every seed grows a tree of its own. ``MiniBatch.tree`` tells which tree a vertex belongs to.
            tables: names of the node tables to fetch, or one name; a mapping gives them by node type. Without one they
                are tables of the seeds' type. Default: all.
            seed_tables: names of tables to fetch for the seeds alone, such as labels. They have one row per seed and
                need not be named in ``tables``.
            edge_tables: names of edge tables whose rows come with the sampled edges; a mapping gives them by edge type.
            frontier: ``"new"`` expands every vertex once (PyG), ``"all"`` expands every known vertex in each hop (DGL).
                ``to_dgl`` makes blocks of both.
            **options: ``seed`` (of all randomness); ``seed_policy`` (``"local"``: a rank gets the seeds near it;
                ``"global"``: all ranks share one permutation); ``rank`` and ``world_size`` (default: those of
                torch's process group, or torchrun's RANK and WORLD_SIZE); ``pad`` (repeat a few seeds so that all ranks
                get equally many batches; switch it off for evaluation); ``edge_ids``; ``transform`` (called on
                every MiniBatch); ``codec`` (fp16, bf16 or int8: float32 rows cross the network between daemons in fewer
                bytes and with less precision; rows at home and labels stay exact); ``job`` (a name for logs); ``share``
                (of the daemons' workers, relative to other loaders that keep them busy: 2.0 gets twice as much as 1.0);
                ``home`` (the partition whose daemon makes the batches; default: that of the rank's seeds, or one on
                this machine); ``epochs`` and ``reconnect`` (see ``DagLoader``). Arguments of PyTorch's loaders that
                mean nothing here, such as ``num_workers``, are ignored with a warning.

        Raises:
            ConfigError: an argument is out of range; UnknownNameError: a node type, edge type, table or split does not
                exist.
        """
        schema = cluster.schema
        seed_type = typed(schema, input_nodes).node_type
        wanted = tables_by_type(tables, [seed_type])
        hops = hops_of(
            cluster, num_neighbors, replace=replace, method=method, weight_attr=weight_attr, time_attr=time_attr,
            temporal_strategy=temporal_strategy, disjoint=disjoint, edge_tables=edge_tables, frontier=frontier,
        )  # fmt: skip
        super().__init__(
            cluster,
            neighbor_spec(
                schema, hops, seed_type=seed_type, tables=wanted, seed_tables=names("seed_tables", seed_tables)
            ),
            input_nodes=node_seeds(schema, numbered(cluster.ids, input_nodes), input_time),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            **options,
        )
        times = None if input_time is None else integers("input_time", input_time)
        self._origin = dataclasses.replace(self._origin, tables=wanted, input_time=times)


def hops_of(
    cluster: Cluster,
    num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
    *,
    replace: bool,
    method: str | None,
    weight_attr: str | None,
    time_attr: str | None,
    temporal_strategy: str,
    disjoint: bool,
    edge_tables: Mapping[Any, Sequence[str] | str] | Sequence[str] | str,
    frontier: str,
) -> Hops:
    """The arguments that loaders of sampled neighbourhoods share, checked.

    Raises:
        ConfigError: two arguments contradict each other; UnknownNameError: a name does not exist.
    """
    for what, given, known in (("weight_attr", weight_attr, "weight"), ("time_attr", time_attr, "time")):
        if given not in (None, known):
            raise UnknownNameError.of(f"attribute ({what})", str(given), (known,))
    if temporal_strategy not in _TEMPORAL:
        raise UnknownNameError.of("temporal strategy", temporal_strategy, _TEMPORAL)
    by_name = {m.value: m for m in Method if m.table is None}
    if method is not None and method not in by_name:
        raise UnknownNameError.of("method", str(method), by_name)
    drawn = Method.UNIFORM if method is None else by_name[method]
    ways = ("method", drawn is not Method.UNIFORM), ("weight_attr", weight_attr), ("time_attr", time_attr)
    chosen = [name for name, given in ways if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)}: edges are drawn in one way")
    if weight_attr:
        drawn = Method.WEIGHTED
    if time_attr:
        drawn = _TEMPORAL[temporal_strategy]
    if not isinstance(edge_tables, Mapping):
        wanted = names("edge_tables", edge_tables)
        edge_tables = {edge_type_name(cluster.schema, None): wanted} if wanted else {}
    return Hops(num_neighbors, flag("replace", replace), drawn, frontier, flag("disjoint", disjoint), dict(edge_tables))
