"""DGL's chunked graphs and CSV data sets, and GraphBolt's data sets, against the arrays that they were written from."""

from __future__ import annotations

import gzip
import io
import json
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
from tests.unit.partition.oracles import edge_pairs, ends_of, labels, refused, taken_in

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
yaml, torch = pytest.importorskip("yaml"), pytest.importorskip("torch")

RNG = np.random.default_rng(11)
COUNTS = {"author": 6, "paper": 10}
EDGES = {
    "author:writes:paper": np.stack([RNG.integers(0, 6, 9), RNG.integers(0, 10, 9)]),
    "paper:cites:paper": RNG.integers(0, 10, (2, 23)),
}
EDGES["author:writes:paper"][:, 0] = 5, 0
FEAT, LABEL, TRAIN = RNG.random((10, 3)).astype(np.float32), RNG.integers(0, 4, 10), np.arange(10) % 2 == 0
CODES, WEIGHT = RNG.integers(0, 9, (10, 2)), RNG.random(23)
BLOCKS, ATTR, YEAR = RNG.random((23, 2, 2)), RNG.random((23, 2)).astype(np.float32), RNG.integers(1990, 2020, (10, 1))


def check(graph: Graph) -> None:
    assert np.allclose(graph.table("paper", "x"), FEAT, rtol=0, atol=1e-6)
    assert np.array_equal(graph.table("paper", "y"), LABEL)
    assert np.array_equal(graph.table("paper", "codes"), CODES)
    assert graph.split("paper", "train").tolist() == np.flatnonzero(TRAIN).tolist()
    assert np.allclose(graph.edges("paper__cites__paper").tables["weight"], WEIGHT, rtol=0, atol=1e-12)
    assert graph.schema.num_classes == LABEL.max() + 1


def chunked(folder: Path) -> dict[str, Any]:
    """Write the files of a chunked graph in all formats, and return what its ``metadata.json`` says."""
    folder.mkdir()
    for part, rows in enumerate(np.split(EDGES["paper:cites:paper"].T, [10])):
        np.savetxt(folder / f"cites-{part}.txt", rows, fmt="%d", delimiter=" ")
    pq.write_table(pa.table(dict(zip("01", EDGES["author:writes:paper"], strict=True))), folder / "writes.parquet")
    for part, rows in enumerate(np.split(FEAT, [4, 7])):
        np.save(folder / f"feat-{part}.npy", rows)
    pq.write_table(pa.table({"0": LABEL}), folder / "label.parquet")
    np.save(folder / "train_mask.npy", TRAIN)
    np.savetxt(folder / "codes.csv", CODES, fmt="%d", delimiter=",")
    np.savetxt(folder / "weight.csv", WEIGHT)
    blocks = pa.table({str(i): BLOCKS.reshape(23, 4)[:, i] for i in range(4)})
    pq.write_table(blocks.replace_schema_metadata({"shape": str(BLOCKS.shape)}), folder / "blocks.parquet")

    def files(fmt: str, *names: str, **more: str) -> dict[str, Any]:
        return {"format": {"name": fmt, **more}, "data": list(names)}

    edges = {
        "author:writes:paper": files("parquet", "writes.parquet"),
        "paper:cites:paper": files("csv", "/old/place/cites-0.txt", "cites-1.txt", delimiter=" "),
    }
    of_cites = {"weight": files("csv", "weight.csv"), "blocks": files("parquet", "blocks.parquet")}
    return {
        "graph_name": "tiny",
        "node_type": list(COUNTS),
        "num_nodes_per_chunk": [[3, 3], [4, 6]],
        "edge_type": list(EDGES),
        "num_edges_per_type": [9, 23],
        "edges": edges,
        "node_data": {
            "paper": {
                "feat": files("numpy", "feat-0.npy", "feat-1.npy", "feat-2.npy"),
                "label": files("parquet", "label.parquet"),
                "train_mask": files("numpy", "train_mask.npy"),
                "codes": files("csv", "codes.csv"),
            }
        },
        "edge_data": {"paper:cites:paper": of_cites},
    }


