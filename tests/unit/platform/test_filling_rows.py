"""The cache filled in beforehand: the rows that its policy has chosen, each of them once, and no wrong one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.daemon import filling as filling_rows
from atta.daemon.filling import FillSource, row_pieces
from atta.daemon.peers.owners import Owners
from atta.errors import RemoteError
from atta.kvstore.cache import RowCache
from atta.kvstore.cache.choice import HaloHeat
from atta.kvstore.store import Store
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import GraphWriter
from atta.samplers.batch.items import FeatureItem

NODES, PARTS = 600, 3
ROW_BYTES = 5 * 4 + 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Partition 0 has in-edges from some vertices of both others."""
    folder, rng = tmp_path_factory.mktemp("filling"), np.random.default_rng(4)
    with GraphWriter(folder / "graph") as writer:
        x = rng.standard_normal((NODES, 5)).astype(np.float32)
        writer.add_nodes("node", NODES, tables={"x": x, "y": np.arange(NODES) * 3}, splits={})
        writer.add_edges("node__to__node", rng.integers(0, NODES // 2, 500), rng.integers(0, NODES, 500))
    partition_graph(folder / "graph", folder / "parts", parts=PARTS, method="random", seed=0)
    return Dataset.open(folder / "parts")


class Owner:
    """Answers pulls from its store, and notes which rows it was asked for."""

    address = "owner"

    def __init__(self, dataset: Dataset, part: int) -> None:
        self._store, self.asked, self.lose = Store(dataset, part), [], 0

    async def pull(self, item: FeatureItem, codec: str = "", *, age_ms: int = 0) -> memoryview:
        self.asked.append(item.rows)
        tables = [self._store.table(item.node_type, name) for name in item.tables]
        data = b"".join(table.data[item.rows].tobytes() for table in tables)
        return memoryview(data[: len(data) - self.lose])


def owners(dataset: Dataset) -> Any:
    return {part: Owner(dataset, part) for part in range(PARTS)}


def source_of(dataset: Dataset, peers: Any) -> FillSource:
    pool = ThreadPoolExecutor(1)
    return FillSource(Owners(peers, dataset, pool), peers, pool)


def fetch(pieces: Sequence[Any]) -> int:
    async def all_of_them() -> int:
        return sum([await piece.fetch() for piece in pieces])

    return asyncio.run(all_of_them())


def of_one_owner(part: int, rows: int) -> np.ndarray:
    """The bounds of rows by owner, if all of them are of ``part``."""
    return np.where(np.arange(PARTS + 1) <= part, 0, rows)


def cached(dataset: Dataset, cache: RowCache, part: int) -> set[int]:
    """Internal ids of the partition's vertices whose rows of both tables are cached. The rows must be right."""
    low, high = dataset.book.range("node", part)
    rows = np.arange(high - low)
    found = cache.look_up("node", ["y", "x"], low + rows, rows, of_one_owner(part, len(rows)))
    assert found is not None
    outs = [np.zeros(high - low, dtype=np.int64), np.zeros((high - low, 5), dtype=np.float32)]
    cache.fill("node", ["y", "x"], found.slots, found.positions, outs)
    for name, out in zip(["y", "x"], outs, strict=True):
        assert (out[found.positions] == dataset.part(part).table("node", name)[found.positions]).all()
    return set((low + found.positions).tolist())


def remote(dataset: Dataset) -> set[int]:
    """Vertices that partition 0 does not own."""
    low, high = dataset.book.range("node", 0)
    return {v for v in range(NODES) if not low <= v < high}


def edges_into_the_partition(dataset: Dataset) -> np.ndarray:
    """int64 [nodes]: the edges of each vertex into partition 0."""
    return np.bincount(dataset.part(0).csc("node__to__node").indices, minlength=NODES)


def test_the_most_asked_rows_of_an_owner_come_first(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling_rows, "FILL_BYTES", 10 * ROW_BYTES)
    cache, peers = RowCache.of(dataset, 0, limit_bytes=1 << 20), owners(dataset)
    assert fetch(list(row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, peers)))) == ROW_BYTES * len(
        remote(dataset)
    )
    edges = edges_into_the_partition(dataset)
    for part in (1, 2):
        low, high = dataset.book.range("node", part)
        asked = [edges[low + rows] for rows in peers[part].asked]
        assert sorted(np.concatenate(peers[part].asked).tolist()) == list(range(high - low))
        assert all(before.min() >= after.max() for before, after in itertools.pairwise(asked))
        assert edges[low:high].max() > 0, "the test needs HALO vertices"
        assert all((np.diff(rows) > 0).all() for rows in peers[part].asked), "in the order of their memory"
    assert not peers[0].asked
    assert cached(dataset, cache, 1) | cached(dataset, cache, 2) == remote(dataset)


