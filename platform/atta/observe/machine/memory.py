"""How much memory this process may still take, of the machine and of its control groups.

A process that takes more is killed, even if the memory was promised to it: a page is only counted when it is first
    written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from atta.observe.machine.groups import GROUPS, PROC, own_groups, words


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes that are free without swapping and within the limits of groups. Files in the page cache count as free."""
    left = [limit - used for limit, used in _limits(proc, groups)]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def total_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Memory of the machine, or of the tightest group."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _limits(proc, groups))])


def _limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """The limit of each limited group, and what it uses apart from files, which it gives up before a process is killed.

    Files that have been read lately count like others: those that a daemon maps are read all the time.
    """
    for version, folder in own_groups("memory", proc, groups):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (words(folder / name) for name in names)
        if limit and used and limit[0] != "max":
            stat = words(folder / "memory.stat")
            figures, total = dict(zip(stat[::2], stat[1::2], strict=False)), "total_" * (version == 1)
            files = sum(int(figures.get(f"{total}{kind}_file", 0)) for kind in ("active", "inactive"))
            yield int(limit[0]), int(used[0]) - files
