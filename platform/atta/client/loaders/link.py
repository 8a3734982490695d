"""Link prediction: batches whose seeds are edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.client.cluster import Cluster
from atta.client.loaders.arguments import shows, split_off
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import Drawing
from atta.client.loaders.sampled import LinkLabels
from atta.client.loaders.seeds import edge_ends, edge_type_name, link_seeds, tables_by_type
from atta.client.loaders.subgraphs import reverse_types
from atta.errors import ConfigError, UnknownNameError, known_name
from atta.partition.schema import Schema
from atta.samplers.arguments import did_you_mean
from atta.samplers.batch.negatives import NegativeLinks, NegativeStrategy
from atta.samplers.dag.spec import link_spec

_MODES = ("binary", "triplet")


@dataclass(frozen=True)
class NegativeSampling:
    """How negative edges are drawn.

    Attributes:
        mode: ``"binary"``: independent pairs, labelled 0; ``"triplet"``: other targets for the source of each positive.
        amount: negatives per positive; a whole number for triplets.
        strategy: ``"uniform"`` vertices (PyG), ``"degree"`` (targets by in-degree to the power of 3/4), ``"in_batch"``
            (targets of other positives) or ``"exact"`` (uniform, but never an edge of the graph).
    """

    mode: str = "binary"
    amount: float = 1.0
    strategy: str = "uniform"

    def __post_init__(self) -> None:
        known_name("mode of negative sampling", self.mode, _MODES)
        known_name("strategy of negative sampling", self.strategy, [s.value for s in NegativeStrategy])
        NegativeLinks(self.mode == "triplet", self.amount)

    @classmethod
    def of(cls, given: Any) -> NegativeSampling | None:
        """Make one from a mode's name, a mapping, or an object with PyG's ``mode`` and ``amount``; None stays None."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str):
            return cls(given)
        if isinstance(given, Mapping):
            known = [field.name for field in dataclasses.fields(cls)]
            for name in given:
                if name not in known:
                    raise ConfigError(f"neg_sampling: unknown {name}{did_you_mean(str(name), known)}")
            return cls(**given)
        mode = getattr(given, "mode", None)
        if mode is None:
            raise ConfigError(f"neg_sampling {given!r}: give a mode, a mapping or a NegativeSampling")
        return cls(str(getattr(mode, "value", mode)), getattr(given, "amount", 1.0))


