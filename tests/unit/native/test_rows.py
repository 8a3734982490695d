"""Compaction and row movement against dictionaries and numpy."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.samplers import kernels

MANY = 1 << 25
"""Of a graph with as many vertices a table keeps the lower half of each id."""
halves = st.builds(lambda high, low: high << 32 | low, st.integers(0, 3), st.integers(0, 5))


@given(st.lists(st.lists(st.integers(0, 2**40) | halves, max_size=200), max_size=8), st.sampled_from([0, 1000, MANY]))
@settings(max_examples=60, deadline=None)
def test_compactor_numbers_in_first_seen_order(calls: list[list[int]], vertices: int) -> None:
    compactor, expected = kernels.Compactor(vertices), {}  # type: ignore[var-annotated]
    for call in calls:
        ids = np.array([i % vertices if vertices else i for i in call], dtype=np.int32 if vertices else np.int64)
        local = compactor.insert(ids)
        for i in ids.tolist():
            expected.setdefault(i, len(expected))
        assert local.tolist() == [expected[i] for i in ids.tolist()]
    assert compactor.size == len(expected)
    assert compactor.ids(0, compactor.size).tolist() == list(expected)
    asked = [*expected, *(i + 2**32 for i in expected), 7]
    assert compactor.find(np.array(asked)).tolist() == [expected.get(i, -1) for i in asked]


def test_compactor_grows_and_refuses_ids_outside_the_graph() -> None:
    compactor = kernels.Compactor()
    ids = np.random.default_rng(0).permutation(300_000)
    assert np.array_equal(compactor.insert(ids), np.arange(len(ids)))
    assert np.array_equal(compactor.insert(ids[::-1].copy()), np.arange(len(ids))[::-1])
    with pytest.raises(ValueError, match="negative"):
        compactor.insert(np.array([-5]))
    for outside in (-1, 2**32, 2**40):
        with pytest.raises(ValueError, match=f"id {outside} is negative, or not in the graph"):
            kernels.Compactor(MANY).insert(np.array([5, outside]))


@given(
    st.integers(0, 10_000), st.integers(1, 5), st.booleans(), st.tuples(*3 * [st.sampled_from([np.int32, np.int64])])
)
@settings(max_examples=60, deadline=None)
def test_stitch_equals_brute_force(seed: int, owners: int, wide: bool, outs: tuple[type, ...]) -> None:
    rng = np.random.default_rng(seed)
    frontier = int(rng.integers(1, 40))
    answers = [rng.integers(0, 100, rng.integers(0, 6)) for _ in range(frontier)]
    edges = [rng.integers(0, 10**6, len(a)) for a in answers]
    owner = rng.integers(0, owners, frontier)
    groups = []
    for o in range(owners):
        positions = np.flatnonzero(owner == o)
        counts = np.array([len(answers[p]) for p in positions], dtype=np.int32)
        empty = [np.empty(0, dtype=np.int64)]
        dtype = np.int64 if wide and o % 2 else np.int32
        neighbors = np.concatenate([answers[p] for p in positions] or empty).astype(dtype)
        ids = np.concatenate([edges[p] for p in positions] or empty).astype(dtype)
        groups.append((positions, counts, neighbors, ids))
    compactor = kernels.Compactor()
    compactor.insert(np.array([3, 50]))
    numbers = {3: 0, 50: 1}
    total = sum(map(len, answers))
    row, col, e_id = (np.empty(total, dtype=dtype) for dtype in outs)
    local = (100 + np.arange(frontier)).astype(np.int32)
    assert compactor.stitch(groups, local, row, col, e_id) == total
    flat = [int(i) for a in answers for i in a]
    for i in flat:
        numbers.setdefault(i, len(numbers))
    assert row.tolist() == [numbers[i] for i in flat]
    assert col.tolist() == [100 + p for p, a in enumerate(answers) for _ in a]
    assert e_id.tolist() == [int(e) for es in edges for e in es]


@pytest.mark.parametrize("first", [0, 1])
def test_a_long_stitch_in_wide_ids_equals_numpy(first: int) -> None:
    """More edges than fit into the caches. The arrays begin at a word of 16 bytes, or in the middle of one."""
    rng = np.random.default_rng(first)
    counts = rng.integers(0, 12, 60_000).astype(np.int32)
    edges = int(counts.sum())
    neighbors, e_id = rng.integers(0, 50_000, edges), rng.integers(0, 2**40, edges)
    out = [np.full(edges + 2, -7)[first : first + edges + 1] for _ in range(3)]
    compactor, local = kernels.Compactor(50_000), np.arange(60_000, dtype=np.int32)
    assert compactor.stitch([(np.arange(60_000), counts, neighbors, e_id)], local, *out) == edges
    assert all(array[edges] == -7 for array in out)
    _, at, back = np.unique(neighbors, return_index=True, return_inverse=True)
    assert np.array_equal(out[0][:edges], np.argsort(np.argsort(at))[back])
    assert np.array_equal(out[1][:edges], np.repeat(local, counts))
    assert np.array_equal(out[2][:edges], e_id)


def test_stitch_refuses_contradictions() -> None:
    compactor = kernels.Compactor()
    out = [np.empty(3, dtype=np.int32) for _ in range(2)]
    local = np.zeros(2, dtype=np.int32)
    three = np.arange(3, dtype=np.int32)
    for group, words in [
        ((np.array([0]), np.array([2], dtype=np.int32), three, None), "match"),
        ((np.array([2]), np.array([3], dtype=np.int32), three, None), "frontier"),
        ((np.array([0, 1]), np.array([3], dtype=np.int32), three, None), "length"),
        ((np.array([0]), np.array([-3], dtype=np.int32), three, None), "match"),
    ]:
        with pytest.raises(ValueError, match=words):
            compactor.stitch([group], local, *out, None)
    with pytest.raises(ValueError, match="shorter"):
        compactor.stitch([(np.array([0]), np.array([3], dtype=np.int32), three, None)], local, out[0][:2], out[1], None)
    indptr = np.array([0, 3, 3, 10], dtype=np.int64)
    assert kernels.degree_sum(indptr, np.array([0, 2, 2], dtype=np.int32)) == 3 + 7 + 7
    with pytest.raises(ValueError, match="row 3"):
        kernels.degree_sum(indptr, np.array([3]))


def check_moves(
    table: np.ndarray, rows: np.ndarray, positions: np.ndarray, *, shift: int = 0, threads: int = 1
) -> None:
    """Rows are gathered side by side and at positions, and scattered; ``shift``: where memory begins, in bytes."""
    beside = np.zeros((len(rows), *table.shape[1:]), table.dtype)
    kernels.gather_rows(table, rows, beside, threads=threads)
    assert np.array_equal(beside, table[rows])
    want = np.zeros((len(rows) + 9, *table.shape[1:]), table.dtype)
    want[positions] = table[rows]
    memory = np.zeros(want.nbytes + 64, np.uint8)
    out = memory[shift : shift + want.nbytes].view(table.dtype).reshape(want.shape)
    kernels.gather_rows(table, rows, out, positions=positions, threads=threads)
    assert np.array_equal(out, want)
    out[:] = 0
    kernels.scatter_rows(table[rows], positions, out)
    assert np.array_equal(out, want)
    assert not memory[:shift].any()
    assert not memory[shift + want.nbytes :].any()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (16,), (100,), (3, 5), (2000,)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.float16])
def test_gather_and_scatter_equal_numpy(shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(1)
    table, rows, positions = (
        rng.integers(0, 200, (90, *shape)).astype(dtype),
        rng.integers(0, 90, 40),
        rng.permutation(49),
    )
    for threads, cast in itertools.product((1, 2), (np.int32, np.int64)):
        check_moves(table, rows.astype(cast), positions[:40], threads=threads)


@pytest.mark.parametrize("width", [64, 80, 100, 400, 401, 2407])
def test_large_targets_are_filled_past_the_caches(width: int) -> None:
    """Above a megabyte, copies take another path. They must be right for every alignment of the target's rows."""
    rng, count = np.random.default_rng(width), (1 << 20) // width + 50
    table, positions = rng.integers(0, 256, (count, width), dtype=np.uint8), rng.permutation(count + 9)[:count]
    for shift in (0, 1, 8, 16):
        check_moves(table, rng.integers(0, count, count), positions, shift=shift)


