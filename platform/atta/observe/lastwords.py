"""What a process says in the end: text that a terminal may be shown, and the error for the process that started it.

The parent names a file in the environment variable ``ATTA_LAST_WORDS``. The command line writes one JSON object there, so
that the type of the error survives. Nothing in it is evaluated: the type is the name of one of ``atta.errors``, the fields
are numbers and texts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from atta import errors
from atta.errors import AttaError

VARIABLE = "ATTA_LAST_WORDS"
_LIMIT_BYTES = 1 << 20


def record_of(error: BaseException) -> dict[str, Any]:
    """The error as a JSON object: ``kind``, ``message`` and ``fields``."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | bool | None)}
    return {"kind": type(error).__name__, "message": str(error), "fields": fields}


def error_of(record: Any) -> AttaError | None:
    """The error of Atta that a record is of; None: it is of another one, or no record."""
    try:
        kind, message, fields = getattr(errors, record["kind"]), str(record["message"]), dict(record["fields"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if not (isinstance(kind, type) and issubclass(kind, AttaError)):
        return None
    error = kind.__new__(kind)  # without calling it: arguments differ from type to type
    error.args = (message,)
    vars(error).update(fields)
    return error


def leave(error: AttaError) -> None:
    """Write ``error`` to the file that the environment names; do nothing if it names none."""
    if path := os.environ.get(VARIABLE):
        Path(path).write_text(json.dumps(record_of(error)), encoding="utf-8")


def read(path: Path) -> AttaError | None:
    """The error that a process left at ``path``; None if there is none, or it cannot be read."""
    try:
        return error_in(path.read_text(encoding="utf-8")) if path.stat().st_size <= _LIMIT_BYTES else None
    except OSError:
        return None


def error_in(text: str) -> AttaError | None:
    """The error that a file's text tells of; None: none."""
    try:
        return error_of(json.loads(text))
    except ValueError:
        return None


def printable(text: str) -> str:
    """``text`` with an escape, as in Python's literals, for each character that is neither printable nor a tab or line
    end. Control characters would be obeyed: they clear the screen, give the window a title, or turn the line around."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\t\n" else c.encode("unicode_escape").decode() for c in text)


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun, whose plural ends in ``s`` unless ``many`` is given: ``1 edge``, ``12,345 edges``."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).partition("\n")[0]
