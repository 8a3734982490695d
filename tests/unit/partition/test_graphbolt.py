"""GraphBolt's data sets, raw and preprocessed, against the arrays that they were written from."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from atta.errors import AttaError, ConfigError
from atta.partition import Graph
from atta.partition.importers import guess, import_graph
from tests.unit.partition.oracles import ends_of, refused

yaml, torch = pytest.importorskip("yaml"), pytest.importorskip("torch")

RNG = np.random.default_rng(5)
COUNTS = {"author": 5, "paper": 8}
EDGES = {
    "author:writes:paper": np.stack([RNG.integers(0, 5, 12), RNG.integers(0, 8, 12)]),
    "paper:cites:paper": RNG.integers(0, 8, (2, 20)),
}
FEAT, YEAR = RNG.random((8, 3)).astype(np.float32), RNG.integers(1990, 2020, (8, 1))
WEIGHT = {key: RNG.random(e.shape[1]).astype(np.float32) for key, e in EDGES.items()}
ATTR = RNG.random((20, 2)).astype(np.float32)
SETS = {"train": np.array([6, 0, 2]), "validation": np.array([1]), "test": np.array([7, 4])}
LABELS = RNG.integers(0, 3, 8)
ATTA = {"train": "train", "validation": "val", "test": "test"}


def save(folder: Path, name: str, array: np.ndarray, fmt: str = "numpy") -> dict[str, str]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if fmt == "csv":
        np.savetxt(path, array.T, fmt="%d", delimiter=",")
    elif fmt == "torch":
        torch.save(torch.from_numpy(array), path)
    else:
        with path.open("wb") as out:
            np.save(out, array)
    return {"format": fmt, "path": name}


def described(folder: Path, *, typed: bool, fmt: str, pairs: str = "node_pairs") -> dict[str, Any]:
    """Write the files of a data set, and return what its ``metadata.yaml`` says."""
    keys = list(EDGES) if typed else ["paper:cites:paper"]

    def of(name: str) -> dict[str, str]:
        return {"type": name} if typed else {}

    graph = {
        "nodes": [{"num": COUNTS[t], **of(t)} for t in (COUNTS if typed else ["paper"])],
        "edges": [save(folder, f"edges/{n}.{fmt}", EDGES[k], fmt) | of(k) for n, k in enumerate(keys)],
        "feature_data": [
            {"domain": "edge", "name": "weight", **save(folder, f"w{n}.npy", WEIGHT[k]), **of(k)}
            for n, k in enumerate(keys)
        ],
    }
    features = [
        {"domain": "node", "name": "feat", **save(folder, "data/feat.npy", FEAT), **of("paper")},
        {"domain": "node", "name": "year", **save(folder, "data/year.pt", YEAR, "torch"), **of("paper")},
        {"domain": "edge", "name": "attr", **save(folder, "data/attr.npy", ATTR), **of("paper:cites:paper")},
    ]
    task = {"name": "node_classification", "num_classes": 7}
    for name, rows in SETS.items():
        data = [
            {"name": "seeds", **save(folder, f"set/{name}.npy", rows)},
            {"name": "labels", **save(folder, f"set/{name}-labels.npy", LABELS[rows])},
        ]
        task[f"{name}_set"] = [{"data": data, **of("paper")}]
    link = {
        "name": "link",
        "train_set": [{"data": [{"name": pairs, **save(folder, "p.npy", EDGES[keys[0]].T)}]}],
    }
    return {"dataset_name": "tiny", "graph": graph, "feature_data": features, "tasks": [task, link]}


class Script:
    """What ``torch.ScriptObject`` pickles as."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __getstate__(self) -> Any:
        return self.state, "__torch__.torch.classes.graphbolt.FusedCSCSamplingGraph"


class Fused:
    """What ``FusedCSCSamplingGraph`` pickles as."""

    def __init__(self, state: Any) -> None:
        self._c_csc_graph = Script(state)


