"""The stages that an interval passes in an epoch (Dorylus, section 4)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from atta.errors import ConfigError

__all__ = ["BY_TRAINER", "Part", "PipelineStage", "Work", "stages_of"]

Part = Literal["gather", "apply", "scatter", "loss", "gather-back", "apply-back", "scatter-back"]
BY_TRAINER: frozenset[Part] = frozenset(["gather", "scatter", "gather-back", "scatter-back"])
"""What a trainer computes, because it reads the graph. Workers compute all other parts, which need no graph."""


class PipelineStage(NamedTuple):
    """A stage of an interval.

    ``part``: gather sums up the rows that a layer reads; apply makes rows of the next layer from these; scatter sends
    them to those who read them. ``loss`` is the last layer's apply, the loss, and the backward of both, in one task. The
    parts of backward have the same names with ``-back``: gather-back sums up gradients of rows of layer + 1; apply-back
    computes the layer again, and from it gradients of weights and sums; scatter-back sends the latter.
    ``layer``: from 0.
    """

    part: Part
    layer: int

    @property
    def by_trainer(self) -> bool:
        """Whether a trainer computes it."""
        return self.part in BY_TRAINER

    @property
    def gives_gradient(self) -> bool:
        """Whether its result has a gradient of the layer's weights."""
        return self.part in ("loss", "apply-back")


class Work(NamedTuple):
    """A stage of an interval in an epoch. Works are done in this order: earlier epochs and earlier stages first."""

    epoch: int
    stage: int
    interval: int


def stages_of(layers: int) -> tuple[PipelineStage, ...]:
    """The stages of an epoch, in order: of ``2 * layers - 1`` of them workers compute."""
    if layers < 1:
        raise ConfigError(f"a model of {layers} layers cannot be trained")
    found = []
    for layer in range(layers - 1):
        found += [PipelineStage("gather", layer), PipelineStage("apply", layer), PipelineStage("scatter", layer)]
    found += [PipelineStage("gather", layers - 1), PipelineStage("loss", layers - 1)]
    for layer in reversed(range(layers - 1)):
        # Gradients of the sums of layer + 1 have been computed: they reach the rows that these sums were made of.
        found += [PipelineStage("scatter-back", layer + 1), PipelineStage("gather-back", layer)]
        found.append(PipelineStage("apply-back", layer))
    return tuple(found)
