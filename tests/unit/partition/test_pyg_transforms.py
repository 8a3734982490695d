"""Graphs after each of PyG's transforms: what comes in is compared with what PyG's own object says of itself."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import ConfigError, DataError
from atta.partition import Graph, GraphWriter
from atta.partition.exporters import export_graph
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import came_in, content

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
import torch_geometric.transforms as T  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.utils import to_edge_index  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore:Unable to accurately infer", "ignore:.*nested tensor")
ETYPE = "node__to__node"


def of_nodes(node_type: str, count: int, attributes: dict[str, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {node_type: count}
    for name, rows in attributes.items():
        if name.endswith("_mask"):
            found[node_type, "split", name.removesuffix("_mask")] = np.flatnonzero(rows.numpy()).tolist()
        else:
            found[node_type, name] = rows.tolist()
    return found


def of_edges(edge_type: str, store: Any, attributes: dict[str, Any], *, shared: bool) -> dict[Any, Any]:
    weights = {}
    if "adj_t" in store:
        ends, values = to_edge_index(store.adj_t)
        ends, weights = ends.flip(0), {} if (values == 1).all() else {"weight": values.tolist()}
    else:
        ends = store.get("edge_index", torch.empty(2, 0, dtype=torch.int64))
    found: dict[Any, Any] = {edge_type: list(map(tuple, ends.T.tolist()))}
    for name, rows in attributes.items():
        table = {"edge_weight": "weight", "edge_attr": "edge_attr"}.get(
            name, name.removeprefix("edge_") if shared else name
        )
        weights[table] = rows.reshape(-1).tolist() if table == "weight" else rows.tolist()
    return found | {(edge_type, name): rows for name, rows in weights.items()}


def said_by_pyg(data: Any, dropped: set[str]) -> dict[Any, Any]:
    """The same as ``content``, from PyG's own object."""
    skip = dropped | {"num_nodes", "edge_index", "adj_t"}
    if isinstance(data, Data):
        kept = {name: rows for name, rows in data if name not in skip}
        nodes = {name: rows for name, rows in kept.items() if data.is_node_attr(name)}
        edges = {name: rows for name, rows in kept.items() if data.is_edge_attr(name)}
        assert nodes.keys() | edges.keys() == kept.keys()
        return of_nodes("node", data.num_nodes, nodes) | of_edges(ETYPE, data, edges, shared=True)
    found = {}
    for t, store in data.node_items():
        found |= of_nodes(t, store.num_nodes, {name: rows for name, rows in store.items() if name not in skip})
    for e, store in data.edge_items():
        rows = {name: rows for name, rows in store.items() if name not in skip}
        found |= of_edges("__".join(e), store, rows, shared=False)
    return found


def circle(n: int, *steps: int) -> Any:
    """Each vertex points to those ``steps`` further on."""
    i = torch.arange(n)
    return torch.stack([torch.cat([i for _ in steps]), torch.cat([(i + step) % n for step in steps])])


def features(n: int, width: int, seed: int = 0) -> Any:
    return torch.rand(n, width, generator=torch.Generator().manual_seed(seed))


def rich() -> Data:
    """Twice as many edges as vertices, and attributes of both."""
    return Data(
        x=features(12, 3), y=torch.arange(12) % 3, pos=features(12, 3, 1), time=torch.arange(12) * 10,
        train_mask=torch.arange(12) < 4, edge_index=circle(12, 1, 5), edge_weight=features(24, 1, 2)[:, 0],
        edge_time=torch.arange(24), kind=torch.arange(24) % 5,
    )  # fmt: skip


def ring() -> Data:
    """As many edges as vertices."""
    return Data(
        x=features(12, 3), y=torch.arange(12) % 3, time=torch.arange(12), edge_index=circle(12, 1),
        edge_attr=features(12, 2, 3), edge_time=torch.arange(12),
    )  # fmt: skip


def flat() -> Data:
    return Data(x=features(12, 3), pos=features(12, 2, 1), norm=features(12, 3, 4), edge_index=circle(12, 1, -1))


def solid() -> Data:
    return Data(x=features(12, 3), pos=features(12, 3, 1), norm=features(12, 3, 4), edge_index=circle(12, 1, -1))


