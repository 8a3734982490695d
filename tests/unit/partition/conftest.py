"""Graphs that several tests share."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from atta.partition import Graph
from atta.partition.importers.reading import dgl_tensors as child
from tests.unit.partition.oracles import write_graph


@pytest.fixture(scope="module", autouse=True)  # of a session, it would spare the files of other folders their waits
def _no_forcing_to_disk():
    """Skip the waits for the disk: thousands of tiny files would take minutes."""
    patch = pytest.MonkeyPatch()
    patch.setattr("atta.partition.disk.staging._sync", lambda path: None)
    patch.setattr("atta.partition.disk.files.os.fsync", lambda fd: None)
    yield
    patch.undo()


@pytest.fixture
def dgl_in_a_child() -> None:
    """Have files of DGL loaded by a process of its own, as users do."""


@pytest.fixture(autouse=True)
def _dgl_in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load files of DGL without a process of its own: a hundred of them, each importing DGL, would take minutes."""

    @contextmanager
    def sent(source: Path) -> Iterator[BinaryIO]:
        stream = io.BytesIO()
        child.send(str(source), stream)
        stream.seek(0)
        yield stream

    if "dgl_in_a_child" not in request.fixturenames:
        monkeypatch.setattr("atta.partition.importers.reading.dgl_tensors._sent", sent)


@pytest.fixture(scope="session")
def messy_graph(tmp_path_factory) -> Graph:
    """200 vertices with scattered ids, hubs, self-loops, multi-edges and isolated vertices."""
    rng = np.random.default_rng(7)
    n, m = 200, 1500
    ids = rng.permutation(100_000)[:n]
    src, dst = rng.integers(0, n - 5, m), (rng.random(m) ** 3 * (n - 20)).astype(int)
    src[:10] = dst[:10]
    src[10:20], dst[10:20] = src[20:30], dst[20:30]
    return write_graph(tmp_path_factory.mktemp("messy") / "graph", ids.tolist(), src.tolist(), dst.tolist(), n)
