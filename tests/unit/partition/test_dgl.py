"""DistDGL's partitions as Atta opens them: the original graph, ids and tensors, on request the same partitions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from atta.errors import ConfigError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import Runs, refused, taken_in

dgl = pytest.importorskip("dgl", reason="needs DGL (atta[dgl])")

FOLDERS = [f"{name}-{kind}" for name in ("plain", "typed") for kind in ("1-coo", "3-coo", "3-csc", "3-csr", "2-coo")]
ETYPE = "node__to__node"
OURS = {"feat": "x", "label": "y"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dgl")
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.partition.distdgl", str(path)],
        capture_output=True, text=True, check=False, timeout=120, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path


MAPS = (("nodes", "nid_map"), ("edges", "eid_map"))


def as_pt(folder: Path) -> None:
    for theirs, ours in MAPS:
        shutil.copy(folder / f"{theirs}.pt", folder / f"{ours}.pt")


def mapping(folder: Path, name: str) -> dict[str, torch.Tensor]:
    value = torch.load(folder / f"{name}.pt", weights_only=True)
    if torch.is_tensor(value):
        return {"_N" if name == "nodes" else "_N:_E:_N": value}
    return {key if name == "nodes" else ":".join(key): rows for key, rows in value.items()}


def as_numpy(folder: Path) -> None:
    for theirs, ours in MAPS:
        found = mapping(folder, theirs)
        if len(found) == 1:
            np.save(folder / f"{ours}.npy", next(iter(found.values())).numpy())
        else:
            np.savez(folder / f"{ours}.npz", **{key: rows.numpy() for key, rows in found.items()})


def as_dgl(folder: Path) -> None:
    for theirs, ours in MAPS:
        dgl.data.utils.save_tensors(str(folder / f"{ours}.dgl"), mapping(folder, theirs))


def in_parts(folder: Path) -> None:
    """Partitions as DGL's distributed partitioning pipeline writes them."""
    config = json.loads((folder / "g.json").read_text())
    for theirs, ours in (("nodes", "orig_nids"), ("edges", "orig_eids")):
        spans = config["node_map" if theirs == "nodes" else "edge_map"]
        starts = {key: np.cumsum([0] + [hi - lo for lo, hi in ranges]) for key, ranges in spans.items()}
        for part in range(config["num_parts"]):
            mine = {k: v[starts[k][part] : starts[k][part + 1]].clone() for k, v in mapping(folder, theirs).items()}
            dgl.data.utils.save_tensors(str(folder / f"part{part}" / f"{ours}.dgl"), mine)


