"""``link``: which pairs of vertices are edges. It needs no table of targets; the edges are the targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atta.errors import ConfigError
from atta.train.tasks.task import Floats, LearningTask, Metric, TargetCounts

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import TableSpec

__all__ = ["LINKS"]


def _outputs(spec: TableSpec, classes: int | None) -> int:
    raise ConfigError("--task link: its targets are edges, not rows of a table")


def _known(labels: torch.Tensor) -> torch.Tensor:
    return labels >= 0


def _wrong(labels: torch.Tensor, outputs: int) -> torch.Tensor:
    return (labels != 0) & (labels != 1)


def _found(labels: torch.Tensor, outputs: int) -> torch.Tensor:
    return labels.new_zeros(0).double()


def _refuse(counts: TargetCounts, outputs: int, vertices: str) -> None:
    """There are no rows of a table that could be wrong."""


def _check(counts: TargetCounts, outputs: int) -> str | None:
    return None


def _loss(scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Binary cross entropy of scores [n] of pairs, whose labels [n] are 1 for edges and 0 for negatives."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")


def _sums(scores: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """See ``rank_sums``. The two sums of AUC follow, which need the scores of all positive edges (``auc_sums``)."""
    from atta.train.tasks.links.ranks import rank_sums

    return rank_sums(scores, there)


def _mean(place: int) -> Metric:
    names = {1: "mrr", 2: "hits@1", 3: "hits@10", 4: "hits@100"}

    def of(sums: Floats) -> float | None:
        return float(sums[place] / sums[0]) if sums[0] else None

    return Metric(names[place], of)


def _auc(sums: Floats) -> float | None:
    won, pairs = np.asarray(sums)[5:7]
    return float(won / pairs) if pairs else None


def _predictions(scores: torch.Tensor) -> torch.Tensor:
    """The probability of an edge."""
    return scores.sigmoid()


LINKS = LearningTask(
    name="link",
    sentence="which pairs of vertices are edges",
    outputs=_outputs,
    rows=False,
    known=_known,
    wrong=_wrong,
    found=_found,
    refuse=_refuse,
    check=_check,
    loss=_loss,
    sums=_sums,
    metrics=(*(_mean(place) for place in range(1, 5)), Metric("auc", _auc)),
    predictions=_predictions,
)
