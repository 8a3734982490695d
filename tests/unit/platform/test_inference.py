"""Inference: what a process does next, what stages read, what a trial says of layers, the best targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.inference.block import DegreeRule, Floats, LayerBlock, in_degrees, one_prepared
from atta.client.inference.followed import Marks, affected, differing
from atta.client.inference.sinks import DESCRIPTION, FileSink, discard
from atta.client.inference.stages import Stage, layerwise_stages, sampled_stages, unread
from atta.client.inference.task import BestTargets, InferencePlan, InferenceStep, TargetBlock, block_size, share_count
from atta.client.inference.trial import largest_difference, layer_widths
from atta.errors import ConfigError


@given(st.integers(1, 40), st.integers(1, 12))
def test_shares_are_divided_evenly_and_without_gaps(shares: int, world: int) -> None:
    mine = [list(InferencePlan(1, shares, rank, world).mine) for rank in range(world)]
    assert list(chain(*mine)) == list(range(shares))
    assert max(map(len, mine)) - min(map(len, mine)) <= 1


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_order_of_processes_does_each_share_once_after_the_stage_before(stages, shares, world, random) -> None:
    plans = [InferencePlan(stages, shares, rank, world) for rank in range(world)]
    done, runs = np.zeros((stages, shares), bool), []
    at_work: dict[int, InferenceStep] = {}
    while True:
        rank = random.randrange(world)
        if rank in at_work:
            step = at_work.pop(rank)
            assert not done[step.stage, step.share]
            done[step.stage, step.share] = True
            continue
        step = plans[rank].next(done)
        if step and step.share is not None:
            assert step.stage == 0 or done[step.stage - 1].all()
            runs.append(step)
            at_work[rank] = step
        if done.all():
            break
        # Somebody can always go on, so nobody waits for ever.
        steps = [plan.next(done) for plan in plans]
        assert at_work or any(step and step.share is not None for step in steps)
    assert len(runs) == len(set(runs)) == stages * shares
    assert all(plan.next(done) is None for plan in plans)


def test_a_process_whose_files_are_finished_still_computes_what_others_read() -> None:
    zero, one = (InferencePlan(2, 2, rank=rank, world=2) for rank in range(2))
    assert zero.next(np.array([[False, False], [True, False]])) == InferenceStep(0, 0)
    assert zero.next(np.array([[True, False], [True, False]])) is None
    assert one.next(np.array([[True, False], [True, False]])) == InferenceStep(0, 1)
    assert one.next(np.array([[False, True], [True, False]])) == InferenceStep(0, None)
    assert InferencePlan(3, 2).next(np.array([[False, False], [False, False], [True, True]])) is None


@pytest.mark.parametrize(
    ("arguments", "words"), [((0, 1), "layer"), ((1, 0), "files"), ((1, 1, 1, 1), "rank"), ((1, 1 << 17), "files")]
)
def test_plans_that_make_no_sense_are_refused(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        InferencePlan(*arguments)
    with pytest.raises(ConfigError, match="shape"):
        InferencePlan(2, 2).next(np.zeros((1, 2), bool))


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_process_and_partition_has_a_share(processes: int, parts: int) -> None:
    shares = share_count(processes, parts)
    assert shares % processes == 0
    assert parts <= shares < parts + processes


@given(st.integers(1, 10**9), st.integers(0, 10**11), st.integers(1, 4096), st.booleans())
def test_blocks_have_bounded_memory(vertices: int, edges: int, width: int, queued: bool) -> None:
    assert block_size(60_000, 3_000_000, 256, row_per_edge=False, queued=False) == (1 << 20) // 51  # it fits
    assert block_size(245_000, 12_000_000, 256, row_per_edge=False, queued=False) == (1 << 17) // 50
    by_edge = block_size(vertices, edges, width, row_per_edge=True, queued=queued)
    summed = block_size(vertices, edges, width, row_per_edge=False, queued=queued)
    degree = edges / vertices
    assert 1 <= by_edge <= 1 << 15
    assert 1 <= summed <= 1 << 15
    assert by_edge == 1 or by_edge * degree * width * 4 <= 64 << 20
    assert summed == 1 or summed * degree <= 1 << 20
    assert summed == 1 or min(vertices, summed * (1 + degree)) * width * 4 <= (64 if queued else 128) << 20


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (DegreeRule(), [3, 2, 1, 1]),
        (DegreeRule(None), [3, 1, 1, 0]),
        (DegreeRule(2.0, "w"), [2.25 + 0.5, 3 + 2, 4, 2]),
        (DegreeRule(None, "w"), [2.75, 3, 4, 0]),
    ],
)
def test_in_degrees_have_one_self_loop_or_those_of_the_graph(rule: DegreeRule, wanted: list[float]) -> None:
    edges, weights = np.array([[0, 1, 1, 2, 2], [0, 0, 0, 1, 2]]), np.array([0.5, 2, 0.25, 3, 4], np.float32)
    block = LayerBlock(np.zeros((4, 1), np.float32), edges, 4, {}, {"w": weights})
    assert in_degrees(block, rule).tolist() == wanted


def test_the_next_item_is_prepared_while_one_is_in_use() -> None:
    made = []
    prepared = one_prepared(range(4), lambda n: made.append(n) or n * n)
    assert next(prepared) == 0
    assert list(prepared) == [1, 4, 9]
    assert made == [0, 1, 2, 3]

    def fail(number: int) -> int:
        if number == 1:
            raise ConfigError("no")
        return number

    failing = one_prepared(range(4), fail)
    assert next(failing) == 0
    with pytest.raises(ConfigError):
        next(failing)


@given(
    st.integers(1, 6), st.integers(0, 12), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(0, 2**32)
)
def test_the_best_targets_of_all(sources: int, targets: int, count: int, block: int, loops: bool, seed: int) -> None:
    """Few different scores, so that many are equal; ids in no order."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(40)[:sources]
    others = rng.permutation(40)[:targets]
    scores = rng.integers(0, 3, (sources, targets)).astype(np.float32)
    linked = {(int(rng.integers(40)), int(v)) for v in rng.choice(others, rng.integers(0, 9))} if targets else set()
    best = BestTargets(ids, count, loops=loops)
    for places in np.array_split(rng.permutation(targets), block):
        pairs = [(u, place) for place, v in enumerate(others[places]) for u, w in linked if w == v]
        best.take(scores[:, places], TargetBlock(others[places], np.array(pairs, np.int64).reshape(-1, 2).T))
    expected = []
    for row, u in enumerate(ids.tolist()):
        free = [v for v in others.tolist() if (u, v) not in linked and not (loops and u == v)]
        of_target = {v: float(scores[row, others.tolist().index(v)]) for v in free}
        expected += [(u, v, of_target[v]) for v in sorted(free, key=lambda v: (-of_target[v], v))[:count]]
    pairs, values = best.pairs()
    assert [(*pair, score) for pair, score in zip(pairs.tolist(), values.tolist(), strict=True)] == expected


