"""The machine and the versions of packages behind a result. Every JSON file that Atta writes has them."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("atta", "torch", "torch_geometric", "dgl", "numpy", "grpcio", "protobuf", "pymetis")


try:
    __version__ = version("atta")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"


def machine() -> dict[str, Any]:
    """CPU model, usable cores, memory in bytes, and the GPU if torch is loaded and sees one."""
    import psutil  # only here: `import atta` reads the version

    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": _gpu(),
    }


def versions() -> dict[str, str]:
    """Versions of the installed packages that influence results."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None
