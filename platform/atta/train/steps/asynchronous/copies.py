"""Copies of weights while training goes on, for evaluation after the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atta.train.meeting.meeting import Meeting

__all__ = ["MOST_SAVED", "Copies", "SavedWeights"]

MOST_SAVED = 256
"""If there are more copies of weights, every second one is dropped, and copies are made half as often."""
_ENDING = ".npy"


class SavedWeights(NamedTuple):
    """Weights [size] after ``version`` updates, ``seconds`` after training began."""

    seconds: float
    version: int
    values: np.ndarray


class Copies:
    """Copies that are made now and then. A trainer that is started again goes on with those of its former life.

    Attributes:
        made: the copies, in the order of time.
    """

    def __init__(self, every_s: float, meeting: Meeting, clock: Callable[[], float] = time.monotonic) -> None:
        """``every_s``: seconds between copies. Files of copies are in the folder of the ``meeting``, if it has one.

        ``clock`` counts seconds, which all processes of this machine share. Nobody sets it, as people set the time.
        """
        self.made: list[SavedWeights] = []
        self._every, self._clock, self._began = every_s, clock, clock()
        self._folder = None if meeting.folder is None else meeting.folder / "copies"
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            self._take_up(self._folder)
        self._next = (self.made[-1].seconds if self.made else 0.0) + every_s

    def keep(self, version: int, values: np.ndarray, *, last: bool = False) -> None:
        """Keep weights [size] if it is time, or if they are the ``last`` ones."""
        seconds = self._clock() - self._began
        if self.made and self.made[-1].version >= version:
            return
        if seconds < self._next and not last:
            return
        self.made.append(SavedWeights(seconds, version, values.copy()))
        self._write(self.made[-1])
        if len(self.made) > MOST_SAVED:
            for dropped in self.made[1::2]:
                self._path(dropped).unlink(missing_ok=True)
            self.made, self._every = self.made[::2], 2 * self._every
        self._next = seconds + self._every

    def _take_up(self, folder: Path) -> None:
        """Go on with the files of a former life."""
        for path in sorted(folder.glob(f"*{_ENDING}")):
            version, millis = (int(number) for number in path.name.removesuffix(_ENDING).split("-"))
            self.made.append(SavedWeights(millis / 1000, version, np.load(path, allow_pickle=False)))
        began, latest_s = folder / "began", self.made[-1].seconds if self.made else 0.0
        if began.exists() and (former := float(began.read_text(encoding="utf-8"))) + latest_s <= self._began:
            self._began = former
        else:  # the first life; or the machine was started anew, and its clock with it
            self._began -= latest_s
            _replace(began, str(self._began).encode())

    def _write(self, copy: SavedWeights) -> None:
        if self._folder is None:
            return
        path = self._path(copy)
        with path.with_suffix(".part").open("wb") as file:
            np.save(file, copy.values, allow_pickle=False)
        path.with_suffix(".part").replace(path)

    def _path(self, copy: SavedWeights) -> Path:
        """Names are in the order of time."""
        return (self._folder or Path()) / f"{copy.version:020}-{int(copy.seconds * 1000)}{_ENDING}"


def _replace(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)
