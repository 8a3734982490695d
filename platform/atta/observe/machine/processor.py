"""The processor: cores that this process may use, how busy they are, and the name of the host."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
"""Where these file systems are mounted."""


def own_groups(controller: str, proc: Path, groups: Path) -> Iterator[tuple[int, Path]]:
    """Version and folder of each group for ``controller`` (``"cpu"``, ``"memory"``), from the innermost outwards."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            yield from ((2, folder) for folder in _upwards(groups, name))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _upwards(groups / controller, name))


def _upwards(root: Path, name: str) -> Iterator[Path]:
    """The folder of a group and its parents. In a container the group's own folder is mounted at the root."""
    folder = root / name.lstrip("/")
    while folder != root:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield root


def words(path: Path) -> list[str]:
    """The words of a file; none if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


@functools.cache
def machine_id() -> str:
    """A string that is equal for processes under one kernel that see each other, have one owner and one network. Only
    such processes can map each other's memory files through /proc. They could from another network, too; but a host of
    its own network stands for another machine, as in benchmarks, and must not be faster than one."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text(encoding="ascii").strip() if boot.exists() else os.uname().nodename
    return f"{boot_id}/{_namespace('pid')}/{_namespace('net')}/{os.getuid()}"


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


@dataclass(frozen=True)
class _Quota:
    """A group that may use ``cores`` cores. ``used_s`` reads the processor seconds that it has used."""

    cores: float
    used_s: Callable[[], float]


def usable_cores(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Number of cores that this process can keep busy, at least 1."""
    return max(1, min([len(os.sched_getaffinity(0)), *(math.ceil(quota.cores) for quota in _quotas(proc, groups))]))


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
        if (quota := _version_2(folder) if version == 2 else _version_1(folder, groups)) is not None:
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
    return 1e-6 * int(dict(zip(found[::2], found[1::2], strict=False)).get("usage_usec", "0"))
