"""Identifies this machine for shared memory."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["machine_id"]


def machine_id() -> str:
    """A string that is equal for processes under one kernel that see each other and have one owner.

    Only such processes can map each other's memory files through /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text(encoding="ascii").strip() if boot.exists() else os.uname().nodename
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{boot_id}/{namespace}/{os.getuid()}"
