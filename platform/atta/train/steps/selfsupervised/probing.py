"""How good embeddings are at telling classes apart: linear evaluation on a dataset's splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from atta.train.steps.selfsupervised.embedding import EmbeddingTrainer
from atta.train.tasks import classes
from atta.train.tasks.objective import Objective

_STEPS = 500
_PENALTY = 1.0


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier of embeddings.

    Attributes:
        mean, scale: float64 [width], what embeddings are centred by and divided by.
        weight, bias: float64 [classes, width] and [classes].
    """

    mean: torch.Tensor
    scale: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def fit(cls, rows: torch.Tensor, targets: torch.Tensor, classes: int) -> LinearProbe:
        """The minimum of the sum of cross entropies plus half the squared norm of the weights, without the biases.

        That is scikit-learn's ``LogisticRegression()`` on columns of mean 0 and variance 1. L-BFGS finds it, always the
        same one for the same rows.

        Args:
            rows: float [n, width].
            targets: int64 [n], classes.
            classes: their number.
        """
        rows = rows.detach().double()
        mean, scale = rows.mean(0), rows.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        x = (rows - mean) / scale
        weight = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
        bias = torch.zeros(classes, dtype=x.dtype, device=x.device, requires_grad=True)
        solver = torch.optim.LBFGS(
            [weight, bias], max_iter=_STEPS, tolerance_grad=1e-7, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure() -> torch.Tensor:
            solver.zero_grad()
            total = cross_entropy(x @ weight.T + bias, targets, reduction="sum")
            # Divided by n: the step lengths that the solver tries first do not depend on the number of vertices.
            loss: torch.Tensor = (total + _PENALTY / 2 * weight.square().sum()) / len(x)
            loss.backward()
            return loss

        with torch.enable_grad():
            solver.step(closure)
        return cls(mean, scale, weight.detach(), bias.detach())

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        """float64 [n, classes] of embeddings [n, width]."""
        return (rows.double() - self.mean) / self.scale @ self.weight.T + self.bias


def class_tallies(trainer: EmbeddingTrainer, node_type: str, splits: Sequence[str]) -> dict[str, list[float]]:
    """Fit a linear classifier to embeddings of the training vertices, and tally what it says of ``splits``.

    Every rank calls this, computes its share of embeddings, and then does the same with all of them.
    """
    number = trainer.cluster.schema.num_classes or 0
    rows, targets = _labelled(trainer, node_type, "train")
    probe = LinearProbe.fit(rows, targets, number)
    objective = Objective(classes.TASK, number)
    found = {}
    for split in splits:
        rows, targets = _labelled(trainer, node_type, split)
        found[split] = [float(n) for n in objective.tally(probe.scores(rows), targets).tolist()]
    return found


def _labelled(trainer: EmbeddingTrainer, node_type: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings and classes of a split's vertices that have one, of all ranks, by user id."""
    whole = torch.zeros(0, dtype=torch.int64, device=trainer.device)
    found = [[whole], [torch.zeros(0, trainer.outputs, device=trainer.device)], [whole]]
    for data, rows in trainer.embedded((node_type, split), split, seed_tables=["y"]):
        n = len(rows)
        for column, part in zip(found, (data.n_id[:n], rows, classes.TASK.targets(data.y[:n])), strict=True):
            column.append(part)
    ids, rows, targets = (trainer.everywhere(torch.cat(column)) for column in found)
    order = ids.argsort()
    order = order[classes.TASK.known(targets[order])]
    return rows[order], targets[order]
