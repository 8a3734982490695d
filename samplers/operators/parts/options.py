"""Checks of operators' options, which may come over the wire. Every error names the option and its value."""

from __future__ import annotations

from collections.abc import Sequence

from atta.errors import ConfigError
from atta.samplers.arguments import whole

__all__ = ["MAX_EDGES", "MAX_VERTICES", "check_layers", "check_number", "check_whole"]

MAX_VERTICES = 1 << 24
"""An option may ask for at most this many vertices, per batch or per seed."""
MAX_EDGES = 1 << 31
"""At most this many edges are in a batch: it numbers edges and vertices with 32 bits."""
_MAX_LAYERS = 32


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise ConfigError unless ``value`` is a whole number in ``least`` ... ``most``."""
    whole(name, value, least, most)


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Refuse a value that is not a number from ``low`` to just below ``high``. NaN is refused too: it compares as
    false."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value < high:
        raise ConfigError(f"{name} {value!r}: must be a number, at least {low:g} and below {high:g}")


def check_layers(layers: object) -> tuple[int, ...]:
    """``layers`` as a tuple. It must list 1 to 32 numbers of vertices."""
    if not isinstance(layers, Sequence) or isinstance(layers, str | bytes) or not 1 <= len(layers) <= _MAX_LAYERS:
        raise ConfigError(f"layers {layers!r}: must list a number of vertices for 1 to {_MAX_LAYERS} layers")
    for i, size in enumerate(layers):
        check_whole(f"layers[{i}]", size, 1, MAX_VERTICES)
    return tuple(layers)