def in_graphs(folder: Path) -> None:
    """Partitions of older DGL releases: ``orig_id``, counted over all types in one sequence."""
    config = json.loads((folder / "g.json").read_text())
    for part in range(config["num_parts"]):
        path = folder / f"part{part}/graph.dgl"
        graph, _, _, book, *_ = dgl.distributed.load_partition(str(folder / "g.json"), part)
        for frame, theirs, per_type in (
            (graph.ndata, "nodes", book.map_to_per_ntype), (graph.edata, "edges", book.map_to_per_etype),
        ):  # fmt: skip
            kind, rows = per_type(frame["_ID"])
            original, start = torch.zeros(len(rows), dtype=torch.int64), 0
            for number, values in enumerate(mapping(folder, theirs).values()):
                original[kind == number] = values[rows[kind == number]] + start
                start += len(values)
            frame["orig_id"] = original
        dgl.save_graphs(str(path), [graph])


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Three partitions with the original numbers."""
    shutil.copytree(made / "plain-3-coo", tmp_path / "plain")
    as_pt(tmp_path / "plain")
    return tmp_path / "plain"


def truth_of(made: Path, name: str) -> dict:
    return torch.load(made / "truth.pt", weights_only=True)[name.split("-", maxsplit=1)[0]]


def numbers_of(made: Path, name: str) -> dict[str, np.ndarray]:
    return {"node" if t == "_N" else t: rows.numpy() for t, rows in mapping(made / name, "nodes").items()}


def assert_is_the_original(graph: Graph, truth: dict, *, ids: dict[str, np.ndarray] | None = None) -> None:
    """Compare with the graph before partitioning; ``ids``: each row's original number, unless it is the user id."""
    place = {}
    for theirs, tensors in truth["nodes"].items():
        t = "node" if theirs == "_N" else theirs
        original = ids[t] if ids else graph.user_ids(t)
        place[t] = np.arange(tensors["count"]) if original is None else np.array(original)
        assert sorted(place[t].tolist()) == list(range(tensors["count"]))
        tables = {k: v.numpy() for k, v in tensors.items() if k != "count" and not k.endswith("_mask")}
        assert graph.schema.node_tables[t].keys() == {"part", *(OURS.get(k, k) for k in tables)}
        for name, rows in tables.items():
            assert np.array_equal(graph.table(t, OURS.get(name, name)), rows[place[t]])
        masks = {k.removesuffix("_mask"): v.numpy() for k, v in tensors.items() if k.endswith("_mask")}
        assert graph.schema.splits[t].keys() == masks.keys()
        for name, mask in masks.items():
            assert np.array_equal(np.sort(place[t][graph.split(t, name)]), np.flatnonzero(mask))
    for (a, r, b), tensors in truth["edges"].items():
        e = ETYPE if r == "_E" else f"{a}__{r}__{b}"
        source, _, target = e.split("__")
        edges = graph.edges(e)
        have = {"src": place[source][edges.src], "dst": place[target][edges.dst], **edges.tables}
        want = {"src": tensors["ends"][0].numpy(), "dst": tensors["ends"][1].numpy()}
        want |= {k: v.numpy().reshape(-1) if k == "weight" else v.numpy() for k, v in tensors.items() if k != "ends"}
        assert have.keys() == want.keys()
        if ids is None:  # the very same edges at the very same positions
            assert all(np.array_equal(have[k], want[k]) for k in want)
        else:
            assert sorted(rows_of(have)) == sorted(rows_of(want))


def rows_of(columns: dict[str, np.ndarray]) -> list[list]:
    flat = [columns[name].reshape(len(columns["src"]), -1).astype(np.float64) for name in sorted(columns)]
    return np.concatenate(flat, axis=1).tolist()


@pytest.mark.parametrize(
    ("name", "store"),
    [(name, as_pt) for name in FOLDERS]
    + [(name, s) for name in ("plain-3-coo", "typed-3-csc") for s in (as_numpy, as_dgl, in_parts, in_graphs)],
)
def test_the_original_graph_comes_back(made: Path, tmp_path: Path, name: str, store) -> None:
    store(shutil.copytree(made / name, tmp_path / name))
    assert import_graph("dgl", tmp_path / name / "g.json", tmp_path / "g") == []
    assert_is_the_original(Graph.open(tmp_path / "g"), truth_of(made, name))


