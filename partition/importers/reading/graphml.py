"""GraphML files as graphs of networkx, with what networkx itself does not read: the types and the ids of graph-tool.

graph-tool has more types of attributes (``short``, ``vector_double``, ...; numbers between commas are a row), writes
fractions in hexadecimal, and gives edges the ids ``e0``, ``e1``, ..., which only count them and are left out.
"""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from atta.errors import DataError
from atta.partition.importers.reading.common import first_line
from atta.partition.importers.reading.head import open_content
from atta.partition.importers.reading.options import ImportOptions

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["read_graphml"]

_SPACE = "{http://graphml.graphdrawing.org/xmlns}"
_PIECE = 64 << 10
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def read_graphml(source: Path, options: ImportOptions) -> nx.Graph[Any]:
    """The graph in the file ``source``; its labels are the strings of the file. Raises DataError."""
    _refuse_entities(source)
    try:
        with open_content(source) as file:
            root = ET.parse(file).getroot()
        for element in root.iter():
            element.tag = element.tag if element.tag.startswith("{") else _SPACE + element.tag
            element.text = (element.text or "").strip() or None
        graph = _only_graph(root, source, options)
        _strip_counted_ids(graph.findall(f"{_SPACE}edge"), options)
        with warnings.catch_warnings(record=True) as caught:
            made = _made(root, graph)
    except DataError:
        raise
    except Exception as error:  # the XML parser and networkx raise many unrelated types
        raise DataError(source, f"not readable as GraphML: {first_line(error)}") from None
    options.notes.extend(dict.fromkeys(f"{source.name}: {warning.message}" for warning in caught))
    return made


def _only_graph(root: ET.Element, source: Path, options: ImportOptions) -> ET.Element:
    graphs = root.findall(f"{_SPACE}graph")
    if not graphs:
        raise DataError(source, "not readable as GraphML: it holds no graph")
    if len(graphs) > 1:
        options.refuse(source, "graph", f"the file holds {len(graphs)}, and only the first would be read")
    return graphs[0]


def _made(root: ET.Element, graph: ET.Element) -> nx.Graph[Any]:
    """What networkx makes of the element ``graph``."""
    from networkx.readwrite.graphml import GraphMLReader

    reader = GraphMLReader()
    reader.python_type |= _types()
    keys, defaults = reader.find_graphml_keys(root)
    made: nx.Graph[Any] = reader.make_graph(graph, keys, defaults)
    return made


def _refuse_entities(source: Path) -> None:
    """Refuse a file that declares entities: a few nested ones expand to more than any memory holds."""
    parser = expat.ParserCreate()
    begun = []

    def refuse(name: str, *_: object) -> None:
        raise DataError(source, f"declares the entity {name!r}; files with entities are not read")

    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = lambda *_: begun.append(True)  # declarations stand before the first element
    with open_content(source) as file:
        while not begun and (piece := file.read(_PIECE)):
            try:
                parser.Parse(piece)
            except (expat.ExpatError, LookupError) as error:  # LookupError: the encoding is unknown
                raise DataError(source, f"not readable as GraphML: {error}") from None


def _strip_counted_ids(edges: list[ET.Element], options: ImportOptions) -> None:
    """Take away ids of edges that are ``e0``, ``e1``, ... in their order."""
    if all(edge.get("id") == f"e{place}" for place, edge in enumerate(edges)):
        for edge in edges:
            del edge.attrib["id"]
        options.dropped.update({"id", "keys"} & options.drop)


def _types() -> dict[str, Callable[[str], Any]]:
    """What turns the text of an attribute into its value, by the name of its type."""
    scalars: dict[str, Callable[[str], Any]] = {"short": int, "int": int, "long": int, "float": _real, "double": _real}
    rows = {name: _row_of(scalar) for name, scalar in (scalars | {"boolean": _truth, "string": str}).items()}
    return scalars | {f"vector_{name}": row for name, row in rows.items()} | {"python_object": str}


def _row_of(scalar: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [scalar(part.strip()) for part in text.split(",")]


def _truth(text: str) -> bool:
    return _TRUTHS[text.lower()]


def _real(text: str) -> float:
    return float.fromhex(text) if "0x" in text.lower() else float(text)
