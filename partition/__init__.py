"""Graphs on disk: ``importers`` and ``generate`` fill a neutral folder (``graph``), ``methods`` and ``cutting`` cut it,
``dataset`` reads the partitions, ``exporters`` lead back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atta.partition.dataset import CSC, Dataset, Part
from atta.partition.graph import Graph, GraphWriter
from atta.partition.graph.part import PartitionBook
from atta.partition.schema import Schema, TableSpec

if TYPE_CHECKING:
    from atta.partition.cutting.run import partition_graph

__all__ = ["CSC", "Dataset", "Graph", "GraphWriter", "Part", "PartitionBook", "Schema", "TableSpec", "partition_graph"]


def __getattr__(name: str) -> Any:
    # Daemons only read datasets. The modules that cut graphs take as long to import as all the others together.
    if name == "partition_graph":
        from atta.partition.cutting.run import partition_graph

        return partition_graph
    raise AttributeError(f"module 'atta.partition' has no attribute {name!r}")
