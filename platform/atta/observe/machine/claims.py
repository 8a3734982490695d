"""What daemons on this machine have asked for and not taken yet: memory that is free, but promised.

A claim is the name of a socket that its process has bound and nobody connects to. So it ends with the process, however that
ends, and no file is left. All processes of a user in one network namespace see each other's.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from atta.observe.machine.groups import PROC, words
from atta.observe.machine.memory import available_bytes, total_bytes

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
    """Memory of this machine or the tightest control group, and bytes of it that are free and not promised.

    Daemons that start at the same time look one after the other: leave a ``claim`` within the block.
    """
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
    status = words(proc / str(pid) / "status")
    kib = (int(value) for name, value in pairwise(status) if name in _PRIVATE)
    return 1024 * sum(kib)
