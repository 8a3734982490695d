"""Tasks without a table of vertices: edges are the targets, or whether samples are there.

Figures of link prediction say where a positive edge stands among its candidates. Ties are fair. A scorer that gives all
pairs the same score has the mean rank of all places, Hits@k as often as chance, and AUC 1/2. A score that is not a number
counts as wrong: the positive is last, the candidate is first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from atta.errors import ConfigError
from atta.partition.schema import TableSpec
from atta.train.settings.minibatch import EDGE_CLASSES, LINK
from atta.train.tasks.task import LearningTask, Metric, TargetCounts, ratio
from atta.train.tasks.vertices import UNLABELLED, Classes

HITS = (1, 3, 10)
"""The k of Hits@k, as OGB has them for ranks of single edges: small beside 100 candidates."""

_GUESSED_AUC, _GUESSED_LOSS = 0.55, 0.03
"""A guess has AUC 1/2 and loss ln 2: at most this AUC, and a loss as near to ln 2, relatively, look like one."""


def ranks_of(
    scores: torch.Tensor, there: torch.Tensor, most: Sequence[int] = HITS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank positives among their candidates: the mean rank from 1, float64 [n], and by k of ``most`` the shares among
    the first k, float64 [ks, n]. Tied edges share the mean of their places. scores: [n, 1 + c], the positive first;
    there: bool [n, c], false where a row has fewer candidates."""
    positive, others = scores[:, :1], scores[:, 1:]
    tied = ((others == positive) & there).sum(1).double()
    above = (~(others <= positive) & there).sum(1).double()  # so that nan counts as above
    return 1 + above + tied / 2, torch.stack([((k - above) / (tied + 1)).clamp(0, 1) for k in most])


def rank_sums(scores: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """float64 [2 + len(HITS)]: number of positives, sum of reciprocal ranks, and sums of Hits@k, by k."""
    ranks, hits = ranks_of(scores, there)
    return torch.stack([ranks.new_tensor(float(len(ranks))), *(each.sum() for each in (1 / ranks, *hits))])


def sortable(scores: torch.Tensor, *, positive: bool) -> torch.Tensor:
    """Scores without nan: that of a positive becomes the lowest, that of a candidate the highest."""
    return scores.where(~scores.isnan(), -torch.inf if positive else torch.inf)


def auc_sums(positives: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """float64 [2]: pairs of positive and candidate with the positive above (half for ties), and all pairs. positives:
    sorted scores of *all* positive edges [p]; candidates: scores of some candidates [c]; both ``sortable``. The sums of
    all candidates give the area under the ROC curve."""
    below = torch.searchsorted(positives, candidates, side="left")
    up_to = torch.searchsorted(positives, candidates, side="right")
    won = (len(positives) - up_to).double().sum() + (up_to - below).double().sum() / 2
    return torch.stack([won, won.new_tensor(float(len(positives) * len(candidates)))])


def _mean(name: str, place: int, count: int = 0) -> Metric:
    return Metric(name, lambda sums: ratio(sums[place], sums[count]))


class Links(LearningTask):
    """``link``: which pairs of vertices are edges. Its figures are of ``rank_sums``, then ``auc_sums``."""

    name = LINK
    metrics = (
        *(_mean(name, place) for place, name in enumerate(("mrr", *(f"hits@{k}" for k in HITS)), 1)),
        _mean("auc", 5, 6),
    )

    def known(self, targets: torch.Tensor) -> torch.Tensor:
        return targets >= 0

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Binary cross entropy of scores [n] of pairs, whose targets [n] are 1 for edges and 0 for negatives."""
        return binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="sum")

    def doubt(self, figures: Mapping[str, float], counts: TargetCounts) -> str:
        auc, loss = figures.get("auc", 1.0), figures.get("loss", 0.0)
        guessed = auc < _GUESSED_AUC and abs(loss / math.log(2) - 1) < _GUESSED_LOSS
        return f"auc {auc:.2f} and loss {loss:.4f} are those of a guess" if guessed else ""


class Unlabelled(LearningTask):
    """``unsupervised`` and ``dgi``: a vertex shall tell a positive sample from negative ones. What is judged is not the
    samples but what embeddings are good for: the classes of vertices, or edges. Targets are int64 [n], 1 for a seed
    with a positive sample, 0 for one without."""

    def __init__(self, name: str, evaluation: str) -> None:
        """``evaluation``: ``classes`` or ``links``, whose figures it has."""
        self.name, self.metrics = name, Classes.metrics if evaluation == "classes" else Links.metrics

    def known(self, targets: torch.Tensor) -> torch.Tensor:
        return targets == 1

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Cross entropy of scores [n, 1 + k]: of the positive sample, then of negative ones, which add up (GraphSAGE,
        equation 1). A score of -inf stands for a sample that is not there."""
        losses = softplus(-outputs[:, 0]) + softplus(outputs[:, 1:]).sum(1)
        return losses[self.known(targets)].sum()


class EdgeClasses(Classes):
    """``edge-classes``: one of several classes per edge; -1 for an edge without one. Targets are the edge table ``y``."""

    name, weighs = EDGE_CLASSES, False

    def outputs(self, spec: TableSpec, classes: int | None) -> int:
        if np.dtype(spec.dtype).kind not in "iub" or spec.row_shape not in ((), (1,)):
            raise ConfigError(
                f"--task edge-classes: needs one whole number per edge in the edge table y, not rows of shape "
                f"{spec.row_shape} of {np.dtype(spec.dtype)}"
            )
        return classes or 0


def check_labels(labels: np.ndarray, training: np.ndarray) -> int:
    """The number of classes; ``labels``: int64, of all edges; ``training``: of those for training, without unknown
    ones. Raises ConfigError for labels that nothing can be learnt from."""
    if (labels < UNLABELLED).any():
        raise ConfigError("--task edge-classes: the edge table y has numbers below -1, which are no classes")
    if not len(training):
        raise ConfigError("--task edge-classes: no training edge has a label (all are -1 in the edge table y)")
    if (training == training[0]).all():
        raise ConfigError(f"--task edge-classes: all training edges are of class {training[0]}: nothing to tell apart")
    return int(labels.max()) + 1
