"""Finds the partitioned dataset that a script names, and makes it of a partition folder of DistDGL."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from atta.errors import DataError
from atta.partition import partition_graph
from atta.partition.dataset import MANIFEST
from atta.partition.importers import import_graph

_MADE_OF = "made-of.txt"
"""In a dataset that was converted: ``_fingerprint`` of what it was made of."""
_LOOKED_AT = 1 << 16
"""Bytes at either end of a file."""


def dataset_of(part_config: str | Path) -> Path:
    """The partitioned dataset at ``part_config``.

    Args:
        part_config: folder of a partitioned dataset, or the ``NAME.json`` that ``dgl.distributed.partition_graph``
            wrote. The latter is converted to ``NAME.atta`` beside it, with the same partitions; once, as long as its
            files stay as they are.

    Raises:
        DataError: neither is there, or the partitions of DistDGL are not readable.
    """
    path = Path(part_config)
    if (path / MANIFEST).exists() or path.name == MANIFEST:
        return path if path.is_dir() else path.parent
    if path.suffix != ".json" or not path.is_file():
        raise DataError(path, "neither a partitioned dataset nor the .json of DistDGL's partitions")
    made = path.with_suffix(".atta")
    if not _is_of(made, path):
        convert(path, made)
        (made / _MADE_OF).write_text(_fingerprint(path), encoding="ascii")
    return made


def _is_of(made: Path, part_config: Path) -> bool:
    """Whether ``made`` is there, and what is beside it has not changed since. Without parts it is taken as it is."""
    manifest = made / MANIFEST
    if not manifest.exists():
        return False
    if not _files(part_config):
        return True
    try:
        return (made / _MADE_OF).read_text(encoding="ascii") == _fingerprint(part_config)
    except (OSError, UnicodeDecodeError):  # made by hand
        return manifest.stat().st_mtime_ns >= part_config.stat().st_mtime_ns


def _files(part_config: Path) -> list[Path]:
    return sorted(path for path in part_config.parent.glob("part*/*") if path.is_file())


def _fingerprint(part_config: Path) -> str:
    """Changes with the configuration, and with the size, the beginning, or the end of any file of its parts."""
    found = hashlib.sha256(part_config.read_bytes())
    for path in _files(part_config):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            found.update(f"{path.relative_to(part_config.parent)}\0{size}\0".encode())
            for start in (0, max(0, size - _LOOKED_AT)):
                file.seek(start)
                found.update(file.read(_LOOKED_AT))
    return found.hexdigest()


def convert(part_config: str | Path, out: str | Path) -> list[str]:
    """Write DistDGL's partitions as the partitioned dataset ``out``; returns what the user should know.

    It does what ``atta import dgl`` and ``atta partition --method given --option table=part`` do. An older ``out`` is
    replaced.

    Raises:
        DataError: the partitions are not readable, or hold something that a dataset cannot hold.
        ConfigError: DGL is not installed.
    """
    out = Path(out)
    with tempfile.TemporaryDirectory(prefix=".atta-", dir=out.parent) as scratch:
        graph = Path(scratch) / "graph"
        notes = import_graph("dgl", part_config, graph)
        parts = int(json.loads(Path(part_config).read_bytes())["num_parts"])
        partition_graph(graph, out, parts=parts, method="given", options={"table": "part"}, overwrite=True)
    return notes
