"""What must hold however processes die: each batch once, each with the digest of the local sampler, nothing leaks. Pure.

Consumers and trainers write *lines*: what they have taken, one after another. A checker reads the lines of one process
and of those that are started in its place.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ConsumerChecker", "ProcessSample", "TrainerChecker", "leaks", "longest_gap"]

Line = Mapping[str, Any]
Place = tuple[int, int]
"""Epoch, and position of the batch among those of the rank."""
DESCRIPTORS, THREADS = 64, 16
"""How many more a process may have in the second half of its life than in the first: connections come and go."""
MORE_MEMORY, JUDGED_S = 0.05, 1200.0
"""By how much memory may become more, and how long a process must live before that is judged."""


class ConsumerChecker:
    """Checks that a consumer gets each batch of each epoch once, in order, and as it must be.

    A consumer goes through its epochs again and again: lap 0, lap 1, ...
    """

    def __init__(self, name: str, expected: Sequence[Sequence[str]]) -> None:
        """``expected``: digests by epoch and position."""
        self._name, self._expected = name, expected
        self._places = [(e, b) for e, digests in enumerate(expected) for b in range(len(digests))]
        self.taken = 0

    def check(self, line: Line) -> list[str]:
        """What is wrong with the next line."""
        lap, at = divmod(self.taken, len(self._places))
        epoch, batch = self._places[at]
        self.taken += 1
        found = (line["lap"], line["epoch"], line["batch"])
        if found != (lap, epoch, batch):
            told = "comes twice" if found < (lap, epoch, batch) else "comes too early, others are missing"
            self._go_on_at(*found)
            return [f"{self._name}: batch {_told(*found)} {told}; expected was {_told(lap, epoch, batch)}"]
        if line["digest"] != self._expected[epoch][batch]:
            return [f"{self._name}: batch {_told(*found)} differs from the one of the local sampler"]
        return []

    def _go_on_at(self, lap: int, epoch: int, batch: int) -> None:
        """Tell each violation once."""
        if (epoch, batch) in self._places:
            self.taken = lap * len(self._places) + self._places.index((epoch, batch)) + 1


def _told(lap: int, epoch: int, batch: int) -> str:
    return f"{batch} of epoch {epoch} in lap {lap}"


class TrainerChecker:
    """Checks that weights are those of an undisturbed run after every step, whatever checkpoint a trainer begins at."""

    def __init__(self, name: str, expected: Sequence[str]) -> None:
        """``expected``: digests of the weights after each step."""
        self._name, self._expected = name, expected
        self._step, self._saved, self._process = 0, 0, -1
        self.steps = self.repeated = 0

    def check(self, line: Line) -> list[str]:
        """What is wrong with the next line: a step that was taken, or a checkpoint that is on disk."""
        if "saved" in line:
            wrong = (
                [] if line["saved"] == self._step else [f"{self._name}: saves step {line['saved']}, not {self._step}"]
            )
            self._saved = line["saved"]
            return wrong
        step, wrong = line["step"], []
        begun = line["process"] != self._process
        # The line about a checkpoint may be missing: the trainer died between the two.
        if step != self._step + 1 and not (begun and self._saved < step <= self._step + 1):
            wrong.append(
                f"{self._name}: step {step} follows {self._step}" + (f", saved was {self._saved}" if begun else "")
            )
        self.repeated += max(0, self._step + 1 - step)
        self.steps += 1
        self._step, self._process = step, line["process"]
        if step - 1 < len(self._expected) and line["digest"] != self._expected[step - 1]:
            wrong.append(f"{self._name}: the weights after step {step} differ from those of an undisturbed run")
        return wrong


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What a process had at a moment (seconds): open descriptors, threads, resident memory in bytes."""

    at_s: float
    descriptors: int
    threads: int
    resident: int


def leaks(name: str, samples: Sequence[ProcessSample]) -> list[str]:
    """What one process has come to have too much of."""
    if len(samples) < 8:
        return []
    half = len(samples) // 2
    first, second = samples[:half], samples[half:]
    found = []
    for what, allowed in (("descriptors", DESCRIPTORS), ("threads", THREADS)):
        before, after = (max(int(getattr(s, what)) for s in some) for some in (first, second))
        if after > before + allowed:
            found.append(f"{name}: {before} {what} in the first half of its life, {after} in the second")
    quarter = len(samples) // 4
    before_bytes = statistics.median(s.resident for s in samples[half : half + quarter])
    after_bytes = statistics.median(s.resident for s in samples[-quarter:])
    if samples[-1].at_s - samples[0].at_s >= JUDGED_S and after_bytes > before_bytes * (1 + MORE_MEMORY):
        found.append(f"{name}: memory grew from {before_bytes / 2**20:.0f} to {after_bytes / 2**20:.0f} MiB")
    return found


def longest_gap(times: Sequence[float], start: float, end: float) -> float:
    """The longest time without a batch that begins between ``start`` and ``end``; ``times`` of batches are ascending.

    It ends with the next batch, however late, or at ``end`` if none has come.
    """
    within = times[bisect.bisect_left(times, start) : bisect.bisect_right(times, end) + 1]
    points = [start, *within] if within and within[-1] >= end else [start, *within, end]
    return max((b - a for a, b in itertools.pairwise(points)), default=0.0)