def as_graphbolt(folder: Path, *, numbered: bool = True) -> None:
    """Partitions of ``partition_graph(use_graphbolt=True)``: sorted by destination, HALO vertices behind the others."""
    from tests.unit.partition.test_dgl_sets import Fused, save_under_names

    config = json.loads((folder / "g.json").read_text())
    for part in range(config["num_parts"]):
        path = folder / config[f"part-{part}"].pop("part_graph")
        ((graph,), _) = dgl.load_graphs(str(path))
        indptr, indices, order = graph.adj_tensors("csc") if hasattr(graph, "adj_tensors") else graph.adj_sparse("csc")
        plain = {"indptr": indptr, "indices": indices.int()}
        state = {"independent_tensors": plain, "node_attributes": {"_ID": graph.ndata["_ID"]}}
        state["edge_attributes"] = {"_ID": graph.edata["_ID"][order]} if numbered else {}
        save_under_names(path.with_name("fused_csc_sampling_graph.pt"), Fused(state))
        path.unlink()
        config[f"part-{part}"]["part_graph_graphbolt"] = f"part{part}/fused_csc_sampling_graph.pt"
    (folder / "g.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["plain-1-coo", "plain-3-csc", "typed-3-coo", "typed-2-coo"])
def test_the_original_graph_comes_back_from_graphbolt(made: Path, tmp_path: Path, name: str) -> None:
    folder, truth = shutil.copytree(made / name, tmp_path / name), truth_of(made, name)
    as_graphbolt(folder)
    assert len(import_graph("dgl", folder / "g.json", tmp_path / "g")) == 2  # it does not know the original numbers
    assert_is_the_original(Graph.open(tmp_path / "g"), truth, ids=numbers_of(made, name))
    as_pt(folder)
    assert import_graph("dgl", folder, tmp_path / "h") == []
    assert_is_the_original(Graph.open(tmp_path / "h"), truth)


@pytest.mark.parametrize("name", FOLDERS)
def test_without_the_original_numbers_the_user_is_told(made: Path, tmp_path: Path, name: str) -> None:
    notes = import_graph("dgl", made / name / "g.json", tmp_path / "g")
    assert [("nid_map" in n, "eid_map" in n) for n in notes] == [(True, False), (False, True)]
    graph = Graph.open(tmp_path / "g")
    assert all(graph.user_ids(t) is None for t in graph.schema.node_types)
    assert_is_the_original(graph, truth_of(made, name), ids=numbers_of(made, name))


def test_the_same_partitions(folder: Path, tmp_path: Path) -> None:
    graph = taken_in("dgl", folder / "g.json", tmp_path / "g")
    assert graph.schema.num_classes == 4
    partition_graph(tmp_path / "g", tmp_path / "d", parts=3, method="given", options={"table": "part"})
    dataset = Dataset.open(tmp_path / "d")
    original = mapping(folder, "nodes")["_N"].numpy()
    config = json.loads((folder / "g.json").read_text())
    for part, (lo, hi) in enumerate(config["node_map"]["_N"]):
        mine = slice(*dataset.book.range("node", part))
        assert sorted(dataset.ids("node")[mine].tolist()) == sorted(original[lo:hi].tolist())


def spoiled(folder: Path, name: str, change) -> None:
    torch.save(change(torch.load(folder / f"{name}.pt", weights_only=True)), folder / f"{name}.pt")


def set_first(value):
    def change(rows: torch.Tensor) -> torch.Tensor:
        rows[0] = value
        return rows

    return change


def half(folder: Path) -> None:
    for name in ("nid_map", "eid_map"):
        (folder / f"{name}.pt").unlink()
    in_parts(folder)
    (folder / "part1/orig_nids.dgl").unlink()


def feature(kind: str, name: str, like: str, parts: int = 1):
    def change(folder: Path) -> None:
        for part in range(parts):
            path = str(folder / f"part{part}/{kind}_feat.dgl")
            tensors = dgl.data.utils.load_tensors(path)
            dgl.data.utils.save_tensors(path, {**tensors, name: tensors[like]})

    return change


def edge_feature(name: str):
    return feature("edge", f"_N:_E:_N/{name}", "_N:_E:_N/time")


def unknown_tensor(folder: Path) -> None:
    (graph,), _ = dgl.load_graphs(str(folder / "part0/graph.dgl"))
    graph.edata["secret"] = torch.zeros(graph.num_edges())
    dgl.save_graphs(str(folder / "part0/graph.dgl"), [graph])


def configured(**values):
    def change(folder: Path) -> None:
        config = json.loads((folder / "g.json").read_text())
        (folder / "g.json").write_text(json.dumps({**config, **values}))

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: spoiled(f, "nid_map", set_first(7)), r"nid_map\.pt: the original ids of '_N': the id 7 occurs twice"),
        (lambda f: spoiled(f, "nid_map", lambda t: t[:-1]), r"\[89\] numbers for 90 vertices"),
        (lambda f: spoiled(f, "nid_map", lambda t: t.double()), r"nid_map\.pt: the original ids.*wanted are integers"),
        (lambda f: spoiled(f, "eid_map", set_first(10**6)), r"'eid_map\.pt' is not imported: .*0 to 499"),
        (in_parts, r"holds nid_map\.pt, orig_nids\.dgl; leave one"),
        (lambda f: as_graphbolt(f, numbered=False), r"fused_csc_sampling_graph\.pt: the edges of this part have no numbers"),
        (half, r"orig_nids\.dgl is missing in some parts"),
        (edge_feature("ids"), r"part0: 'ids' is not imported"),
        (edge_feature("two words"), r"--drop 'two words' leaves it out"),
        (edge_feature("odd"), r"part 1: the tensors of the edges 'node__to__node' differ"),
        (feature("node", "_N/odd", "_N/label"), r"'odd' of '_N' has \d+ rows for 90 vertices"),
        (unknown_tensor, r"graph\.dgl: 'secret' is not imported"),
        (configured(node_map="node_map.npy"), r"reshuffle=False"),
        (configured(num_parts=4), r"part 3 is not readable"),
        (configured(num_parts="3"), r"num_parts '3' is not a number"),
        (configured(ntypes={"a": 0}), r"node_map and ntypes name different types"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_over_is_named(folder: Path, tmp_path: Path, change, says: str) -> None:
    change(folder)
    refused("dgl", folder / "g.json", tmp_path, says)


def test_what_is_refused_can_be_left_out(made: Path, folder: Path, tmp_path: Path) -> None:
    unknown_tensor(folder)
    spoiled(folder, "eid_map", set_first(10**6))
    notes = import_graph("dgl", folder / "g.json", tmp_path / "g", drop=["secret", "eid_map.pt"])
    assert len(notes) == 1
    assert Graph.open(tmp_path / "g").provenance["dropped"] == ["eid_map.pt", "secret"]
    says = "--drop sekret: the source holds nothing of this name"
    refused("dgl", made / "plain-3-coo/g.json", tmp_path, says, ConfigError, drop=["sekret"])


def test_a_hostile_mapping_is_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    torch.save(Runs(os.system, f"touch {mark}"), folder / "nid_map.pt")
    refused("dgl", folder / "g.json", tmp_path, r"nid_map\.pt: refused")
    np.save(folder / "nid_map.npy", np.array([Runs(os.system, f"touch {mark}")], dtype=object))
    (folder / "nid_map.pt").unlink()
    refused("dgl", folder / "g.json", tmp_path, r"nid_map\.npy: not a readable array")
    assert not mark.exists()


def test_what_is_wrong_is_named(made: Path, tmp_path: Path) -> None:
    refused("dgl", made / "plain-3-coo/g.json", tmp_path, "reverse edges", ConfigError, undirected=True)
    (tmp_path / "other.json").write_text("{}")
    refused("dgl", tmp_path / "other.json", tmp_path, "num_parts")
    (tmp_path / "moved.json").write_text((made / "plain-3-coo/g.json").read_text())
    refused("dgl", tmp_path / "moved.json", tmp_path, "part 0 is not readable")


@pytest.mark.parametrize(
    ("tensors", "tables"),
    [
        (["feat", "label"], {"x": "feat", "y": "label"}),
        (["x", "feat"], {"x": "x", "feat": "feat"}),
        (["label", "labels"], {"y": "label", "labels": "labels"}),
        (["labels", "y"], {"y": "y", "labels": "labels"}),
        (["labels", "y", "label"], {"y": "y", "labels": "labels", "label": "label"}),
        (["codes as feat"], {"feat": "codes as feat"}),
    ],
)
def test_tensors_whose_tables_would_have_one_name_keep_their_own(tmp_path, tensors, tables):
    graph, rng = dgl.rand_graph(20, 60), np.random.default_rng(1)
    kinds = {"codes as feat": np.int64(2**24 + 1) + np.arange(20)}
    kinds |= {name: rng.random((20, 2), np.float32) for name in ("x", "feat")}
    values = {name: kinds.get(name, rng.integers(0, 3, 20)) for name in tensors}
    for name, rows in values.items():
        graph.ndata[name.split()[-1]] = torch.from_numpy(rows)
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    found = taken_in("dgl", tmp_path / "g.bin", tmp_path / "g")
    assert found.schema.node_tables["node"].keys() == tables.keys()
    for table, name in tables.items():
        assert np.array_equal(found.table("node", table), values[name])


def test_a_tensor_named_as_the_partitions_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    feature("node", "_N/part", "_N/label", parts=3)(folder)
    refused("dgl", folder / "g.json", tmp_path, r"'part' is not imported: .*--drop part leaves it out")
    import_graph("dgl", folder / "g.json", tmp_path / "g", drop=["part"])
    assert set(np.unique(Graph.open(tmp_path / "g").table("node", "part"))) == {0, 1, 2}
