"""``unsupervised`` and ``dgi``: a vertex shall tell a positive sample from negative ones. No table of targets is needed.

What is judged is not the samples but what embeddings are good for: the classes of vertices, or edges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from atta.errors import ConfigError
from atta.train.tasks import classes
from atta.train.tasks.links.record import LINKS
from atta.train.tasks.task import LearningTask

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import TableSpec

_SENTENCES = {
    "unsupervised": "vertices that walks join are alike (GraphSAGE)",
    "dgi": "vertices beside a corrupted graph (Deep Graph Infomax)",
}


def _outputs(spec: TableSpec, classes: int | None) -> int:
    raise ConfigError("learning without labels has no table of targets")


def _known(positives: torch.Tensor) -> torch.Tensor:
    """``positives``: int64 [n], 1 for a seed with a positive sample, 0 for one without."""
    return positives == 1


def _loss(scores: torch.Tensor, positives: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Cross entropy of scores [n, 1 + k]: of the positive sample, then of negative ones, which add up (GraphSAGE,
    equation 1). A score of -inf stands for a sample that is not there.
    """
    from torch.nn.functional import softplus

    losses = softplus(-scores[:, 0]) + softplus(scores[:, 1:]).sum(1)
    return losses[_known(positives)].sum()


def unlabelled(name: str, evaluation: str) -> LearningTask:
    """The record of ``unsupervised`` or ``dgi``; ``evaluation``: ``classes`` or ``links``, whose figures it has.

    As with links, whether a sample is there is 1 or 0, and no row of a table can be wrong.
    """
    judged = classes.TASK if evaluation == "classes" else LINKS
    return replace(
        LINKS,
        name=name,
        sentence=_SENTENCES[name],
        outputs=_outputs,
        known=_known,
        loss=_loss,
        sums=judged.sums,
        metrics=judged.metrics,
    )
