"""Writing graph folders: refused input, derived values, and folders that appear whole or not at all."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.partition import Graph, GraphWriter
from atta.partition.disk.files import NpyAppender, map_array, open_regular
from atta.partition.disk.staging import Staging
from atta.partition.names import split_edge_type
from atta.partition.schema import Schema, TableSpec
from tests.unit.partition.oracles import refuses


def test_round_trip(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    with GraphWriter(tmp_path / "g", provenance={"command": "test"}) as out:
        out.add_nodes("a", 4, ids=[9, 7, 8, 1], tables={"x": x, "y": [0, 2, -1, 1]}, splits={"train": [2, 0, 2]})
        out.add_nodes("b", 2)
        edges = out.open_edges("a__r__b", {"time": TableSpec("<i8"), "note": TableSpec("<f4", (2,))})
        edges.append([0, 1], [1, 1], {"time": [5, 6], "note": [[1, 2], [3, 4]]})
        edges.append([3], [0], {"time": [7], "note": [[5, 6]]})
    graph = Graph.open(tmp_path / "g")
    assert graph.provenance == {"command": "test"}
    assert graph.schema.num_classes == 3
    assert graph.user_ids("a").tolist() == [9, 7, 8, 1]
    assert graph.user_ids("b") is None
    assert np.array_equal(graph.table("a", "x"), x)
    assert graph.split("a", "train").tolist() == [0, 2]
    stored = graph.edges("a__r__b")
    found = [rows.tolist() for rows in (stored.src, stored.dst, stored.tables["time"])]
    assert found == [[0, 1, 3], [1, 1, 0], [5, 6, 7]]
    assert Schema.from_json(graph.schema.to_json()) == graph.schema
    assert graph.schema.endpoints("a__r__b") == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([0, 2, -1, 1]), 3),
        (np.array([[0], [2], [-1], [1]]), 3),
        *((np.array([[0, 1], [1, 1]], dtype), None) for dtype in ("|i1", "<u8", "|b1", "<i8")),
    ],
)
def test_labels_keep_their_dtype_and_one_column_of_them_has_classes(tmp_path, labels, classes):
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", len(labels), tables={"y": labels})
    schema = Graph.open(tmp_path / "g").schema
    assert schema.num_classes == classes
    assert schema.node_tables["node"]["y"] == TableSpec(labels.dtype.str, labels.shape[1:])


def test_the_type_with_the_most_classes_counts_wherever_it_is_declared(tmp_path):
    labels = {"author": [0, 5, -1], "paper": [0.5], "venue": [1, 0]}
    for order in itertools.permutations(labels):
        with GraphWriter(tmp_path / "g", overwrite=True) as out:
            for node_type in order:
                out.add_nodes(node_type, len(labels[node_type]), tables={"y": np.array(labels[node_type])})
        assert Graph.open(tmp_path / "g").schema.num_classes == 6


def test_tables_of_edges_may_be_called_like_arguments(tmp_path):
    names = ("self", "edge_type", "tables", "values")
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("n", 2)
        out.add_edges("n__to__n", [0, 1], [1, 0], tables={name: [i, -i] for i, name in enumerate(names)})
    tables = Graph.open(tmp_path / "g").edges("n__to__n").tables
    assert {name: rows.tolist() for name, rows in tables.items()} == {name: [i, -i] for i, name in enumerate(names)}


@pytest.mark.parametrize(
    ("nodes", "edges", "says"),
    [
        ({"ids": [4, 5, 4]}, None, "the vertex id 4 occurs twice"),
        ({}, ([0, 3], [0, 0], {}), "the source 3"),
        ({}, ([0], [-1], {}), "the destination -1"),
        ({"tables": {"x": np.zeros(2)}}, None, "2 rows for 3 vertices"),
        ({"splits": {"train": [3]}}, None, "outside the 3"),
        ({"splits": {"train": np.ones(4, bool)}}, None, "outside the 3"),
        ({"splits": {"train": np.ones((3, 2), bool)}}, None, r"split 'train': \[3, 2\] is the shape of neither"),
        ({"tables": {"y": np.array([1, 2**63, 0], np.uint64)}}, None, f"labels of 'n': {2**63} at position 1 does not"),
        ({"tables": {"halo": np.zeros(3)}}, None, "'halo' is reserved"),
        ({}, ([0], [1], {"indptr": np.array([1])}), "'indptr' is reserved"),
        ({}, ([0], [1], {"weight": np.ones((1, 2))}), "'weight' must have one number per edge"),
    ],
)
def test_refused(tmp_path, nodes, edges, says):
    with pytest.raises(ConfigError, match=says), GraphWriter(tmp_path / "g") as out:  # noqa: PT012
        out.add_nodes("n", 3, **nodes)
        if edges is not None:
            out.add_edges("n__to__n", np.array(edges[0]), np.array(edges[1]), tables=edges[2])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (lambda out: out.open_edges("a__to__b"), "'a' is not declared"),
        (lambda out: out.open_edges("n_to_n"), "expected 'source__relation__destination'"),
        (lambda out: [out.add_nodes("n", 3) for _ in range(2)], "declared twice"),
        (lambda out: out.add_nodes("a\nn", 3), r"node type 'a\\nn': names of types have 1 to 100 printable characters"),
    ],
)
def test_names_that_are_refused(tmp_path, begin, says):
    with pytest.raises(ConfigError, match=says), GraphWriter(tmp_path / "g") as out:
        begin(out)
    assert list(tmp_path.iterdir()) == []


def test_appender_equals_numpy(tmp_path):
    rows = np.random.default_rng(0).random((1000, 3))
    with NpyAppender(tmp_path / "a.npy", rows.dtype, (3,)) as out:
        for lo in range(0, 1000, 7):
            out.append(rows[lo : lo + 7])
        out.append(rows[:0])
    assert np.array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), rows)
    with NpyAppender(tmp_path / "b.npy", "<i4") as out:
        pass
    assert np.load(tmp_path / "b.npy", mmap_mode="r").shape == (0,)


def maps_of(path):
    return Path("/proc/self/maps").read_text().count(f"{path}\n")


def test_a_map_keeps_no_file_open_and_goes_with_its_last_view(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10_000))
    before = len(os.listdir("/proc/self/fd"))
    views = [map_array(tmp_path / "a.npy")[10:20] for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert maps_of(tmp_path / "a.npy") == 50
    assert all(view.tolist() == list(range(10, 20)) for view in views)
    with pytest.raises(ValueError, match="WRITEABLE"):
        views[0].flags.writeable = True
    del views
    assert maps_of(tmp_path / "a.npy") == 0


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(3.5), np.zeros((0, 3)),
        np.arange(3) > 1, np.arange(3, dtype=">i4"), np.arange(24).reshape(2, 3, 4),
    ],
)  # fmt: skip
def test_arrays_are_mapped_as_numpy_reads_them(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    mapped = map_array(tmp_path / "a.npy")
    assert (mapped.dtype, mapped.shape) == (array.dtype, array.shape)
    assert np.array_equal(mapped, array)


def test_arrays_that_are_not_mapped(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    whole = (tmp_path / "a.npy").read_bytes()
    for content, says in [
        (whole[:-1], "927 bytes instead of 928"),
        (whole[:40], "damaged header"),
        (whole.replace(b"(100,)", b"(-10,)"), r"shape \[-10\] are not read"),
    ]:
        (tmp_path / "a.npy").write_bytes(content)
        refuses(DataError, rf"a\.npy: .*{says}", map_array, tmp_path / "a.npy")


def test_too_many_open_files_are_not_the_fault_of_the_file(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = os.open(tmp_path / "a.npy", os.O_RDONLY)  # the lowest number that was free, so none below it is
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 1, hard))
        with pytest.raises(QuotaExceededError, match=rf"too many files are open; this process may have {held + 1}"):
            open_regular(tmp_path / "a.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held)


def test_leftovers_are_cleared_and_two_writers_kept_apart(tmp_path):
    (tmp_path / "g.partial" / "nodes").mkdir(parents=True)
    (tmp_path / "g.partial" / "nodes" / "stale.npy").write_text("")
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("n", 1)
        refuses(ConfigError, "another process", Staging, tmp_path / "g", "graph.json")
    assert sorted(Graph.open(tmp_path / "g").files) == []
    assert [p.name for p in (tmp_path / "g").iterdir()] == ["graph.json"]


@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        *(
            (split_edge_type, (name,), "")
            for name in ("a__b", "a__b__c__d", "a____c", "__b__c", "a__ b__d", "a___b__d", "a__b__", "a_", 7)
        ),
        *((TableSpec, spec, "table") for spec in (("f4",), (">f4",), ("|O",), ("<U3",), ("nonsense",), ("<f4", (-1,)))),
        *(
            (Schema, (("n",), (), {"n": 1}, {}, {}, {}, {}, classes), "is not a number of classes")
            for classes in (-1, 2**63, 2.0, True)
        ),
    ],
)
def test_values_of_a_schema_that_are_refused(make, given, says):
    refuses(ConfigError, says, make, *given)


def test_row_bytes():
    assert [TableSpec("<f4", (10, 2)).row_bytes, TableSpec("<i8").row_bytes] == [80, 8]


PROGRAM = """
import re, sys
from pathlib import Path
from atta.partition.disk.files import map_bytes, read_page_by_page

