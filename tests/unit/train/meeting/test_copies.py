"""Copies of weights outlive the trainer that made them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from atta.train.exchange import asynchronous
from atta.train.exchange.asynchronous import Copies
from atta.train.meeting import Meeting


def life(folder: Path | None) -> Meeting:
    return Meeting(None, run="r", rank=0, world=1, life=0, folder=folder)


def weights(version: int) -> np.ndarray:
    return np.full(3, version, np.float32)


def seen(copies: Copies) -> list[tuple[int, float]]:
    return [(copy.version, float(copy.values[0])) for copy in copies.made]


def test_a_new_life_goes_on_with_the_copies_of_the_former_one(tmp_path: Path) -> None:
    first = Copies(1e-9, life(tmp_path))
    for version in (0, 4, 9):
        first.keep(version, weights(version))
    again = Copies(1e-9, life(tmp_path))
    assert seen(again) == [(0, 0.0), (4, 4.0), (9, 9.0)]
    assert [copy.seconds for copy in again.made] == pytest.approx([copy.seconds for copy in first.made], abs=2e-3)
    again.keep(9, weights(9), last=True)
    again.keep(11, weights(11), last=True)
    assert [version for version, _ in seen(again)] == [0, 4, 9, 11], "a version is kept once"
    assert again.made[-1].seconds >= again.made[-2].seconds, "time counts from the first life on"


@pytest.mark.parametrize("on_disk", [True, False])
def test_there_are_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool) -> None:
    monkeypatch.setattr(asynchronous, "MOST_SAVED", 12)
    copies = Copies(1e-9, life(tmp_path if on_disk else None))
    for version in range(24):
        copies.keep(version, weights(version))
    copies.keep(10**6, weights(10**6), last=True)
    assert 6 <= len(copies.made) <= 12
    assert [version for version, _ in seen(copies)] == sorted(version for version, _ in seen(copies))
    assert seen(copies)[-1] == (10**6, 1e6)
    if on_disk:
        assert seen(Copies(1.0, life(tmp_path))) == seen(copies)


def test_a_copy_is_made_when_it_is_time() -> None:
    copies = Copies(3600.0, life(None))
    copies.keep(1, weights(1))
    assert not copies.made
    copies.keep(2, weights(2), last=True)
    assert seen(copies) == [(2, 2.0)]


def test_time_goes_on_in_the_next_life_whatever_the_clock_on_the_wall_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, wall = 1000.0, 5e9
    monkeypatch.setattr(time, "time", lambda: wall)
    first = Copies(1.0, life(tmp_path), clock=lambda: now)
    now, wall = 1002.0, 1.0  # set back
    first.keep(1, weights(1))
    again = Copies(1.0, life(tmp_path), clock=lambda: now)
    now, wall = 1004.5, 9e9  # set forward
    again.keep(2, weights(2))
    assert [copy.seconds for copy in again.made] == [2.0, 4.5]
    now = 10.0  # the machine was started anew
    last = Copies(1.0, life(tmp_path), clock=lambda: now)
    now = 13.0
    last.keep(3, weights(3))
    assert [copy.seconds for copy in last.made] == [2.0, 4.5, 7.5]
    assert [copy.seconds for copy in Copies(1.0, life(tmp_path), clock=lambda: now).made] == [2.0, 4.5, 7.5]
