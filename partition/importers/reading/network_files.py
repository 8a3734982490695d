"""Files of GML, GraphML and Pajek (``*.net``) as graphs of networkx, with what networkx' own readers do not read or read
wrongly: in GML text beyond ASCII and ``1e-05``, in GraphML the types of graph-tool, in Pajek arcs beside edges."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from atta.errors import DataError, blaming
from atta.partition.importers.matrix import check_count, quoted
from atta.partition.importers.reading.source import ImportOptions, first_line, open_content, unreadable

if TYPE_CHECKING:
    import networkx as nx


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
    # networkx does not check all that it looks up
    with unreadable(source, "not readable as GML", Exception):
        graph: nx.Graph[Any] = nx.parse_gml(f"{text[:begin]} multigraph 1 {text[begin:]}", label="id")
    return graph


def _readable(found: re.Match[str]) -> str:
    if found[1]:
        return found[1].replace("\n", " ")
    return found[4].upper() if found[4] else f"{found[2]}.0{found[3]}"


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
        graphs = root.findall(f"{_SPACE}graph")
        if not graphs:
            raise DataError(source, "not readable as GraphML: it holds no graph")
        if len(graphs) > 1:
            options.refuse(source, "graph", f"the file holds {len(graphs)}, and only the first would be read")
        _part_keys(root)
        _strip_counted_ids(graphs[0].findall(f"{_SPACE}edge"), options)
        with warnings.catch_warnings(record=True) as caught:
            made = _made(root, graphs[0])
    except DataError:
        raise
    except Exception as error:  # the XML parser and networkx raise many unrelated types
        raise DataError(source, f"not readable as GraphML: {first_line(error)}") from None
    options.notes.extend(dict.fromkeys(f"{source.name}: {warning.message}" for warning in caught))
    return made


def _made(root: ET.Element, graph: ET.Element) -> nx.Graph[Any]:
    from networkx.readwrite.graphml import GraphMLReader

    reader = GraphMLReader()
    real = lambda text: float.fromhex(text) if "0x" in text.lower() else float(text)  # noqa: E731
    scalars: dict[str, Callable[[str], Any]] = {"short": int, "int": int, "long": int, "float": real, "double": real}
    items = scalars | {"boolean": lambda text: _TRUTHS[text.lower()], "string": str}
    rows = {f"vector_{name}": partial(_row_of, item) for name, item in items.items()}
    reader.python_type |= scalars | rows | {"python_object": str}
    keys, defaults = reader.find_graphml_keys(root)
    made: nx.Graph[Any] = reader.make_graph(graph, keys, defaults)
    return made


def _part_keys(root: ET.Element) -> None:
    """rustworkx gives keys of vertices and of edges the same ids, which networkx takes for one key: the last one."""
    keys = [key.attrib for key in root.findall(f"{_SPACE}key") if key.get("for") == "edge"]
    ids = {key["id"]: f"edge {key['id']}" for key in keys}
    for key in keys:
        key["id"] = ids[key["id"]]
    for data in root.findall(f".//{_SPACE}edge/{_SPACE}data"):
        data.attrib["key"] = ids.get(data.attrib["key"], data.attrib["key"])


def _row_of(item: Callable[[str], Any], text: str) -> list[Any]:
    return [item(part.strip()) for part in text.split(",")]


def _refuse_entities(source: Path) -> None:
    parser = expat.ParserCreate()
    begun = []

    def refuse(name: str, *_: object) -> None:
        raise DataError(source, f"declares the entity {name!r}; files with entities are not read")

    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = lambda *_: begun.append(True)  # declarations stand before the first element
    with open_content(source) as file:
        while not begun and (piece := file.read(_PIECE)):
            # LookupError: the encoding is unknown
            with blaming(DataError, source, "not readable as GraphML", of=(expat.ExpatError, LookupError)):
                parser.Parse(piece)


def _strip_counted_ids(edges: list[ET.Element], options: ImportOptions) -> None:
    if all(edge.get("id") == f"e{place}" for place, edge in enumerate(edges)):
        for edge in edges:
            del edge.attrib["id"]
        options.dropped.update({"id", "keys"} & options.drop)


_WORD = re.compile(r'"([^"]*)"|(\S+)')
_INTERVAL = "["  # begins the times at which a vertex or an edge exists
_COMMENTS = ("%", "#")  # Pajek's own, and Infomap's
_MOST_COORDINATES = 3
_TIES = ("arcs", "edges", "arcslist", "edgeslist", "matrix")
_SECTIONS = ("", "network", "vertices", *_TIES)


def read_pajek(source: Path, options: ImportOptions) -> nx.Graph[Any]:
    """The graph in the file ``source``. Raises DataError naming the line. ``*Edges``, and entries of the matrix of a
    two-mode network, are stored in both directions. Vertices are their numbers. Attributes: ``label``, ``position`` if
    all vertices have coordinates, and in two-mode networks ``type``, which is true for the second mode. Of edges:
    ``weight`` if there are values (1 where one is left out), and ``relation`` if lines ``*Arcs :NUMBER`` or ``*Edges
    :NUMBER`` tell several apart."""
    network = _Network(source, options)
    for place, text in enumerate(read_text(source).split("\n"), 1):
        if (text := text.strip()) and not text.startswith(_COMMENTS):
            try:
                network.take(text)
            except ValueError as error:
                raise DataError(source, f"line {place}: {error}") from None
    return network.graph()


class _Network:
    """What the lines so far have said. Methods raise ValueError with the reason why a line is wrong."""

    def __init__(self, source: Path, options: ImportOptions) -> None:
        self._source, self._options = source, options
        self._count: int | None = None
        self._first_mode: int | None = None
        self._name: str | None = None
        self._labels: dict[int, str] = {}
        self._positions: dict[int, list[float]] = {}
        self._drawn: dict[str, None] = {}  # names of what only draws
        self._pairs: list[tuple[int, int, float | None, int | None, bool]] = []  # the last: whether it is an arc
        self._section, self._row, self._preface = "", 0, False
        self._relation: int | None = None

    def take(self, text: str) -> None:
        if text.startswith("*"):
            self._begin(text)
            return
        words = [found[2] if found[1] is None else found[1] for found in _WORD.finditer(text)]
        if self._section == "vertices":
            self._vertex(words)
        elif self._section in ("arcs", "edges"):
            if len(words) < 2:
                raise ValueError("wanted are two vertices and a value")
            value = _number(words[2]) if len(words) > 2 else None
            self._note_drawn(self._without_intervals(words[2 if value is None else 3 :]))
            self._add_pair(self._end(words[0]), self._end(words[1]), value, arc=self._section == "arcs")
        elif self._section in ("arcslist", "edgeslist"):
            first, *others = (self._end(word) for word in words)
            for end in others:
                self._add_pair(first, end, None, arc=self._section == "arcslist")
        elif self._section == "matrix":
            self._matrix_row(words)
        elif not self._section:
            self._preface = True

    def _add_pair(self, source: int, target: int, value: float | None, *, arc: bool) -> None:
        self._pairs.append((source, target, value, self._relation, arc))

    def _begin(self, text: str) -> None:
        words = text[1:].lstrip()
        section, self._relation = re.sub(r"\W.*", "", words).lower(), None
        rest = words[len(section) :]
        if section == "vertices" and self._section not in _SECTIONS:
            return  # of the partition or vector that is left out
        if section == "vertices":
            self._vertices(rest.split())
        elif section in _TIES:
            if self._count is None:
                raise ValueError(f"*{section} before the line *Vertices")
            if number := re.match(r"\s*:\s*(\d{1,18})\s*(.*)", rest):
                self._relation = int(number[1])
                if number[2]:
                    self._options.notes.append(f"relation {number[1]} is {number[2]}")
            self._row = 0
        elif section == "network":
            self._name = rest.strip() or None
        else:
            self._options.refuse(self._source, f"*{section}", "it is no part of a network")
        self._section = section

    def _vertices(self, words: list[str]) -> None:
        if self._count is not None:
            raise ValueError("a second line *Vertices; wanted is one network")
        if not 1 <= len(words) <= 2 or not all(re.fullmatch(r"\d{1,18}", word) for word in words):
            raise ValueError("wanted is *Vertices with the number of vertices")
        self._count, *modes = map(int, words)
        check_count(self._source, self._count)
        self._first_mode = modes[0] if modes else None

    def _end(self, word: str) -> int:
        if not re.fullmatch(r"\d{1,18}", word) or not 1 <= int(word) <= (self._count or 0):
            raise ValueError(f"{quoted(word.encode())} is no vertex, they are numbered from 1 to {self._count}")
        return int(word)

    def _vertex(self, words: list[str]) -> None:
        vertex = self._end(words[0])
        if len(words) > 1:
            self._labels[vertex] = words[1]
        numbers = takewhile(lambda number: number is not None, map(_number, words[2 : 2 + _MOST_COORDINATES]))
        if position := [number for number in numbers if number is not None]:
            self._positions[vertex] = position
        rest = self._without_intervals(words[2 + len(position) :])
        self._note_drawn(["shape", *rest] if len(rest) % 2 else rest)

    def _matrix_row(self, words: list[str]) -> None:
        self._row += 1
        source, before = self._end(str(self._row)), self._first_mode or 0
        if len(words) != (self._count or 0) - before:
            raise ValueError(f"{len(words)} numbers in a row of the matrix, wanted are {(self._count or 0) - before}")
        for column, word in enumerate(words, 1 + before):
            if (value := _number(word)) is None:
                raise ValueError(f"{quoted(word.encode())} is no number")
            if value:
                self._add_pair(source, column, value, arc=self._first_mode is None)

    def _without_intervals(self, words: list[str]) -> list[str]:
        if any(word.startswith(_INTERVAL) for word in words):
            self._options.refuse(self._source, "intervals", "vertices and edges exist for all time, or have one time")
        return [word for word in words if not word.startswith(_INTERVAL)]

    def _note_drawn(self, words: list[str]) -> None:
        for name in words[::2]:
            if not re.fullmatch(r"[A-Za-z]\w{0,30}", name):
                raise ValueError(f"{quoted(name.encode())} is neither a number nor the name of a property")
        self._drawn |= dict.fromkeys(words[::2])

    def graph(self) -> nx.Graph[Any]:
        import networkx as nx

        if self._count is None:
            raise DataError(self._source, "holds no line *Vertices")
        valued = any(value is not None for _, _, value, _, _ in self._pairs)
        related = any(relation is not None for *_, relation, _ in self._pairs)
        directed = any(arc for *_, arc in self._pairs)
        made: nx.Graph[Any] = nx.MultiDiGraph() if directed else nx.MultiGraph()
        made.add_nodes_from((vertex, self._attributes(vertex)) for vertex in range(1, self._count + 1))
        forward = [(u, v, value, relation) for u, v, value, relation, _ in self._pairs]
        back = [(v, u, value, relation) for u, v, value, relation, arc in self._pairs if not arc and u != v]
        for u, v, value, relation in forward + (back if directed else []):  # the edges among the arcs have reverses
            weight = {"weight": 1.0 if value is None else value} if valued else {}
            made.add_edge(u, v, **weight, **({"relation": 1 if relation is None else relation} if related else {}))
        if self._name:
            made.graph["name"] = self._name
        if self._preface:
            self._options.notes.append("left out: the text before *Vertices")
        if self._drawn:
            self._options.notes.append(f"left out, because it only draws: {', '.join(self._drawn)}")
        return made

    def _attributes(self, vertex: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._labels:
            found["label"] = self._labels.get(vertex, str(vertex))
        if self._positions:
            found["position"] = self._positions.get(vertex, [])
        if self._first_mode is not None:
            found["type"] = vertex > self._first_mode
        return found


def _number(word: str) -> float | None:
    try:
        return None if "_" in word else float(word)
    except ValueError:
        return None
