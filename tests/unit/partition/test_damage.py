"""Every damage to a graph folder or a dataset is refused, and the error names the file. So are pipes, devices and folders
in place of files: no read waits for a pipe without a writer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.describe import describe
from atta.partition.disk.files import map_array, write_sealed
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import refuses, write_graph

OPEN = {"graph": Graph.open, "data": Dataset.open}
MANIFEST = {"graph": "graph.json", "data": "manifest.json"}
kinds = pytest.mark.parametrize("kind", OPEN)


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


def arrays(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.npy"))
    assert len(found) >= 7
    return found


def retype(raw: bytes) -> bytes:
    """Same size, other dtype: only the header shows it."""
    swapped = raw.replace(b"'<f4'", b"'<i4'") if b"'<f4'" in raw else raw.replace(b"'<i", b"'<u")
    return swapped.replace(b"'|u1'", b"'|i1'")


@kinds
@pytest.mark.parametrize("damage", [None, lambda raw: raw[:-1], lambda raw: raw + b"\0", retype])
def test_damaged_arrays(folder, kind, damage):
    for path in arrays(folder / kind):
        whole = path.read_bytes()
        path.unlink()
        if damage is not None:
            assert damage(whole) != whole
            path.write_bytes(damage(whole))
        for verify in (True, False):  # it shows without reading the whole file
            with pytest.raises(DataError, match=str(path.relative_to(folder / kind))) as caught:
                OPEN[kind](folder / kind, verify=verify)
            assert caught.value.path == str(path)
        path.write_bytes(whole)
    OPEN[kind](folder / kind)


def edit(path: Path, change) -> None:
    """Change a manifest on purpose and make its checksum fit again."""
    value = json.loads(path.read_text())
    value.pop("checksum")
    change(value)
    write_sealed(path, value)


@kinds
def test_any_byte(folder, kind, seed):
    """Every single byte counts, also in unused places: provenance, figures, spaces. A run tries a ninth of them."""
    for path in [folder / kind / MANIFEST[kind], *arrays(folder / kind)]:
        whole = path.read_bytes()
        for at in range(seed % 9, len(whole), 9):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            refuses(DataError, path.name, OPEN[kind], folder / kind, verify=path.suffix == ".npy")
        path.write_bytes(whole)


MANIFEST_CHANGES = {
    "format": lambda m: m.update(format="other"),
    "version": lambda m: m.update(version=2),
    "no schema": lambda m: m.pop("schema"),
    "no files": lambda m: m.pop("files"),
    "count": lambda m: m["schema"]["node_types"]["node"].update(count=7),
    "negative": lambda m: m["schema"]["node_types"]["node"].update(count=-7),
    "dtype": lambda m: m["schema"]["node_types"]["node"]["tables"]["x"].update(dtype="|O"),
    "no dtype": lambda m: m["schema"]["node_types"]["node"]["tables"]["x"].update(dtype=1e300, row_shape={"x": 1}),
    "unknown end": lambda m: m["schema"]["edge_types"].update({"a__b__c": {"count": 0, "tables": {}}}),
    "escape": lambda m: m["files"].update({"../../etc/passwd": next(iter(m["files"].values()))}),
    "escape by name": lambda m: m["schema"]["node_types"].update({"../x": m["schema"]["node_types"]["node"]}),
    "lost entry": lambda m: m["files"].pop(next(iter(m["files"]))),
    "bad entry": lambda m: m["files"].update({next(iter(m["files"])): {"size": "many"}}),
}
OF_DATASETS = [
    lambda m: m["ranges"].update(node=[0, 4, 6] if m["ranges"]["node"] != [0, 4, 6] else [0, 3, 6]),
    lambda m: m["ranges"].update(node=[0, 7, 6]),
    lambda m: m["ranges"].update(node="nonsense"),
    lambda m: m["ranges"].update(node=[0, 6.5]),
    lambda m: m.update(dataset_id="0123456789abcdef"),
    lambda m: m.pop("dataset_id"),
    lambda m: m["files"]["shared/node/ids.npy"].update(xxh3="0" * 16),
]


@pytest.mark.parametrize(
    ("kind", "change"), [(k, c) for k in OPEN for c in MANIFEST_CHANGES.values()] + [("data", c) for c in OF_DATASETS]
)
def test_altered_manifests(folder, kind, change):
    edit(folder / kind / MANIFEST[kind], change)
    refuses(DataError, MANIFEST[kind], OPEN[kind], folder / kind)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_manifests_that_are_no_json_objects(folder, text):
    (folder / "data" / "manifest.json").write_text(text)
    refuses(DataError, r"manifest\.json", Dataset.open, folder / "data")


def test_missing_folders_wrong_kinds_and_other_quality(folder):
    refuses(DataError, "no such folder", Dataset.open, folder / "nowhere")
    graph = folder / "graph"
    refuses(DataError, f"not partitioned yet: run atta partition {graph} {graph}-2p --parts 2$", Dataset.open, graph)
    refuses(DataError, "neither", describe, folder)
    edit(folder / "data" / "manifest.json", lambda m: m["quality"].update(cut_edges=0))
    refuses(DataError, "quality", describe, folder / "data")


def test_a_machine_may_hold_only_some_parts(folder):
    shutil.rmtree(folder / "data" / "part-0001")
    dataset = Dataset.open(folder / "data", parts=[0])
    assert len(dataset.part(0).csc("node__to__node").indptr) == dataset.part(0).num_core("node") + 1
    for parts in ([1], None):
        refuses(DataError, f"{folder / 'data'}: holds partition 0, not 1$", Dataset.open, folder / "data", parts=parts)
    refuses(DataError, "part-0001", lambda: dataset.part(1).csc("node__to__node"))
    refuses(ConfigError, "partition 2 does not exist", Dataset.open, folder / "data", parts=[2])
    refuses(ConfigError, "partition -1 does not exist", dataset.part, -1)


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
    for ids, says in (
        ([5, 98, 4], "98 is not a vertex of node type 'node'"),
        ([-1], "-1 is not a vertex"),
        ([1.5], "integers"),
        (np.array([2**63 + 5], np.uint64), str(2**63 + 5)),
    ):
        refuses(ConfigError, says, dataset.to_internal, "node", ids)
    assert dataset.to_internal("node", []).tolist() == []
    assert dataset.ids("node")[dataset.to_internal("node", [99, 99, 3])].tolist() == [99, 99, 3]


def test_plain_row_numbers_need_no_sorted_ids(tmp_path):
    graph = write_graph(tmp_path / "graph", None, [0, 1], [1, 2], 5)
    partition_graph(graph.path, tmp_path / "data", parts=2, method="random")
    assert not (tmp_path / "data/shared/node/sorted_ids.npy").exists()
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.ids("node")[dataset.to_internal("node", [4, 0])].tolist() == [4, 0]
    for bad in (5, -1):
        refuses(ConfigError, f"{bad} is not a vertex", dataset.to_internal, "node", [bad])


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "a named pipe"),
        (link_to_a_pipe, "a named pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (Path.mkdir, "a folder"),
    ],
)
def test_special_files_in_a_graph_or_a_dataset(pristine, tmp_path, make, what):
    make(tmp_path / "x.npy")
    with pytest.raises(DataError, match=f"x.npy: {what} in place of a regular file"):
        map_array(tmp_path / "x.npy")  # after the dataset was opened
    for kind, read in OPEN.items():
        for number, file in enumerate(sorted(p.relative_to(pristine / kind) for p in (pristine / kind).rglob("*.*"))):
            copy = shutil.copytree(pristine / kind, tmp_path / f"{kind}{number}")
            (copy / file).unlink()
            make(copy / file)
            for verify in (True, False):
                refuses(DataError, f"{file.name}: {what} in place of a regular file", read, copy, verify=verify)


@pytest.mark.parametrize("fmt", ["npz", "planetoid", "ogb", "dorylus", "table", "pyg", "dgl"])
def test_a_pipe_in_what_is_imported(tmp_path, fmt):
    os.mkfifo(tmp_path / "pipe.npz")
    for source in (tmp_path, tmp_path / "pipe.npz"):
        with pytest.raises(DataError, match=r"pipe\.npz: a named pipe in place of a regular file"):
            import_graph(fmt, source, tmp_path.parent / "never")


def test_a_link_to_a_file_is_a_file(pristine, folder):
    file = folder / "data" / "shared" / "node" / "ids.npy"
    file.rename(folder / "elsewhere.npy")
    file.symlink_to(folder / "elsewhere.npy")
    assert np.array_equal(Dataset.open(folder / "data").ids("node"), Dataset.open(pristine / "data").ids("node"))
