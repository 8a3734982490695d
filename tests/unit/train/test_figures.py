"""The figures of training beside those of torchmetrics, from the sums of several trainers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from atta.train.tasks import TASKS, LearningTask
from atta.train.tasks.pairs import auc_sums, rank_sums
from atta.train.tasks.task import Objective

pytestmark = pytest.mark.slow  # torchmetrics takes seconds to import; test_tasks.py has brute force

COUNT, TRAINERS = 500, 3


@pytest.fixture(scope="module")
def theirs() -> Any:
    return pytest.importorskip("torchmetrics").functional


def figures(task: LearningTask, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """From the tallies of trainers with unequal shares."""
    objective = Objective(task, outputs.shape[1])
    shares = torch.tensor_split(torch.arange(len(outputs)), [7, 300])
    assert len(shares) == TRAINERS
    tally = sum((objective.tally(outputs[some], targets[some]) for some in shares), start=0)
    return objective.metrics(tally.tolist())  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(3))
def test_classes(theirs: Any, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    outputs, targets = torch.randn(COUNT, 5, generator=rng), torch.randint(-1, 5, (COUNT,), generator=rng)
    found, known = figures(TASKS["classes"], outputs, targets), {"num_classes": 5, "ignore_index": -1}
    of = theirs.classification
    assert found["accuracy"] == pytest.approx(float(of.multiclass_accuracy(outputs, targets, average="micro", **known)))
    assert found["macro_f1"] == pytest.approx(float(of.multiclass_f1_score(outputs, targets, average="macro", **known)))


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_labels(theirs: Any, average: str) -> None:
    rng = torch.Generator().manual_seed(1)
    outputs, targets = torch.randn(COUNT, 4, generator=rng), torch.randint(-1, 2, (COUNT, 4), generator=rng)
    expected = theirs.classification.multilabel_f1_score(
        outputs.sigmoid(), targets, num_labels=4, average=average, ignore_index=-1
    )
    assert figures(TASKS["labels"], outputs, targets.float())[f"{average}_f1"] == pytest.approx(float(expected))


def test_regression(theirs: Any) -> None:
    rng = torch.Generator().manual_seed(2)
    targets = torch.randn(COUNT, 2, generator=rng)
    outputs = targets + torch.randn(COUNT, 2, generator=rng)
    found = figures(TASKS["regression"], outputs, targets)
    assert found["mse"] == pytest.approx(float(theirs.mean_squared_error(outputs, targets)), rel=1e-5)
    assert found["mae"] == pytest.approx(float(theirs.mean_absolute_error(outputs, targets)), rel=1e-5)
    assert found["r2"] == pytest.approx(float(theirs.r2_score(outputs, targets)), rel=1e-5)


def test_links_without_ties(theirs: Any) -> None:
    order = np.random.default_rng(3).permutation(60 * 21).astype(np.float32)
    scores = (torch.from_numpy(order).reshape(60, 21) + 1) / 2000  # they take 0 for no answer, and others for logits
    sums = rank_sums(scores, torch.ones(60, 20, dtype=torch.bool))
    positive, candidates = scores[:, 0].sort().values, scores[:, 1:].reshape(-1)
    won, pairs = auc_sums(positive, candidates)
    labels = torch.cat([torch.ones(60, dtype=torch.long), torch.zeros(len(candidates), dtype=torch.long)])
    area = theirs.classification.binary_auroc(torch.cat([positive, candidates]), labels)
    assert float(won / pairs) == pytest.approx(float(area), rel=1e-5)
    first = torch.zeros(21, dtype=torch.bool)
    first[0] = True
    of = theirs.retrieval
    reciprocal = [float(of.retrieval_reciprocal_rank(row, first)) for row in scores]
    assert float(sums[1] / sums[0]) == pytest.approx(np.mean(reciprocal))
    for place, k in ((2, 1), (3, 10)):
        hits = [float(of.retrieval_hit_rate(row, first, top_k=k)) for row in scores]
        assert float(sums[place] / sums[0]) == pytest.approx(np.mean(hits))


def test_a_constant_scorer_is_no_better_than_chance_here_only(theirs: Any) -> None:
    """Why ranks are our own: among equal scores torchmetrics takes what a partial sort happens to give first."""
    scores, first = torch.full((1, 21), 0.5), torch.zeros(21, dtype=torch.bool)
    first[0] = True
    count, reciprocal, hits, *_ = rank_sums(scores, torch.ones(1, 20, dtype=torch.bool)).tolist()
    assert (count, reciprocal, hits) == (1.0, pytest.approx(1 / 11), pytest.approx(1 / 21))
    last = first.flip(0)
    of_order = {float(theirs.retrieval.retrieval_reciprocal_rank(scores[0], where)) for where in (first, last)}
    assert len(of_order) == 2
