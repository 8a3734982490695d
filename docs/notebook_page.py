"""A notebook as a page: its texts, its code, and the outputs that are stored in it."""

from __future__ import annotations

import json
from typing import Any


def page_of(text: str) -> str:
    """Markdown for MyST of the notebook ``text`` (JSON). Its headings stand one level lower, below those of a page. Of an
    output the HTML is shown, or else the plain text."""
    cells = json.loads(text)["cells"]
    return "\n\n".join(
        _code(cell) if cell["cell_type"] == "code" else _prose(_joined(cell["source"])) for cell in cells
    )


def _prose(text: str) -> str:
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in text.splitlines())


def _code(cell: dict[str, Any]) -> str:
    outputs = [_output(output) for output in cell["outputs"]]
    return "\n\n".join([_fenced("python", _joined(cell["source"])), *outputs])


def _output(output: dict[str, Any]) -> str:
    found = output.get("data", {})
    if "text/html" in found:
        return _fenced("{raw} html", _joined(found["text/html"]))
    return _fenced("text", _joined(found.get("text/plain", output.get("text", ""))))


def _fenced(kind: str, text: str) -> str:
    return f"``````{kind}\n{text.rstrip()}\n``````"


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