def test_scores_that_are_no_numbers_are_never_the_best() -> None:
    best = BestTargets(np.array([5]), 2, loops=False)
    targets = TargetBlock(np.array([1, 2, 3]), np.empty((2, 0), np.int64))
    best.take(np.array([[np.nan, 1, -np.inf]], np.float32), targets)
    pairs, values = best.pairs()
    assert (pairs.tolist(), values.tolist()) == ([[5, 2]], [1.0])


@dataclass
class Layer:
    width: int = 1
    degrees: DegreeRule | None = None
    row_per_edge: bool = False
    hops: int = 1
    edge_arguments: tuple[str, ...] = ()
    sums: None = None


class Sum(Layer):
    """Adds up the rows of a vertex and its in-neighbours, and repeats the first number up to ``width``."""

    def __call__(self, block: LayerBlock) -> Floats:
        out = block.x.copy()
        for _ in range(self.hops):
            before = out.copy()
            np.add.at(out, block.edge_index[1], before[block.edge_index[0]])
        out = out[: block.targets]
        if self.degrees is not None:
            out /= block.degrees[self.degrees][: block.targets, None]
        return np.repeat(out[:, :1], self.width, axis=1)


COUNTED = DegreeRule()


def reads(stage: Stage) -> set[object]:
    used = (*stage.reads.values(), *stage.degrees.values(), *(stage.ends or ()))
    return {rows for rows in used if rows is not None}


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.booleans())
def test_every_stage_reads_what_earlier_ones_have_written(degrees: list[bool], pairs: bool) -> None:
    layers = [Sum(2 + number, COUNTED if counted else None) for number, counted in enumerate(degrees)]
    assert layer_widths(layers, 7) == [7, *range(2, 2 + len(layers))]
    stages = layerwise_stages(layers, layer_widths(layers, 7), "train", pairs=pairs)
    assert len(stages) == len(layers) + any(degrees) + pairs
    kept: set[object] = set()
    for number, stage in enumerate(stages):
        gone = unread(stages, number)
        assert all(not gone & reads(later) for later in stages[number:])
        kept -= gone
        assert reads(stage) <= kept
        assert kept <= set().union(*map(reads, stages[number:]))
        if stage.writes is not None:
            kept.add(stage.writes)
    assert [stage for stage in stages if stage.writes is None] == [stages[-1]]
    assert [stage.features for stage in stages].count(("",)) == 1
    named = [stage for stage in stages if stage.nodes == "train"]
    assert [stage.title for stage in named] == [f"layer {len(layers)} of {len(layers)}"]