def mapped(name):
    with open(name, "rb") as file:
        return map_bytes(file, Path(name).stat().st_size)

def flags(name):
    maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    return [re.search("VmFlags:(.*)", map).group(1).split() for map in maps if name in map.partition("\\n")[0]]

before, after = sys.argv[1:]
held = [mapped(before)]
[found] = flags(before)
assert "rr" not in found, found
read_page_by_page()
held.append(mapped(after))
for name in (before, after):
    [found] = flags(name)
    assert "rr" in found, found
print(*(sum(bytes(map)) for map in held))
"""


def test_files_that_do_not_stay_in_memory_are_read_page_by_page(tmp_path: Path) -> None:
    names = [tmp_path / "before", tmp_path / "after"]
    rng = np.random.default_rng(1)
    written = [rng.integers(0, 256, 10_000, dtype=np.uint8) for _ in names]
    for name, values in zip(names, written, strict=True):
        name.write_bytes(values.tobytes())
    command = [sys.executable, "-c", PROGRAM, *map(str, names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(values.sum()) for values in written]


def test_headers_are_read_while_other_threads_read_theirs(tmp_path: Path) -> None:
    """CPython 3.11 fails to parse one if the collector runs Python's code meanwhile, which lets another thread parse."""
    np.save(tmp_path / "a.npy", np.arange(12).reshape(3, 4))

    def busy(*_: object) -> None:
        for _ in range(100):
            pass

    gc.callbacks.append(busy)
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(10)
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            shapes = set(pool.map(lambda _: map_array(tmp_path / "a.npy").shape, range(2000)))
    finally:
        gc.callbacks.remove(busy)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert shapes == {(3, 4)}
