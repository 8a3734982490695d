"""DGL's chunked graphs and CSV data sets, against the arrays that they were written from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.partition import Graph
from atta.partition.importers import guess, import_graph
from tests.unit.partition.oracles import refused

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(11)
COUNTS = {"author": 6, "paper": 10}
EDGES = {
    "author:writes:paper": np.stack([RNG.integers(0, 6, 9), RNG.integers(0, 10, 9)], axis=1),
    "paper:cites:paper": RNG.integers(0, 10, (23, 2)),
}
EDGES["author:writes:paper"][0] = 5, 0
FEAT, LABEL, TRAIN = RNG.random((10, 3)).astype(np.float32), RNG.integers(0, 4, 10), np.arange(10) % 2 == 0
CODES, WEIGHT = RNG.integers(0, 9, (10, 2)), RNG.random(23)
BLOCKS = RNG.random((23, 2, 2))


def check(graph: Graph, paper: str = "paper", cites: str = "paper__cites__paper") -> None:
    assert np.allclose(graph.table(paper, "x"), FEAT, rtol=0, atol=1e-6)
    assert np.array_equal(graph.table(paper, "y"), LABEL)
    assert np.array_equal(graph.table(paper, "codes"), CODES)
    assert graph.split(paper, "train").tolist() == np.flatnonzero(TRAIN).tolist()
    assert np.allclose(graph.edges(cites).tables["weight"], WEIGHT, rtol=0, atol=1e-12)
    assert graph.schema.num_classes == LABEL.max() + 1


def chunked(folder: Path, *, typed: bool = True) -> dict[str, Any]:
    """Write the files of a chunked graph in all formats, and return what its ``metadata.json`` says."""
    folder.mkdir()
    for part, rows in enumerate(np.split(EDGES["paper:cites:paper"], [10])):
        np.savetxt(folder / f"cites-{part}.txt", rows, fmt="%d", delimiter=" ")
    writes = EDGES["author:writes:paper"]
    pq.write_table(pa.table({"0": writes[:, 0], "1": writes[:, 1]}), folder / "writes.parquet")
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
    return {
        "graph_name": "tiny",
        "node_type": list(COUNTS) if typed else ["paper"],
        "num_nodes_per_chunk": [[3, 3], [4, 6]] if typed else [[4, 6]],
        "edge_type": list(EDGES) if typed else ["paper:cites:paper"],
        "num_edges_per_type": [9, 23] if typed else [23],
        "edges": edges if typed else {"paper:cites:paper": edges["paper:cites:paper"]},
        "node_data": {
            "paper": {
                "feat": files("numpy", "feat-0.npy", "feat-1.npy", "feat-2.npy"),
                "label": files("parquet", "label.parquet"),
                "train_mask": files("numpy", "train_mask.npy"),
                "codes": files("csv", "codes.csv"),
            }
        },
        "edge_data": {
            "paper:cites:paper": {"weight": files("csv", "weight.csv"), "blocks": files("parquet", "blocks.parquet")}
        },
    }


@pytest.mark.parametrize("typed", [True, False])
def test_chunks(tmp_path: Path, typed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.partition.importers.reading.rows.BLOCK_BYTES", 64)  # several blocks
    monkeypatch.setattr("atta.partition.importers.reading.rows._LINES", 5)
    (text := json.dumps(chunked(tmp_path / "s", typed=typed)))
    (tmp_path / "s/metadata.json").write_text(text)
    assert guess(tmp_path / "s") == guess(tmp_path / "s/metadata.json") == "dgl"
    import_graph("dgl", tmp_path / "s", tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    check(graph)
    assert graph.schema.node_counts == (COUNTS if typed else {"paper": 10})
    for key in EDGES if typed else ["paper:cites:paper"]:
        edges = graph.edges(key.replace(":", "__"))
        assert np.array_equal(np.stack([edges.src, edges.dst], axis=1), EDGES[key])
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


def csv_set(folder: Path, *, typed: bool, strings: bool, separator: str = ",") -> dict[str, Any]:
    """Write the files of a CSV data set, and return what its ``meta.yaml`` says."""
    folder.mkdir()
    ids = {t: [f"{t}-{n}" if strings else str(3 * n + 1) for n in range(count)] for t, count in COUNTS.items()}
    paper = {"node_id": ids["paper"], "feat": FEAT, "label": LABEL, "train_mask": TRAIN, "codes": CODES.tolist()}
    write_csv(folder / "paper.csv", separator, paper)
    edges = {}
    for key, rows in EDGES.items():
        source, relation, target = key.split(":")
        ends = {
            "src_id": [ids[source][u] for u in rows[:, 0].tolist()],
            "dst_id": [ids[target][v] for v in rows[:, 1].tolist()],
        }
        write_csv(folder / f"{relation}.csv.gz", separator, ends | ({"weight": WEIGHT} if relation == "cites" else {}))
        edges[key] = {"file_name": f"{relation}.csv.gz", "etype": key.split(":")}
    if not typed:
        said = {"node_data": [{"file_name": "paper.csv"}], "edge_data": [{"file_name": "cites.csv.gz"}]}
    else:
        write_csv(folder / "author.csv", separator, {"": range(6), "name": ids["author"], "graph_id": [0] * 6})
        author = {"file_name": "author.csv", "ntype": "author", "node_id_field": "name"}
        nodes = [{"file_name": "paper.csv", "ntype": "paper"}, author]
        said = {"node_data": nodes, "edge_data": list(edges.values())}
    return {"dataset_name": "tiny", "separator": separator, **said}


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("strings", [True, False])
@pytest.mark.parametrize("separator", [",", ";"])
def test_csv_set(tmp_path: Path, typed: bool, strings: bool, separator: str) -> None:
    yaml = pytest.importorskip("yaml")
    said = csv_set(tmp_path / "s", typed=typed, strings=strings, separator=separator)
    (tmp_path / "s/meta.yaml").write_text(yaml.safe_dump(said))
    assert guess(tmp_path / "s") == guess(tmp_path / "s/meta.yaml") == "dgl"
    import_graph("dgl", tmp_path / "s", tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    paper, names = ("paper", {k: k.replace(":", "__") for k in EDGES}) if typed else ("node", {})
    names = names or {"paper:cites:paper": "node__to__node"}
    check(graph, paper, names["paper:cites:paper"])
    if strings:
        assert [bytes(row).rstrip(b"\0").decode() for row in graph.table(paper, "name")] == [
            f"paper-{n}" for n in range(10)
        ]
    else:
        assert np.array_equal(graph.user_ids(paper), 3 * np.arange(10) + 1)
    for key, mine in names.items():
        edges = graph.edges(mine)
        assert np.array_equal(np.stack([edges.src, edges.dst], axis=1), EDGES[key])


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("paper.csv", "1,", "4,", "the id 4 occurs twice"),
        ("paper.csv", "node_id", "id", "has no column 'node_id'; there are: id, feat"),
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
    yaml = pytest.importorskip("yaml")
    said = csv_set(tmp_path / "s", typed=True, strings=False)
    (tmp_path / "s/meta.yaml").write_text(yaml.safe_dump(said))
    content = (tmp_path / "s" / file).read_text()
    assert old in content
    (tmp_path / "s" / file).write_text(content.replace(old, new, 1))
    refused("dgl", tmp_path / "s", tmp_path, says)