@pytest.mark.parametrize("room", [0, 1, 40])
def test_no_more_is_filled_in_than_the_cache_has_room_for(dataset: Dataset, room: int) -> None:
    cache = RowCache.of(dataset, 0, limit_bytes=room * ROW_BYTES + 3)
    pieces = list(row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, owners(dataset))))
    assert fetch(pieces) == room * ROW_BYTES == cache.nbytes


def test_pieces_are_small_and_of_one_owner_each(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling_rows, "FILL_BYTES", 10 * ROW_BYTES + 1)
    cache, peers = RowCache.of(dataset, 0, limit_bytes=1 << 20), owners(dataset)
    pieces = list(row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, peers)))
    for piece in pieces:
        before = len(peers[piece.owner].asked)
        assert fetch([piece]) <= 10 * ROW_BYTES
        assert len(peers[piece.owner].asked) == before + 1
    assert sum(len(rows) for peer in peers.values() for rows in peer.asked) == len(remote(dataset))


def test_rows_that_batches_have_brought_are_not_asked_for_again(dataset: Dataset) -> None:
    cache, peers = RowCache.of(dataset, 0, limit_bytes=1 << 20), owners(dataset)
    pieces = list(row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, peers)))
    low, _ = dataset.book.range("node", 1)
    brought = np.array(sorted(v - low for v in remote(dataset) if v in range(*dataset.book.range("node", 1))))[::2]
    found = cache.look_up("node", ["x", "y"], low + brought, brought, of_one_owner(1, len(brought)))
    assert found is not None
    tables = [np.ascontiguousarray(dataset.part(1).table("node", name)[brought]) for name in ("x", "y")]
    blocks = [table.reshape(len(brought), -1).view(np.uint8) for table in tables]
    cache.keep("node", ["x", "y"], found.missing_slots, np.arange(len(brought)), blocks)
    assert fetch(pieces) == ROW_BYTES * (len(remote(dataset)) - len(brought))
    assert not {*np.concatenate(peers[1].asked).tolist()} & {*brought.tolist()}
    assert cached(dataset, cache, 1) | cached(dataset, cache, 2) == remote(dataset)
    assert fetch(pieces) == 0, "all of it is here"


def test_an_answer_of_the_wrong_length_is_an_error_and_enters_nothing(dataset: Dataset) -> None:
    cache, peers = RowCache.of(dataset, 0, limit_bytes=1 << 20), owners(dataset)
    for peer in peers.values():
        peer.lose = 1
    for piece in row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, peers)):
        with pytest.raises(RemoteError, match=r"sends \d+ bytes for \d+ rows of 28 bytes"):
            fetch([piece])
    assert not cached(dataset, cache, 1) | cached(dataset, cache, 2)


def test_the_policy_that_keeps_what_was_asked_for_lately_is_not_filled(dataset: Dataset) -> None:
    cache = RowCache.of(dataset, 0, limit_bytes=1 << 20, rank="recent")
    assert not [*row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, owners(dataset)))]


def test_a_short_answer_is_an_error(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any, **__: Any) -> bytes:
        return b""

    monkeypatch.setattr(Owner, "pull", nothing)
    cache = RowCache.of(dataset, 0, limit_bytes=1 << 20)
    piece = next(iter(row_pieces(cache, HaloHeat(dataset, 0), source_of(dataset, owners(dataset)))))
    with pytest.raises(RemoteError, match="sends 0 bytes for"):
        fetch([piece])


def test_datasets_without_tables_have_nothing_to_fill_in(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph") as writer:
        writer.add_nodes("node", 20, tables={}, splits={})
        writer.add_edges("node__to__node", np.arange(10), np.arange(10, 20))
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=2, method="random", seed=0)
    dataset = Dataset.open(tmp_path / "parts")
    assert not [*row_pieces(RowCache.of(dataset, 0, limit_bytes=1 << 20), HaloHeat(dataset, 0), source_of(dataset, {}))]
