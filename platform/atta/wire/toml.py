"""Reads TOML files. It needs no numpy, so that ``--help`` is quick."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from atta.errors import DataError

__all__ = ["read_toml"]


def read_toml(path: str | Path) -> dict[str, Any]:
    """The document in a file.

    Raises:
        DataError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(path, f"is not a TOML file: {error}") from error
    except RecursionError:
        raise DataError(path, "is not a TOML file that can be read: its values are nested too deeply") from None