def mesh() -> Data:
    return Data(pos=features(12, 3, 1), face=torch.tensor([[0, 3, 6], [1, 4, 7], [2, 5, 8]]))


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["a"].y, data["a"].time = features(6, 3), torch.arange(6) % 2, torch.arange(6)
    data["b"].x = features(4, 3, 1)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2, 3, 5], [0, 1, 2, 3, 0]])
    data["a", "to", "b"].edge_attr = features(5, 2, 2)
    data["a", "of", "a"].edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data["b", "rev", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


GRAPHS = {make.__name__: make for make in (rich, ring, flat, solid, mesh, typed)}
PATHS = [[("a", "b"), ("b", "a")]]
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "AddLaplacianEigenvectorPE": (2,),
    "AddMetaPaths": (PATHS,),
    "AddRandomMetaPaths": (PATHS,),
    "AddRandomWalkPE": (3,),
    "Compose": ([],),
    "FeaturePropagation": (torch.zeros(12, 3, dtype=torch.bool),),
    "FixedPoints": (20,),
    "GridSampling": (0.3,),
    "LinearTransformation": (torch.eye(3),),
    "NodePropertySplit": ("popularity", [0.3, 0.1, 0.1, 0.3, 0.2]),
    "OneHotDegree": (10,),
    "Pad": (15, 40),
    "RadiusGraph": (0.5,),
    "RandomFlip": (0,),
    "RandomJitter": (0.1,),
    "RandomRotate": (10,),
    "RandomScale": ((0.5, 2),),
    "RandomShear": (0.1,),
    "RemoveTrainingClasses": ([0],),
    "RootedEgoNets": (1,),
    "RootedRWSubgraph": (2,),
    "SIGN": (2,),
    "SVDFeatureReduction": (2,),
    "SamplePoints": (5,),
    "ToDevice": ("cpu",),
}
TRANSFORMS = sorted(set(T.__all__) - {"BaseTransform", "ComposeFilters"})  # no transforms of graphs themselves
OTHER = {"edge_label", "edge_label_index", "metapath_dict"}  # seeds, and what is of the whole graph


@cache
def transformed(name: str) -> dict[str, Any]:
    """The graphs after a transform. It is not made for some of them, and may need a package that is not here."""
    found = {}
    for kind, make in GRAPHS.items():
        torch.manual_seed(1)
        links = {"edge_types": [("a", "to", "b")]} if (name, kind) == ("RandomLinkSplit", "typed") else {}
        try:
            result = getattr(T, name)(*ARGUMENTS.get(name, ()), **links)(make())
        except Exception:  # whatever a transform raises for a graph that it is not made for
            continue
        for i, data in enumerate(result if isinstance(result, tuple) else [result]):
            found[f"{kind} {i}"] = data
    return found


def refused(value: Any, folder: Path) -> set[str]:
    """The attributes that must be left out, one after another."""
    dropped: set[str] = set()
    while True:
        try:
            came_in(value, folder, drop=dropped)
        except DataError as error:
            found = re.search(r"'(\w+)' is not imported", str(error))
            if not found or found[1] in dropped:
                raise
            dropped.add(found[1])
        else:
            return dropped


def taken_by_pyg(store: Any, name: str) -> bool:
    """Whether an attribute is of vertices or edges. PyG's names for edges stay theirs where a transform left too few
    rows. Numbers of several subgraphs, dense matrices, and rows along the last dimension are no tables."""
    if name in ("edge_attr", "edge_weight"):
        return bool({"edge_index", "adj_t"} & set(store)) and len(store[name]) == store.num_edges
    without_edges = store.is_edge_attr(name) and not {"edge_index", "adj_t"} & set(store)
    other = name in ("n_id", "e_id", "n_sub_batch", "sub_edge_index", "adj") or without_edges
    return not other and (store.is_node_attr(name) or store.is_edge_attr(name))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_after_each_transform_of_pyg(name: str, tmp_path: Path) -> None:
    if not transformed(name):
        pytest.skip("it does not run on these graphs here")
    for kind, data in transformed(name).items():
        (tmp_path / kind).mkdir()
        dropped = refused(data, tmp_path / kind)
        assert not {n for store in data.stores for n in dropped - OTHER if n in store and taken_by_pyg(store, n)}
        assert content(Graph.open(tmp_path / kind / "g")) == said_by_pyg(data, dropped), (name, kind)


def test_the_transforms_run() -> None:
    ran = [name for name in TRANSFORMS if transformed(name)]
    assert len(ran) >= 50, sorted(set(TRANSFORMS) - set(ran))
    assert {"ToUndirected", "RandomLinkSplit", "ToSparseTensor", "VirtualNode", "AddMetaPaths", "LineGraph"} <= set(ran)


@pytest.mark.parametrize("make", [rich, ring, typed])
def test_an_export_comes_back(make: Any, tmp_path: Path) -> None:
    graph = came_in(make(), tmp_path)
    export_graph("pyg", tmp_path / "g", tmp_path / "out.pt")
    import_graph("pyg", tmp_path / "out.pt", tmp_path / "back")
    assert content(Graph.open(tmp_path / "back")) == content(graph)
    assert Graph.open(tmp_path / "back").schema == graph.schema


@pytest.mark.parametrize("edges", [2, 3])
def test_names_that_pyg_takes_for_edges(edges: int, tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", 3, tables={"knowledge": np.arange(3)}, splits={"edgeless": [1]})
        out.add_edges(ETYPE, np.arange(edges), np.arange(edges))
    if edges == 3:
        with pytest.raises(ConfigError, match=r"the split 'edgeless'.*the node table 'knowledge'"):
            export_graph("pyg", tmp_path / "g", tmp_path / "out.pt")
    else:
        export_graph("pyg", tmp_path / "g", tmp_path / "out.pt")
        import_graph("pyg", tmp_path / "out.pt", tmp_path / "back")
        assert content(Graph.open(tmp_path / "back")) == content(Graph.open(tmp_path / "g"))
