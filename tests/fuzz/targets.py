"""What all targets have in common: one input at a time, counts, and findings that are kept as files."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["CORPUS", "HANG_S", "Counts", "Finding", "Target", "kept", "run_for"]

CORPUS = Path(__file__).parent / "corpus"
"""``TARGET/WHAT-DIGEST``: inputs that once failed, and some that reach deep. Every run begins with them."""
HANG_S = 1.0
"""What takes longer, also when it is tried again alone, is a finding."""


PAUSED_S = 10.0
"""An input that takes longer and is no finding was not at work: the process was stopped for a while."""


class Finding(Exception):
    """An input that ended otherwise than it may."""

    def __init__(self, what: str, data: bytes, cause: str) -> None:
        """``what``: the method or the kind of file; ``data``: the input."""
        super().__init__(f"{what}: {cause}; input {data[:200]!r}{'...' * (len(data) > 200)}")
        self.what, self.data, self.cause = what, data, cause


class Target(Protocol):
    """One direction of the wire, or the files."""

    name: str

    def once(self, rng: random.Random) -> str:
        """Try one input and return how it ended, such as ``"OK"`` or the name of an error; raises Finding."""

    def again(self, what: str, data: bytes) -> str:
        """Try an input of the corpus; as ``once``."""


@dataclass
class Counts:
    tried: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest_s: float = 0.0

    def add(self, other: Counts) -> None:
        self.tried, self.seconds = self.tried + other.tried, self.seconds + other.seconds
        self.ends += other.ends
        self.findings += other.findings
        self.slowest_s = max(self.slowest_s, other.slowest_s)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ends": dict(sorted(self.ends.items()))}


def kept(target: str) -> Iterator[tuple[str, bytes]]:
    """The inputs of a target's corpus: the method or the kind of file, and the bytes."""
    for path in sorted((CORPUS / target).glob("*-*")):
        yield path.name.rpartition("-")[0], path.read_bytes()


def keep(target: str, finding: Finding, folder: Path = CORPUS) -> Path:
    place = folder / target
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{finding.what}-{hashlib.sha256(finding.data).hexdigest()[:12]}"
    path.write_bytes(finding.data)
    return path


def run_for(target: Target, seconds: float, rng: random.Random, folder: Path | None = None) -> Counts:
    """Try the corpus, then drawn inputs for so many seconds. ``folder``: findings are written there and the run goes on;
    without it the first one is raised."""
    counts, began = Counts(), time.monotonic()
    inputs = kept(target.name)
    while True:
        started, known = time.monotonic(), next(inputs, None)
        if known is None and started - began >= seconds:
            return counts
        try:
            end = target.once(rng) if known is None else target.again(*known)
        except Finding as finding:
            if folder is None:
                raise
            keep(target.name, finding, folder)
            counts.findings.append(str(finding))
            end = "finding"
        counts.tried += 1
        counts.ends[end] += 1
        spent = time.monotonic() - started
        counts.seconds += min(spent, PAUSED_S)
        counts.slowest_s = max(counts.slowest_s, spent)
