"""Speeds of machines, in rows of the hidden width per second."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.train.settings import DEEP_MODELS, MODELS

__all__ = ["Machines", "PlannedModel", "Rates"]

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Machines:
    """Servers, and ``trainers`` on each; ``memory`` bytes per trainer. Raises ConfigError for fewer than one of each.

    ``device``: ``cpu`` or ``cuda``. On the CPU some models read neighbours without a copy, so a step takes less memory.
    """

    servers: int
    trainers: int
    memory: float = math.inf
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.servers < 1 or self.trainers < 1 or not self.memory > 0:
            raise ConfigError(
                f"servers {self.servers}, trainers {self.trainers}, memory {self.memory}: must be positive"
            )


@dataclass(frozen=True)
class PlannedModel:
    """The model to train; ``inputs`` and ``classes`` are widths of features and scores.

    Raises ConfigError for an unknown model or a width below 1.
    """

    model: str
    layers: int
    hidden: int
    inputs: int
    classes: int = 2

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"model {self.model!r}: must be one of {', '.join(MODELS)}")
        if min(self.layers, self.hidden, self.inputs, self.classes) < 1:
            raise ConfigError("layers and widths must be at least 1")

    @property
    def deep(self) -> bool:
        """Whether a linear layer maps features to the hidden width before the first message passing."""
        return self.model in DEEP_MODELS

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the hidden width."""
        return _FLOAT_BYTES * self.hidden

    @property
    def feature_rows(self) -> float:
        """A row of features, in rows of the hidden width."""
        return self.inputs / self.hidden

    @property
    def exchanges(self) -> float:
        """How often per step a boundary row is sent, forward and backward, in rows of the hidden width.

        This counts computed rows. ``feature_exchanges`` counts features, which the first layer reads unless the model
        is deep.
        """
        return 2.0 * (self.layers if self.deep else self.layers - 1)

    @property
    def feature_exchanges(self) -> float:
        """The same for features. They are sent once per subgraph, and have no gradients."""
        return 0.0 if self.deep else self.feature_rows


@dataclass(frozen=True)
class Rates:
    """Measured speeds. A device takes v / vertices + e / edges seconds for v rows and e edges of a layer, forward and
    backward.

    Attributes:
        vertices: rows per second and layer of one trainer, while all trainers of the server compute (C in the paper).
        edges: edges per second and layer; infinite if ``vertices`` includes their cost.
        internal: rows per second that a trainer receives from another of its server, while it sends the same number.
        external: rows per second over a server's link, shared by its trainers.
        drawing: sampled edges per second of a trainer's mini-batches.
        extracting: edges per second of extracting a co-batch and dividing it among trainers.
        parameters: number of parameters of the model; each step sums up their gradients.
    """

    vertices: float
    internal: float
    external: float
    edges: float = math.inf
    drawing: float = math.inf
    extracting: float = math.inf
    parameters: float = 0.0

    def __post_init__(self) -> None:
        speeds = (self.vertices, self.internal, self.external, self.edges, self.drawing, self.extracting)
        if not all(speed > 0 for speed in speeds):
            raise ConfigError("rates must be positive")
        if not self.parameters >= 0:
            raise ConfigError("parameters must not be negative")
