"""The folder in which benchmarks keep data that takes long to make."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from atta.errors import ConfigError

__all__ = ["work_folder"]


def work_folder(work: str | None) -> Path:
    """The folder that ``--work`` names; None: ``atta`` in the user's cache folder. It is made if need be.

    Raises:
        ConfigError: no files can be made in it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(work or Path(base) / "atta").resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        option = "--work" if work else "the default of --work,"
        raise ConfigError(f"{option} {folder}: cannot be written to: {error.strerror}") from None
    return folder
