"""What a measured stretch says: pure functions of what consumers, clocks, counters and samples have found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atta_bench.scale.clocks import ProcessorTime, total
from atta_bench.scale.profile import CODE, Samples

__all__ = [
    "FIRST",
    "Figures",
    "Stretch",
    "counted",
    "figures_of",
    "first_batches",
    "per_seed",
    "seeds_per_s",
    "split_by_code",
]

FIRST = (10, 50)
"""How many batches of fresh daemons are compared with the steady rate."""
_REMOTE_TASKS = re.compile(r"tasks_\w+_net_total")
_OTHERS = r"(?!Session|Control|Table|Link)\w+Service\.\w+"  # what daemons ask each other for batches
_REQUESTS = re.compile(rf"requests_{_OTHERS}|link_requests_served")
_SENT = re.compile(rf"sent_bytes_{_OTHERS}|link_sent_bytes")

Figures = dict[str, float]


@dataclass(frozen=True)
class Stretch:
    """One stretch of batches of all consumers.

    Attributes:
        taken: the answer of each consumer, see ``consumer``.
        daemons, consumers: processor time of the stretch.
        counters: what the daemons' counters have grown by, summed over the daemons.
        sent: bytes and packets that left the hosts by their interfaces; 0 on loopback.
        samples: of another stretch of the same kind; empty without ``perf``.
    """

    taken: Sequence[Mapping[str, Any]]
    daemons: ProcessorTime
    consumers: ProcessorTime
    counters: Mapping[str, float] = field(default_factory=dict)
    sent: tuple[int, int] = (0, 0)
    samples: Samples = field(default_factory=dict)

    def sum(self, name: str) -> float:
        """Sum of one figure over the consumers."""
        return float(sum(answer[name] for answer in self.taken))

    @property
    def batches(self) -> int:
        """Number of batches of all consumers."""
        return sum(len(answer["times"]) for answer in self.taken)


def seeds_per_s(taken: Sequence[Mapping[str, Any]]) -> float:
    """Seeds of all consumers by the time from the first start to the last batch."""
    end = max(answer["times"][-1] for answer in taken)
    return float(sum(answer["seeds"] for answer in taken) / (end - min(answer["start"] for answer in taken)))


def first_batches(taken: Sequence[Mapping[str, Any]], batch_size: int, steady: float) -> Figures:
    """Seeds per second of the first batches of fresh daemons, and the share of the steady rate that this is.

    Of each consumer the first 10, 50, ... batches count, from the moment at which all are let go. Batches are full.
    """
    found: Figures = {}
    start = min(answer["start"] for answer in taken)
    for count in FIRST:
        if all(len(answer["times"]) >= count for answer in taken):
            end = max(answer["times"][count - 1] for answer in taken)
            rate = len(taken) * count * batch_size / (end - start)
            found |= {f"first_{count}_seeds_per_s": rate, f"first_{count}_share": rate / steady}
    return found


def counted(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> Figures:
    """What the counters of all daemons have grown by together. A counter that is new began at 0."""
    found: Figures = {}
    for then, now in zip(before, after, strict=True):
        for name, value in now.items():
            found[name] = found.get(name, 0.0) + value - then.get(name, 0.0)
    return found


def per_seed(seconds: Mapping[str, float], seeds: float) -> Figures:
    """Microseconds per seed, the largest first."""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {f"{name}_us_per_seed": 1e6 * s / seeds for name, s in ordered}


def split_by_code(samples: Samples, seconds: Mapping[str, float]) -> dict[str, float]:
    """Divide the ``seconds`` of each group of processes among the kinds of code by its samples: names "GROUP_KIND"."""
    found: dict[str, float] = {}
    for group, kinds in samples.items():
        if count := kinds.total():
            found |= {f"{group}_{kind}": seconds[group] * kinds[kind] / count for kind in CODE}
    return found


def figures_of(stretch: Stretch) -> Figures:
    """The figures of one stretch. Those of a section have its name before a slash.

    ``processes`` divides the processor time by kind of process and by user and system time, ``threads`` that of the
    daemons by thread, ``code`` all of it by kind of code. Each division adds up to what it divides.
    """
    seeds, batches = stretch.sum("seeds"), stretch.batches
    whole = total((stretch.daemons, stretch.consumers))
    found = {
        "seeds_per_s": seeds_per_s(stretch.taken),
        "cpu_us_per_seed": 1e6 * whole.seconds / seeds,
        "cpu_ms_per_batch": 1e3 * whole.seconds / batches,
        "make_ms": stretch.sum("make_ms") / batches,
        "vertices_per_seed": stretch.sum("nodes") / seeds,
        "edges_per_seed": stretch.sum("edges") / seeds,
        "remote_rows_per_seed": stretch.sum("remote_rows") / seeds,
        **_messages(stretch, batches),
        "batches": float(batches),
    }
    groups = {"daemon": stretch.daemons, "consumer": stretch.consumers}
    processes = {f"{g}_{kind}": getattr(time, f"{kind}_s") for g, time in groups.items() for kind in ("user", "system")}
    code = split_by_code(stretch.samples, {group: time.seconds for group, time in groups.items()})
    for section, seconds in (("processes", processes), ("threads", stretch.daemons.roles()), ("code", code)):
        found |= {f"{section}/{name}": value for name, value in per_seed(seconds, seeds).items()}
    return found


def _messages(stretch: Stretch, batches: int) -> Figures:
    """What crosses between daemons for a batch, as far as it is counted."""
    named = {"remote_tasks": _REMOTE_TASKS, "remote_requests": _REQUESTS, "answer_bytes": _SENT}
    found = {
        f"{figure}_per_batch": sum(v for name, v in stretch.counters.items() if pattern.fullmatch(name)) / batches
        for figure, pattern in named.items()
    }
    if any(stretch.sent):
        found |= {f"link_{n}_per_batch": v / batches for n, v in zip(("bytes", "packets"), stretch.sent, strict=True)}
    return found
