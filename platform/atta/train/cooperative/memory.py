"""The memory of a trainer's step, and the fewest steps per epoch with which a step fits. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.train.cooperative.graph import WorkerView
from atta.train.settings.common import DEEP_MODELS, TrainSettings

_FLOAT = 4
_EDGE = 64
"""Bytes of indices per edge: source and target in one list and in two parts, and again as a matrix."""
_MARGIN = 1.3
"""Factor for what is not counted: gaps of the allocator, and co-batches that are larger than the counted ones."""
_STATES = 4
"""Numbers per weight: the weight, its gradient and two moments of Adam."""


@dataclass(frozen=True)
class Size:
    """Size of a trainer's step: own rows, other rows that it reads, edges. In a plan these are means."""

    own: float
    remote: float
    edges: float

    @classmethod
    def of(cls, view: WorkerView) -> Size:
        """The numbers of a view."""
        return cls(len(view.own), view.rows - len(view.own), view.edge_index.shape[1])


@dataclass(frozen=True)
class ModelShape:
    """The figures that memory depends on; ``channels``: of features, ``recomputed``: ``--checkpoint-layers``."""

    model: str
    layers: int
    hidden: int
    channels: int
    heads: int = 4
    recomputed: bool = False
    device: str = "cpu"


def estimate(config: TrainSettings, size: Size, channels: int, weights: int) -> int:
    """``step_bytes`` of a run; channels: of the features."""
    shape = ModelShape(
        config.model, config.depth, config.hidden, channels, config.heads, config.checkpoint_layers, config.device
    )
    return step_bytes(shape, size, weights)


def step_bytes(shape: ModelShape, size: Size, weights: float, mean_layer: Size | None = None) -> int:
    """Bytes that a trainer needs for a step over ``size``: what backward needs, one layer's temporary rows, and the weights.

        1.3 * (4 * (own * channels + layers * kept + widest) + 64 * edges + 16 * weights)
        kept   = (own * r + remote) * width + edges * e
        widest = 2 * edges * width where a layer makes a row per edge

    weights: parameters of the model. mean_layer: mean size of a layer, for mini-batches, whose layers get smaller. ``width``
    is ``hidden``; in the first layer it is ``channels`` if that is larger. A layer keeps ``r`` rows of that width per own
    vertex, and ``e`` values per edge. If activations are recomputed, it keeps only its input, and one is computed in full.
    """
    model, width, one = shape.model, shape.hidden, mean_layer or size
    # Of a vertex a layer keeps its input, sums, linear maps, activation and dropout.
    rows = {"sage": 5, "gcn": 4, "gat": 5}.get(model, 12)
    # Of an edge its message and, for attention and softmax, their weights.
    known = {"sage": 0, "gcn": 0, "gat": width + 5 * shape.heads, "resgcn+": 2 * width}
    layer = (one.own * rows + one.remote) * width + one.edges * known.get(model, 6 * width)
    layers = shape.layers * layer
    reads_features = model not in DEEP_MODELS  # those map them to ``hidden`` first
    if reads_features and shape.channels > width:
        layers += (size.own + size.remote) * (shape.channels - width)  # the first layer reads features and sums them
    if shape.recomputed:
        layers = shape.layers * one.own * width + layer
    numbers = size.own * shape.channels + layers
    if model not in ("sage", "gcn") or shape.device != "cpu":  # no sparse matrix sums up neighbours as it reads them
        numbers += 2 * size.edges * max(width, shape.channels if reads_features else 0)
    return int(_MARGIN * (_FLOAT * (numbers + _STATES * weights) + _EDGE * size.edges))


def fewest_batches(need: Callable[[int], int], memory: int, most: int) -> int:
    """The number of co-batches with which a step fits into ``memory`` bytes, at most an eighth more than the fewest.
    need: returns the bytes of a step for a number of co-batches. most: the largest number, with one target in each.
    Raises ConfigError: a step does not fit even with ``most``; the message says how much memory would be enough."""
    low, high = 0, 1
    while (needed := need(high)) > memory:
        if high >= most:
            raise ConfigError(
                f"memory={_readable(memory)}: with {high} co-batches, the most there can be, a trainer needs "
                f"{_readable(needed)}; take more trainers per server, fewer layers or channels, eas, or --checkpoint-layers"
            )
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (low, middle) if need(middle) <= memory else (middle, high)
    return high


def _readable(count: int) -> str:
    """Bytes with a unit, rounded up, so that the amount in an error is enough."""
    shift, unit = (20, "MiB") if count >= 10 << 20 else (10, "KiB")
    return f"{-(-count // (1 << shift)):,} {unit}"
