"""Stands in for PyG's loaders while PyG's own tests run: each gives the batches of Atta's loader over the same graph.

What a loader is given is passed on. ``docs/guide/from-pyg.md`` names all that has another name or another form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch_geometric.datasets
import torch_geometric.loader
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.testing import decorators
from torch_geometric.utils import to_undirected

import atta
from tests.peers.graphs import Graphs

_PACKAGES = {"pyg_lib", "torch_sparse"}
"""What PyG's loaders need and Atta's do not."""
_FLAGS = ("WITH_PYG_LIB", "WITH_TORCH_SPARSE", "WITH_WEIGHTED_NEIGHBOR_SAMPLE", "WITH_EDGE_TIME_NEIGHBOR_SAMPLE")
_TABLES = {"edge_weight": "weight", "edge_time": "time"}
"""Attributes of edges, and the tables that they become."""


def hand_over(graphs: Graphs) -> None:
    """Put Atta's loaders into the places of PyG's, for the rest of this process."""
    _OverAtta.graphs = graphs
    for stand_in in (NeighborLoader, LinkNeighborLoader, HGTLoader):
        setattr(torch_geometric.loader, stand_in.__name__, stand_in)
    torch_geometric.datasets.Planetoid = _OfCorasSize


@contextmanager
def as_if_installed() -> Iterator[None]:
    """Let PyG's tests believe, as they are imported, that the packages are there which Atta does not need."""
    has_package = decorators.has_package
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decorators, "has_package", lambda name: name in _PACKAGES or has_package(name))
        for module in (decorators, torch_geometric.typing):
            for flag in _FLAGS:
                patch.setattr(module, flag, True, raising=False)
        yield


class _OfCorasSize:
    """A random graph in the place of a data set that PyG would fetch."""

    num_features, num_classes = 16, 7

    def __init__(self, *_: Any, **__: Any) -> None:
        """Which one makes no difference."""

    def __getitem__(self, _: int) -> Data:
        rng = torch.Generator().manual_seed(0)
        ends = to_undirected(torch.randint(0, 2708, (2, 5278), generator=rng), num_nodes=2708)
        return Data(torch.rand((2708, self.num_features), generator=rng), ends)


class _OverAtta:
    graphs: ClassVar[Graphs]
    _at: Callable[[list[int]], Any]
    """Makes the loader of some of the seeds."""

    def __call__(self, places: list[int]) -> Any:
        return next(iter(self._at(places)))

    def _options(self, data: Any, given: dict[str, Any]) -> dict[str, Any]:
        cluster = self.graphs.cluster(data)
        options = {name: value for name, value in given.items() if value is not None}
        for name in options.keys() & {"weight_attr", "time_attr"}:
            options[name] = _TABLES.get(options[name], options[name])
        of_edges = {e: [*tables] for e, tables in cluster.schema.edge_tables.items() if tables}
        if "bidirectional" in str(options.get("subgraph_type")):  # edges of other types' reverses have no rows
            of_edges = {e: tables for e, tables in of_edges.items() if len({*cluster.schema.endpoints(e)}) == 1}
        after = options.pop("transform", lambda batch: batch)
        return options | {"cluster": cluster, "edge_tables": of_edges, "transform": lambda batch: after(batch.to_pyg())}


class NeighborLoader(_OverAtta, atta.NeighborLoader):
    def __init__(self, data: Any, num_neighbors: Any, input_nodes: Any = None, **given: Any) -> None:
        options = self._options(data, given)
        node_type, nodes = _nodes(input_nodes)
        super().__init__(num_neighbors=num_neighbors, input_nodes=(node_type, nodes) if node_type else nodes, **options)
        if nodes is None:
            nodes = torch.arange(data[node_type].num_nodes if node_type else data.num_nodes)
        self._at = lambda places: NeighborLoader(
            data, num_neighbors, (node_type, nodes[places]) if node_type else nodes[places],
            **{**given, "batch_size": len(places)},
        )  # fmt: skip


class HGTLoader(_OverAtta, atta.HGTLoader):
    def __init__(self, data: Any, num_samples: Any, input_nodes: Any = None, **given: Any) -> None:
        super().__init__(num_samples=num_samples, input_nodes=_nodes(input_nodes), **self._options(data, given))


class LinkNeighborLoader(_OverAtta, atta.LinkNeighborLoader):
    def __init__(self, data: Any, num_neighbors: Any, edge_label_index: Any = None, **given: Any) -> None:
        options = self._options(data, given)
        edge_type, ends = _edges(data, edge_label_index)
        if (ratio := options.pop("neg_sampling_ratio", None)) is not None:
            options["neg_sampling"] = {"mode": "binary", "amount": ratio}
        if isinstance(negatives := options.get("neg_sampling"), dict):
            options["neg_sampling"] = {name: value for name, value in negatives.items() if value is not None}
        seeds = (edge_type, ends) if edge_type else ends
        super().__init__(num_neighbors=num_neighbors, edge_label_index=seeds, exclude_edges=None, **options)
        self._at = partial(_some_edges, data, num_neighbors, edge_type, ends, given)


def _some_edges(
    data: Any, num_neighbors: Any, edge_type: Any, ends: Any, given: dict[str, Any], places: list[int]
) -> LinkNeighborLoader:
    rows = {name: given[name][places] for name in ("edge_label", "edge_label_time") if given.get(name) is not None}
    seeds = (edge_type, ends[:, places]) if edge_type else ends[:, places]
    return LinkNeighborLoader(data, num_neighbors, seeds, **{**given, **rows, "batch_size": len(places)})


def _nodes(given: Any) -> tuple[str | None, Any]:
    """The node type and the vertices that ``input_nodes`` of PyG means; None: all, or the only type."""
    node_type, nodes = None, given
    if isinstance(given, str):
        node_type, nodes = given, None
    elif isinstance(given, tuple) and isinstance(given[0], str):
        node_type, nodes = given
    if isinstance(nodes, torch.Tensor) and nodes.dtype == torch.bool:
        nodes = nodes.nonzero().view(-1)
    return node_type, nodes if nodes is None else torch.as_tensor(nodes)


def _edges(data: Any, given: Any) -> tuple[Any, Any]:
    """The edge type and the edges [2, E] that ``edge_label_index`` of PyG means. The type is None if there is one."""
    if not isinstance(given, tuple | list):
        return None, data.edge_index if given is None else given
    edge_type, ends = (given, None) if isinstance(given[0], str) else given
    edge_type = data._to_canonical(*edge_type)
    return edge_type, data[edge_type].edge_index if ends is None else ends
