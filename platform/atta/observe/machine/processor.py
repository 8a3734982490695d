"""How much of the processor this process may use, and how much of that is in use.

The tightest limit counts: the cores of the affinity mask, or the quota of a control group (version 1 or 2) of the
process. Eight idle cores do not help a process whose control group may use two.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from atta.observe.machine.groups import GROUPS, PROC, own_groups, words


@dataclass(frozen=True)
class _Quota:
    """A group that may use ``cores`` cores. ``used_s`` reads the processor seconds that it has used."""

    cores: float
    used_s: Callable[[], float]


def usable_cores(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Number of cores that this process can keep busy, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min([allowed, *(math.ceil(quota.cores) for quota in _quotas(proc, groups))]))


class ProcessorLoad:
    """Utilisation since the last reading, in percent of what may be used; 100 means that more work must wait."""

    def __init__(self, proc: Path = PROC, groups: Path = GROUPS, clock: Callable[[], float] = time.monotonic) -> None:
        """``proc``, ``groups``: where these file systems are mounted."""
        self._quotas, self._clock = list(_quotas(proc, groups)), clock
        allowed = sorted(os.sched_getaffinity(0))
        self._allowed = allowed if len(allowed) < (psutil.cpu_count() or 0) else None  # None: every core
        self._last = self._read()

    def percent(self) -> float:
        """The tightest limit's utilisation, 0 to 100."""
        before, self._last = self._last, self._read()
        passed = self._last[0] - before[0]
        if passed <= 0:
            return 0.0
        shares = [self._machine(before[1], self._last[1])]
        for quota, then, now in zip(self._quotas, before[2], self._last[2], strict=True):
            shares.append((now - then) / (passed * quota.cores))
        return 100.0 * min(1.0, max(0.0, *shares))

    def _read(self) -> tuple[float, tuple[float, float], list[float]]:
        """The time; busy seconds and all seconds of the allowed cores; seconds that each group has used."""
        if self._allowed is None:
            chosen = [psutil.cpu_times()]  # takes half as long as all cores one by one
        else:
            cores = psutil.cpu_times(percpu=True)
            chosen = [cores[i] for i in self._allowed if i < len(cores)]
        idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in chosen)
        # The time of guests is part of the time of user processes.
        whole = sum(sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0) for core in chosen)
        return self._clock(), (whole - idle, whole), [quota.used_s() for quota in self._quotas]

    @staticmethod
    def _machine(before: tuple[float, float], now: tuple[float, float]) -> float:
        whole = now[1] - before[1]
        return (now[0] - before[0]) / whole if whole > 0 else 0.0


def _quotas(proc: Path, groups: Path) -> Iterator[_Quota]:
    """The limited groups of this process, from the innermost outwards."""
    for version, folder in own_groups("cpu", proc, groups):
        quota = _version_2(folder) if version == 2 else _version_1(folder, groups)
        if quota is not None:
            yield quota


def _version_2(folder: Path) -> _Quota | None:
    limit = words(folder / "cpu.max")
    if len(limit) != 2 or limit[0] == "max" or not words(folder / "cpu.stat"):
        return None
    return _Quota(int(limit[0]) / int(limit[1]), lambda: _microseconds(folder / "cpu.stat"))


def _version_1(folder: Path, groups: Path) -> _Quota | None:
    quota, period = words(folder / "cpu.cfs_quota_us"), words(folder / "cpu.cfs_period_us")
    usage = groups / "cpuacct" / folder.relative_to(groups / "cpu") / "cpuacct.usage"
    if not quota or not period or int(quota[0]) <= 0 or not words(usage):
        return None
    return _Quota(int(quota[0]) / int(period[0]), lambda: 1e-9 * int((words(usage) or ["0"])[0]))


def _microseconds(stat: Path) -> float:
    found = words(stat)
    used = dict(zip(found[::2], found[1::2], strict=False)).get("usage_usec", "0")
    return 1e-6 * int(used)
