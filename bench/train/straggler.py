"""Stops and continues one trainer from outside, again and again: a straggler."""

from __future__ import annotations

import contextlib
import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

import psutil

from atta.errors import ConfigError

__all__ = ["JITTER", "StopPattern", "Straggler", "trainer_process"]

JITTER = 1 / 9
"""By what share each stop, and each time between two, is shorter or longer: 8 to 10 where 9 is asked for."""
_PATTERN = re.compile(r"([0-9]{1,6}):([0-9.]{1,12})/([0-9.]{1,12})")
_MOST_S = 3600.0
_LOOK_S = 0.05
_TRAINER = "atta.train.launching.worker"


@dataclass(frozen=True)
class StopPattern:
    """``TRAINER:STOPPED/EVERY``: this trainer is stopped for so many seconds, once in so many seconds.

    >>> StopPattern.parse("3:0.5/2")
    StopPattern(trainer=3, stopped_s=0.5, every_s=2.0)
    """

    trainer: int
    stopped_s: float
    every_s: float

    @classmethod
    def parse(cls, text: str) -> StopPattern:
        """Read a pattern; raises ConfigError if it is none, or makes no sense."""
        found = _PATTERN.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            pattern = cls(int(found[1]), float(found[2]), float(found[3]))
        except ValueError:
            raise ConfigError(
                f"--stop {text}: write TRAINER:STOPPED/EVERY in seconds, such as 3:0.5/2.0 for half a second in every two"
            ) from None
        if not 0 < pattern.stopped_s < pattern.every_s <= _MOST_S:
            raise ConfigError(
                f"--stop {text}: STOPPED must be more than 0 and less than EVERY, which is at most an hour"
            )
        return pattern

    def turns(self, seed: int) -> Iterator[tuple[float, float]]:
        """Seconds in which the trainer runs and in which it is stopped after that, for ever; one seed, one sequence."""
        draw = random.Random(f"{seed}/{self.trainer}")

        def about(seconds: float) -> float:
            return seconds * draw.uniform(1 - JITTER, 1 + JITTER)

        while True:
            yield about(self.every_s - self.stopped_s), about(self.stopped_s)


class Straggler:
    """A context manager: the process that ``find`` finds is stopped by a pattern, and continued when the block ends.

    Attributes:
        stops: how often it was stopped.
    """

    def __init__(self, pattern: StopPattern, seed: int, find: Callable[[], psutil.Process | None]) -> None:
        """``find`` is asked until it finds the process. A process that ends is left alone."""
        self._turns, self._find = pattern.turns(seed), find
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="atta-straggler", daemon=True)
        self.stops = 0

    def __enter__(self) -> Straggler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        process = None
        while process is None:
            if self._end.wait(_LOOK_S):
                return
            process = self._find()
        with contextlib.suppress(psutil.Error):  # it has ended
            for running_s, stopped_s in self._turns:
                if self._end.wait(running_s):
                    return
                process.suspend()
                self.stops += 1
                try:
                    self._end.wait(stopped_s)
                finally:
                    process.resume()


def trainer_process(launchers: list[int], rank: int) -> psutil.Process | None:
    """The process of the trainer with this rank, below one of the launchers; None: it is not there (yet)."""
    for pid in launchers:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if _TRAINER in process.cmdline() and process.environ().get("RANK") == str(rank):
                        return process
    return None
