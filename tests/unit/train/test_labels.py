"""Labels before training: which are refused, which are left out, and the loss of the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atta.errors import ConfigError
from atta.partition.schema import TableSpec
from atta.train.labels import LabelCounts, check_label_table, labelled_loss


def test_labels_are_counted() -> None:
    assert LabelCounts.of(np.array([0, 1, 2, -1, -1, 3, -2, 100]), 3) == LabelCounts(8, 2, 3)
    assert LabelCounts.of(np.array([], np.int64), 3) == LabelCounts()
    assert LabelCounts(8, 2, 3) + LabelCounts(2, 1, 0) == LabelCounts(10, 3, 3)
    assert LabelCounts.of(np.array([255, 1], np.uint8), 3) == LabelCounts(2, 0, 1)


def test_what_is_said_of_them() -> None:
    assert LabelCounts(8).checked(3) is None
    assert LabelCounts().checked(3) is None
    assert LabelCounts(8, 2).checked(3) == (
        "2 of 8 training vertices have no label (-1 in table y) and are left out"
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"3 of 8 training vertices have a label .* 3 classes \(0 to 2\)"):
        LabelCounts(8, 2, 3).checked(3)
    with pytest.raises(ConfigError, match="none of the 8 training vertices has a label"):
        LabelCounts(8, 8).checked(3)


def test_tables_that_hold_no_labels() -> None:
    assert check_label_table(TableSpec("<i8"), 4) == 4
    assert check_label_table(TableSpec("|u1", (1,)), 4) == 4
    with pytest.raises(ConfigError, match="training needs integer labels, table y holds float32"):
        check_label_table(TableSpec("<f4"), 4)
    with pytest.raises(ConfigError, match=r"one label per vertex, y has rows of shape \(3,\)"):
        check_label_table(TableSpec("<i8", (3,)), 4)
    for none in (0, None):
        with pytest.raises(ConfigError, match="no vertex has one"):
            check_label_table(TableSpec("<i8"), none)


def test_the_loss_is_that_of_the_labelled_rows() -> None:
    torch.manual_seed(0)
    scores = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -1, 3, 2, -1, 1, 1, -1, 0])
    loss = labelled_loss(scores, labels)
    (gradient,) = torch.autograd.grad(loss, scores)
    kept = np.flatnonzero(labels.numpy() >= 0)
    shares = np.exp(scores.detach().numpy())
    shares /= shares.sum(1, keepdims=True)
    assert loss.item() == pytest.approx(-np.log(shares[kept, labels.numpy()[kept]]).mean())
    assert np.flatnonzero(gradient.abs().sum(1).numpy()).tolist() == kept.tolist()


def test_a_batch_without_labels_changes_nothing() -> None:
    scores = torch.randn(3, 4, requires_grad=True)
    loss = labelled_loss(scores, torch.full((3,), -1))
    (gradient,) = torch.autograd.grad(loss, scores)
    assert loss.item() == 0
    assert not gradient.any()
