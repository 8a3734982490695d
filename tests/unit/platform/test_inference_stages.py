"""The stages of an inference: what they read has been written, and rows are kept exactly as long as somebody reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.client.inference.block import DegreeRule, Floats, LayerBlock
from atta.client.inference.stages import Stage, layerwise_stages, sampled_stages, unread
from atta.client.inference.trial import layer_widths
from atta.errors import ConfigError


@dataclass
class Sum:
    """Adds up the rows of a vertex and its in-neighbours, and repeats the first number up to ``width``."""

    width: int
    degrees: DegreeRule | None = None
    row_per_edge: bool = False
    hops: int = 1
    edge_arguments: tuple[str, ...] = ()

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


def test_widths_are_found_by_trying() -> None:
    assert layer_widths([Sum(3), Sum(1, COUNTED), Sum(5)], 4) == [4, 3, 1, 5]


@pytest.mark.parametrize("hops", [(1, 1, 1), (2, 1), (1, 2), (3,)])
def test_layers_on_a_sampled_batch_read_their_own_hops_less_each(hops: tuple[int, ...]) -> None:
    """A path 3 -> 2 -> 1 -> 0 with one seed: three hops of one vertex each."""
    layers = [Sum(1, hops=h) for h in hops]
    (stage,) = sampled_stages(layers, [1] * (1 + len(layers)), None, [2])
    assert stage.fan_outs == (2, 2, 2)
    x = np.array([[1], [10], [100], [1000]], np.float32)
    edges = np.array([[1, 2, 3], [0, 1, 2]])
    assert stage.compute is not None
    found = stage.compute(LayerBlock(x, edges, 1, nodes_per_hop=[1, 1, 1, 1], edges_per_hop=[1, 1, 1]))
    whole = x
    for _ in range(3):
        whole = whole + np.vstack([whole[1:], [[0]]])
    assert found.tolist() == whole[:1].tolist() == [[1331]]
    with pytest.raises(ConfigError, match=f"2 fan-outs for {len(layers)} layers"):
        sampled_stages(layers, [1, 1, 1, 1], None, [2, 2])


@pytest.mark.parametrize("rule", [DegreeRule(None), DegreeRule(2.0)])
def test_layers_that_count_otherwise_take_degrees_of_the_batch_but_with_all_neighbours_those_of_the_graph(
    rule: DegreeRule,
) -> None:
    edges, x = np.array([[1, 2, 0], [0, 0, 0]]), np.array([[3], [4], [5]], np.float32)  # the last one is a self-loop

    def found(stage: Stage, degrees: Mapping[DegreeRule, Floats]) -> list[list[float]]:
        assert stage.compute is not None
        return stage.compute(LayerBlock(x, edges, 1, degrees, nodes_per_hop=[1, 2], edges_per_hop=[3])).tolist()

    (stage,) = sampled_stages([Sum(1, rule)], [1, 1], None, [2])
    assert found(stage, {}) == [[5.0]]
    counting, stage = sampled_stages([Sum(1, rule)], [1, 1], None, [-1])
    assert counting.writes == stage.degrees[rule]
    assert found(stage, {rule: np.full(3, 5, np.float32)}) == [[3.0]]
    assert not stage.weighed


@dataclass
class Weighed:
    """Adds up the rows of in-neighbours, times the edges' weights if it asks for degrees."""

    degrees: DegreeRule | None
    row_per_edge: bool = False
    hops: int = 1
    edge_arguments: tuple[str, ...] = ()

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
        (stage,) = sampled_stages([Weighed(one) for one in asks], [1, 1, 1], None, [2])
        assert stage.weighed
        assert stage.compute is not None
        assert stage.compute(block).tolist() == [[expected]]
    (stage,) = sampled_stages([Weighed(None)], [1, 1], None, [2])
    assert not stage.weighed
