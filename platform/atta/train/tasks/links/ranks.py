"""Where a positive edge stands among its candidates: MRR, Hits@k and AUC, from scores.

Ties are fair. A scorer that gives all pairs the same score has the mean rank of all places, Hits@k as often as chance,
and AUC 1/2. A score that is not a number counts as wrong: the positive is last, the candidate is first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["HITS", "Ranks", "auc_sums", "rank_sums", "ranks_of", "sortable"]

HITS = (1, 10, 100)
"""The k of Hits@k."""


@dataclass(frozen=True)
class Ranks:
    """The places of n positive edges.

    Attributes:
        above: int64 [n], candidates with a higher score.
        tied: int64 [n], candidates with the same score.
    """

    above: torch.Tensor
    tied: torch.Tensor

    @property
    def mean(self) -> torch.Tensor:
        """float64 [n]: the rank from 1; tied edges share the mean of their places."""
        return 1 + self.above.double() + self.tied.double() / 2

    def hits(self, most: int) -> torch.Tensor:
        """float64 [n]: the share of the tied places that lie among the first ``most``."""
        return ((most - self.above.double()) / (self.tied.double() + 1)).clamp(0, 1)


def ranks_of(scores: torch.Tensor, there: torch.Tensor) -> Ranks:
    """Rank positives among their candidates.

    scores: [n, 1 + k], the positive first; there: bool [n, k], false where a row has fewer candidates.
    """
    positive, others = scores[:, :1], scores[:, 1:]
    tied = (others == positive) & there
    above = ~(others <= positive) & there  # so that nan counts as above
    return Ranks(above.sum(1), tied.sum(1))


def rank_sums(scores: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """float64 [2 + len(HITS)]: number of positives, sum of reciprocal ranks, and sums of Hits@k, by k."""
    ranks = ranks_of(scores, there)
    count = torch.tensor([len(scores)], dtype=torch.float64, device=scores.device)
    each = [1 / ranks.mean, *(ranks.hits(k) for k in HITS)]
    return torch.cat([count, torch.stack([values.sum() for values in each])])


def sortable(scores: torch.Tensor, *, positive: bool) -> torch.Tensor:
    """Scores without nan: that of a positive becomes the lowest, that of a candidate the highest."""
    return scores.where(~scores.isnan(), -torch.inf if positive else torch.inf)


def auc_sums(positives: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """float64 [2]: pairs of positive and candidate with the positive above (half for ties), and all pairs.

    positives: sorted scores of *all* positive edges [p]; candidates: scores of some candidates [c]; both ``sortable``.
    The sums of all candidates give the area under the ROC curve.
    """
    below = torch.searchsorted(positives, candidates, side="left")
    up_to = torch.searchsorted(positives, candidates, side="right")
    won = (len(positives) - up_to).double().sum() + (up_to - below).double().sum() / 2
    return torch.stack([won, won.new_tensor(float(len(positives) * len(candidates)))])
