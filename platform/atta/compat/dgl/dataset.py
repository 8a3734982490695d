"""Finds the partitioned dataset that a script names, and makes it of a partition folder of DistDGL."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from atta.errors import DataError
from atta.partition import partition_graph
from atta.partition.dataset import MANIFEST
from atta.partition.importers import import_graph

__all__ = ["convert", "dataset_of"]

_MADE_OF = "made-of.txt"
"""In a dataset that was converted: ``_fingerprint`` of what it was made of."""


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
    found = _fingerprint(path)
    if not (made / MANIFEST).exists() or not _is(made, found):
        convert(path, made)
        (made / _MADE_OF).write_text(found, encoding="ascii")
    return made


def _fingerprint(part_config: Path) -> str:
    """Changes with the configuration, and with the size or date of any file of its parts."""
    files = sorted(path for path in part_config.parent.glob("part*/*") if path.is_file())
    found = hashlib.sha256(part_config.read_bytes())
    for path in files:
        stat = path.stat()
        found.update(f"{path.relative_to(part_config.parent)}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return found.hexdigest()


def _is(made: Path, fingerprint: str) -> bool:
    try:
        return (made / _MADE_OF).read_text(encoding="ascii") == fingerprint
    except (OSError, UnicodeDecodeError):
        return False


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
