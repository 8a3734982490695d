"""Objects as PyG makes them: batched, temporal, sparse, saved by its data sets; and what is refused by its name."""

from __future__ import annotations

import collections
import datetime
import enum
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import AttaError, DataError
from atta.partition import Graph
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import Runs, came_in, content, refused

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
import torch_geometric.transforms as T  # noqa: E402
from torch_geometric import EdgeIndex, Index  # noqa: E402
from torch_geometric.data import Batch, Data, HeteroData, TemporalData  # noqa: E402
from torch_geometric.datasets import KarateClub  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse", "ignore:Unable to accurately", "ignore:.*nested", "ignore:.*torch.jit"
)
ETYPE = "node__to__node"
RING = torch.tensor([[0, 1, 2], [1, 2, 0]])


def test_files_that_torch_save_did_not_write(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    torch.save(three(), tmp_path / "protocol.pt", pickle_protocol=4)
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty.pt").write_text("")
    for name, says in (
        ("script", "TorchScript archives"),
        ("protocol", "other pickle protocols"),
        ("text", "did not write it"),
        ("empty", "EOFError"),
    ):
        with pytest.raises(
            DataError, match=rf"{name}\.pt: refused by torch\.load\(weights_only=True\): .*{says}"
        ) as error:
            import_graph("pyg", tmp_path / f"{name}.pt", tmp_path / "g")
        assert not re.search(r"\n|set to `False`|likely succeed", str(error.value))


class Mine(Data):
    """Somebody's own subclass."""


class Colour(enum.Enum):
    RED = 1


class Odd(dict):  # type: ignore[type-arg]
    """A dictionary that torch does not fill."""


def three(**more: Any) -> Data:
    return Data(x=torch.ones(3, 1), edge_index=RING, **more)


def one_type() -> HeteroData:
    data = HeteroData()
    data["a"].x = torch.ones(3, 1)
    data["a", "to", "a"].edge_index = RING
    return data


def sized() -> HeteroData:
    data = HeteroData()
    data["a", "to", "b"].edge_index = EdgeIndex([[0, 1], [1, 2]], sparse_size=(4, 9))
    return data


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


PLAIN = {"node": 3, ("node", "x"): [[1.0]] * 3, ETYPE: [(0, 1), (1, 2), (2, 0)]}
OF_A = {"a": 3, ("a", "x"): [[1.0]] * 3, "a__to__a": [(0, 1), (1, 2), (2, 0)]}
EVENTS = {"src": torch.tensor([0, 1, 0]), "dst": torch.tensor([2, 3, 2]), "t": torch.tensor([5, 6, 6])}
COO = torch.sparse_coo_tensor([[1, 0, 0], [0, 2, 2]], [1.0, 2, 3], (4, 4), check_invariants=True)  # not coalesced
SPLIT = {("node", "split", f"train_{i}"): [i] for i in range(2)}
WEIGHTED = {"node": 4, ETYPE: [(0, 1), (2, 0), (2, 0)], (ETYPE, "weight"): [1.0, 2.0, 3.0]}
TAKEN: dict[str, tuple[Any, dict[Any, Any]]] = {
    "a batch of one graph": (lambda: Batch.from_data_list([three()]), PLAIN),
    "a batch of one typed graph": (lambda: Batch.from_data_list([one_type()]), OF_A),
    "a list of one graph": (lambda: [three()], PLAIN),
    "a dictionary": (lambda: three().to_dict(), PLAIN),
    "a data set": (lambda: (three().to_dict(), None, Data), PLAIN),
    "weights and a split": (
        lambda: three(edge_weight=torch.tensor([0.5, 2, 1]), train_mask=torch.tensor([True, False, True])),
        {**PLAIN, (ETYPE, "weight"): [0.5, 2.0, 1.0], ("node", "split", "train"): [0, 2]},
    ),
    "an older data set": (lambda: (three(), {"x": torch.tensor([0, 3])}), PLAIN),
    "a typed data set": (
        lambda: (one_type().to_dict(), {"a": {"x": torch.tensor([0, 3]), "y": [0, 3]}}, HeteroData),
        OF_A,
    ),
    "no edges": (lambda: Data(x=torch.ones(3, 1)), {**PLAIN, ETYPE: []}),
    "vertices alone": (
        lambda: HeteroData({"a": {"x": torch.ones(3, 1)}}),
        {k: v for k, v in OF_A.items() if k != "a__to__a"},
    ),
    "arrays of numpy": (lambda: Data(x=np.ones((3, 1)), edge_index=RING.numpy(), num_nodes=np.int64(3)), PLAIN),
    "big-endian arrays": (lambda: three(age=np.arange(3, dtype=">i4")), {**PLAIN, ("node", "age"): [0, 1, 2]}),
    "unsigned ends": (lambda: {"edge_index": RING.to(torch.uint8)}, {"node": 3, ETYPE: PLAIN[ETYPE]}),
    "types of edges": (lambda: three(edge_type=torch.tensor([1, 0, 1])), {**PLAIN, (ETYPE, "type"): [1, 0, 1]}),
    "a list of numbers": (lambda: three(age=[3, 4, 5]), {**PLAIN, ("node", "age"): [3, 4, 5]}),
    "a parameter": (lambda: Data(x=torch.nn.Parameter(torch.ones(3, 1)), edge_index=RING), PLAIN),
    "an EdgeIndex": (lambda: Data(edge_index=EdgeIndex(RING, sparse_size=(5, 5))), {"node": 5, ETYPE: PLAIN[ETYPE]}),
    "a typed EdgeIndex": (sized, {"a": 4, "b": 9, "a__to__b": [(0, 1), (1, 2)]}),
    "an Index": (lambda: three(part=Index([0, 1, 1], dim_size=2)), {**PLAIN, ("node", "part"): [0, 1, 1]}),
    "labels tell more than edges": (
        lambda: Data(edge_index=RING, y=torch.arange(5)),
        {"node": 5, ("node", "y"): [0, 1, 2, 3, 4], ETYPE: PLAIN[ETYPE]},
    ),
    "splits in columns": (lambda: three(train_mask=torch.eye(3, 2, dtype=torch.bool)), {**PLAIN, **SPLIT}),
    "sparse features": (
        lambda: Data(x=torch.eye(3).to_sparse_csc(), edge_index=RING),
        {**PLAIN, ("node", "x"): np.eye(3).tolist()},
    ),
    "COO": (lambda: Data(adj_t=COO), WEIGHTED),
    "CSR": (lambda: Data(adj=torch.tensor([[0, 1.0], [0, 0]]).to_sparse_csr()), {"node": 2, ETYPE: [(0, 1)]}),
    "CSC": (
        lambda: Data(adj_t=torch.tensor([[0, 5.0], [2.0, 0]]).to_sparse_csc()),
        {"node": 2, ETYPE: [(0, 1), (1, 0)], (ETYPE, "weight"): [2.0, 5.0]},
    ),
    "COO with rows": (
        lambda: T.ToSparseTensor("edge_attr")(three(edge_attr=torch.tensor([[1, 2], [3, 4], [5, 6]]))),
        {**PLAIN, ETYPE: [(2, 0), (0, 1), (1, 2)], (ETYPE, "edge_attr"): [[5, 6], [1, 2], [3, 4]]},
    ),
    "adj_t beside edge_index": (
        lambda: T.ToSparseTensor(remove_edge_index=False)(three(edge_weight=torch.tensor([2.0, 3, 4]))),
        {**PLAIN, ETYPE: [(2, 0), (0, 1), (1, 2)], (ETYPE, "weight"): [4.0, 2.0, 3.0]},
    ),
    "a SparseTensor": (
        lambda: Data(adj_t=sparse([0, 0, 1], None, [2, 2, 0], [2.0, 3.0, 1.0])),
        {**WEIGHTED, ETYPE: [(2, 0), (2, 0), (0, 1)], (ETYPE, "weight"): [2.0, 3.0, 1.0]},
    ),
    "a SparseTensor by its rows' starts": (
        lambda: Data(adj_t=sparse(None, [0, 2, 3, 3, 3], [2, 3, 0], None)),
        {"node": 4, ETYPE: [(2, 0), (3, 0), (0, 1)]},
    ),
    "events": (
        lambda: TemporalData(**EVENTS, msg=torch.ones(3, 2), y=torch.arange(3)),
        {
            "node": 4,
            ETYPE: [(0, 2), (1, 3), (0, 2)],
            (ETYPE, "time"): [5, 6, 6],
            (ETYPE, "msg"): [[1.0, 1.0]] * 3,
            (ETYPE, "y"): [0, 1, 2],
        },
    ),
    "no events": (
        lambda: TemporalData(**{name: rows[:0] for name, rows in EVENTS.items()}),
        {"node": 0, ETYPE: [], (ETYPE, "time"): []},
    ),
    "what PyG keeps beside": (lambda: three().sort(), {**PLAIN, ETYPE: [(0, 1), (1, 2), (2, 0)]}),
}


@pytest.mark.parametrize("what", TAKEN)
def test_objects_that_come_in(what: str, tmp_path: Path) -> None:
    make, expected = TAKEN[what]
    assert content(came_in(make(), tmp_path)) == expected


@pytest.mark.parametrize(
    "what", ["a batch of one graph", "events", "an EdgeIndex", "arrays of numpy", "an older data set"]
)
def test_files_of_the_oldest_format(what: str, tmp_path: Path) -> None:
    make, expected = TAKEN[what]
    torch.save(make(), tmp_path / "g.pt", _use_new_zipfile_serialization=False)
    import_graph("pyg", tmp_path / "g.pt", tmp_path / "g")
    assert content(Graph.open(tmp_path / "g")) == expected


def test_objects_of_the_first_pyg(tmp_path: Path) -> None:
    data = Data.__new__(Data)
    data.__dict__.update(x=None, edge_index=RING, y=torch.arange(4), __num_nodes__=4, edge_attr=None)
    assert content(came_in(data, tmp_path)) == {"node": 4, ("node", "y"): [0, 1, 2, 3], ETYPE: PLAIN[ETYPE]}


REFUSED: dict[str, tuple[Any, str, str]] = {  # what, the attribute, and what the error says
    "an enum": (lambda: three(c=Colour.RED), "c", r"it is a \S+\.Colour"),
    "a date": (lambda: three(c=datetime.date(2020, 1, 1)), "c", "it is a datetime.date"),
    "a function": (
        lambda: three(c=import_graph),
        "c",
        "it is the class or function atta.partition.importers.import_graph",
    ),
    "a defaultdict": (lambda: three(c=collections.defaultdict(list, a=[1])), "c", "it is a dict"),
    "a complex number": (lambda: three(c=1 + 2j), "c", "it is a complex"),
    "a number of numpy": (lambda: three(c=np.float32(3)), "c", "it is a float"),
    "strings of numpy": (lambda: three(c=np.array(["a", "b", "c"])), "c", "it is a numpy.ndarray"),
    "objects of numpy": (lambda: three(c=np.array([{}, [], 1], dtype=object)), "c", "it is a numpy.ndarray"),
    "names of classes": (lambda: three(c=["a", "b", "c"]), "c", "it is a list"),
    "a nested tensor": (
        lambda: three(c=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])),
        "c",
        "it is a torch.nested",
    ),
    "a short list": (lambda: three(c=[1, 2]), "c", "it is a list"),
    "several graphs": (lambda: Batch.from_data_list([three(), three()]), "batch", "it tells several graphs apart"),
    "several typed graphs": (lambda: Batch.from_data_list([one_type()] * 2), "batch", "it tells several graphs apart"),
    "seeds": (
        lambda: three(edge_label=torch.ones(3), edge_label_index=RING),
        "edge_label",
        "it belongs to the seeds edge_label_index",
    ),
    "another matrix": (
        lambda: three(adj_t=COO),
        "adj_t",
        "it is a sparse tensor whose edges are not those of edge_index",
    ),
    "other weights": (
        lambda: three(adj=torch.sparse_coo_tensor(RING, torch.ones(3) * 2), edge_weight=torch.ones(3)),
        "adj",
        "its values are not those of edge_weight",
    ),
    "a dense matrix": (lambda: Data(x=torch.ones(3, 1), adj=torch.eye(3)), "adj", "edges are read from edge_index or"),
    "a damaged SparseTensor": (
        lambda: three(adj_t=sparse([9], None, [9], None)),
        "adj_t",
        "it is a torch_sparse.tensor.SparseTensor",
    ),
    "rows that start beyond": (
        lambda: three(adj_t=sparse(None, [0, 2**50, 3, 3, 3], [2, 3, 0], None)),
        "adj_t",
        "it is a torch_sparse.tensor.SparseTensor",
    ),
    "private names": (lambda: {**three().to_dict(), "_c": torch.ones(3)}, "_c", "names that begin with '_'"),
    "no number of vertices": (lambda: three(num_nodes="five"), "num_nodes", "it is a str"),
    "vertices of a stream": (
        lambda: TemporalData(**EVENTS, c=torch.ones(4)),
        "c",
        r"\[4\] is not one row for each edge \(3\)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_attributes_that_are_refused_by_name(what: str, tmp_path: Path) -> None:
    make, name, says = REFUSED[what]
    with pytest.raises(DataError, match=rf"g\.pt: '{name}' is not imported: {says}") as error:
        came_in(make(), tmp_path)
    assert str(error.value).count("\n") == 0
    more = {"edge_label": ["edge_label_index"]}.get(name, [])
    graph = came_in(make(), tmp_path, drop=[name, *more])
    assert not {name} & {n for tables in graph.schema.node_tables.values() for n in tables}


WIDE = {"x": torch.ones(6, 2), "edge_index": torch.arange(18).reshape(2, 9) % 6}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update({"n_id": torch.arange(6) / 2}), r"'n_id' is not imported: n_id: 0\.0 at position 0"),
        (lambda d: d.update({"n_id": torch.zeros(6, dtype=torch.int64)}), "'n_id' is not imported: n_id: the id 0 occurs twice"),
        (lambda d: d.update({"n_id": torch.arange(4)}), r"'n_id' is not imported: \[4\] is not one row"),
        (lambda d: d.update({"edge_index": d["edge_index"] / 2}), r"source: 0\.0 at position 0 \(float32\)"),
        (lambda d: d.update({"edge_index": d["edge_index"] - 1}), "source: -1 at position 0 is negative"),
        (lambda d: d.update({"edge_index": d["edge_index"][0]}), r"has the shape \[9\] instead of \[2, E\]"),
        (lambda d: d.update({"years": [1, 2]}), "'years' is not imported: it is a list"),
        (lambda d: d.update({"half": torch.zeros(6).bfloat16()}), "'half' is not imported: it is a tensor of torch.bfloat16"),
        (lambda d: d.update({"prices": torch.zeros(7)}), r"'prices' is not imported: \[7\] is not one row .*vertex \(6\),"),
        (lambda d: d.update({"edge_attr": torch.zeros(6)}), r"'edge_attr' is not imported: \[6\] is not one row .*edge \(9\)"),
        (lambda d: d.update({"edge_weight": torch.zeros(9, 2)}), r"'edge_weight' is not imported: \[9, 2\] is not one number"),
        (lambda d: d.update(edge_time=torch.zeros(9), time=torch.zeros(9)), "'edge_time' is not imported: there is another tensor"),
        (lambda d: d.update({"split_x": torch.zeros(6)}), "'split_x' is not imported: tables cannot have this name"),
        (lambda d: d.update({"train_mask": torch.arange(6)}), "train_mask: a mask holds truth values"),
        (lambda d: d.update({"num_classes": "many"}), "'num_classes' is not imported: it is a str"),
        (lambda d: d.update({"num_classes": 2**70}), rf"d\.pt: 'num_classes' is {2**70}, wanted is a number of classes"),
        (lambda d: d.update({"ids": torch.arange(6)}), "'ids' is not imported: tables cannot have this name"),
    ],
)  # fmt: skip
def test_values_that_are_no_tables(change: Any, says: str, tmp_path: Path) -> None:
    value = dict(WIDE)
    change(value)
    torch.save(Data.from_dict(value), tmp_path / "d.pt")
    refused("pyg", tmp_path / "d.pt", tmp_path, says)
    if "is not imported" in says and "there is" not in says:
        import_graph("pyg", tmp_path / "d.pt", tmp_path / "g", drop=[says.split("'")[1]])
        assert list(Graph.open(tmp_path / "g").schema.node_tables["node"]) == ["x"]