@shows(Drawing)
class LinkNeighborLoader(DagLoader):
    """Batches of edges with sampled neighbourhoods of their ends, as PyG's ``LinkNeighborLoader`` makes them."""

    def __init__(
        self,
        cluster: Cluster,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        edge_label_index: Any,
        *,
        edge_label: Any = None,
        edge_label_time: Any = None,
        neg_sampling: Any = None,
        exclude_edges: str | None = "reverse",
        reverse_type: Any = None,
        tables: Mapping[str, Sequence[str] | str] | Sequence[str] | str | None = None,
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration. ``batch_size`` counts positive edges.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            num_neighbors: as for ``NeighborLoader``.
            edge_label_index: [2, E] user ids (numbers or strings) of the edges' ends, sources first, or ``(edge_type,
                [2, E])``. They need not be edges of the graph.
            edge_label: [E] labels of the edges; None: 1. With binary negatives, labels that begin at 0 are raised by
                one, so that 0 means "no edge" (as PyG does).
            edge_label_time: int [E], with ``time_attr``: no edge in the trees of an edge's ends is later, and no vertex
                but the ends themselves. Negatives have the time of their positive, and exist then.
            neg_sampling: a ``NegativeSampling``, a mode, a mapping, or PyG's object; None: no negatives.
            exclude_edges: ``"reverse"`` leaves a batch's positive edges and their reverses out of its sampled edges, so
                that a model cannot look them up; ``"self"`` leaves out the edges only; None leaves nothing out. They
                are left out after drawing. If c of a vertex' d in-edges are left out, a draw loses the share c / d on
                average, and the vertex gets less than its fan-out (docs/guide/samplers.md says how much).
            reverse_type: edge type of the reverses. Default: the same type if it stays within a node type, otherwise
                the only one between the same node types in the other direction.
            replace, method, weight_attr, time_attr, temporal_strategy, disjoint, subgraph_type, tables, edge_tables, dependency,
                frontier, edge_norm, norm_attr, unbiased: as for ``NeighborLoader``. Degrees count edges that are left out, too.
            **options: ``batch_size``, ``shuffle``, ``drop_last`` and what ``NeighborLoader`` takes.

        Raises:
            ConfigError: an argument is out of range; UnknownNameError: a type, table or strategy does not exist.
        """
        schema, drawing = cluster.schema, split_off(Drawing, options)
        edge_type, ends = _edges(cluster, edge_label_index)
        negatives = NegativeSampling.of(neg_sampling)
        hops = drawing.hops(schema, num_neighbors)
        of_types = tables_by_type(tables, dict.fromkeys(schema.endpoints(edge_type)))
        wanted = None
        if negatives is not None:
            strategy = NegativeStrategy(negatives.strategy)
            wanted = NegativeLinks(negatives.mode == "triplet", float(negatives.amount), strategy)
        dag = link_spec(schema, hops, edge_type=edge_type, negatives=wanted, tables=of_types)
        if exclude_edges not in (None, "self", "reverse"):
            raise UnknownNameError.of("edges to exclude", str(exclude_edges), ("self", "reverse"))
        reverse = reverse_type_of(schema, edge_type, reverse_type) if exclude_edges == "reverse" else None
        seeds = link_seeds(
            schema, edge_type, ends, edge_label_time, exclude=exclude_edges is not None, exclude_reverse=reverse
        )
        if (drawing.time_attr is None) != (edge_label_time is None):
            raise ConfigError(
                "time_attr, edge_label_time: give both: temporal sampling of edges needs their times (edge_label_time), "
                "and no other has a use for them"
            )
        super().__init__(cluster, dag, input_nodes=seeds, **options)
        label = None if edge_label is None else np.asarray(edge_label)
        if label is not None and len(label) != ends.shape[1]:
            raise ConfigError(f"edge_label: {len(label)} labels for {ends.shape[1]} edges")
        time = None if edge_label_time is None else np.asarray(edge_label_time)
        mode, amount = (None, 1) if negatives is None else (negatives.mode, int(negatives.amount))
        labels = LinkLabels(edge_type, mode, amount, label, time)
        self._origin = drawing.origin(schema, dataclasses.replace(self._origin, tables=of_types, labels=labels))


def _edges(cluster: Cluster, edge_label_index: Any) -> tuple[str, np.ndarray]:
    """The edge type, and the numbers of the edges' ends, int64 [2, E]."""
    edge_type, ends = None, edge_label_index
    if isinstance(edge_label_index, tuple) and len(edge_label_index) == 2:
        first, second = edge_label_index
        if isinstance(first, str) or (isinstance(first, tuple) and all(isinstance(part, str) for part in first)):
            edge_type, ends = first, second
    if ends is None:
        raise ConfigError("edge_label_index: give the edges as ids [2, E]")
    name = edge_type_name(cluster.schema, edge_type)
    return name, edge_ends(cluster.ids, name, ends)


def reverse_type_of(schema: Schema, edge_type: str, given: Any) -> str | None:
    """The edge type of the reverses of ``edge_type``'s edges: ``given``, or what ``reverse_types`` leaves no doubt about;
    None: there is none. Raises ConfigError and UnknownNameError."""
    if given is not None:
        return edge_type_name(schema, given)
    found = reverse_types(schema, edge_type)
    if len(found) > 1:
        raise ConfigError(f"reverse_type: name which of {', '.join(found)} holds the reverses of {edge_type}")
    return found[0] if found else None