def test_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.partition.importers.reading.rows.BLOCK_BYTES", 64)  # several blocks
    monkeypatch.setattr("atta.partition.importers.reading.rows._LINES", 5)
    said = chunked(tmp_path / "s")
    (tmp_path / "s/metadata.json").write_text(json.dumps(said))
    assert guess(tmp_path / "s") == guess(tmp_path / "s/metadata.json") == "dgl"
    graph = taken_in("dgl", tmp_path / "s", tmp_path / "g")
    check(graph)
    assert graph.schema.node_counts == COUNTS
    for key, rows in EDGES.items():
        assert np.array_equal(ends_of(graph, key.replace(":", "__")), rows)
    assert np.array_equal(graph.edges("paper__cites__paper").tables["blocks"], BLOCKS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["num_edges_per_type"].__setitem__(1, 24), "states 24 edges 'paper:cites:paper', its files have 23"),
        (lambda d: d["num_nodes_per_chunk"].__setitem__(1, [4, 5]), "'feat' of 'paper' has 10 rows for 9 vertices"),
        (lambda d: d["num_nodes_per_chunk"].pop(), "'num_nodes_per_chunk' is"),
        (lambda d: d["edges"].pop("author:writes:paper"), "'edges' of 'author:writes:paper': None has not"),
        (lambda d: d["node_data"]["paper"]["feat"]["data"].append("label.parquet"), r"label\.parquet: not a readable array"),
        (lambda d: d["node_data"]["paper"]["feat"]["data"].append("train_mask.npy"), r"train_mask\.npy: rows \[\]; feat"),
        (lambda d: d["node_data"]["paper"]["codes"]["data"].append("lost.csv"), r"lost\.csv: the file is missing"),
        (lambda d: d["edge_data"]["paper:cites:paper"]["weight"]["data"].append("weight.csv"), "has more rows than the 23"),
        (lambda d: d["edges"]["paper:cites:paper"]["format"].update(name="orc"), "has not the 'format' csv, numpy or"),
        (lambda d: d.update(graph_data={}), "'graph_data' is not imported"),
    ],
)  # fmt: skip
def test_refused_chunks(tmp_path: Path, change: Any, says: str) -> None:
    said = chunked(tmp_path / "s")
    change(said)
    (tmp_path / "s/metadata.json").write_text(json.dumps(said))
    refused("dgl", tmp_path / "s", tmp_path, says)


def write_csv(path: Path, separator: str, columns: dict[str, Any]) -> None:
    """Write columns; of matrices each cell is a list in quotes."""
    lines = [separator.join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(separator.join(f'"{", ".join(map(str, v))}"' if np.ndim(v) else str(v) for v in row))
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def csv_set(folder: Path, *, strings: bool, separator: str = ",") -> None:
    folder.mkdir()
    ids = {t: [f"{t}-{n}" if strings else str(3 * n + 1) for n in range(count)] for t, count in COUNTS.items()}
    paper = {"node_id": ids["paper"], "feat": FEAT, "label": LABEL, "train_mask": TRAIN, "codes": CODES.tolist()}
    write_csv(folder / "paper.csv", separator, paper)
    edges = {}
    for key, rows in EDGES.items():
        source, relation, target = key.split(":")
        ends = {"src_id": [ids[source][u] for u in rows[0]], "dst_id": [ids[target][v] for v in rows[1]]}
        write_csv(folder / f"{relation}.csv.gz", separator, ends | ({"weight": WEIGHT} if relation == "cites" else {}))
        edges[key] = {"file_name": f"{relation}.csv.gz", "etype": key.split(":")}
    write_csv(folder / "author.csv", separator, {"": range(6), "name": ids["author"], "graph_id": [0] * 6})
    author = {"file_name": "author.csv", "ntype": "author", "node_id_field": "name"}
    nodes = [{"file_name": "paper.csv", "ntype": "paper"}, author]
    said = {"dataset_name": "tiny", "separator": separator, "node_data": nodes, "edge_data": list(edges.values())}
    (folder / "meta.yaml").write_text(yaml.safe_dump(said))


@pytest.mark.parametrize("strings", [True, False])
@pytest.mark.parametrize("separator", [",", ";"])
def test_csv_set(tmp_path: Path, strings: bool, separator: str) -> None:
    csv_set(tmp_path / "s", strings=strings, separator=separator)
    assert guess(tmp_path / "s") == guess(tmp_path / "s/meta.yaml") == "dgl"
    graph = taken_in("dgl", tmp_path / "s", tmp_path / "g")
    check(graph)
    assert labels(graph, "paper") == [f"paper-{n}" if strings else 3 * n + 1 for n in range(10)]
    for key, rows in EDGES.items():
        assert np.array_equal(ends_of(graph, key.replace(":", "__")), rows)


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("paper.csv", "1,", "4,", "the id 4 occurs twice"),
        ("paper.csv", "node_id", "id", "has no column 'node_id'; there are: codes, feat, id, "),
        ("paper.csv", "label", "feat", "has two columns 'feat'"),
        ("paper.csv", ",True", ",", "the column 'train_mask' has empty cells"),
        ("paper.csv", ",True", ",yes", "'train_mask' is not imported: it holds text"),
        ("author.csv", ",16,", ",17,", "names the vertex '16', which is in no node file"),
        ("author.csv", ",16,0", ",16,1", "holds 2 graphs; only single graphs are imported"),
        ("meta.yaml", "author.csv", "gone.csv", r"gone\.csv: the file is missing"),
        ("meta.yaml", "separator: ','", "separator: ',,'", "'separator' is ',,', wanted is one character"),
        ("meta.yaml", "ntype: author", "ntype: paper", "'node_data' has no entries, or two of the same type"),
        ("meta.yaml", "ntype: author", "ntype: people", "its types are not readable|names the node type 'author'"),
        ("meta.yaml", "- cites", "- cites\n  - x", "wanted are source, relation and target"),
    ],
)
def test_refused_csv_sets(tmp_path: Path, file: str, old: str, new: str, says: str) -> None:
    csv_set(tmp_path / "s", strings=False)
    content = (tmp_path / "s" / file).read_text()
    assert old in content
    (tmp_path / "s" / file).write_text(content.replace(old, new, 1))
    refused("dgl", tmp_path / "s", tmp_path, says)


