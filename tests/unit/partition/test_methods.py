"""Partitioning methods against plain Python from their papers, on graphs of one and of several types."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native
from atta.errors import AttaError, ConfigError, DataError, QuotaExceededError, UnknownNameError
from atta.observe.progress import Silent
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.cutting.balance import capacities, constraints
from atta.partition.cutting.union import Union, union_rows
from atta.partition.methods import make_method
from atta.partition.methods.block import label_columns
from tests.unit.partition.oracles import refuses


@st.composite
def graphs(draw: st.DrawFn, folder: Path) -> Graph:
    """One or two node types, possibly empty; isolated vertices, self-loops, multi-edges."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = {"a": draw(st.integers(1, 25))}
    if draw(st.booleans()):
        counts["b"] = draw(st.integers(0, 12))
    with GraphWriter(folder / f"g{draw(st.integers(0, 2**60))}", overwrite=True) as out:
        for name, n in counts.items():
            chosen = rng.random((3, n)) < draw(st.sampled_from([0.0, 0.1, 0.5]))
            out.add_nodes(name, n, splits=dict(zip(("train", "val", "test"), chosen, strict=True)))
        for edge_type in ("a__to__a", "a__by__b")[: len(counts)]:
            source, _, target = edge_type.split("__")
            m = draw(st.integers(0, 80)) if counts[source] and counts[target] else 0
            out.add_edges(edge_type, rng.integers(0, counts[source] or 1, m), rng.integers(0, counts[target] or 1, m))
        path = out.path.with_name(out.path.name.removesuffix(".partial"))
    return Graph.open(path)


def neighbors(union: Union) -> list[list[int]]:
    return [union.indices[union.indptr[v] : union.indptr[v + 1]].tolist() for v in range(union.num_nodes)]


def plain_stream(near, order, before, parts, weights, room, score, placed=None):
    """LDG and Fennel as their papers state them, one vertex at a time; ``placed``: owners from the beginning, or -1."""
    owners, loads = [-1] * len(near) if placed is None else [*placed], np.zeros((parts, weights.shape[1]))
    for v, owner in enumerate(owners):
        loads[owner] += weights[v] if owner >= 0 else 0
    for v in order:
        seen = [owners[u] if owners[u] >= 0 or before is None else before[u] for u in near[v]]
        ranked = []
        for p in range(parts):
            left = room - loads[p] - weights[v]
            over = [left[c] / room[c] for c in range(weights.shape[1]) if weights[v, c] and left[c] < 0]
            fits = not over
            least = max(0.0, min(1.0, *(1 - loads[p] / room))) if fits else over[0]
            value = score(seen.count(p), least, loads[p, 0]) if fits else least
            ranked.append((fits, value, -loads[p, 0], -p))
        owners[v] = -max(ranked)[3]
        loads[owners[v]] += weights[v]
    return owners


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_streaming_equals_the_papers(data: st.DataObject) -> None:
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        graph = draw(graphs(Path(folder)))
        union = Union.of(graph)
        n, parts = union.num_nodes, draw(st.integers(1, 5))
        weights = constraints(graph, ("nodes", *draw(st.sampled_from([(), ("edges",), ("train", "types")]))))
        room = capacities(weights, parts, draw(st.sampled_from([0.0, 0.2])))
        order = np.random.default_rng(draw(st.integers(0, 99))).permutation(n)
        alpha = draw(st.sampled_from([0.0, 0.7]))
        before: np.ndarray | None = None
        for _ in range(2):
            owners = np.full(n, -1, np.int32)
            how = (order, before, owners, parts, weights.reshape(-1), room, alpha, 1.5)
            _native.stream_vertices(union.indptr, union.indices, *how)

            def score(count: int, free: float, load: float) -> float:
                return count - alpha * 1.5 * float(np.sqrt(load)) if alpha else count * free

            assert owners.tolist() == plain_stream(neighbors(union), order, before, parts, weights, room, score)
            before = owners


def plain_refine(near, owners, parts, weights, room):
    """One vertex at a time goes where most of its neighbours are, if there is room; of several, where the first is."""
    owners, loads = [*owners], np.zeros((parts, weights.shape[1]))
    for v, owner in enumerate(owners):
        loads[owner] += weights[v]
    for v, row in enumerate(near):
        seen, best = [owners[u] for u in row], owners[v]
        for part in dict.fromkeys(seen):
            fits = (loads[part] + weights[v] <= room)[weights[v] > 0].all()
            if seen.count(part) > seen.count(best) and fits:
                best = part
        loads[owners[v]] -= weights[v]
        loads[best] += weights[v]
        owners[v] = best
    return owners


