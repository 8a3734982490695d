"""Running totals: after any history of a graph they are what all of its edges add up to."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import GATConv, GCNConv, GraphConv, SAGEConv

from atta.client.inference.block import LayerBlock
from atta.client.inference.followed import FollowedState, Marks, differing
from atta.client.inference.stages import Rows, Stage, layerwise_stages
from atta.daemon.versions import UpdateService
from atta.samplers.shard import Shard
from atta.train.launching import totals
from atta.train.launching.totals import RunningTotals, StageChanges, block_totals
from atta.train.models.own import own_layers
from atta.train.models.sums import layer_sums


def drawn(made: Generator[Any, None, Marks]) -> tuple[list[Any], Marks]:
    """All that a generator yields, and what it returns."""
    new: list[Any] = []

    def run() -> Generator[Any, None, None]:
        new.append((yield from made))

    return [*run()], new[0]


class KeptRows:
    """A table, and its rows before the version that is written."""

    def __init__(self, count: int, width: int | None, dtype: str) -> None:
        self.values = np.zeros((count,) if width is None else (count, width), dtype)
        self.versions, self.before = np.full(count, -1), self.values.copy()

    def pull(self, at: np.ndarray, *, versions: bool = False) -> SimpleNamespace:
        return SimpleNamespace(values=self.values[at], versions=self.versions[at])

    def push(self, at: np.ndarray, values: np.ndarray, *, version: int) -> SimpleNamespace:
        self.values[at], self.versions[at] = values, version
        return SimpleNamespace(wait=lambda: None)


class Followed:
    """A follower of a graph in this process: two daemons, layers that are kept by totals, rows that are never too new."""

    def __init__(self, layers: list[Any], rng: np.random.Generator, vertices: int, edges: int) -> None:
        self.rng, self.count, self.version = rng, vertices, 0
        self.firsts = [0, int(rng.integers(1, vertices)), vertices]
        self.ends = rng.integers(0, vertices, (2, edges))
        self.x = rng.standard_normal((vertices, 4)).astype(np.float32)
        made, widths = own_layers(layers, torch.device("cpu"), 4, {}, None)
        self.stages = layerwise_stages(made, widths, None)
        self.schema = SimpleNamespace(
            edge_types=["to"], endpoints=lambda _: ("node", "node"), check_edge_type=str, node_counts={"node": vertices}
        )
        self.kept: dict[str, KeptRows] = {}
        self.tables = self
        for number, stage in enumerate(self.stages):
            self.stages[number] = stage = replace(stage, writes=stage.writes or Rows("", stage.width))
            self.create(stage.writes, "node")
        self.running = [RunningTotals(self, self, s, "node", f"totals-{n}") for n, s in enumerate(self.stages)]
        for stage, running in zip(self.stages, self.running, strict=True):
            self.rows(stage.writes).push(
                np.arange(vertices), running.computed(self.block(stage), np.arange(vertices), 0), version=0
            )

    def create(self, rows: Rows, _: str, dtype: str = "<f4", *, totals: bool = False) -> None:
        self.kept[rows.name] = KeptRows(self.count, rows.width, dtype)

    def rows(self, rows: Rows) -> KeptRows:
        return self.kept[rows.name]

    def both(self, rows: Rows, at: np.ndarray, version: int) -> tuple[np.ndarray, np.ndarray]:
        return self.rows(rows).values[at], self.rows(rows).before[at]

    def ask_all(self, _: str, request: Any) -> list[Any]:
        return [asyncio.run(self.answer(part, request)) for part in range(2)]

    async def answer(self, part: int, request: Any) -> Any:
        low, high = self.firsts[part : part + 2]
        shard, mine = object.__new__(Shard), (self.ends[1] >= low) & (self.ends[1] < high)
        order = np.argsort(self.ends[1][mine], kind="stable")
        indptr = np.searchsorted(self.ends[1][mine][order], np.arange(low, high + 1))
        shard._edges = {"to": SimpleNamespace(drawn=SimpleNamespace(indptr=indptr, indices=self.ends[0][mine][order]))}

        async def edges_from(edge_type: str, sources: Marks, _: int, targets: range, most: int) -> Any:
            rows = range(max(targets.start - low, 0), max(min(targets.stop, high) - low, 0))
            counts, found = shard.edges_from(edge_type, sources, rows, most)
            return counts, found, len(counts) < len(rows)

        versions = SimpleNamespace(own=SimpleNamespace(dataset=self), edges_from=edges_from)
        return await UpdateService(versions).edges_from(request, None)

    def block(self, stage: Stage) -> LayerBlock:
        """All vertices, with what the tables have."""
        order = np.argsort(self.ends[1], kind="stable")
        x = np.empty((self.count, 0), np.float32)
        for rows in stage.reads.values():
            x = self.x if rows is None else self.rows(rows).values
        degrees = {rule: self.rows(rows).values for rule, rows in stage.degrees.items()}
        return LayerBlock(x, self.ends[:, order], self.count, degrees)

    def follow(self, gone: int, new: int) -> None:
        """Exchange some edges, and have all stages follow."""
        chosen = self.rng.choice(self.ends.shape[1], min(gone, self.ends.shape[1]), replace=False)
        came = self.rng.integers(0, self.count, (2, new))
        signs = np.repeat([-1, 1], [len(chosen), new])
        changed = np.concatenate([np.concatenate([self.ends[:, chosen], came], axis=1)[::-1], [signs]])
        self.changed = changed[:, np.argsort(changed[0], kind="stable")]
        self.ends = np.concatenate([np.delete(self.ends, chosen, axis=1), came], axis=1)
        state, moved = FollowedState(version=self.version), dict[Any, Marks]()
        self.version += 1
        for table in self.kept.values():
            table.before = table.values.copy()
        for stage, running in zip(self.stages, self.running, strict=True):
            marks = np.zeros(self.count, bool)
            for rows in stage.all_reads:
                marks |= moved[rows]
            table, differ = self.rows(stage.writes), np.zeros(self.count, bool)
            of = StageChanges({"node": marks}, {"to": self.changed}, state, self.version, lambda _, at: self.x[at])
            new, anew = drawn(running.added(of))
            assert not anew.any()
            for at, values in new:
                differ[at] = differing(values, table.values[at])
                table.push(at, values, version=self.version)
            moved[stage.writes] = differ

    def check(self) -> None:
        for number, stage in enumerate(self.stages):
            block, found = self.block(stage), self.rows(stage.writes).values
            wanted = block_totals(stage.sums, block)
            np.testing.assert_allclose(self.kept[f"totals-{number}"].values, wanted, rtol=1e-12, atol=1e-12)
            rows = stage.compute(block).reshape(self.count, -1)
            off, size = np.linalg.norm(found.reshape(rows.shape) - rows, axis=1), np.linalg.norm(rows, axis=1)
            assert (off <= 1e-5 * np.maximum(size, 0.1)).all()  # values near 1 may leave little of each other


SUMMED = {
    "mean": lambda: [SAGEConv(4, 6), torch.nn.ReLU(), SAGEConv(6, 3, normalize=True)],
    "sum": lambda: [SAGEConv(4, 6, "sum"), torch.nn.ReLU(), GraphConv(6, 3), GraphConv(3, 5)],
    "gcn": lambda: [GCNConv(4, 6), torch.nn.Tanh(), GCNConv(6, 3)],
    "bare": lambda: [GCNConv(4, 6, normalize=False), GCNConv(6, 3, normalize=False)],
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch cost more than sums of a few rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", SUMMED)
def test_running_totals_are_those_of_all_edges_after_any_history(kind: str) -> None:
    """Also where a daemon tells few edges, and few vertices, at a time."""

    @settings(max_examples=50, deadline=None)
    @given(
        st.integers(2, 12), st.integers(0, 40), st.sampled_from([256, 2048, 1 << 20]), st.randoms(use_true_random=False)
    )
    def run(vertices: int, edges: int, nbytes: int, random: Random) -> None:
        torch.manual_seed(0)
        with mock.patch.object(totals, "_BLOCK_BYTES", nbytes):
            followed = Followed(SUMMED[kind](), np.random.default_rng(random.getrandbits(32)), vertices, edges)
            for _ in range(4):
                followed.follow(random.randrange(4), random.randrange(4))
                followed.check()

    run()


def test_running_totals_do_not_drift() -> None:
    torch.manual_seed(0)
    followed = Followed(SUMMED["gcn"](), np.random.default_rng(0), 10, 60)
    for _ in range(300):
        followed.follow(2, 2)
    followed.check()


def test_totals_that_are_no_numbers_are_computed_anew() -> None:
    followed = Followed(SUMMED["mean"](), np.random.default_rng(0), 6, 0)
    followed.kept["totals-0"].values[2] = np.inf
    followed.kept["totals-0"].versions[4] = -1  # was never written
    followed.changed, state = np.array([[2, 4, 5], [0, 1, 1], [1, 1, 1]]), FollowedState(version=0)
    read = StageChanges({"node": np.zeros(6, bool)}, {"to": followed.changed}, state, 1, lambda _, at: followed.x[at])
    new, anew = drawn(followed.running[0].added(read))
    assert [at.tolist() for at, _ in new] == [[5]]
    assert np.flatnonzero(anew).tolist() == [2, 4]


def test_layers_that_do_more_than_to_add_up_have_no_totals() -> None:
    cpu, changed = torch.device("cpu"), SAGEConv(4, 3)
    changed.message = lambda x_j: 2 * x_j
    others = [GATConv(4, 3), SAGEConv(4, 3, "max"), SAGEConv(4, 3, project=True), GCNConv(4, 3, improved=True), changed]
    assert [layer_sums(conv, cpu) for conv in others] == [None] * len(others)
    assert layer_sums(SAGEConv(4, 3), cpu).widths == {"": 4}  # of shorter rows, and a count
    assert layer_sums(GCNConv(4, 6), cpu).widths == {"": 4}