@pytest.mark.parametrize("rule", [DegreeRule(None), DegreeRule(2.0)])
def test_layers_that_count_otherwise_take_degrees_of_the_batch(rule: DegreeRule) -> None:
    """But with all neighbours those of the graph."""
    edges, x = np.array([[1, 2, 0], [0, 0, 0]]), np.array([[3], [4], [5]], np.float32)  # the last one is a self-loop

    def found(stage: Stage, degrees: Mapping[DegreeRule, Floats]) -> list[list[float]]:
        return stage.compute(LayerBlock(x, edges, 1, degrees, nodes_per_hop=[1, 2], edges_per_hop=[3])).tolist()

    (stage,) = sampled_stages([Sum(1, rule)], [1, 1], None, [2])
    assert found(stage, {}) == [[5.0]]
    counting, stage = sampled_stages([Sum(1, rule)], [1, 1], None, [-1])
    assert counting.writes == stage.degrees[rule]
    assert found(stage, {rule: np.full(3, 5, np.float32)}) == [[3.0]]
    assert not stage.weighed


class Weighed(Layer):
    """Adds up the rows of in-neighbours, times the edges' weights if it asks for degrees."""

    def __call__(self, block: LayerBlock) -> Floats:
        assert (block.weights is None) == (self.degrees is None)
        weights = np.ones(block.edge_index.shape[1]) if block.weights is None else block.weights
        source, target = block.edge_index
        return np.bincount(target, weights * block.x[source, 0], block.targets)[:, None].astype(np.float32)


def test_sampled_layers_that_ask_for_degrees_get_weights() -> None:
    """A path 2 -> 1 -> 0. Vertex 0 has an edge to itself, and 0 and 1 got one more each for the layer that asks."""
    edges = np.array([[1, 0, 0, 2, 1], [0, 0, 0, 1, 1]])
    weights = np.array([0.5, 0, 0.25, 2, 4], np.float32)
    x = np.array([[3], [4], [5]], np.float32)
    block = LayerBlock(x, edges, 1, weights=weights, nodes_per_hop=[1, 1, 1], edges_per_hop=[3, 2])
    for asks, expected in (((COUNTED, None), 2.75 + 26), ((None, COUNTED), 0.5 * 5 + 0.25 * 7)):
        (stage,) = sampled_stages([Weighed(degrees=one) for one in asks], [1, 1, 1], None, [2])
        assert stage.weighed
        assert stage.compute(block).tolist() == [[expected]]
    (stage,) = sampled_stages([Weighed()], [1, 1], None, [2])
    assert not stage.weighed


def summed(block: LayerBlock, rows: Floats | None = None) -> Floats:
    """The rows of each vertex's edges, or of their sources."""
    out = np.zeros_like(block.x)
    np.add.at(out, block.edge_index[1], block.x[block.edge_index[0]] if rows is None else rows)
    return out[: block.targets]


def test_differences_are_parts_of_the_size_of_a_row() -> None:
    wanted = np.array([[1, -100], [1, 2], [0, 0], [np.nan, 1]], np.float32)
    assert largest_difference(wanted, wanted) == 0
    assert largest_difference(wanted + np.array([[1, 0], [0, 0], [0, 0], [0, 0]]), wanted) == pytest.approx(0.01)
    assert largest_difference(wanted + np.array([[0, 0], [0, 0], [0, 1], [0, 0]]), wanted) == pytest.approx(0.2)
    assert largest_difference(np.nan_to_num(wanted), wanted) == np.inf