def ring(rng: np.random.Generator, n: int, near: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a graph whose neighbours mostly lie close together, so that many are visited in one turn."""
    src = np.arange(n).repeat(near)
    dst = np.where(rng.random(len(src)) < 0.8, src + rng.integers(1, 9, len(src)), rng.integers(0, n, len(src))) % n
    return union_rows([lambda: (src, dst, 0, 0)], n, both=True)[:2]


@pytest.mark.parametrize("parts", [3, 130])
def test_neighbours_of_one_turn_are_counted_when_they_have_moved(parts: int) -> None:
    n, rng = 1000, np.random.default_rng(5)
    rows = ring(rng, n, 4)
    union = Union(*rows, np.zeros(n, np.int64), {"node": n})
    near, weights = neighbors(union), np.stack([np.ones(n, np.int64), rng.integers(0, 3, n)], axis=1)
    room, before = capacities(weights, parts, 0.1), rng.integers(0, parts, n).astype(np.int32)
    for order in (np.arange(n), rng.permutation(n)):
        owners = np.full(n, -1, np.int32)
        _native.stream_vertices(*rows, order, before, owners, parts, weights.reshape(-1), room, 0.0, 0.0, threads=2)
        score = lambda count, free, load: count * free  # noqa: E731
        assert owners.tolist() == plain_stream(near, order, before, parts, weights, room, score)
    moved = before.copy()
    assert _native.refine_owners(*rows, moved, parts, weights.reshape(-1), room, threads=2) > 100
    assert moved.tolist() == plain_refine(near, before, parts, weights, room)


def test_threads_change_nothing() -> None:
    n, rng = 600_000, np.random.default_rng(6)
    rows, order = ring(rng, n, 2), rng.permutation(n)
    given = 4, np.ones(n, np.int64), np.array([n / 3.9])
    found = []
    for threads in (1, 3):
        owners = np.full(n, -1, np.int32)
        _native.stream_vertices(*rows, order, None, owners, *given, 0.0, 0.0, threads=threads)
        moved = _native.refine_owners(*rows, owners, *given, threads=threads)
        found.append((owners, moved))
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] > n // 100


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_vertices_of_an_earlier_dataset_stay_and_new_ones_follow_their_neighbours(data: st.DataObject) -> None:
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = {"a": rng.permutation(60)[: draw(st.integers(2, 30))], "b": rng.permutation(60)[: draw(st.integers(1, 20))]}
    old = {t: of[: draw(st.integers(0 if t == "b" else 1, len(of)))] for t, of in ids.items()}
    ends = {"a__to__a": ("a", "a"), "a__by__b": ("a", "b")}
    drawn = {e: [rng.integers(0, len(ids[t]), draw(st.integers(0, 90))) for t in types] for e, types in ends.items()}
    edges = {e: [end[: min(map(len, pair))] for end in pair] for e, pair in drawn.items()}

    def written(path: Path, vertices: dict[str, np.ndarray]) -> Path:
        with GraphWriter(path) as out:
            for name, chosen in vertices.items():
                out.add_nodes(name, len(chosen), ids=chosen.astype(np.int64))
            for edge_type, (source, target) in ends.items():
                src, dst = ids[source][edges[edge_type][0]], ids[target][edges[edge_type][1]]
                there = np.isin(src, vertices[source]) & np.isin(dst, vertices[target])
                rows = [{int(v): row for row, v in enumerate(vertices[t])} for t in (source, target)]
                src, dst = ([of[int(v)] for v in end[there]] for of, end in zip(rows, (src, dst), strict=True))
                out.add_edges(edge_type, np.asarray(src, np.int64), np.asarray(dst, np.int64))
        return path

    parts = draw(st.integers(1, min(4, sum(map(len, old.values())), sum(map(len, ids.values())) - 1)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        partition_graph(written(folder / "old", old), folder / "old-p", parts=parts, method="random", seed=3)
        grown = {t: rng.permutation(of) for t, of in ids.items()}  # rows are in another order
        options = {"data": str(folder / "old-p"), "slack": 0.2}
        partition_graph(written(folder / "new", grown), folder / "new-p", parts=parts, method="extend", options=options)
        before, after = Dataset.open(folder / "old-p"), Dataset.open(folder / "new-p")
        union = Union.of(graph := Graph.open(folder / "new"))
        placed: list[int] = []
        for t, of in grown.items():
            was = dict(zip(before.ids(t).tolist(), before.book.owner(t, np.arange(len(old[t]))).tolist(), strict=True))
            placed += [was.get(int(v), -1) for v in of]
        weights = constraints(graph, ("nodes", "edges"))
        room = capacities(weights, parts, 0.2)
        fresh = [v for v, p in enumerate(placed) if p < 0]
        how = (parts, weights, room, lambda count, free, load: count * free, placed)
        wanted = plain_stream(neighbors(union), fresh, None, *how)
        found = np.concatenate([after.book.owner(t, after.to_internal(t, of)) for t, of in grown.items()])
        assert found.tolist() == wanted
        with pytest.raises(ConfigError, match=f"has {parts} partitions, which stay"):
            partition_graph(folder / "new", folder / "x", parts=parts + 1, method="extend", options=options)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_blocks_equal_breadth_first_search_with_ties(data: st.DataObject) -> None:
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        graph = draw(graphs(Path(folder)))
        union = Union.of(graph)
        near, hops = neighbors(union), draw(st.integers(0, 3))
        centres = np.flatnonzero(label_columns(graph).any(axis=1))
        block = _native.grow_blocks(union.indptr, union.indices, centres, hops)
        # Brute force: the distance to every centre, then the nearest centre that reaches v through its own block.
        expected = np.full(union.num_nodes, -1)
        expected[centres] = np.arange(len(centres))
        for _ in range(hops):
            fresh = {
                v: min(expected[u] for u in near[v] if expected[u] >= 0)
                for v in range(len(near))
                if expected[v] < 0 and any(expected[u] >= 0 for u in near[v])
            }
            expected[list(fresh)] = list(fresh.values())
        assert block.tolist() == expected.tolist()
        for number, centre in enumerate(
            centres.tolist()
        ):  # one labelled vertex each, and all in reach inside the block
            inside = set(np.flatnonzero(block == number).tolist())
            assert inside & set(centres.tolist()) == {centre}
            reached, frontier = {centre}, {centre}
            for _ in range(hops):
                frontier = {u for v in frontier for u in near[v]} & inside - reached
                reached |= frontier
            assert reached == inside


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_blocks_are_dealt_out_by_the_rule(data: st.DataObject) -> None:
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        graph = draw(graphs(Path(folder)))
        union, labels = Union.of(graph), label_columns(graph)
        near, parts, smooth = neighbors(union), draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 1.0]))
        centres = np.flatnonzero(labels.any(axis=1))
        block = _native.grow_blocks(union.indptr, union.indices, centres, 2)
        share = np.array([0.5, 0.3, 0.2])
        how = (block, len(centres), labels.reshape(-1), parts, share, smooth)
        owners = _native.assign_blocks(union.indptr, union.indices, *how)
        members = [np.flatnonzero(block == b).tolist() for b in range(len(centres))]
        most = [max(labels[m].sum(axis=0)) for m in members]
        expected, held, has = np.full(union.num_nodes, -1), [0] * parts, np.zeros((parts, 3))
        total = labels.sum(axis=0, dtype=float)
        for b in sorted(range(len(members)), key=lambda b: (-most[b], -len(members[b]), b)):
            cross = [sum(expected[u] == p for v in members[b] for u in near[v]) for p in range(parts)]
            used = np.divide(has * parts, total, out=np.zeros_like(has), where=total > 0)
            room = [1 - (used[p][0] * 0.5) - (used[p][1] * 0.3) - (used[p][2] * 0.2) for p in range(parts)]
            value = [(smooth + cross[p] / max(1, held[p])) * max(room[p], 0.0) for p in range(parts)]
            rank = [(room[p] > -1e-9, round(value[p], 9), round(room[p], 9), -held[p]) for p in range(parts)]
            chosen = int(owners[members[b][0]])
            assert rank[chosen] == max(rank)
            assert room[chosen] > -1e-9 or max(room) < 1e-9
            expected[members[b]] = chosen
            held[chosen] += len(members[b])
            has[chosen] += labels[members[b]].sum(axis=0)
        assert owners.tolist() == expected.tolist()


def planted(path: Path, *, train: np.ndarray) -> Graph:
    """Four communities of 250 vertices. A tenth of the edges leave their community."""
    rng, n = np.random.default_rng(5), 1000
    src = rng.integers(0, n, 8000)
    inside = (src // 250) * 250 + rng.integers(0, 250, 8000)
    dst = np.where(rng.random(8000) < 0.9, inside, rng.integers(0, n, 8000))
    with GraphWriter(path) as out:
        out.add_nodes("node", n, splits={"train": train})
        out.add_edges("node__to__node", np.concatenate([src, dst]), np.concatenate([dst, src]))
    return Graph.open(path)


def cut_of(graph: Graph, owners: dict[str, np.ndarray]) -> float:
    edges = graph.edges("node__to__node")
    return float((owners["node"][edges.src] != owners["node"][edges.dst]).mean())


@pytest.mark.parametrize(
    ("name", "options"), [("metis", {}), ("metis", {"tame": "yes", "cap": 4}), ("ldg", {}), ("fennel", {})]
)
def test_communities_are_found_and_shares_kept(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    graph = planted(tmp_path / "g", train=np.arange(0, 1000, 3))
    owners = make_method(name, options).assign(graph, 4, seed=1, progress=Silent())
    assert cut_of(graph, owners) < 0.2  # 0.075 leave their community, 0.75 at random
    weights = constraints(graph, ("nodes", "edges", "train"))
    for column in weights.T:
        loads = np.bincount(owners["node"], weights=column, minlength=4)
        assert loads.max() / loads.mean() < 1.12


def test_few_labels_blocks_keep_them_even(tmp_path: Path) -> None:
    graph = planted(tmp_path / "g", train=np.arange(0, 1000, 40))
    owners = make_method("block").assign(graph, 4, seed=0, progress=Silent())
    assert np.bincount(owners["node"][::40], minlength=4).max() <= 8  # 25 by 4, within a quarter
    assert cut_of(graph, owners) < 0.6


def test_assignment_from_a_file(tmp_path: Path) -> None:
    graph = planted(tmp_path / "g", train=np.arange(10))
    owners = np.arange(1000) % 3
    np.save(tmp_path / "owners.npy", owners)
    found = make_method("given", {"path": str(tmp_path / "owners.npy")}).assign(graph, 3, seed=0, progress=Silent())
    assert np.array_equal(found["node"], owners)
    for values, words in [(owners[:-1], r"\[999\]"), (owners + 1, "1 to 3"), (owners.astype(float), "float64")]:
        np.save(tmp_path / "owners.npy", values)
        with pytest.raises(DataError, match=words):
            make_method("given", {"path": str(tmp_path / "owners.npy")}).assign(graph, 3, seed=0, progress=Silent())


def test_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(tmp_path / "g", train=np.arange(10))

    monkeypatch.setattr("atta.partition.methods.metis.available_bytes", lambda: 1000)
    refuses(QuotaExceededError, "GiB are free", partition_graph, tmp_path / "g", tmp_path / "d", parts=2)
    assert not (tmp_path / "d").exists()
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, fallback="ldg")
    how = Dataset.open(tmp_path / "d").provenance
    assert how["method"] == "ldg"
    assert "METIS would take" in how["failed"]
    monkeypatch.undo()
    monkeypatch.setattr("atta.partition.methods.metis._send", lambda *_: None)
    refuses(AttaError, "METIS failed", partition_graph, tmp_path / "g", tmp_path / "e", parts=2)


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("metiss", {}, UnknownNameError, "metis"),
        ("ldg", {"pases": "2"}, UnknownNameError, "passes"),
        ("ldg", {"passes": "two"}, ConfigError, "not of type int"),
        ("ldg", {"passes": 0}, ConfigError, "passes 0"),
        ("ldg", {"order": "best"}, ConfigError, "order 'best'"),
        ("ldg", {"slack": "nan"}, ConfigError, "slack nan"),
        ("fennel", {"gamma": "1"}, ConfigError, "gamma"),
        ("metis", {"tame": "maybe"}, ConfigError, "maybe"),
        ("metis", {"cap": True}, ConfigError, "not of type int"),
        ("block", {"hops": "-1"}, ConfigError, "hops -1"),
        ("block", {"alpha": 0, "beta": 0, "gamma": 0}, ConfigError, "all 0"),
        ("given", {}, ConfigError, "path or the option table"),
    ],
)
def test_wrong_options(name: str, options: dict[str, object], kind: type[Exception], words: str) -> None:
    refuses(kind, words, make_method, name, options)


@pytest.mark.parametrize("seed", [-1, 2**63])
@pytest.mark.parametrize("method", ["ldg", "fennel", "metis", "random"])
def test_seeds_that_no_method_takes(tmp_path: Path, method: str, seed: int) -> None:
    planted(tmp_path / "g", train=np.arange(10))
    with pytest.raises(ConfigError, match=rf"--seed {seed}: must be 0 to 2\*\*63 - 1"):
        partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method=method, seed=seed)


GOOD = np.array([0, 1, 2]), np.array([1, 0])
OWNERS, WEIGHTS, ROOM = np.zeros(2, np.int32), np.ones(2, np.int64), np.ones(1)
ENDS = np.array([0]), np.array([1])


def block_arrays(size: int, kind: type = np.int32) -> tuple[np.ndarray, ...]:
    return np.zeros(1, np.int64), np.zeros(size, kind), np.zeros(size, np.uint16), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("kernel", "given", "words"),
    [
        ("breadth_first", (np.array([0, 2, 1]), GOOD[1]), "does not ascend"),
        ("breadth_first", (np.array([0, 1, 3]), GOOD[1]), "passes the end"),
        ("breadth_first", (GOOD[0], np.array([1, 2])), "does not exist"),
        ("refine_owners", (*GOOD, OWNERS + 3, 2, WEIGHTS, ROOM), "owners"),
        ("stream_vertices", (*GOOD, np.array([2]), None, OWNERS, 2, WEIGHTS, ROOM, 0.0, 0.0), "order"),
        ("stream_vertices", (*GOOD, np.array([0]), None, OWNERS, 2, WEIGHTS[:1], ROOM, 0.0, 0.0), "weights"),
        ("grow_blocks", (*GOOD, np.array([-1]), 1), "centres"),
        ("assign_blocks", (*GOOD, np.array([0, 5]), 1, np.zeros(6, np.int8), 2, np.ones(3), 0.0), "block"),
        ("block_sizes", (np.array([0]), np.array([2]), 0, 0, 2), "leaves the 2 vertices"),
        ("fill_blocks", (*ENDS, 0, 0, 2, True, *block_arrays(1)), "no room"),
        ("fill_blocks", (*ENDS, 0, 0, 2, True, *block_arrays(2, np.int16)), "int32 or int64"),
        ("sort_rows", (np.array([0]), np.array([5], np.uint16), *np.zeros((2, 4), np.int64)), "does not have"),
        ("looked_up", (np.arange(3), np.array([3])), "below their bound"),
        ("dealt", (np.array([2]), 2, [], []), "below their bound"),
        ("dealt", (np.array([1]), 2, [np.ones(2)], [np.ones(2)]), "a row for each key"),
        ("dealt", (np.array([1]), 2, [np.ones((1, 2))], [np.ones(1)]), "shapes of the columns"),
        ("buckets_of", (np.array([5]), np.array([0, 2, 5])), "beyond the buckets"),
        ("buckets_of", (np.array([1]), np.array([0, 2, 1])), "ascend"),
        ("stable_order", (np.array([0, 1]), 2, np.array([1, -1], np.int32)), "negative"),
        ("stable_order", (np.array([0, 2]), 2), "below their bound"),
        ("stable_order", (np.array([0, 1]), 2, np.array([1])), "one for each key"),
        ("count_ids", (np.array([-1]), np.zeros(2, np.int64)), "below their bound"),
        ("add_sums", (np.array([2]), np.ones(1), np.zeros(2), np.zeros(2)), "below their bound"),
        ("add_sums", (np.array([1]), np.ones(1), np.zeros(2), np.zeros(1)), "as long as totals"),
    ],
)
def test_kernels_refuse_what_is_no_graph(kernel: str, given: tuple[object, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(_native, kernel)(*given)