def test_what_belongs_to_no_type(tmp_path: Path) -> None:
    for name, value in (("licence", "none"), ("num_classes", "many")):
        data = one_type()
        data[name] = value
        torch.save(data, tmp_path / "d.pt")
        refused("pyg", tmp_path / "d.pt", tmp_path, f"'{name}' is not imported: it belongs to no node type")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: T.RandomLinkSplit()(Data(edge_index=torch.arange(40).reshape(2, 20), num_nodes=40)),
            "holds 3 objects: one graph is imported",
        ),
        (lambda: [three(), three()], "holds 2 objects: one graph is imported"),
        (lambda: (three(), {"x": torch.tensor([0, 1, 3])}), "holds 2 graphs of a data set"),
        (lambda: (one_type().to_dict(), {"a": {"x": [0, 1, 3]}}, HeteroData), "holds 2 graphs of a data set"),
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
def test_files_that_are_refused(make: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(AttaError, match=says) as error:
        came_in(make(), tmp_path)
    assert not re.search("\x1b|\\n|weights_only.*False|add_safe_globals|two options", str(error.value))
    assert not (tmp_path / "g").exists()


def test_nothing_that_a_file_names_is_called(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for call in (Runs(mark.touch.__func__, mark), Runs(Path.touch, mark), Runs(open, str(mark), "w")):
        with pytest.raises(DataError, match=r"'c' is not imported|it names builtins\.getattr, pathlib\.Path"):
            came_in(three(c=call), tmp_path)
    assert not mark.exists()


def test_what_others_admit_to_torch_stays_and_does_not_count(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Mine]):
        before = set(torch.serialization.get_safe_globals())
        with pytest.raises(DataError, match="Mine instead of Data"):
            came_in(Mine(x=torch.ones(3, 1)), tmp_path)
        assert set(torch.serialization.get_safe_globals()) == before