def save_fused(path: Path, *, typed: bool, original: bool) -> None:
    """Write a graph as GraphBolt's preprocessing does: sorted by destination, its weights left as they were."""
    keys = sorted(EDGES) if typed else ["paper:cites:paper"]
    counts = COUNTS if typed else {"paper": 8}
    starts = dict(zip(counts, np.cumsum([0, *counts.values()]), strict=False))
    total = sum(counts.values())
    src = np.concatenate([EDGES[k][0] + starts[k.split(":")[0]] for k in keys])
    dst = np.concatenate([EDGES[k][1] + starts[k.split(":")[2]] for k in keys])
    kinds = np.repeat(np.arange(len(keys)), [EDGES[k].shape[1] for k in keys])
    within = np.concatenate([np.arange(EDGES[k].shape[1]) for k in keys])
    order = np.lexsort((RNG.random(len(src)), kinds, dst))
    indptr = sp.coo_matrix((np.ones(len(dst)), (dst, src)), (total, total)).tocsr().indptr
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=total))]).astype(indptr.dtype)
    plain: dict[str, Any] = {"version_number": torch.tensor([1]), "indptr": torch.from_numpy(indptr)}
    plain["indices"] = torch.from_numpy(src[order].astype(np.int32))
    state: dict[str, Any] = {"independent_tensors": plain}
    if typed:
        plain["node_type_offset"] = torch.tensor([0, *np.cumsum(list(counts.values()))])
        plain["type_per_edge"] = torch.from_numpy(kinds[order].astype(np.uint8))
        state["node_type_to_id"] = {t: torch.tensor(n) for n, t in enumerate(counts)}
        state["edge_type_to_id"] = {k: torch.tensor(n) for n, k in enumerate(keys)}
    state["edge_attributes"] = {"weight": torch.from_numpy(np.concatenate([WEIGHT[k] for k in keys]))}
    if original:
        state["edge_attributes"]["_ORIGINAL_EDGE_ID"] = torch.from_numpy(within[order].astype(np.int32))
    save_under_names(path, Fused(state))


