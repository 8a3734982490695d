"""Graphs on disk: import or generate them, cut them into partitions, read the parts.

Reading order: ``graph`` (the neutral folder), ``importers`` and ``generate`` (what fills it), ``exporters`` (the way
back), ``methods`` (who owns which vertex), ``writer`` (the partitioned dataset), ``dataset`` and ``parts`` (how
everything above this layer reads it).
"""

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
