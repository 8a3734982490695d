"""Every damage to a graph folder or a dataset is refused, and the error names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.describe import describe
from atta.partition.disk.files import write_sealed
from tests.unit.partition.oracles import write_graph


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine")
    rng = np.random.default_rng(3)
    graph = write_graph(folder / "graph", [5, 3, 99, 7, 50, 11], rng.integers(0, 6, 30), rng.integers(0, 6, 30), 6)
    partition_graph(graph.path, folder / "data", parts=2, method="random")
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "copy")
    return tmp_path / "copy"


def npy_files(kind: str) -> list[str]:
    graph = ["nodes/node/ids.npy", "nodes/node/x.npy", "nodes/node/split_train.npy", "edges/node__to__node/src.npy"]
    data = [
        "shared/node/ids.npy",
        "shared/node/sorted_ids.npy",
        "shared/node/sorted_internal.npy",
        "shared/node/split_val.npy",
        "shared/edges/node__to__node/into.npy",
        "shared/edges/node__to__node/out.npy",
        "shared/edges/node__to__node/loops.npy",
        "shared/edges/node__to__node/weights.npy",
        "shared/edges/node__to__node/loop_weights.npy",
        "shared/edges/node__to__node/loop_sums.npy",
        "part-0000/nodes/node/x.npy",
        "part-0001/nodes/node/halo.npy",
        "part-0000/edges/node__to__node/indptr.npy",
        "part-0001/edges/node__to__node/indices.npy",
        "part-0001/edges/node__to__node/edge_ids.npy",
        "part-0001/edges/node__to__node/weight.npy",
    ]
    return graph if kind == "graph" else data


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def retype(path: Path) -> None:
    """Same size, other dtype: only the header shows it."""
    raw = path.read_bytes()
    swapped = raw.replace(b"'<f4'", b"'<i4'") if b"'<f4'" in raw else raw.replace(b"'<i", b"'<u")
    swapped = swapped.replace(b"'|u1'", b"'|i1'")
    assert swapped != raw
    path.write_bytes(swapped)


DAMAGE = [Path.unlink, truncate, lengthen, retype]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("graph", "data") for n in npy_files(k)])
def test_damaged_arrays(folder, kind, name, damage):
    opener = Graph.open if kind == "graph" else Dataset.open
    opener(folder / kind)
    damage(folder / kind / name)
    with pytest.raises(DataError) as caught:
        opener(folder / kind)
    assert caught.value.path == str(folder / kind / name)
    assert name in str(caught.value)
    with pytest.raises(DataError):  # it shows without reading the whole file
        opener(folder / kind, verify=False)


def test_the_list_of_files_is_complete(pristine):
    tested = {n.split("/")[-1] for n in npy_files("data")} | {"y.npy", "split_train.npy"}
    assert {p.name for p in (pristine / "data").rglob("*.npy")} == tested


def edit(path: Path, change) -> None:
    """Change a manifest on purpose and make its checksum fit again."""
    value = json.loads(path.read_text())
    value.pop("checksum")
    change(value)
    write_sealed(path, value)


@pytest.mark.parametrize(("kind", "name"), [("graph", "graph.json"), ("data", "manifest.json")])
def test_any_byte_of_a_manifest(folder, kind, name, seed):
    """Every single byte counts, also in unused places: provenance, figures, spaces. A run tries a third of them."""
    path, opener = folder / kind / name, Graph.open if kind == "graph" else Dataset.open
    whole = path.read_bytes()
    for at in range(seed % 3, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(DataError, match=name):
            opener(folder / kind, verify=False)
    path.write_bytes(whole)
    opener(folder / kind)


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("graph", "data") for n in npy_files(k)])
def test_any_byte_of_an_array(folder, kind, name):
    path, opener = folder / kind / name, Graph.open if kind == "graph" else Dataset.open
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(DataError, match=name):
            opener(folder / kind)


MANIFEST_CHANGES = {
    "format": lambda m: m.update(format="other"),
    "version": lambda m: m.update(version=2),
    "no schema": lambda m: m.pop("schema"),
    "no files": lambda m: m.pop("files"),
    "count": lambda m: m["schema"]["node_types"]["node"].update(count=7),
    "negative": lambda m: m["schema"]["node_types"]["node"].update(count=-7),
    "dtype": lambda m: m["schema"]["node_types"]["node"]["tables"]["x"].update(dtype="|O"),
    "unknown end": lambda m: m["schema"]["edge_types"].update({"a__b__c": {"count": 0, "tables": {}}}),
    "escape": lambda m: m["files"].update({"../../etc/passwd": next(iter(m["files"].values()))}),
    "escape by name": lambda m: m["schema"]["node_types"].update({"../x": m["schema"]["node_types"]["node"]}),
    "lost entry": lambda m: m["files"].pop(next(iter(m["files"]))),
    "bad entry": lambda m: m["files"].update({next(iter(m["files"])): {"size": "many"}}),
}


@pytest.mark.parametrize("change", MANIFEST_CHANGES.values(), ids=MANIFEST_CHANGES.keys())
@pytest.mark.parametrize(("kind", "name"), [("graph", "graph.json"), ("data", "manifest.json")])
def test_altered_manifests(folder, kind, name, change):
    edit(folder / kind / name, change)
    with pytest.raises(DataError, match=name):
        (Graph.open if kind == "graph" else Dataset.open)(folder / kind)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["ranges"].update(node=[0, 4, 6] if m["ranges"]["node"] != [0, 4, 6] else [0, 3, 6]),
        lambda m: m["ranges"].update(node=[0, 7, 6]),
        lambda m: m["ranges"].update(node="nonsense"),
        lambda m: m["ranges"].update(node=[0, 6.5]),
        lambda m: m.update(dataset_id="0123456789abcdef"),
        lambda m: m.pop("dataset_id"),
        lambda m: m["files"]["shared/node/ids.npy"].update(xxh3="0" * 16),
    ],
)
def test_altered_dataset_manifest(folder, change):
    edit(folder / "data" / "manifest.json", change)
    with pytest.raises(DataError, match=r"manifest\.json"):
        Dataset.open(folder / "data")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_manifests_that_are_no_json_objects(folder, text):
    (folder / "data" / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json"):
        Dataset.open(folder / "data")


def test_missing_folders_and_wrong_kinds(folder):
    with pytest.raises(DataError, match="no such folder"):
        Dataset.open(folder / "nowhere")
    with pytest.raises(DataError, match="not partitioned yet: run atta partition"):
        Dataset.open(folder / "graph")
    with pytest.raises(DataError, match="neither"):
        describe(folder)


def test_altered_quality_is_found_by_inspect(folder):
    edit(folder / "data" / "manifest.json", lambda m: m["quality"].update(cut_edges=0))
    with pytest.raises(DataError, match="quality"):
        describe(folder / "data")


def test_a_machine_may_hold_only_some_parts(folder):
    shutil.rmtree(folder / "data" / "part-0001")
    dataset = Dataset.open(folder / "data", parts=[0])
    assert len(dataset.part(0).csc("node__to__node").indptr) == dataset.part(0).num_core("node") + 1
    with pytest.raises(DataError, match="part-0001"):
        Dataset.open(folder / "data")
    with pytest.raises(DataError, match="part-0001"):
        dataset.part(1).csc("node__to__node")
    with pytest.raises(ConfigError, match="partition 2 does not exist"):
        Dataset.open(folder / "data", parts=[2])
    with pytest.raises(ConfigError, match="partition -1 does not exist"):
        dataset.part(-1)


def test_object_arrays_are_never_read(folder):
    path = folder / "data" / "part-0000/nodes/node/x.npy"
    np.save(path, np.array([{}, []], dtype=object), allow_pickle=True)
    record = {"size": path.stat().st_size, "xxh3": "0" * 16, "dtype": "|O", "shape": [2]}
    edit(folder / "data" / "manifest.json", lambda m: m["files"].update({"part-0000/nodes/node/x.npy": record}))
    with pytest.raises(DataError):
        Dataset.open(folder / "data", verify=False)


def test_unknown_names_and_ids(pristine):
    dataset = Dataset.open(pristine / "data")
    part = dataset.part(0)
    for call in (
        lambda: dataset.split("node", "trian"),
        lambda: dataset.ids("nod"),
        lambda: dataset.to_internal("nodes", [5]),
        lambda: part.table("node", "z"),
        lambda: part.csc("node__too__node"),
        lambda: part.halo("nodes"),
        lambda: dataset.book.owner("nodes", [0]),
    ):
        with pytest.raises(UnknownNameError):
            call()
    with pytest.raises(ConfigError, match="98 is not a vertex of node type 'node'"):
        dataset.to_internal("node", [5, 98, 4])
    with pytest.raises(ConfigError, match="-1 is not a vertex"):
        dataset.to_internal("node", [-1])
    with pytest.raises(ConfigError, match="integers"):
        dataset.to_internal("node", [1.5])
    with pytest.raises(ConfigError, match=str(2**63 + 5)):
        dataset.to_internal("node", np.array([2**63 + 5], np.uint64))
    assert dataset.to_internal("node", []).tolist() == []
    assert dataset.ids("node")[dataset.to_internal("node", [99, 99, 3])].tolist() == [99, 99, 3]


def test_plain_row_numbers_need_no_sorted_ids(tmp_path):
    graph = write_graph(tmp_path / "graph", None, [0, 1], [1, 2], 5)
    partition_graph(graph.path, tmp_path / "data", parts=2, method="random")
    assert not (tmp_path / "data/shared/node/sorted_ids.npy").exists()
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.ids("node")[dataset.to_internal("node", [4, 0])].tolist() == [4, 0]
    for bad in (5, -1):
        with pytest.raises(ConfigError, match=f"{bad} is not a vertex"):
            dataset.to_internal("node", [bad])
