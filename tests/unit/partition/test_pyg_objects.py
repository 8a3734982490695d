"""Objects as PyG makes them, also by its data sets and by each of its transforms; and what is refused by its name."""

from __future__ import annotations

import collections
import datetime
import enum
import re
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import AttaError, ConfigError, DataError
from atta.partition import Graph, GraphWriter
from atta.partition.exporters import export_graph
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import Runs, came_in, content, refused, refuses, taken_in

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
import torch_geometric.transforms as T  # noqa: E402
from torch_geometric import EdgeIndex, Index  # noqa: E402
from torch_geometric.data import Batch, Data, HeteroData, TemporalData  # noqa: E402
from torch_geometric.datasets import KarateClub  # noqa: E402

WARNINGS = ("ignore:Sparse", "ignore:Unable to accurately", "ignore:.*nested", "ignore:.*torch.jit")
pytestmark = pytest.mark.filterwarnings(*WARNINGS)
ETYPE = "node__to__node"
RING = torch.tensor([[0, 1, 2], [1, 2, 0]])


def test_files_that_torch_save_did_not_write(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    torch.save(three(), tmp_path / "protocol.pt", pickle_protocol=4)
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty.pt").write_text("")
    says = {"script": "TorchScript archives", "protocol": "other pickle protocols", "text": "did not write it"}
    for name, words in {**says, "empty": "EOFError"}.items():
        words = rf"{name}\.pt: refused by torch\.load\(weights_only=True\): .*{words}"
        error = refused("pyg", tmp_path / f"{name}.pt", tmp_path, words)
        assert not re.search(r"set to `False`|likely succeed", str(error))


class Mine(Data):
    """Somebody's own subclass."""


class Colour(enum.Enum):
    RED = 1


class Odd(dict):  # type: ignore[type-arg]
    """A dictionary that torch does not fill."""


def three(**more: Any) -> Data:
    return Data(x=torch.ones(3, 1), edge_index=RING, **more)


def one_type(**more: Any) -> HeteroData:
    data = HeteroData({"a": {"x": torch.ones(3, 1)}, ("a", "to", "a"): {"edge_index": RING}})
    for name, value in more.items():
        data[name] = value
    return data


def dataset_of(data: Any, slices: Any) -> Any:
    return data.to_dict(), slices, type(data)


@pytest.fixture(autouse=True)
def torch_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes of torch_sparse, which only need to be there while their objects are saved."""
    modules = {name: types.ModuleType(name) for name in ("torch_sparse", "torch_sparse.tensor", "torch_sparse.storage")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name, kind in (("torch_sparse.tensor", "SparseTensor"), ("torch_sparse.storage", "SparseStorage")):
        setattr(modules[name], kind, type(kind, (), {"__module__": name}))


def sparse(row: Any, rowptr: Any, col: Any, value: Any) -> Any:
    """A ``SparseTensor`` of 4 rows and columns with the fields of torch_sparse."""
    matrix = sys.modules["torch_sparse.tensor"].SparseTensor()
    matrix.storage = sys.modules["torch_sparse.storage"].SparseStorage()
    for name, rows in (("_row", row), ("_rowptr", rowptr), ("_col", col), ("_value", value)):
        setattr(matrix.storage, name, None if rows is None else torch.tensor(rows))
    matrix.storage._sparse_sizes = (4, 4)
    return matrix


ENDS = [(0, 1), (1, 2), (2, 0)]
PLAIN = {"node": 3, ("node", "x"): [[1.0]] * 3, ETYPE: ENDS}
TURNED = {**PLAIN, ETYPE: [(2, 0), (0, 1), (1, 2)]}
OF_A = {"a": 3, ("a", "x"): [[1.0]] * 3, "a__to__a": ENDS}
EVENTS = {"src": torch.tensor([0, 1, 0]), "dst": torch.tensor([2, 3, 2]), "t": torch.tensor([5, 6, 6])}
COO = torch.sparse_coo_tensor([[1, 0, 0], [0, 2, 2]], [1.0, 2, 3], (4, 4), check_invariants=True)  # not coalesced
SPLIT = {("node", "split", f"train_{i}"): [i] for i in range(2)}
EVENTS_OF = [(0, 2), (1, 3), (0, 2)]


def edged(count: int, ends: list[tuple[int, int]], **tables: Any) -> dict[Any, Any]:
    """The content of a graph that has only edges."""
    return {"node": count, ETYPE: ends, **{(ETYPE, name): rows for name, rows in tables.items()}}


WEIGHTED = edged(4, [(0, 1), (2, 0), (2, 0)], weight=[1.0, 2.0, 3.0])
OLD: list[tuple[Any, dict[Any, Any]]] = [
    (lambda: Batch.from_data_list([three()]), PLAIN),
    (lambda: Data(x=np.ones((3, 1)), edge_index=RING.numpy(), num_nodes=np.int64(3)), PLAIN),
    (lambda: Data(edge_index=EdgeIndex(RING, sparse_size=(5, 5))), edged(5, ENDS)),
    (lambda: (three(), {"x": torch.tensor([0, 3])}), PLAIN),  # an older data set
    (lambda: TemporalData(**EVENTS, msg=torch.ones(3, 2)), edged(4, EVENTS_OF, time=[5, 6, 6], msg=[[1.0, 1.0]] * 3)),
]
TAKEN: list[tuple[Any, dict[Any, Any]]] = [
    *OLD,
    (lambda: Batch.from_data_list([one_type()]), OF_A),
    (lambda: [three()], PLAIN),
    (lambda: three().to_dict(), PLAIN),
    (lambda: dataset_of(three(), None), PLAIN),
    (lambda: dataset_of(one_type(), {"a": {"x": torch.tensor([0, 3]), "y": [0, 3]}}), OF_A),
    (lambda: three(edge_weight=torch.tensor([0.5, 2, 1])), {**PLAIN, (ETYPE, "weight"): [0.5, 2.0, 1.0]}),
    (lambda: three(train_mask=torch.tensor([True, False, True])), {**PLAIN, ("node", "split", "train"): [0, 2]}),
    (lambda: three(train_mask=torch.eye(3, 2, dtype=torch.bool)), {**PLAIN, **SPLIT}),
    (lambda: Data(x=torch.ones(3, 1)), {**PLAIN, ETYPE: []}),
    (lambda: HeteroData({"a": {"x": torch.ones(3, 1)}}), {k: v for k, v in OF_A.items() if k != "a__to__a"}),
    (lambda: three(age=np.arange(3, dtype=">i4")), {**PLAIN, ("node", "age"): [0, 1, 2]}),
    (lambda: three(age=[3, 4, 5]), {**PLAIN, ("node", "age"): [3, 4, 5]}),
    (lambda: three(part=Index([0, 1, 1], dim_size=2)), {**PLAIN, ("node", "part"): [0, 1, 1]}),
    (lambda: {"edge_index": RING.to(torch.uint8)}, edged(3, ENDS)),
    (lambda: three(edge_type=torch.tensor([1, 0, 1])), {**PLAIN, (ETYPE, "type"): [1, 0, 1]}),
    (lambda: Data(x=torch.nn.Parameter(torch.ones(3, 1)), edge_index=RING), PLAIN),
    (
        lambda: HeteroData({("a", "to", "b"): {"edge_index": EdgeIndex(RING, sparse_size=(4, 9))}}),
        {"a": 4, "b": 9, "a__to__b": ENDS},
    ),
    (lambda: Data(edge_index=RING, y=torch.arange(5)), {"node": 5, ("node", "y"): [0, 1, 2, 3, 4], ETYPE: ENDS}),
    (lambda: Data(x=torch.eye(3).to_sparse_csc(), edge_index=RING), {**PLAIN, ("node", "x"): np.eye(3).tolist()}),
    (lambda: Data(adj_t=COO), WEIGHTED),
    (lambda: Data(adj=torch.tensor([[0, 1.0], [0, 0]]).to_sparse_csr()), edged(2, [(0, 1)])),
    (
        lambda: Data(adj_t=torch.tensor([[0, 5.0], [2.0, 0]]).to_sparse_csc()),
        edged(2, [(0, 1), (1, 0)], weight=[2.0, 5.0]),
    ),
    (
        lambda: T.ToSparseTensor("edge_attr")(three(edge_attr=torch.tensor([[1, 2], [3, 4], [5, 6]]))),
        {**TURNED, (ETYPE, "edge_attr"): [[5, 6], [1, 2], [3, 4]]},
    ),
    (
        lambda: T.ToSparseTensor(remove_edge_index=False)(three(edge_weight=torch.tensor([2.0, 3, 4]))),
        {**TURNED, (ETYPE, "weight"): [4.0, 2.0, 3.0]},
    ),
    (
        lambda: Data(adj_t=sparse([0, 0, 1], None, [2, 2, 0], [2.0, 3.0, 1.0])),
        edged(4, [(2, 0), (2, 0), (0, 1)], weight=[2.0, 3.0, 1.0]),
    ),
    (lambda: Data(adj_t=sparse(None, [0, 2, 3, 3, 3], [2, 3, 0], None)), edged(4, [(2, 0), (3, 0), (0, 1)])),
    (lambda: TemporalData(**EVENTS, y=torch.arange(3)), edged(4, EVENTS_OF, time=[5, 6, 6], y=[0, 1, 2])),
    (lambda: TemporalData(**{name: rows[:0] for name, rows in EVENTS.items()}), edged(0, [], time=[])),
    (lambda: three().sort(), PLAIN),  # PyG keeps more beside
]


@pytest.mark.parametrize(("make", "expected"), TAKEN)
def test_objects_that_come_in(make: Any, expected: dict[Any, Any], tmp_path: Path) -> None:
    assert content(came_in(make(), tmp_path)) == expected


@pytest.mark.parametrize(("make", "expected"), OLD)
def test_files_of_the_oldest_format(make: Any, expected: dict[Any, Any], tmp_path: Path) -> None:
    torch.save(make(), tmp_path / "g.pt", _use_new_zipfile_serialization=False)
    assert content(taken_in("pyg", tmp_path / "g.pt", tmp_path / "g")) == expected


def test_objects_of_the_first_pyg(tmp_path: Path) -> None:
    data = Data.__new__(Data)
    data.__dict__.update(x=None, edge_index=RING, y=torch.arange(4), __num_nodes__=4, edge_attr=None)
    assert content(came_in(data, tmp_path)) == {"node": 4, ("node", "y"): [0, 1, 2, 3], ETYPE: ENDS}


BESIDE = "it is a sparse tensor whose edges are not those of edge_index"
TORCH_SPARSE = "it is a torch_sparse.tensor.SparseTensor"
ENDS_OF_NINE = torch.arange(18).reshape(2, 9) % 6


def wide(**more: Any) -> Data:
    return Data.from_dict({"x": torch.ones(6, 2), "edge_index": ENDS_OF_NINE, **more})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: three(c=Colour.RED), r"'c': it is a \S+\.Colour"),
        (lambda: three(c=datetime.date(2020, 1, 1)), "'c': it is a datetime.date"),
        (lambda: three(c=import_graph), "'c': it is the class or function atta.partition.importers.import_graph"),
        (lambda: three(c=collections.defaultdict(list, a=[1])), "'c': it is a dict"),
        (lambda: three(c=1 + 2j), "'c': it is a complex"),
        (lambda: three(c=np.float32(3)), "'c': it is a float"),
        (lambda: three(c=np.array(["a", "b", "c"])), "'c': it is a numpy.ndarray"),
        (lambda: three(c=np.array([{}, [], 1], dtype=object)), "'c': it is a numpy.ndarray"),
        (lambda: three(c=["a", "b", "c"]), "'c': it is a list"),
        (lambda: three(c=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])), "'c': it is a torch.nested"),
        (lambda: three(c=[1, 2]), "'c': it is a list"),
        (lambda: Batch.from_data_list([three(), three()]), "'batch': it tells several graphs apart"),
        (lambda: Batch.from_data_list([one_type()] * 2), "'batch': it tells several graphs apart"),
        (
            lambda: three(edge_label=torch.ones(3), edge_label_index=RING),
            "'edge_label': it belongs to the seeds edge_label_index",
        ),
        (lambda: three(adj_t=COO), f"'adj_t': {BESIDE}"),
        (
            lambda: three(adj=torch.sparse_coo_tensor(RING, torch.ones(3) * 2), edge_weight=torch.ones(3)),
            "'adj': its values are not those of edge_weight",
        ),
        (lambda: Data(x=torch.ones(3, 1), adj=torch.eye(3)), "'adj': edges are read from edge_index or"),
        (lambda: three(adj_t=sparse([9], None, [9], None)), f"'adj_t': {TORCH_SPARSE}"),
        (lambda: three(adj_t=sparse(None, [0, 2**50, 3, 3, 3], [2, 3, 0], None)), f"'adj_t': {TORCH_SPARSE}"),
        (lambda: {**three().to_dict(), "_c": torch.ones(3)}, "'_c': names that begin with '_'"),
        (lambda: three(num_nodes="five"), "'num_nodes': it is a str"),
        (lambda: TemporalData(**EVENTS, c=torch.ones(4)), r"'c': \[4\] is not one row for each edge \(3\)"),
        (lambda: wide(n_id=torch.arange(6) / 2), r"'n_id': n_id: 0\.0 at position 0"),
        (lambda: wide(n_id=torch.zeros(6, dtype=torch.int64)), "'n_id': n_id: the id 0 occurs twice"),
        (lambda: wide(n_id=torch.arange(4)), r"'n_id': \[4\] is not one row"),
        (lambda: wide(edge_index=ENDS_OF_NINE / 2), r"source: 0\.0 at position 0 \(float32\)"),
        (lambda: wide(edge_index=ENDS_OF_NINE - 1), "source: -1 at position 0 is negative"),
        (lambda: wide(edge_index=ENDS_OF_NINE[0]), r"has the shape \[9\] instead of \[2, E\]"),
        (lambda: wide(years=[1, 2]), "'years': it is a list"),
        (lambda: wide(half=torch.zeros(6).bfloat16()), "'half': it is a tensor of torch.bfloat16"),
        (lambda: wide(prices=torch.zeros(7)), r"'prices': \[7\] is not one row .*vertex \(6\),"),
        (lambda: wide(edge_attr=torch.zeros(6)), r"'edge_attr': \[6\] is not one row .*edge \(9\)"),
        (lambda: wide(edge_weight=torch.zeros(9, 2)), r"'edge_weight': \[9, 2\] is not one number"),
        (lambda: wide(edge_time=torch.zeros(9), time=torch.zeros(9)), "'edge_time': there is another tensor"),
        (lambda: wide(split_x=torch.zeros(6)), "'split_x': tables cannot have this name"),
        (lambda: wide(train_mask=torch.arange(6)), "train_mask: a mask holds truth values"),
        (lambda: wide(num_classes="many"), "'num_classes': it is a str"),
        (lambda: wide(num_classes=2**70), rf"g\.pt: 'num_classes' is {2**70}, wanted is a number of classes"),
        (lambda: wide(ids=torch.arange(6)), "'ids': tables cannot have this name"),
        (lambda: one_type(licence="none"), "'licence': it belongs to no node type"),
        (lambda: one_type(num_classes="many"), "'num_classes': it belongs to no node type"),
        (lambda: (three(), three(), three()), "holds 3 objects: one graph is imported"),
        (lambda: [three(), three()], "holds 2 objects: one graph is imported"),
        (lambda: (three(), {"x": torch.tensor([0, 1, 3])}), "holds 2 graphs of a data set"),
        (lambda: dataset_of(one_type(), {"a": {"x": [0, 1, 3]}}), "holds 2 graphs of a data set"),
        (lambda: Mine(x=torch.ones(3, 1)), r"holds a \S+\.Mine instead of Data, .*: save Data\.from_dict"),
        (lambda: torch.nn.Linear(2, 2), r"holds a torch\.nn\.modules\.linear\.Linear instead of Data"),
        (lambda: 3, "holds an int instead of Data"),
        (lambda: KarateClub(), r"holds a \S+\.KarateClub instead of Data, .*: save dataset\[0\]"),
        (
            lambda: Data(adj_t=torch.sparse_coo_tensor([[0], [7]], [1.0], (3, 3), check_invariants=False)),
            "refused by torch",
        ),
        (lambda: Data(), "the number of vertices of type 'node' is nowhere stated"),
        (lambda: three(c=Odd(a=1)), r"but got <class '\S+\.Odd'>$"),
        (lambda: TemporalData(src=torch.zeros(2), dst=torch.zeros(3)), r"src \[2\] and dst \[3\] are no list of edges"),
        (lambda: TemporalData(src=torch.zeros(2), dst=torch.zeros(2)), "wanted are integers"),
        (lambda: HeteroData({("a", "to", "b"): {"edge_attr": torch.ones(1)}}), "'a__to__b' has no edge_index"),
    ],
)
def test_what_is_refused(make: Any, says: str, tmp_path: Path) -> None:
    """``says`` may begin with the name of what is not imported: then the rest is, without it."""
    named = re.match(r"'(\w+)': ", says)
    if named:
        says = rf"g\.pt: '{named[1]}' is not imported: {says[named.end() :]}"
    with pytest.raises(AttaError, match=says) as error:
        came_in(make(), tmp_path)
    assert not re.search("\x1b|\\n|weights_only.*False|add_safe_globals|two options", str(error.value))
    assert not (tmp_path / "g").exists()
    if named and "there is" not in says:
        dropped = [named[1], "edge_label_index"] if named[1] == "edge_label" else [named[1]]
        graph = came_in(make(), tmp_path, drop=dropped)
        assert named[1] not in {n for tables in graph.schema.node_tables.values() for n in tables}


def test_nothing_that_a_file_names_is_called(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for call in (Runs(mark.touch.__func__, mark), Runs(Path.touch, mark), Runs(open, str(mark), "w")):
        with pytest.raises(
            DataError, match=r"'c' is not imported|it names builtins\.getattr, pathlib\.(_local\.)?Path"
        ):
            came_in(three(c=call), tmp_path)
    assert not mark.exists()


def test_what_others_admit_to_torch_stays_and_does_not_count(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Mine]):
        before = set(torch.serialization.get_safe_globals())
        refuses(DataError, "Mine instead of Data", came_in, Mine(x=torch.ones(3, 1)), tmp_path)
        assert set(torch.serialization.get_safe_globals()) == before


from torch_geometric.utils import to_edge_index  # noqa: E402


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
        other = name.removeprefix("edge_") if shared else name
        table = {"edge_weight": "weight", "edge_attr": "edge_attr"}.get(name, other)
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


def left_out(value: Any, folder: Path) -> set[str]:
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
        dropped = left_out(data, tmp_path / kind)
        assert not {n for store in data.stores for n in dropped - OTHER if n in store and taken_by_pyg(store, n)}
        assert content(Graph.open(tmp_path / kind / "g")) == said_by_pyg(data, dropped), (name, kind)


def test_the_transforms_run() -> None:
    ran = [name for name in TRANSFORMS if transformed(name)]
    assert len(ran) >= 50, sorted(set(TRANSFORMS) - set(ran))
    assert {"ToUndirected", "RandomLinkSplit", "ToSparseTensor", "VirtualNode", "AddMetaPaths", "LineGraph"} <= set(ran)


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