def save_under_names(path: Path, value: Any) -> None:
    """Save an object whose classes go by the names of GraphBolt's and torch's."""
    content, module = io.BytesIO(), __name__.encode()
    torch.save(value, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(content) as archive, zipfile.ZipFile(path, "w") as out:
        for name in archive.namelist():
            pickled = archive.read(name)
            if name.endswith("data.pkl"):
                place = b"dgl.graphbolt.impl.fused_csc_sampling_graph\nFusedCSCSamplingGraph\n"
                pickled = pickled.replace(module + b"\nScript\n", b"torch\nScriptObject\n")
                pickled = pickled.replace(module + b"\nFused\n", place)
            out.writestr(name, pickled)


def preprocessed(folder: Path, *, typed: bool, original: bool) -> None:
    """Write a data set after its preprocessing, without the raw files."""
    said = described(folder, typed=typed, fmt="csv")
    del said["graph"]
    save_fused(folder / "preprocessed/fused.pt", typed=typed, original=original)
    topology = {"type": "FusedCSCSamplingGraph", "path": "preprocessed/fused.pt"}
    text = yaml.safe_dump({**said, "graph_topology": topology, "include_original_edge_id": original})
    (folder / "preprocessed/metadata.yaml").write_text(text)


def check_nodes(graph: Graph, paper: str) -> None:
    assert np.array_equal(graph.table(paper, "x"), FEAT)
    assert np.array_equal(graph.table(paper, "year"), YEAR[:, 0])
    seen = np.isin(np.arange(8), np.concatenate(list(SETS.values())))
    assert np.array_equal(graph.table(paper, "y"), np.where(seen, LABELS, -1))
    assert {n: graph.split(paper, ATTA[n]).tolist() for n in SETS} == {n: sorted(r) for n, r in SETS.items()}
    assert graph.schema.num_classes == 7


def names(typed: bool) -> dict[str, str]:
    return {k: k.replace(":", "__") for k in EDGES} if typed else {"paper:cites:paper": "node__to__node"}


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(("fmt", "pairs"), [("csv", "node_pairs"), ("numpy", "seeds")])
def test_raw(tmp_path: Path, typed: bool, fmt: str, pairs: str) -> None:
    (tmp_path / "s").mkdir()
    said = described(tmp_path / "s", typed=typed, fmt=fmt, pairs=pairs)
    (tmp_path / "s/metadata.yaml").write_text(yaml.safe_dump(said))
    assert guess(tmp_path / "s") == guess(tmp_path / "s/metadata.yaml") == "dgl"
    (note,) = import_graph("dgl", tmp_path / "s", tmp_path / "g")
    assert "'link' hold edges" in note
    graph = Graph.open(tmp_path / "g")
    check_nodes(graph, "paper" if typed else "node")
    for theirs, mine in names(typed).items():
        edges = graph.edges(mine)
        assert np.array_equal(np.stack([edges.src, edges.dst]), EDGES[theirs])
        assert np.array_equal(edges.tables["weight"], WEIGHT[theirs])
        assert ("attr" in edges.tables) == (theirs == "paper:cites:paper")
    assert np.array_equal(graph.edges(names(typed)["paper:cites:paper"]).tables["attr"], ATTR)


@pytest.mark.parametrize("typed", [False, True])
def test_preprocessed_with_original_ids(tmp_path: Path, typed: bool) -> None:
    preprocessed(tmp_path / "s", typed=typed, original=True)
    refused("dgl", tmp_path / "s", tmp_path, r"'weight' is not imported: GraphBolt has sorted the edges, but not this")
    import_graph("dgl", tmp_path / "s", tmp_path / "g", drop=["weight"])
    graph = Graph.open(tmp_path / "g")
    check_nodes(graph, "paper" if typed else "node")
    for theirs, mine in names(typed).items():
        edges = graph.edges(mine)
        assert np.array_equal(np.stack([edges.src, edges.dst]), EDGES[theirs])
    assert np.array_equal(graph.edges(names(typed)["paper:cites:paper"]).tables["attr"], ATTR)


def test_preprocessed_without_original_ids(tmp_path: Path) -> None:
    preprocessed(tmp_path / "s", typed=True, original=False)
    refused(
        "dgl",
        tmp_path / "s/preprocessed/metadata.yaml",
        tmp_path,
        "'attr' is not imported: which edge a row is of",
        drop=["weight"],
    )
    notes = import_graph("dgl", tmp_path / "s", tmp_path / "g", drop=["weight", "attr"])
    assert any("as GraphBolt sorts them" in note for note in notes)
    for theirs, mine in names(True).items():
        edges = Graph.open(tmp_path / "g").edges(mine)
        assert (np.diff(edges.dst.astype(np.int64)) >= 0).all()
        assert sorted(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)) == sorted(
            map(tuple, EDGES[theirs].T.tolist())
        )


