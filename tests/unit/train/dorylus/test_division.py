"""Intervals: as many vertices and nearly as many edges in each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train.dorylus.gathering import interval_rows
from atta.train.dorylus.progress import PipelineStage, stages_of


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(0, 300), st.integers(0, 20))
def test_intervals_balance_vertices_and_edges(seed: int, vertices: int, edges: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    ends = np.stack([rng.integers(0, vertices + others, edges), rng.integers(0, vertices, edges)])
    intervals = int(rng.integers(1, vertices + 1))
    rows = interval_rows(ends, vertices, intervals)
    assert sorted(np.concatenate(rows).tolist()) == list(range(vertices))
    assert all((np.diff(one) > 0).all() for one in rows)
    sizes = [len(one) for one in rows]
    assert max(sizes) - min(sizes) <= 1
    degrees = np.zeros(vertices, np.int64)
    for source, target in ends.T.tolist():
        if source != target:
            degrees[target] += 1
            if source < vertices:
                degrees[source] += 1
    sums = [int(degrees[one].sum()) for one in rows]
    assert max(sums) - min(sums) <= degrees.max()


def test_a_hub_does_not_make_an_interval_heavy() -> None:
    hub = np.stack([np.arange(1, 400) % 100, np.zeros(399, np.int64)])
    first = next(rows for rows in interval_rows(hub, 100, 10) if 0 in rows)
    assert len(first) == 10


@pytest.mark.parametrize(("vertices", "intervals"), [(3, 4), (5, 0)])
def test_more_intervals_than_vertices_are_refused(vertices: int, intervals: int) -> None:
    with pytest.raises(ConfigError, match=f"intervals={intervals}"):
        interval_rows(np.zeros((2, 0), np.int64), vertices, intervals)


def test_a_partition_without_vertices_is_not_helped_by_fewer_intervals() -> None:
    with pytest.raises(ConfigError, match="a partition has no vertices") as caught:
        interval_rows(np.zeros((2, 0), np.int64), 0, 1)
    assert "fewer intervals" not in str(caught.value)


def test_stages_of_two_layers_are_those_of_the_paper() -> None:
    assert [f"{stage.part} {stage.layer}" for stage in stages_of(2)] == [
        "gather 0", "apply 0", "scatter 0", "gather 1", "loss 1", "scatter-back 1", "gather-back 0", "apply-back 0",
    ]  # fmt: skip


@pytest.mark.parametrize("layers", [1, 2, 3, 7])
def test_workers_compute_two_tasks_per_layer_less_one(layers: int) -> None:
    stages = stages_of(layers)
    assert sum(not stage.by_trainer for stage in stages) == 2 * layers - 1
    assert [stage.layer for stage in stages if stage.gives_gradient] == list(reversed(range(layers)))
    assert stages[0] == PipelineStage("gather", 0)
    with pytest.raises(ConfigError, match="0 layers"):
        stages_of(0)
