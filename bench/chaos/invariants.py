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

Line = Mapping[str, Any]
Place = tuple[int, int]
"""Epoch, and position of the batch among those of the rank."""
ALLOWED = {"descriptors": 32, "threads": 16, "memory_files": 8}
"""How many more a process may have in the second half of its life than in the first: connections come and go."""
MORE_MEMORY, JUDGED_S = 0.05, 1200.0
"""By how much memory may become more, and how long a process must live before that is judged."""


class ConsumerChecker:
    """Checks that a consumer gets each batch of each epoch once, in order, and as it must be.

    A consumer goes through its epochs again and again: lap 0, lap 1, ...
    """

    def __init__(self, name: str, expected: Sequence[Sequence[str]], origin: str = "the local sampler") -> None:
        """``expected``: digests by epoch and position; ``origin``: of what."""
        self._name, self._expected, self._origin = name, expected, origin
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
            return [f"{self._name}: batch {_told(*found)} differs from the one of {self._origin}"]
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
    """What a process had at a moment (seconds).

    Attributes:
        at_s: the moment.
        descriptors, threads: open ones.
        resident: memory in bytes.
        memory_files: files in memory that it has open or mapped, such as slots of batches.
    """

    at_s: float
    descriptors: int
    threads: int
    resident: int
    memory_files: int = 0


def life(name: str, samples: Sequence[ProcessSample]) -> dict[str, Any]:
    """What one process had: the most in each half of its life, medians of its memory in each quarter, in MiB.

    ``samples``: at least eight.
    """
    half, quarter = len(samples) // 2, len(samples) // 4
    most = {
        what: [max(getattr(s, what) for s in some) for some in (samples[:half], samples[half:])] for what in ALLOWED
    }
    quarters = [samples[:quarter], samples[quarter:half], samples[half : half + quarter], samples[-quarter:]]
    memory = [round(statistics.median(s.resident for s in some) / 2**20, 2) for some in quarters]
    lived_s = round(samples[-1].at_s - samples[0].at_s, 1)
    return {"process": name, "lived_s": lived_s, "samples": len(samples), **most, "resident_mib": memory}


def leaks(found: Mapping[str, Any]) -> list[str]:
    """What one process has come to have too much of; ``found``: its ``life``."""
    wrong = []
    for what, allowed in ALLOWED.items():
        before, after = found[what]
        if after > before + allowed:
            told = what.replace("_", " ")
            wrong.append(f"{found['process']}: {before} {told} in the first half of its life, {after} in the second")
    before, after = found["resident_mib"][2:]
    if found["lived_s"] >= JUDGED_S and after > before * (1 + MORE_MEMORY):
        wrong.append(f"{found['process']}: memory grew from {before:.0f} to {after:.0f} MiB")
    return wrong


def next_after(times: Sequence[float], moment: float) -> float | None:
    """How long after ``moment`` the next batch came; None: none did. ``times`` of batches are ascending."""
    at = bisect.bisect_left(times, moment)
    return times[at] - moment if at < len(times) else None


def longest_gap(times: Sequence[float], start: float, end: float, deaths: Sequence[float] = ()) -> float:
    """The longest time without a batch that begins between ``start`` and ``end``; ``times`` of batches are ascending.

    It ends with the next batch, however late, or at ``end`` if none has come. ``deaths``: when the process that takes
    the batches was killed, ascending. From then to its next batch it is not waiting.
    """
    within = times[bisect.bisect_left(times, start) : bisect.bisect_right(times, end) + 1]
    points = [start, *within] if within and within[-1] >= end else [start, *within, end]
    before = bisect.bisect_right(deaths, start)
    if before and bisect.bisect_left(times, deaths[before - 1]) == bisect.bisect_left(times, start):
        points = points[1:]  # it is starting
    gaps = list[float]()
    for a, b in itertools.pairwise(points):
        died = bisect.bisect_left(deaths, a)
        gaps.append((min(b, deaths[died]) if died < len(deaths) else b) - a)
    return max(gaps, default=0.0)
