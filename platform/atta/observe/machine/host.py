"""Identifies this machine for shared memory."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def machine_id() -> str:
    """A string that is equal for processes under one kernel that see each other, have one owner and one network.

    Only such processes can map each other's memory files through /proc. They could from another network, too; but a host
    of its own network stands for another machine, as in benchmarks, and must not be faster than one.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text(encoding="ascii").strip() if boot.exists() else os.uname().nodename
    return f"{boot_id}/{_namespace('pid')}/{_namespace('net')}/{os.getuid()}"


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""
