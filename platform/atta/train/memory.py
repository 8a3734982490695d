"""How much memory a trainer needs for a step, from counted vertices and edges, and how many steps an epoch must have to fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.train.config import DEEP_MODELS, TrainConfig
from atta.train.cooperative.views import WorkerView

__all__ = ["Size", "estimate", "fewest_batches"]

_FLOAT = 4
_EDGE = 64
"""Bytes of indices per edge: source and target, once in all and once in two parts, and the same again as a matrix."""
_MARGIN = 1.1
"""What counting does not see: the allocator's gaps, and co-batches that are larger than those that were counted."""
_STATES = 4
"""Numbers per weight: the weight, its gradient and two moments of Adam."""


@dataclass(frozen=True)
class Size:
    """What a trainer computes in a step: own rows, rows that it reads of others, edges."""

    own: int
    remote: int
    edges: int

    @classmethod
    def of(cls, view: WorkerView) -> Size:
        """The numbers of a view."""
        return cls(len(view.own), len(view.remote), view.edge_index.shape[1])


def estimate(config: TrainConfig, size: Size, channels: int, weights: int) -> int:
    """Bytes that a trainer needs for a step over ``size``: kept for backward, plus one layer's work, plus the weights.

        1.1 * (4 * (own * channels + layers * kept + widest) + 64 * edges + 16 * weights)
        kept   = (own * r + remote) * width + edges * e
        widest = 2 * edges * width where a layer makes a row per edge

    channels: of the features; weights: parameters of the model. ``width`` is ``hidden`` (of the first layer ``channels`` where
    they are more), ``r`` rows of that width which a layer keeps per own vertex, ``e`` numbers that it keeps per edge (``_kept``).
    With ``checkpoint_layers`` a layer keeps its input only, and one layer at a time is there as a whole.
    """
    rows, per_edge, width = _kept(config), _kept_per_edge(config), config.hidden
    layer = (size.own * rows + size.remote) * width + size.edges * per_edge
    layers = config.depth * layer
    if config.model not in DEEP_MODELS and channels > width:
        layers += (size.own + size.remote) * (channels - width)  # the first layer reads and adds up features
    if config.checkpoint_layers:
        layers = config.depth * size.own * width + layer
    # Sums over neighbours by a sparse matrix need no row per edge; that is how sage and gcn work on the CPU.
    widest = 2 * size.edges * max(width, channels if config.model not in DEEP_MODELS else 0)
    if config.model in ("sage", "gcn") and config.device == "cpu":
        widest = 0
    numbers = size.own * channels + layers + widest
    return int(_MARGIN * (_FLOAT * (numbers + _STATES * weights) + _EDGE * size.edges))


def _kept(config: TrainConfig) -> int:
    """Rows of width ``hidden`` that a layer keeps per own vertex: its input, sums, linear maps, activation, dropout."""
    return {"sage": 5, "gcn": 4, "gat": 5}.get(config.model, 12)


def _kept_per_edge(config: TrainConfig) -> int:
    """Numbers that a layer keeps per edge: messages and, for attention and softmax, their weights."""
    per_edge = {"sage": 0, "gcn": 0, "gat": config.hidden + 5 * config.heads, "resgcn+": 2 * config.hidden}
    return per_edge.get(config.model, 6 * config.hidden)


def fewest_batches(need: Callable[[int], int], memory: int, most: int) -> int:
    """The number of co-batches with which a step fits into ``memory`` bytes, at most an eighth more than the fewest.

    need: bytes of a step when an epoch has so many; most: how many there can be (one target in each).

    Raises:
        ConfigError: not even ``most`` fit; says how much would do.
    """
    low, high = 0, 1
    while (needed := need(high)) > memory:
        if high >= most:
            raise ConfigError(
                f"--memory {_readable(memory)}: with {high} co-batches, the most there can be, a trainer needs "
                f"{_readable(needed)}; take more trainers per server, fewer layers or channels, --eas, or --checkpoint-layers"
            )
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (low, middle) if need(middle) <= memory else (middle, high)
    return high


def _readable(count: int) -> str:
    """Rounded up, so that what an error asks for is enough."""
    shift, unit = (20, "MiB") if count >= 10 << 20 else (10, "KiB")
    return f"{-(-count // (1 << shift)):,} {unit}"