@pytest.mark.parametrize("width", [16, 31, 64, 100, 401, 1300, 5000])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_the_same_while_both_ways_to_store_are_tried(width: int, threads: int) -> None:
    """A process times both ways on its first large pieces. So 40 pieces of a megabyte take each of them."""
    rng, count = np.random.default_rng(width), (40 << 20) // width
    table = rng.integers(0, 256, (500, width), dtype=np.uint8)
    check_moves(table, rng.integers(0, 500, count), rng.permutation(count), threads=threads)


def test_rows_outside_the_table_are_refused() -> None:
    table, out = np.zeros((5, 2), np.float32), np.zeros((2, 2), np.float32)
    for call, words in [
        (lambda: kernels.gather_rows(table, np.array([0, 5]), out), "row 5"),
        (lambda: kernels.gather_rows(table, np.array([-1, 0]), out), "row -1"),
        (lambda: kernels.gather_rows(table, np.array([0]), out), "one row per entry"),
        (lambda: kernels.gather_rows(table, np.array([0, 1]), np.zeros((2, 3), np.float32)), "another size"),
        (lambda: kernels.gather_rows(table, np.array([0, 1]), out, positions=np.array([0, 2])), "row 2"),
        (lambda: kernels.scatter_rows(table, np.arange(5), out), "row 2"),
        (lambda: kernels.gather_rows(table.T, np.array([0, 1]), out), "contiguous"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


@given(st.integers(0, 1000), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_split_by_owner(seed: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.sort(rng.integers(0, 50, parts - 1)), [50]]).astype(np.int64)
    ids = rng.integers(0, 50, 30)
    rows, positions = kernels.split_by_owner(ids, offsets)
    for p in range(parts):
        mine = np.flatnonzero((ids >= offsets[p]) & (ids < offsets[p + 1]))
        assert np.array_equal(positions[p], mine)
        assert np.array_equal(rows[p], ids[mine] - offsets[p])
    with pytest.raises(ValueError, match="id 50"):
        kernels.split_by_owner(np.array([50]), offsets)


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_group_by_owner_equals_numpy(seed: int, parts: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    first_id, home, first = int(rng.integers(0, 9)), int(rng.integers(parts)), int(rng.integers(0, 1000))
    offsets = first_id + np.concatenate([[0], np.sort(rng.integers(0, 50, parts - 1)), [50]]).astype(np.int64)
    ids = rng.integers(first_id, first_id + 50, count)
    rows, positions, starts = kernels.group_by_owner(ids, offsets, home, first=first)
    owners = np.searchsorted(offsets, ids, side="right") - 1
    order = np.argsort(np.where(owners == home, parts, owners), kind="stable")
    assert np.array_equal(positions, first + order)
    assert np.array_equal(rows, np.where(owners == home, ids - offsets[home], ids)[order])
    counts = np.bincount(owners, minlength=parts)
    counts[home] = 0
    assert starts.tolist() == [0, *np.cumsum(counts)]
    for wrong in (first_id - 1, first_id + 50):
        with pytest.raises(ValueError, match=f"id {wrong}"):
            kernels.group_by_owner(np.array([wrong]), offsets, home)
    with pytest.raises(ValueError, match="home"):
        kernels.group_by_owner(ids, offsets, parts)


@pytest.mark.parametrize("width", [1, 2, 3, 16, 100, 5000])
@pytest.mark.parametrize("gaps", [False, True])
def test_merged_rows_equal_those_of_each_table(width: int, gaps: bool) -> None:
    """Rows of two tables at interleaved places; with gaps, places between keep what they have."""
    rng = np.random.default_rng(width)
    tables = [rng.random((n, width), dtype=np.float32) for n in (700, 300)]
    places = 50 + rng.permutation(3000)[: 2000 if gaps else 3000]
    parts = [
        (table, rng.integers(0, len(table), len(at)).astype(dtype), np.sort(at))
        for table, at, dtype in zip(tables, np.split(places, [len(places) // 3]), (np.int64, np.int32), strict=True)
    ]
    out, expected = (np.full((3060, width), -1, dtype=np.float32) for _ in range(2))
    kernels.gather_merged(parts, out)
    for table, rows, at in parts:
        expected[at] = table[rows]
    assert np.array_equal(out, expected)


def test_merged_rows_outside_their_tables_or_at_one_place_are_refused() -> None:
    table, out = np.arange(10.0).reshape(5, 2), np.zeros((4, 2))
    kernels.gather_merged([(table, np.empty(0, np.int64), np.empty(0, np.int64))], out)
    for rows, places, wrong in (
        ([5], [0], "rows"),
        ([-1], [0], "rows"),
        ([0], [4], "positions"),
        ([0], [-1], "positions"),
    ):
        with pytest.raises(ValueError, match=wrong):
            kernels.gather_merged([(table, np.array(rows), np.array(places))], out)
    with pytest.raises(ValueError, match="repeat"):
        kernels.gather_merged([(table, np.array([0, 1]), np.array([0, 2])), (table, np.array([2]), np.array([2]))], out)
    with pytest.raises(ValueError, match="another size"):
        kernels.gather_merged([(table[:, :1].copy(), np.array([0]), np.array([0]))], out)
    assert not out.any()


def test_packed_rows_follow_the_prefix_table_by_table() -> None:
    rng = np.random.default_rng(3)
    tables = [
        rng.standard_normal((50, 7)).astype(np.float32),
        np.arange(50),
        rng.integers(0, 9, (50, 2, 3), dtype=np.uint8),
    ]
    for rows in (rng.integers(0, 50, 31), rng.integers(0, 50, 31).astype(np.int32), np.empty(0, np.int64)):
        packed = kernels.pack_rows(b"head", tables, rows)
        assert packed == b"head" + b"".join(table[rows].tobytes() for table in tables)
    with pytest.raises(ValueError, match="row 50"):
        kernels.pack_rows(b"", tables, np.array([50]))


@given(st.integers(0, 10_000), st.integers(0, 60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_split_cached_equals_brute_force(seed: int, kept: int, direct: bool) -> None:
    rng = np.random.default_rng(seed)
    ids = 20 + np.sort(rng.permutation(80)[:kept])
    index = kernels.Compactor(200 if direct else 0)
    index.insert(ids)
    present = rng.integers(0, 4, kept, dtype=np.uint8)
    asked, positions, need = rng.integers(20, 110, 50), rng.permutation(99)[:50], int(rng.integers(1, 4))
    starts = np.array([0, *np.sort(rng.integers(0, 51, 4)), 50])
    slot = {int(vertex): number for number, vertex in enumerate(ids)}
    hit = [i for i in range(50) if asked[i] in slot and present[slot[asked[i]]] & need == need]
    miss = [i for i in range(50) if i not in hit]
    found = kernels.split_cached(index, present, asked, positions, starts, need=need)
    assert found[0].tolist() == [slot[asked[i]] for i in hit]
    assert found[1].tolist() == positions[hit].tolist()
    assert found[2].tolist() == asked[miss].tolist()
    assert found[3].tolist() == positions[miss].tolist()
    assert found[4].tolist() == [sum(i < start for i in miss) for start in starts]
    assert found[5].tolist() == [slot.get(asked[i], -1) for i in miss]
    with pytest.raises(ValueError, match="present"):
        kernels.split_cached(index, np.zeros(kept + 1, np.uint8), asked, positions, starts, need=need)
    for bounds in ([], [0, 49], [1, 50], [0, 30, 20, 50], [0, 51], [0, 60, 50]):
        with pytest.raises(ValueError, match="starts"):
            kernels.split_cached(index, present, asked, positions, np.array(bounds), need=need)


def test_copies_of_memory_and_of_private_mappings(tmp_path: Path) -> None:
    array = np.random.default_rng(5).standard_normal((3000, 400)).astype(np.float32)
    copy = kernels.resident(array)
    assert np.array_equal(copy, array)
    assert not np.shares_memory(copy, array)
    np.save(tmp_path / "a.npy", np.zeros(100_000))
    private = np.asarray(np.load(tmp_path / "a.npy", mmap_mode="c"))
    private[:] = 7
    assert (kernels.resident(private) == 7).all()
    assert (private == 7).all()


def mapped_bytes(path: Path) -> int:
    shown = Path("/proc/self/smaps").read_text().split("\n")
    at = next(n for n, line in enumerate(shown) if line.endswith(str(path)))
    return 1024 * int(next(line for line in shown[at:] if line.startswith("Rss:")).split()[1])


@pytest.mark.parametrize("beside", [False, True])
def test_copies_leave_no_pages_of_their_files(tmp_path: Path, beside: bool) -> None:
    array = np.arange(9 << 20)  # several blocks
    np.save(tmp_path / "a.npy", array)
    mapped = np.asarray(np.load(tmp_path / "a.npy", mmap_mode="r"))[5:]
    assert int(mapped.sum()) == int(array[5:].sum())
    assert mapped_bytes(tmp_path / "a.npy") >= mapped.nbytes
    copy = kernels.resident_beside(mapped, array[5:])[0] if beside else kernels.resident(mapped)
    assert np.array_equal(copy, array[5:])
    assert mapped_bytes(tmp_path / "a.npy") <= mapped.nbytes // 10
    assert np.array_equal(mapped, array[5:]), "what was given back is read again"


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("edges", [200, 400_000])
def test_stitched_edges_weigh_the_product_of_their_ends(rng: np.random.Generator, edges: int, trees: bool) -> None:
    sources, frontier, first = 50, edges // 8, 7
    counts = rng.multinomial(edges, np.full(frontier, 1 / frontier)).astype(np.int32)
    neighbors, left, right = (
        rng.integers(0, sources, edges),
        *(rng.random(n).astype(np.float32) for n in (sources, frontier)),
    )
    local, of_trees = np.arange(first, first + frontier, dtype=np.int32), rng.integers(0, 3, frontier).astype(np.int32)
    group = [(np.arange(frontier), counts, neighbors, None)]
    degrees = rng.integers(0, 5, sources)
    unsigned = [(degrees.astype(kind), more) for kind in ("u1", "u2", "u4", "u8") for more in (0, 1)]
    for factors, more in [(None, 0), (left, 0), *unsigned]:
        if factors is None or factors is left:
            of_sources = np.ones(sources, np.float32) if factors is None else left
        else:
            of_sources = np.float32(1) / np.sqrt(np.where(degrees + more, degrees + more, np.inf), dtype=np.float32)
        for no_loops in (False, True):
            row, col, out = np.empty(edges, np.int64), np.empty(edges, np.int64), np.full(edges + 1, -1, np.float32)
            how = kernels.Weighing(out, right, factors, more, no_loops)
            compactor = kernels.Compactor(0 if trees else sources)
            compactor.stitch(group, local, row, col, trees=of_trees if trees else None, sources=sources, weights=how)
            expected = np.repeat(right, counts) * of_sources[neighbors]
            assert np.array_equal(out[:-1], np.where(no_loops & (row == col), 0, expected).astype(np.float32))
            assert out[-1] == -1
    for bad in (
        kernels.Weighing(out, right[1:]),
        kernels.Weighing(out[1:-1], right),
        kernels.Weighing(out, right, left[1:]),
        kernels.Weighing(out, right, degrees[1:].astype("u1")),
    ):
        with pytest.raises(ValueError, match="weights"):
            kernels.Compactor(sources).stitch(group, local, row, col, sources=sources, weights=bad)
