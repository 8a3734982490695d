"""Finds the partitioned dataset that a script names, and makes it of a partition folder of DistDGL."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from atta.errors import DataError
from atta.partition import partition_graph
from atta.partition.dataset import MANIFEST
from atta.partition.importers import import_graph

__all__ = ["convert", "dataset_of"]


def dataset_of(part_config: str | Path) -> Path:
    """The partitioned dataset at ``part_config``.

    Args:
        part_config: folder of a partitioned dataset, or the ``NAME.json`` that ``dgl.distributed.partition_graph``
            wrote. The latter is converted once, to ``NAME.atta`` beside it, with the same partitions.

    Raises:
        DataError: neither is there, or the partitions of DistDGL are not readable.
    """
    path = Path(part_config)
    if (path / MANIFEST).exists() or path.name == MANIFEST:
        return path if path.is_dir() else path.parent
    if path.suffix != ".json" or not path.is_file():
        raise DataError(path, "neither a partitioned dataset nor the .json of DistDGL's partitions")
    made = path.with_suffix(".atta")
    manifest = made / MANIFEST
    if not manifest.exists() or manifest.stat().st_mtime_ns < path.stat().st_mtime_ns:
        convert(path, made)
    return made


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
