"""What each interval of a trainer did and when: one track per interval, in the format that Perfetto and Chrome read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from atta.train.steps.pipeline.decisions.stages import PipelineStage, Work

__all__ = ["IntervalTracks", "StageSpan"]

_MOST = 200_000
"""Spans that are kept; some 30 MB as JSON."""


class StageSpan(NamedTuple):
    """A stage that has ended; ``start`` and ``end`` in seconds since training began."""

    work: Work
    start: float
    end: float


class IntervalTracks:
    """Remembers the stages of a trainer's intervals. Times are passed in.

    A worker's stage lasts from the time at which it was handed out until its first result.

    Attributes:
        spans: the first ``most`` stages that have ended.
        left_out: how many ended after these.
    """

    def __init__(self, stages: Sequence[PipelineStage], intervals: int, *, most: int = _MOST) -> None:
        self._stages, self._most = stages, most
        self._began: list[float] = [0.0] * intervals
        self.spans: list[StageSpan] = []
        self.left_out = 0

    def begin(self, work: Work, at: float) -> None:
        """An interval does one stage at a time."""
        self._began[work.interval] = at

    def end(self, work: Work, at: float) -> None:
        """The stage that the interval began last has ended."""
        if len(self.spans) < self._most:
            self.spans.append(StageSpan(work, self._began[work.interval], at))
        else:
            self.left_out += 1

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Trace events: the trainer is a process, each interval a thread of it; times in microseconds."""
        about = [_named("process_name", rank, 0, f"trainer {rank}")]
        about += [_named("thread_name", rank, number, f"interval {number}") for number in range(len(self._began))]
        return about + [self._event(rank, span) for span in self.spans]

    def _event(self, rank: int, span: StageSpan) -> dict[str, Any]:
        stage = self._stages[span.work.stage]
        return {
            "ph": "X",
            "name": f"{stage.part} {stage.layer}",
            "cat": "trainer" if stage.by_trainer else "worker",
            "pid": rank,
            "tid": span.work.interval,
            "ts": round(1e6 * span.start, 3),
            "dur": round(1e6 * (span.end - span.start), 3),
            "args": {"epoch": span.work.epoch},
        }


def _named(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}
