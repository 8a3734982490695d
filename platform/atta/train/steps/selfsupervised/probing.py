"""How good embeddings are at telling classes apart: linear evaluation on a dataset's splits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atta.train.steps.selfsupervised.embedding import EmbeddingTrainer
from atta.train.tasks import classes
from atta.train.tasks.objective import Objective
from atta.train.tasks.unlabelled.probe import LinearProbe

__all__ = ["class_tallies"]


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
