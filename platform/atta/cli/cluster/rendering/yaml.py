"""Writes documents of plain values as YAML, without a library. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"(--)?[A-Za-z/][A-Za-z0-9_./-]*")
_SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def as_yaml(documents: Iterable[Mapping[str, Any]], comment: str = "") -> str:
    """The documents one after another, below ``comment``.

    Values are texts, whole numbers, booleans, and lists and mappings of these.
    """
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "".join("---\n" + "\n".join(_lines(document)) + "\n" for document in documents)


def _lines(value: Any) -> Iterator[str]:
    """The lines of a list or mapping that is not empty."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _entry(f"{_scalar(str(key))}:", entry)
        return
    for entry in value:
        if isinstance(entry, Mapping | list) and entry:
            first, *rest = _lines(entry)
            yield f"- {first}"
            yield from map(_inner, rest)
        else:
            yield f"- {_scalar(entry)}"


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield key
        yield from map(_inner, _lines(value))
    elif isinstance(value, str) and _is_block(value):
        yield f"{key} |"
        yield from map(_inner, value.splitlines())
    else:
        yield f"{key} {_scalar(value)}"


def _is_block(text: str) -> bool:
    """Whether the text can stand below its key: lines of printable characters, none of which begins with a space."""
    lines = text.split("\n")
    plain = all(line.isascii() and (not line or line.isprintable()) for line in lines)
    return len(lines) > 2 and text.endswith("\n") and not text.endswith("\n\n") and plain and text[0] not in " \n"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _SURROGATES.sub(_wide, json.dumps(value))  # JSON is YAML, but for what takes JSON two escapes


def _inner(line: str) -> str:
    return f"  {line}" if line else ""


def _wide(pair: re.Match[str]) -> str:
    high, low = (int(half, 16) for half in pair.groups())
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"
