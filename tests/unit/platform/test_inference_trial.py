"""What a trial says of layers: the cause for which a vertex gets other rows in other blocks, or that it gets the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from atta.client.inference.block import DegreeRule, Floats, LayerBlock, in_degrees, with_company
from atta.client.inference.trial import TOLERANCE, LayerVerdict, largest_difference, tried
from atta.partition.schema import TableSpec


@dataclass
class Made:
    """A layer of a function."""

    rows: Callable[[LayerBlock], Floats]
    hops: int = 1
    degrees: DegreeRule | None = None
    edge_arguments: tuple[str, ...] = ()
    row_per_edge: bool = field(default=False, init=False)

    def __call__(self, block: LayerBlock) -> Floats:
        return self.rows(block)


def summed(block: LayerBlock) -> Floats:
    out = np.zeros_like(block.x)
    np.add.at(out, block.edge_index[1], block.x[block.edge_index[0]])
    return out[: block.targets]


def of_first_edge(block: LayerBlock) -> Floats:
    """The source of the first edge counts."""
    out = np.zeros_like(block.x)
    source, target = block.edge_index[:, ::-1]
    out[target] = block.x[source]
    return out[: block.targets]


def of_longest(block: LayerBlock) -> Floats:
    """As layers do that pad all neighbourhoods to the longest one."""
    return summed(block) / (1 + np.bincount(block.edge_index[1], minlength=1).max())


def scaled_within(block: LayerBlock) -> Floats:
    """By in-degrees of sources in the block."""
    scale = 1 / (1 + in_degrees(block, DegreeRule(None)))
    out = np.zeros_like(block.x)
    np.add.at(out, block.edge_index[1], (block.x * scale[:, None])[block.edge_index[0]])
    return out[: block.targets]


def scaled(block: LayerBlock) -> Floats:
    (degrees,) = block.degrees.values()
    return summed(LayerBlock(block.x / (1 + degrees[:, None]), block.edge_index, block.targets))


def failing_without(first: int) -> Callable[[LayerBlock], Floats]:
    """Looks at so many edges before those of a vertex."""

    def rows(block: LayerBlock) -> Floats:
        starts = np.searchsorted(block.edge_index[1], np.arange(block.targets))
        empty = np.bincount(block.edge_index[1], minlength=block.targets)[: block.targets] == 0
        if (starts[empty] < first).any():
            raise IndexError("index out of range")
        return summed(block)

    return rows


def failing_on_several_without(block: LayerBlock) -> Floats:
    """As attention over padded neighbourhoods does."""
    if block.targets > 1 and not block.edge_index.size:
        raise RuntimeError("cannot reshape tensor of 0 elements")
    return summed(block)


def weighted(block: LayerBlock) -> Floats:
    out = np.zeros_like(block.x)
    np.add.at(out, block.edge_index[1], block.x[block.edge_index[0]] * block.edge_rows["w"][:, None])
    return out[: block.targets]


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (Made(summed), None),
        (Made(weighted, edge_arguments=("w",)), None),
        (Made(scaled, degrees=DegreeRule()), None),
        (Made(scaled_within), "far"),
        (Made(scaled_within, hops=2), None),
        (Made(lambda block: block.x[: block.targets] ** 2, hops=0), None),
        (Made(lambda block: block.x[: block.targets] - block.x.mean(0), hops=0), "others"),
        (Made(of_longest), "others"),
        (Made(of_first_edge), "order"),
        (Made(lambda block: np.random.default_rng().random((block.targets, 2), np.float32)), "random"),
        (Made(lambda block: summed(block)[:, 0]), "shape"),
        (Made(lambda block: block.x), "shape"),
        (Made(lambda block: np.linalg.inv(block.x)), "raises"),
        (Made(failing_without(2)), None),
        (Made(failing_on_several_without), None),
        (Made(failing_without(1000)), "raises"),
    ],
)  # fmt: skip
def test_the_cause_is_found_by_running(layer: Made, kind: str | None) -> None:
    verdict = tried(layer, 4, {"w": TableSpec("<f4")})
    assert (verdict.fault.kind if verdict.fault else None) == kind, verdict
    if verdict.fault is None:
        assert verdict == LayerVerdict(4, None, layer.rows.__qualname__.startswith("failing"))
    else:
        assert (verdict.fault.off > TOLERANCE) == (kind in ("far", "others", "order", "random"))


def test_layers_that_read_codes_in_place_of_numbers_are_tried_with_some() -> None:
    names = np.arange(4, dtype=np.float32).reshape(2, 2)

    def rows(block: LayerBlock) -> Floats:
        if (block.x[:, 0] != block.x[:, 0].astype(int)).any():
            raise ValueError("no codes")
        return names[block.x[: block.targets, 0].astype(int)]

    assert tried(Made(rows), 3) == LayerVerdict(2)


def test_differences_are_parts_of_the_size_of_a_row() -> None:
    wanted = np.array([[1, -100], [1, 2], [0, 0], [np.nan, 1]], np.float32)
    assert largest_difference(wanted, wanted) == 0
    assert largest_difference(wanted + np.array([[1, 0], [0, 0], [0, 0], [0, 0]]), wanted) == pytest.approx(0.01)
    assert largest_difference(wanted + np.array([[0, 0], [0, 0], [0, 1], [0, 0]]), wanted) == pytest.approx(0.2)
    assert largest_difference(np.nan_to_num(wanted), wanted) == np.inf


def test_company_is_a_first_vertex_with_two_edges() -> None:
    x, edges = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([[2, 0], [1, 1]])
    block = LayerBlock(x, edges, 2, {DegreeRule(): np.array([5, 6, 7], np.float32)}, {"w": np.array([3, 4])})
    found = with_company(block)
    assert found.targets == 3
    np.testing.assert_array_equal(summed(found)[1:], summed(block))
    assert found.edge_index.tolist() == [[4, 4, 3, 1], [0, 0, 2, 2]]
    assert found.edge_rows["w"].tolist() == [0, 0, 3, 4]
    assert found.degrees[DegreeRule()].tolist() == [1, 5, 6, 7, 1]