def test_raw_files_are_preferred_where_they_are_left(tmp_path: Path) -> None:
    source = tmp_path / "s"
    preprocessed(source, typed=True, original=False)
    said = described(source, typed=True, fmt="numpy")
    (source / "metadata.yaml").write_text(yaml.safe_dump(said))
    import_graph("dgl", source, tmp_path / "g")
    assert np.array_equal(
        Graph.open(tmp_path / "g").edges("paper__cites__paper").tables["weight"], WEIGHT["paper:cites:paper"]
    )
    (source / said["graph"]["edges"][0]["path"]).unlink()
    notes = import_graph("dgl", source, tmp_path / "h", drop=["weight", "attr"])
    assert any("as GraphBolt sorts them" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["graph"]["nodes"][0].update(num="many"), "'num' of 'author' is 'many'"),
        (lambda d: d["graph"]["nodes"][1].update(num=7), "'feat' of 'paper' has 8 rows for 7 vertices"),
        (lambda d: d["graph"]["edges"][0].update(format="orc"), "'orc' is neither csv nor numpy"),
        (lambda d: d["graph"]["edges"][0].update(path="lost.csv"), r"lost\.csv: the file is missing"),
        (lambda d: d["graph"]["feature_data"][0].update(path="data/attr.npy"), r"attr\.npy: has more rows than the 12 edges"),
        (lambda d: d["feature_data"][0].update(domain="graph"), "'feat' is not imported: it is of the domain 'graph'"),
        (lambda d: d["tasks"].append({**d["tasks"][0], "name": "again"}), "'again' is not imported"),
        (lambda d: d["tasks"][0]["train_set"][0]["data"].pop(0), "train of 'paper' has no seeds"),
        (lambda d: d["feature_data"][1].update(name="label"), "'labels' is not imported: 'paper' has labels among its"),
        (lambda d: d.update(sampler="x"), "'sampler' is not imported"),
        (lambda d: d.update(graph=[]), "the graph has no nodes or no edges"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, change: Any, says: str) -> None:
    said = described(tmp_path / "s", typed=True, fmt="csv")
    change(said)
    (tmp_path / "s/metadata.yaml").write_text(yaml.safe_dump(said))
    refused("dgl", tmp_path / "s", tmp_path, says)


def test_a_graph_alone(tmp_path: Path) -> None:
    save_fused(tmp_path / "fused.pt", typed=True, original=True)
    assert guess(tmp_path / "fused.pt") == "dgl"
    import_graph("dgl", tmp_path / "fused.pt", tmp_path / "g", drop=["weight"])
    assert np.array_equal(ends_of(Graph.open(tmp_path / "g"), "author__writes__paper"), EDGES["author:writes:paper"])


def test_partitions_are_named(tmp_path: Path) -> None:
    state = {"independent_tensors": {"indptr": torch.tensor([0, 0]), "indices": torch.tensor([])}}
    save_under_names(tmp_path / "part0/fused.pt", Fused({**state, "node_attributes": {"_ID": torch.tensor([4])}}))
    refused("dgl", tmp_path / "part0/fused.pt", tmp_path, r"fused\.pt: a part of a graph that GraphBolt partitioned")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s["independent_tensors"].pop("indices"), "not a graph of GraphBolt: 'indices'"),
        (
            lambda s: s["independent_tensors"].update(indptr=torch.tensor([0, 3])),
            "lists of neighbours do not fit together",
        ),
        (lambda s: s["independent_tensors"].update(indices=torch.tensor([0, 9])), "an edge has the source 9"),
        (lambda s: s.update(edge_attributes={"_ORIGINAL_EDGE_ID": torch.tensor([0, 0])}), "are not 0 to 1"),
        (lambda s: s.clear(), "not a graph of GraphBolt"),
    ],
)
def test_damaged_graphs(tmp_path: Path, change: Any, says: str) -> None:
    plain = {"indptr": torch.tensor([0, 1, 2]), "indices": torch.tensor([0, 1])}
    state: dict[str, Any] = {"independent_tensors": plain}
    change(state)
    save_under_names(tmp_path / "fused.pt", Fused(state))
    refused("dgl", tmp_path / "fused.pt", tmp_path, says, AttaError)


def test_the_package_for_yaml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metadata.yaml").write_text("graph: {}")
    monkeypatch.setitem(sys.modules, "yaml", None)  # Python does this for a missing package
    refused("dgl", tmp_path, tmp_path, r"reading YAML needs yaml: install atta\[dgl\]", ConfigError)


def test_damaged_yaml_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "metadata.yaml").write_text("graph: [\n  a: b\n")
    refused("dgl", tmp_path, tmp_path, r"metadata\.yaml: not valid YAML: while parsing .*, line 1, column 8")


def test_yaml_makes_no_objects(tmp_path: Path) -> None:
    (tmp_path / "metadata.yaml").write_text("graph: !!python/object/apply:os.getcwd []\n")
    refused("dgl", tmp_path, tmp_path, "not valid YAML: could not determine a constructor")
