"""Names of types, relations and tables: which are admitted, and how types become part of edge types and of file names.
Two encodings, both with "%" and hexadecimal digits, let any name pass where some characters have a meaning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, unquote

from atta.errors import ConfigError

RESERVED = {"ids", "halo", "indptr", "indices", "edge_ids", "src", "dst", "sorted_ids", "sorted_internal"}
"""Names that no table has: they are files of Atta's own."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_))*")
_LONGEST, _LONGEST_FILE = 100, 255
_AMBIGUOUS = re.compile(r"%|__+|^_+|_+$")
"""What the separator "__" of an edge type could not be told from, and "%" itself."""
_ESCAPED = re.compile(r"%5F|%25")


def check_name(what: str, name: str) -> str:
    """Return ``name`` if a table or a split can be called so, otherwise raise ConfigError."""
    if not _is_plain(name):
        raise ConfigError(f"{what} {name!r}: names consist of letters, digits, '.', '-' and single '_'")
    return name


def check_type_name(what: str, name: str) -> str:
    """Return ``name`` if a node type or a relation can be called so, otherwise raise ConfigError. It has 1 to 100
    characters, none of which is a control character, and no blank at its ends. It is kept as it is: two names that
    Unicode calls equivalent are two names."""
    if not isinstance(name, str) or not name or len(name) > _LONGEST or not name.isprintable() or name != name.strip():
        shown = name if not isinstance(name, str) or len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
        raise ConfigError(
            f"{what} {shown!r}: names of types have 1 to {_LONGEST} printable characters, and no blank at their ends"
        )
    return name


def is_table_name(name: object) -> bool:
    """Whether a node or edge table can be called ``name``."""
    return isinstance(name, str) and _is_plain(name) and name not in RESERVED and not name.startswith("split_")


def _is_plain(name: object) -> bool:
    fits = isinstance(name, str) and len(name) <= _LONGEST
    return fits and _NAME.fullmatch(str(name)) is not None and not str(name).endswith("_")


def join_edge_type(*names: str) -> str:
    """``"src__rel__dst"`` of the source type, the relation and the destination type; raises ConfigError. Within a name
    "%" is written ``%25``, and "_" is ``%5F`` at its ends and beside another one."""
    if len(names) != 3:
        raise ConfigError(f"edge type {names!r}: expected a source type, a relation and a destination type")
    for what, name in zip(("source type", "relation", "destination type"), names, strict=True):
        check_type_name(f"edge type {names!r}: {what}", name)
    return "__".join(_AMBIGUOUS.sub(lambda found: found[0].replace("%", "%25").replace("_", "%5F"), n) for n in names)


@lru_cache(maxsize=4096)
def split_edge_type(edge_type: str) -> tuple[str, str, str]:
    """The inverse of ``join_edge_type``; raises ConfigError for a text that it never gives."""
    parts = edge_type.split("__") if isinstance(edge_type, str) else []
    names = [_ESCAPED.sub(lambda found: unquote(found[0]), part) for part in parts]
    if len(names) != 3:
        raise ConfigError(f"edge type {edge_type!r}: expected 'source__relation__destination'")
    for what, name in zip(("source type", "relation", "destination type"), names, strict=True):
        check_type_name(f"edge type {edge_type!r}: {what}", name)
    if join_edge_type(*names) != edge_type:
        raise ConfigError(f"edge type {edge_type!r}: within a name, '%' is written %25 and '_' beside '_' %5F")
    return names[0], names[1], names[2]


def lonely(node_types: Iterable[str], edge_types: Iterable[str]) -> list[str]:
    """A sentence about the node types that no edge type touches, if there are some."""
    touched = {end for edge_type in edge_types for end in split_edge_type(edge_type)[::2]}
    alone = ", ".join(name for name in node_types if name not in touched)
    return [f"no edges begin or end at {alone}, so a model sees no neighbours there"] if alone else []


def reverse_relation(edge_type: str) -> str:
    """The edge type ``dst__rev_<relation>__src`` of the reverses of ``edge_type``."""
    source, relation, target = split_edge_type(edge_type)
    return join_edge_type(target, f"rev_{relation}", source)


def file_name(name: str, suffix: str = "", *, prefix: str = "") -> str:
    """A file name with a node type or an edge type between ``prefix`` and ``suffix``. Different names get different
    ones. Bytes of UTF-8 other than ASCII's letters, digits, ".", "-", "_" and "~" are written ``%XX``, and so is "." at
    the beginning. A name that would be too long for a file system ends with "%%" and its SHA-256 instead."""
    coded = re.sub(r"^\.", "%2E", quote(name, safe=""))
    if (room := _LONGEST_FILE - len(prefix) - len(suffix)) < len(coded):
        digest = "%%" + hashlib.sha256(name.encode()).hexdigest()
        coded = coded[: room - len(digest)] + digest
    return f"{prefix}{coded}{suffix}"


def name_of_file(coded: str) -> str:
    """The name that ``file_name`` writes as ``coded``, without a suffix. What it never writes, but others do, is a name
    as it is."""
    name = unquote(coded, errors="replace")
    return name if file_name(name) == coded else coded


def node_folder(node_type: str) -> str:
    """Where a graph folder and a partition keep the files of a node type."""
    return f"nodes/{file_name(node_type)}"


def edge_folder(edge_type: str) -> str:
    """Where a graph folder and a partition keep the files of an edge type."""
    return f"edges/{file_name(edge_type)}"


def shared_folder(node_type: str) -> str:
    """Where a partitioned dataset keeps what all machines know of a node type."""
    return f"shared/{file_name(node_type)}"


def table_word(name: str) -> str:
    """A word without a dot for a node type or an edge type, where tables of daemons have plain names with dots. An edge
    type of plain names is three words."""
    plain = "." not in name and all(map(_is_plain, name.split("__")))
    return name.replace("__", ".") if plain else f"t-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


def module_name(name: str) -> str:
    """A key for a node type or a relation among the layers of a model: without the separators "__" and "___", and
    without other signs of PyG and torch than ".". ``urllib.parse.unquote`` gives the name back."""
    return re.sub("__+|^_+|_+$", lambda found: found[0].replace("_", "%5F"), quote(name, safe=""))
