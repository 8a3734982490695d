"""How much memory this process may still take: of the machine, and of the control groups that it is in.

What is given out beyond that kills: a page that a limit has no room for cannot be had later either.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from atta.observe.machine.groups import GROUPS, PROC, own_groups, words

__all__ = ["available_bytes", "total_bytes"]


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes that can be had without swapping, and without a group's limit being hit; files in the page cache make room."""
    left = [limit - used for limit, used in _limits(proc, groups)]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def total_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Memory of the machine, or of the tightest group."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _limits(proc, groups))])


def _limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """Limit of each limited group, and what it uses apart from files that nobody has read lately."""
    for version, folder in own_groups("memory", proc, groups):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (words(folder / name) for name in names)
        if limit and used and limit[0] != "max":
            stat = words(folder / "memory.stat")
            cached = dict(zip(stat[::2], stat[1::2], strict=False)).get(
                "total_" * (version == 1) + "inactive_file", "0"
            )
            yield int(limit[0]), int(used[0]) - int(cached)
