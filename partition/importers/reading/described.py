"""Descriptions of data sets in JSON or YAML, and the files that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.disk.files import check_regular, open_regular

__all__ = ["entries", "named_file", "read_description"]

_MOST = 64 << 20
"""Most bytes of a description: those of chunked graphs list each chunk."""
_SHOWN = 200
"""Most letters of a parser's message, which may have several lines."""


def read_description(path: Path, what: str) -> dict[str, Any]:
    """Read the object in a ``.json`` or ``.yaml`` file. ``what``: for messages.

    Raises:
        DataError: the file is missing, too long, or holds no object.
        ConfigError: it is YAML, and PyYAML is not installed.
    """
    if not path.exists():
        raise DataError(path, "the file is missing")
    with open_regular(path) as file:
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise DataError(path, f"longer than {_MOST >> 20} MiB: {what} is short")
    if path.suffix == ".json":
        said = _parsed(path, "JSON", json.loads, content)
    else:
        said = _parsed(path, "YAML", load("reading YAML", "yaml").safe_load, content)
    if not isinstance(said, dict):
        raise DataError(path, f"holds no object: it is not {what}")
    return said


def _parsed(path: Path, language: str, parse: Any, content: bytes) -> Any:
    try:
        return parse(content)
    except Exception as error:  # parsers raise many types, among them RecursionError
        cause = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise DataError(path, f"not valid {language}: {cause}") from None


def entries(path: Path, said: Any, key: str, *needed: str) -> list[dict[str, Any]]:
    """The list of objects under a key of ``said``, each with a text under the keys ``needed``; raises DataError."""
    found = said.get(key) if isinstance(said, dict) else None
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise DataError(path, f"{key!r} is no list of objects")
    for entry in found:
        if lost := [name for name in needed if not isinstance(entry.get(name), str)]:
            raise DataError(path, f"an entry of {key!r} has no {lost[0]!r}: {entry}")
    return found


def named_file(folder: Path, name: str) -> Path:
    """The file in ``folder`` that ``name`` means.

    A path that leads nowhere, because the folder was moved, is looked for by its last parts. Raises DataError if there
    is no such file.
    """
    parts = Path(name).parts
    for path in (folder / name, *(folder.joinpath(*parts[at:]) for at in range(1, len(parts)))):
        if path.exists():
            check_regular(path)
            return path
    raise DataError(folder / name, "the file is missing")
