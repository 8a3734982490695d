"""``dgl.dataloading``: how many neighbours to draw, layer by layer, and the loaders of distributed graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atta.compat import NotOfferedError, front
from atta.compat.dgl.distributed.book import TypeBook
from atta.errors import ConfigError
from atta.samplers.arguments import flag, whole

_HOMES = {
    **dict.fromkeys(("DistEdgeDataLoader", "DistNodeDataLoader"), "..loaders"),
    **dict.fromkeys(("MultiLayerFullNeighborSampler", "MultiLayerNeighborSampler", "NeighborSampler"), "..dataloading"),
    "negative_sampler": "..negative_sampler",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = front(__name__, _HOMES)


class NeighborSampler:
    """Fan-outs by layer, the input layer first. In every layer all vertices known so far draw anew."""

    def __init__(
        self,
        fanouts: Sequence[int | Mapping[Any, int]],
        edge_dir: str = "in",
        prob: str | None = None,
        mask: str | None = None,
        replace: bool = False,
        **options: Any,
    ) -> None:
        """Describe the sampling.

        Args:
            fanouts: in-neighbours of each vertex in each layer, -1: all; a mapping gives them by edge type.
            edge_dir: ``"in"``.
            prob: an edge table, by whose numbers edges are drawn; None uniformly.
            mask: an edge table; edges are drawn uniformly among those where it is True. Not with ``prob``, as in DGL.
            replace: draw with replacement.
            **options: what DGL prefetches: rows come with the batch anyway, so they mean nothing.
        """
        if edge_dir != "in":
            raise NotOfferedError(f"NeighborSampler does not offer edge_dir={edge_dir!r}: neighbours are in-neighbours")
        if prob is not None and mask is not None:
            raise ConfigError(f"NeighborSampler: prob={prob!r} and mask={mask!r} exclude each other")
        known = {"prefetch_node_feats", "prefetch_labels", "prefetch_edge_feats", "output_device"}
        if unknown := sorted(options.keys() - known):
            raise TypeError(f"NeighborSampler: unknown argument {unknown[0]!r}")
        self.fanouts = list(fanouts)
        self.prob, self.replace = mask if prob is None else prob, flag("replace", replace)

    def hops(self, types: TypeBook) -> list[int] | dict[str, list[int]]:
        """Fan-outs from the seeds on, by edge type where there are several or any layer names them."""
        layers = self.fanouts[::-1]
        if not any(isinstance(layer, Mapping) for layer in layers):
            return [whole("fanouts", layer, -1) for layer in layers]
        found: dict[str, list[int]] = {edge_type: [] for edge_type in types.schema.edge_types}
        for layer in layers:
            if not isinstance(layer, Mapping):
                named = dict.fromkeys(found, whole("fanouts", layer, -1))
            else:
                named = {types.edge_type(etype): whole("fanouts", n, -1) for etype, n in layer.items()}
            for edge_type, hops in found.items():
                hops.append(named.get(edge_type, 0))
        if not layers:
            raise ConfigError("fanouts: there are none")
        return found

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of Atta's loaders. In every hop all known vertices draw, as DGL's samplers have it."""
        return {"replace": self.replace, "weight_attr": self.prob, "frontier": "all"}


class MultiLayerNeighborSampler(NeighborSampler):
    """Another name of ``NeighborSampler``."""


class MultiLayerFullNeighborSampler(NeighborSampler):
    """All in-neighbours in each of ``num_layers`` layers."""

    def __init__(self, num_layers: int, **options: Any) -> None:
        super().__init__([-1] * whole("num_layers", num_layers, 1), **options)