# -- what an update can change -------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 12), st.integers(0, 3), st.randoms(use_true_random=False))
def test_affected_are_those_within_the_hops_of_what_has_changed(count: int, hops: int, random: Random) -> None:
    """And rows that a layer of sums gives anew are among them, also where edges go."""
    rng = np.random.default_rng(random.getrandbits(32))
    old = rng.integers(0, count, (2, int(rng.integers(0, 3 * count))))
    stays, new = rng.random(old.shape[1]) < 0.8, rng.integers(0, count, (2, int(rng.integers(0, 3))))
    edges = np.concatenate([old[:, stays], new], axis=1)
    rows, changed = rng.integers(0, 1 << 20, count), rng.random(count) < 0.2
    targets = np.zeros(count, bool)
    targets[np.concatenate([old[1, ~stays], new[1]])] = True

    def lead_to(_: str, sources: Marks) -> Marks:
        found = np.zeros(count, bool)
        found[edges[1, sources[edges[0]]]] = True
        return found

    found = affected(hops, "node", {"node": changed}, {"to": ("node", targets)}, lead_to)
    graph = nx.MultiDiGraph(edges.T.tolist())
    graph.add_nodes_from(range(count))
    starts = [(v, hops) for v in np.flatnonzero(changed)] + [(v, hops - 1) for v in np.flatnonzero(targets) if hops]
    wanted = {u for v, far in starts for u in nx.single_source_shortest_path_length(graph, v, cutoff=far)}
    assert set(np.flatnonzero(found)) == wanted

    def sums(x: np.ndarray, ends: np.ndarray) -> np.ndarray:
        for _ in range(hops):
            x = x * 3 + np.bincount(ends[1], x[ends[0]], count).astype(np.int64)
        return x

    before, after = sums(rows, old), sums(np.where(changed, rows + 1, rows), edges)
    assert not (before != after)[~found].any()


def test_rows_of_a_type_change_with_those_of_other_types_that_they_read() -> None:
    asked: list[str] = []

    def lead_to(edge_type: str, sources: Marks) -> Marks:
        asked.append(edge_type)
        return np.array([False, True, False, False])

    read = {"paper": np.arange(4) == 0, "author": np.array([True, False]), "field": np.zeros(2, bool)}
    edges = {
        "writes": ("author", np.zeros(4, bool)),
        "has": ("field", np.arange(4) == 2),
        "cites": ("paper", np.zeros(4, bool)),
    }
    assert affected(1, "paper", read, edges, lead_to).tolist() == [True, True, True, False]
    assert asked == ["writes", "cites"]  # nothing is asked of types that did not change


def test_rows_that_differ() -> None:
    old = np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0], [np.nan, 1.0], [0.0, 1e-40], [np.inf, 0.0]], np.float32)
    new = np.array([[3.0, 4.4], [3.0, 4.0], [0.0, 0.0], [np.nan, 1.0], [0.0, 2e-40], [1.0, 0.0]], np.float32)
    assert differing(new, old).tolist() == [True, False, False, True, True, True]
    assert differing(new, old, 0.1).tolist() == [False, False, False, True, True, True]
    assert differing(np.array([3, 5]), np.array([3, 4])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("ids", "values", "column", "classes", "wanted"),
    [
        ([7, 9], np.array([[0.1, 2], [3, 4]], np.float32), "score", None, "id,score_0,score_1|7,0.1,2.0|9,3.0,4.0|"),
        (["a,b", "c"], np.array([1, 2]), "class", ["x", "y"], 'id,class,name|"a,b",1,y|c,2,|'),
        ([[7, 9]], np.array([0.5], np.float32), "score", None, "source,target,score|7,9,0.5|"),
    ],
)
def test_csv_has_the_names_of_its_columns_once(
    tmp_path: Path, ids: Any, values: Any, column: str, classes: Any, wanted: str
) -> None:
    sink = FileSink(tmp_path / "out", "csv", 1, column, {"classes": classes} if classes else {})
    with sink.open(0) as writer:
        writer.write(np.array(ids)[:0], values[:0])
        writer.write(np.array(ids), values)
    written = (tmp_path / "out" / "part-00000-of-00001.csv").read_bytes().decode()
    assert written.replace("\r\n", "|") == wanted


def test_predictions_are_replaced_when_that_is_asked_for_and_other_folders_are_not(tmp_path: Path) -> None:
    def begun(what: str, name: str = "out") -> FileSink:
        return FileSink(tmp_path / name, "npy", 1, what, {"what": what})

    begun("scores")
    (tmp_path / "out" / "part-00000-of-00001.npy").write_bytes(b"rows")
    said = r"other predictions, which differ in --what: give another folder \(--out\), or replace them \(--overwrite\)$"
    with pytest.raises(ConfigError, match=said):
        begun("classes")
    discard(str(tmp_path / "out"))
    begun("classes")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [DESCRIPTION]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part-00000-of-00001.npy").write_bytes(b"mine")
    for name in ("mine", "absent", "s3://bucket/rows"):
        discard(name if "://" in name else str(tmp_path / name))
    with pytest.raises(ConfigError, match="holds other files"):
        begun("scores", "mine")
