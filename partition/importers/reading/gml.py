"""GML files as graphs of networkx, whose reader knows neither text beyond ASCII nor ``1e-05``, and wants distinct edges."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atta.errors import DataError
from atta.partition.importers.reading.common import first_line
from atta.partition.importers.reading.head import open_content

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["read_gml", "read_text"]

_SKIPPED = r'"[^"]*"|\#[^\n]*'  # texts and comments
_VALUE = re.compile(rf"({_SKIPPED})|(?<![\w.])([+-]?\d+)([eE][+-]?\d+)\b|(?<=\s)([+-]?inf|nan)\b", re.IGNORECASE)
_GRAPH = re.compile(rf"{_SKIPPED}|(\bgraph\s*\[)")


def read_text(source: Path) -> str:
    """The text of a file in UTF-8, or in Latin-1 if it is not UTF-8, with any ends of lines."""
    with open_content(source) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_gml(source: Path) -> nx.Graph[Any]:
    """The graph in the file ``source``: vertices are their ids, ``label`` is an attribute. Raises DataError."""
    import networkx as nx

    # networkx reads 1e-05 as the number 1 and an attribute e of the value -5, and only INF and NAN in capitals.
    text = _VALUE.sub(_readable, read_text(source))
    begin = next((found.end() for found in _GRAPH.finditer(text) if found[1]), None)
    if begin is None:
        raise DataError(source, "not readable as GML: it holds no graph")
    try:
        graph: nx.Graph[Any] = nx.parse_gml(f"{text[:begin]} multigraph 1 {text[begin:]}", label="id")
    except Exception as error:  # networkx does not check all that it looks up
        raise DataError(source, f"not readable as GML: {first_line(error)}") from None
    return graph


def _readable(found: re.Match[str]) -> str:
    """A text in one line, a fraction with a point, or an infinity or NaN in capitals."""
    if found[1]:
        return found[1].replace("\n", " ")
    return found[4].upper() if found[4] else f"{found[2]}.0{found[3]}"