WEIGHTS = {key: RNG.random(e.shape[1]).astype(np.float32) for key, e in EDGES.items()}
SETS = {"train": np.array([6, 0, 2]), "validation": np.array([1]), "test": np.array([7, 4])}
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
    keys = list(EDGES) if typed else ["paper:cites:paper"]

    def of(name: str) -> dict[str, str]:
        return {"type": name} if typed else {}

    graph = {
        "nodes": [{"num": COUNTS[t], **of(t)} for t in (COUNTS if typed else ["paper"])],
        "edges": [save(folder, f"edges/{n}.{fmt}", EDGES[k], fmt) | of(k) for n, k in enumerate(keys)],
        "feature_data": [
            {"domain": "edge", "name": "weight", **save(folder, f"w{n}.npy", WEIGHTS[k]), **of(k)}
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
            {"name": "labels", **save(folder, f"set/{name}-labels.npy", LABEL[rows])},
        ]
        task[f"{name}_set"] = [{"data": data, **of("paper")}]
    link = {"name": "link", "train_set": [{"data": [{"name": pairs, **save(folder, "p.npy", EDGES[keys[0]].T)}]}]}
    return {"dataset_name": "tiny", "graph": graph, "feature_data": features, "tasks": [task, link]}


class Script:
    def __init__(self, state: Any) -> None:
        self.state = state

    def __getstate__(self) -> Any:
        return self.state, "__torch__.torch.classes.graphbolt.FusedCSCSamplingGraph"


class Fused:
    def __init__(self, state: Any) -> None:
        self._c_csc_graph = Script(state)


def save_fused(path: Path, *, typed: bool, original: bool) -> None:
    """Write a graph as GraphBolt's preprocessing does: sorted by destination, its weights left as they were."""
    keys = sorted(EDGES) if typed else ["paper:cites:paper"]
    counts = COUNTS if typed else {"paper": 10}
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
    state["edge_attributes"] = {"weight": torch.from_numpy(np.concatenate([WEIGHTS[k] for k in keys]))}
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
    said = described(folder, typed=typed, fmt="csv")
    del said["graph"]
    save_fused(folder / "preprocessed/fused.pt", typed=typed, original=original)
    topology = {"type": "FusedCSCSamplingGraph", "path": "preprocessed/fused.pt"}
    text = yaml.safe_dump({**said, "graph_topology": topology, "include_original_edge_id": original})
    (folder / "preprocessed/metadata.yaml").write_text(text)


def check_nodes(graph: Graph, paper: str) -> None:
    assert np.array_equal(graph.table(paper, "x"), FEAT)
    assert np.array_equal(graph.table(paper, "year"), YEAR[:, 0])
    seen = np.isin(np.arange(10), np.concatenate(list(SETS.values())))
    assert np.array_equal(graph.table(paper, "y"), np.where(seen, LABEL, -1))
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
        assert np.array_equal(ends_of(graph, mine), EDGES[theirs])
        assert np.array_equal(edges.tables["weight"], WEIGHTS[theirs])
        assert ("attr" in edges.tables) == (theirs == "paper:cites:paper")
    assert np.array_equal(graph.edges(names(typed)["paper:cites:paper"]).tables["attr"], ATTR)


@pytest.mark.parametrize("typed", [False, True])
def test_preprocessed_with_original_ids(tmp_path: Path, typed: bool) -> None:
    preprocessed(tmp_path / "s", typed=typed, original=True)
    refused("dgl", tmp_path / "s", tmp_path, r"'weight' is not imported: GraphBolt has sorted the edges, but not this")
    graph = taken_in("dgl", tmp_path / "s", tmp_path / "g", drop=["weight"])
    check_nodes(graph, "paper" if typed else "node")
    for theirs, mine in names(typed).items():
        assert np.array_equal(ends_of(graph, mine), EDGES[theirs])
    assert np.array_equal(graph.edges(names(typed)["paper:cites:paper"]).tables["attr"], ATTR)


def test_preprocessed_without_original_ids_and_raw_files_that_are_left(tmp_path: Path) -> None:
    source = tmp_path / "s"
    preprocessed(source, typed=True, original=False)
    says = "'attr' is not imported: which edge a row is of"
    refused("dgl", source / "preprocessed/metadata.yaml", tmp_path, says, drop=["weight"])
    said = described(source, typed=True, fmt="numpy")
    (source / "metadata.yaml").write_text(yaml.safe_dump(said))
    tables = taken_in("dgl", source, tmp_path / "g").edges("paper__cites__paper").tables
    assert np.array_equal(tables["weight"], WEIGHTS["paper:cites:paper"])
    (source / said["graph"]["edges"][0]["path"]).unlink()
    notes = import_graph("dgl", source, tmp_path / "h", drop=["weight", "attr"])
    assert any("as GraphBolt sorts them" in note for note in notes)
    for theirs, mine in names(True).items():
        graph = Graph.open(tmp_path / "h")
        assert (np.diff(graph.edges(mine).dst.astype(np.int64)) >= 0).all()
        assert sorted(edge_pairs(graph, mine)) == sorted(map(tuple, EDGES[theirs].T.tolist()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["graph"]["nodes"][0].update(num="many"), "'num' of 'author' is 'many'"),
        (lambda d: d["graph"]["nodes"][1].update(num=7), "'feat' of 'paper' has 10 rows for 7 vertices"),
        (lambda d: d["graph"]["edges"][0].update(format="orc"), "'orc' is neither csv nor numpy"),
        (lambda d: d["graph"]["edges"][0].update(path="lost.csv"), r"lost\.csv: the file is missing"),
        (lambda d: d["graph"]["feature_data"][0].update(path="data/attr.npy"), r"attr\.npy: has more rows than the 9 edges"),
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
    graph = taken_in("dgl", tmp_path / "fused.pt", tmp_path / "g", drop=["weight"])
    assert np.array_equal(ends_of(graph, "author__writes__paper"), EDGES["author:writes:paper"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s["independent_tensors"].pop("indices"), "not a graph of GraphBolt: 'indices'"),
        (lambda s: s["independent_tensors"].update(indptr=torch.tensor([0, 3])), "lists of neighbours do not fit"),
        (lambda s: s.update(node_attributes={"_ID": torch.tensor([4, 5])}), "a part of a graph that GraphBolt partitioned"),
        (lambda s: s["independent_tensors"].update(indices=torch.tensor([0, 9])), "an edge has the source 9"),
        (lambda s: s.update(edge_attributes={"_ORIGINAL_EDGE_ID": torch.tensor([0, 0])}), "are not 0 to 1"),
        (lambda s: s.clear(), "not a graph of GraphBolt"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("graph: [\n  a: b\n", r"metadata\.yaml: not valid YAML: while parsing .*, line 1, column 8"),
        ("graph: !!python/object/apply:os.getcwd []\n", "not valid YAML: could not determine a constructor"),
    ],
)
def test_yaml_is_named_in_one_line_and_makes_no_objects(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "metadata.yaml").write_text(text)
    refused("dgl", tmp_path, tmp_path, says)
