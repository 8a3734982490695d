"""Memory: how much there is, what processes claim, and how the heap gives it back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psutil

from atta.observe.machine.processor import GROUPS, PROC, own_groups, words


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes that are free without swapping and within the limits of groups. Files in the page cache count as free."""
    left = [limit - used for limit, used in _limits(proc, groups)]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def total_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Memory of the machine, or of the tightest group."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _limits(proc, groups))])


def _limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """The limit of each limited group, and what it uses apart from files, which it gives up before a process is killed.
    Files that have been read lately count like others: those that a daemon maps are read all the time."""
    for version, folder in own_groups("memory", proc, groups):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (words(folder / name) for name in names)
        if limit and used and limit[0] != "max":
            stat = words(folder / "memory.stat")
            figures, total = dict(zip(stat[::2], stat[1::2], strict=False)), "total_" * (version == 1)
            files = sum(int(figures.get(f"{total}{kind}_file", 0)) for kind in ("active", "inactive"))
            yield int(limit[0]), int(used[0]) - files


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)
_APART, _KEPT = 1 << 20, 32 << 20
"""Bytes of the smallest blocks that lie apart from the heap, meanwhile and otherwise."""
_SETTINGS = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_"}


def keep_freed() -> None:
    """Let glibc reuse large blocks instead of returning them to the kernel, unless the environment sets it up. Each
    step allocates the same few large tensors. By default each of them is a new mapping, whose pages the kernel must
    fill with zeros. With wide features this took a third of a step's time on the CPU."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not _SETTINGS & os.environ.keys():
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed() -> None:
    """Return freed memory anywhere in the heap to the kernel.

    Trainers keep memory that they free (``keep_freed``), which suits steps of equal size. Tensors of a larger batch do
    not fit into the gaps that the last batch left, because small objects lie between them. So each larger batch takes
    new memory: with four co-batches a trainer held more than three times the memory of a step.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@contextmanager
def apart_from_heap() -> Iterator[None]:
    """Within this, large blocks lie apart from the heap: when they are freed, they go back to the kernel. A daemon
    keeps what it frees, for its batches. Work that takes much memory once should leave nothing behind."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _APART)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _KEPT)


LOOK_S = 5.0
"""How long a daemon waits for others that look at the memory. One of them may be stopped."""
_NAME = re.compile(r"@atta-claim-([0-9]+)-([0-9]+)-([0-9]+)")
"""User, process and bytes, as the kernel lists the socket."""
_PRIVATE = ("RssAnon:", "RssShmem:")
"""What counts as taken: pages of files would be given up for others."""
_claims: list[socket.socket] = []
"""That of this process, if it has one."""


@contextlib.contextmanager
def machine_room() -> Iterator[tuple[int, int]]:
    """Memory of this machine or the tightest control group, and bytes of it that are free and not promised. Daemons
    that start at the same time look one after the other: leave a ``claim`` within the block."""
    with contextlib.closing(_looking()):
        yield total_bytes(), max(0, available_bytes() - promised_bytes())


def claim(nbytes: int) -> None:
    """Note that this process, or those that it starts, are going to take ``nbytes`` in all. 0: no more than they have."""
    while _claims:
        _claims.pop().close()
    if nbytes:
        with contextlib.suppress(OSError):  # a system without such sockets: the others do not learn of it
            _claims.append(_bound(f"{os.getuid()}-{os.getpid()}-{nbytes}"))


def promised_bytes(proc: Path = PROC) -> int:
    """What other processes of this user have claimed and not taken yet."""
    found = (_NAME.fullmatch(word) for word in words(proc / "net" / "unix") if word.startswith("@atta-claim-"))
    claims = [(int(name[1]), int(name[2]), int(name[3])) for name in found if name is not None]
    others = [(pid, nbytes) for uid, pid, nbytes in claims if uid == os.getuid() and pid != os.getpid()]
    return sum(max(0, nbytes - _taken(pid, proc)) for pid, nbytes in others)


def _looking() -> socket.socket:
    """What only one process has at a time; after ``LOOK_S``, or on a system without such sockets, one that says nothing."""
    until = time.monotonic() + LOOK_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            return _bound(f"look-{os.getuid()}")
        time.sleep(0.01)
    return socket.socket()


def _bound(name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(f"\0atta-claim-{name}")
    except BaseException:
        made.close()
        raise
    return made


def _taken(pid: int, proc: Path) -> int:
    """Bytes of memory of a process that are not pages of files."""
    return 1024 * sum(int(value) for name, value in pairwise(words(proc / str(pid) / "status")) if name in _PRIVATE)
