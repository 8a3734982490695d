"""Which machine this is, as far as shared memory is concerned."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["machine_id"]


def machine_id() -> str:
    """A string that two processes share only if they run under one kernel, see each other's processes and have one owner.

    Such processes can map each other's memory files through /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text(encoding="ascii").strip() if boot.exists() else os.uname().nodename
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{boot_id}/{namespace}/{os.getuid()}"
