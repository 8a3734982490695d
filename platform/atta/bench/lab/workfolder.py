"""The folder in which benchmarks keep data that takes long to make."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["work_folder"]


def work_folder(work: str | None) -> Path:
    """The folder that ``--work`` names; None: ``atta`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(work or Path(base) / "atta").resolve()
