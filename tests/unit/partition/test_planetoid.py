"""Planetoid files are pickles. Reading them must not run what they name."""

from __future__ import annotations

import builtins
import os
import pickle
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

from atta.errors import DataError
from atta.partition.importers.reading.pickles import load_inert
from tests.unit.partition.oracles import Runs, edge_pairs, refused, refuses, taken_in


def write_planetoid(folder, protocol=2):
    """Seven vertices: 2 training vertices, 2 more with labels, test rows 6 and 4. Row 5 is missing, as in citeseer."""
    folder.mkdir(exist_ok=True)
    one_hot = np.eye(3, dtype=np.int32)
    dense = np.arange(28, dtype=np.float32).reshape(7, 4)
    parts = {
        "x": sp.csr_matrix(dense[:2]), "y": one_hot[[0, 1]], "allx": sp.csr_matrix(dense[:4]), "ally": one_hot[[0, 1, 2, 0]],
        "tx": sp.csr_matrix(dense[[6, 4]]), "ty": one_hot[[2, 1]],
        "graph": {0: [1, 1, 0], 1: [0, 2], 2: [1], 3: [], 4: [6], 5: [], 6: [4]},
    }  # fmt: skip
    for name, value in parts.items():
        (folder / f"ind.tiny.{name}").write_bytes(pickle.dumps(value, protocol=protocol))
    (folder / "ind.tiny.test.index").write_text("6\n4\n")
    dense[5] = 0
    return dense


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize("source", ["", "ind.tiny.graph"])
def test_planetoid(tmp_path, protocol, source):
    dense = write_planetoid(tmp_path / "src", protocol)
    graph = taken_in("planetoid", tmp_path / "src" / source, tmp_path / "g")
    assert np.array_equal(graph.table("node", "x"), dense)
    assert graph.table("node", "y").tolist() == [0, 1, 2, 0, 1, -1, 2]
    assert edge_pairs(graph) == [(0, 1), (1, 0), (1, 2), (2, 1), (4, 6), (6, 4)]
    assert graph.split("node", "train").tolist() == [0, 1]
    assert graph.split("node", "test").tolist() == [4, 6]
    assert graph.schema.num_classes == 3


def test_pickles_of_python_2(tmp_path):
    # Python 2's pickle of numpy.array([1, 2], "<i4"): names of its modules, bytes as 8-bit strings.
    raw = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02i4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x08\x01\x00\x00\x00\x02\x00\x00\x00tb."
    )
    (tmp_path / "a").write_bytes(raw)
    assert load_inert(tmp_path / "a").tolist() == [1, 2]
    lists = b"\x80\x02ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(K\x00](K\x01K\x02eu."
    (tmp_path / "b").write_bytes(lists)
    assert load_inert(tmp_path / "b") == {0: [1, 2]}


def beyond(matrix: sp.csr_matrix) -> sp.csr_matrix:
    matrix.indices[1] = 1000
    return matrix


HOSTILE = {
    "os.system": lambda mark: Runs(os.system, f"touch {mark}"),
    "eval": lambda mark: Runs(builtins.eval, f"open({str(mark)!r}, 'w')"),
    "open": lambda mark: Runs(builtins.open, str(mark), "w"),
    "getattr": lambda mark: Runs(builtins.getattr, list, "append"),
    "inside a dictionary": lambda mark: {0: [1, Runs(os.system, f"touch {mark}")]},
    "inside an array": lambda mark: np.array([Runs(os.system, f"touch {mark}")], dtype=object),
    "nested pickle": lambda mark: Runs(pickle.loads, pickle.dumps(Runs(os.system, f"touch {mark}"))),
    "numpy loader": lambda mark: Runs(np.load, str(mark)),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_pickles_are_refused(tmp_path, hostile, protocol):
    write_planetoid(tmp_path / "src")
    mark = tmp_path / "mark"
    path = tmp_path / "src" / "ind.tiny.graph"
    path.write_bytes(pickle.dumps(hostile(mark), protocol=protocol))
    refused("planetoid", tmp_path / "src", tmp_path, r"ind\.tiny\.graph: refused")
    assert not mark.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02c_codecs\nencode\n}U\x08__call__Nsb.",  # sets an attribute of an admitted function
        b"\x80\x02ccollections\ndefaultdict\nN}U\x08__init__Ns\x86b.",  # sets an attribute of an admitted class
        b"\x80\x02U\x02id\x51.",  # persistent id
        b"\x80\x02\x82\x01.",  # extension code
        b"\x80\x02cnumpy\nndarray\n.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",  # an array without a state
        pickle.dumps(beyond(sp.csr_matrix(np.eye(3, dtype=np.float32)))),
    ],
)
def test_crooked_pickles_are_refused(tmp_path, raw):
    (tmp_path / "a").write_bytes(raw)
    refuses(DataError, r"refused|sparse matrix", load_inert, tmp_path / "a")


@pytest.mark.parametrize(
    "graph", [{0: [99]}, {-1: [0]}, {0: [0.5]}, {0.0: [1]}, {True: [0]}, {0: 3}, {"a": [0]}, [1], 3, "x", None]
)
def test_bad_adjacency_lists(tmp_path, graph):
    write_planetoid(tmp_path / "src")
    (tmp_path / "src" / "ind.tiny.graph").write_bytes(pickle.dumps(graph))
    refused("planetoid", tmp_path / "src", tmp_path, r"ind\.tiny\.graph")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("test.index", f"{2**63 + 5}\n5\n".encode(), r"test\.index: not a list of numbers"),
        ("test.index", b"4\n4.5\n", r"test\.index: not a list of numbers"),
        ("test.index", b"4\n-5\n", "distinct non-negative numbers"),
        ("ally", pickle.dumps(np.ones((4, 3), np.int32), 2), "a vertex has several labels"),
    ],
)
def test_bad_labels_and_test_rows(tmp_path, name, content, says):
    write_planetoid(tmp_path / "src")
    (tmp_path / "src" / f"ind.tiny.{name}").write_bytes(content)
    refused("planetoid", tmp_path / "src", tmp_path, says)


def test_a_compressed_archive_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "large.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large/data.pkl", b"\0" * (1 << 20))
    refuses(DataError, r"large/data.pkl would be larger than the whole file", load_inert, path)
