"""The stages of an inference: what each one reads, computes and writes. No daemons here.

| stage | reads | writes |
|---|---|---|
| in-degrees (only for layers that ask for them) | edges | ``degrees`` |
| layer k of L, for all vertices | features or ``rows-(k-1)``, edges | ``rows-k`` |
| layer L, for the vertices asked for | ``rows-(L-1)``, edges | the result, or ``rows-L`` for pairs |
| sampled, for the vertices asked for, in place of all these | features and edges of sampled batches | the same |
| pairs (only if pairs are scored) | ``rows-L`` | the result |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from atta.client.inference.block import Floats, Layer, LayerBlock, in_degrees
from atta.errors import ConfigError

__all__ = [
    "DEGREES",
    "HopCounts",
    "Rows",
    "Stage",
    "Targets",
    "layer_widths",
    "layerwise_stages",
    "sampled_stages",
    "unread",
]

Targets = npt.NDArray[np.int64] | str | None
"""Vertices to predict: user ids without repeats, the name of a split, or None for all."""


@dataclass(frozen=True)
class Rows:
    """A table of float32 rows on the daemons, for all vertices.

    Attributes:
        name: its name within the inference.
        width: numbers per row; None: one number without a dimension.
    """

    name: str
    width: int | None


DEGREES = Rows("degrees", None)


@dataclass(frozen=True)
class HopCounts:
    """Sizes of a sampled batch.

    Attributes:
        nodes: new vertices per hop; the first entry counts the seeds.
        edges: edges per hop.
    """

    nodes: Sequence[int]
    edges: Sequence[int]


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        title: for people.
        nodes: the vertices that it computes.
        width: numbers per row that it gives; None: one number without a dimension.
        fan_outs: in-neighbours per vertex and hop, -1 for all; none for pairs.
        compute: rows of a block's targets. The block of several hops has those of all of them.
        features: whether it reads the features.
        reads: the rows that it reads in place of features, if any.
        degrees: whether it reads ``DEGREES``.
        row_per_edge: whether ``compute`` makes a row per edge.
        writes: the rows that it writes; None: the result.
    """

    title: str
    nodes: Targets
    width: int | None
    fan_outs: tuple[int, ...] = ()
    compute: Callable[[LayerBlock, HopCounts], Floats] | None = None
    features: bool = False
    reads: Rows | None = None
    degrees: bool = False
    row_per_edge: bool = False
    writes: Rows | None = None


def layerwise_stages(
    layers: Sequence[Layer], widths: Sequence[int], nodes: Targets, *, pairs: bool = False
) -> list[Stage]:
    """The stages of exact inference. ``widths``: of rows before the first layer and after each."""
    stages = []
    if any(layer.needs_degrees for layer in layers):
        stages.append(Stage("in-degrees", None, None, (-1,), _count, writes=DEGREES))
    last = len(layers)
    for number, layer in enumerate(layers, 1):
        written = Rows(f"rows-{number}", widths[number])
        stage = Stage(
            f"layer {number} of {last}",
            nodes if number == last else None,
            widths[number],
            (-1,),
            partial(_one, layer),
            features=number == 1,
            reads=None if number == 1 else Rows(f"rows-{number - 1}", widths[number - 1]),
            degrees=layer.needs_degrees,
            row_per_edge=layer.row_per_edge,
            writes=written,
        )
        stages.append(stage)
    return _ended(stages, pairs)


def sampled_stages(
    layers: Sequence[Layer], widths: Sequence[int], nodes: Targets, fan_outs: Sequence[int], *, pairs: bool = False
) -> list[Stage]:
    """The stages of inference on sampled batches. ``fan_outs``: one per layer, from the seeds outwards, or one for all.

    Raises:
        ConfigError: the number of fan-outs is not that of the layers.
    """
    fan_outs = list(fan_outs) * len(layers) if len(fan_outs) == 1 else fan_outs
    if len(fan_outs) != len(layers):
        raise ConfigError(f"{len(fan_outs)} fan-outs for {len(layers)} layers that are computed: give one for each")
    written = Rows(f"rows-{len(layers)}", widths[-1])
    compute = partial(_through, layers)
    stage = Stage("sampled", nodes, widths[-1], tuple(fan_outs), compute, features=True, writes=written)
    return _ended([stage], pairs)


def _ended(stages: list[Stage], pairs: bool) -> list[Stage]:
    if pairs:
        return [*stages, Stage("pairs", None, None, reads=stages[-1].writes)]
    return [*stages[:-1], replace(stages[-1], writes=None)]


def unread(stages: Sequence[Stage], current: int) -> set[Rows]:
    """Rows that nobody reads any more when all stages before ``current`` are done."""
    written = {stage.writes for stage in stages[:current]}
    later = stages[current:]
    read = {stage.reads for stage in later} | ({DEGREES} if any(stage.degrees for stage in later) else set())
    return {rows for rows in written - read if rows is not None}


def layer_widths(layers: Sequence[Layer], channels: int) -> list[int]:
    """Numbers per row before the first layer, which are ``channels``, and after each layer: each is tried on one vertex.

    Raises:
        ConfigError: a layer does not take what the layer before gives, or does not give a row.
    """
    widths = [channels]
    for number, layer in enumerate(layers, 1):
        before = widths[-1]
        x, edges, degrees = np.zeros((1, before), np.float32), np.empty((2, 0), np.int64), np.zeros(1, np.float32)
        try:
            out = layer(LayerBlock(x, edges, 1, degrees))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            cause = str(error).partition("\n")[0]
            raise ConfigError(f"layer {number} does not take rows of {before} numbers: {cause}") from error
        if out.ndim != 2 or len(out) != 1:
            raise ConfigError(
                f"layer {number} gives an array of shape {list(out.shape)} for one vertex, not [1, width]"
            )
        widths.append(out.shape[1])
    return widths


def _count(block: LayerBlock, counts: HopCounts) -> Floats:
    return in_degrees(block.edge_index, block.targets)


def _one(layer: Layer, block: LayerBlock, counts: HopCounts) -> Floats:
    return layer(block)


def _through(layers: Sequence[Layer], block: LayerBlock, counts: HopCounts) -> Floats:
    """All layers on a sampled batch. Each layer computes one hop less than it reads.

    In-degrees are those within the batch, as in training.
    """
    x, edges = block.x, block.edge_index
    degrees = in_degrees(edges, len(x)) if any(layer.needs_degrees for layer in layers) else None
    for done, layer in enumerate(layers):
        hops = len(layers) - done
        read, computed = sum(counts.nodes[: hops + 1]), sum(counts.nodes[:hops])
        near = None if degrees is None else degrees[:read]
        x = layer(LayerBlock(x[:read], edges[:, : sum(counts.edges[:hops])], computed, near))
    return x
