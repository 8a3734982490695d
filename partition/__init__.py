"""Graphs on disk: import or generate them, cut them into partitions, read the parts.

Reading order: ``graph`` (the neutral folder), ``importers`` and ``generate`` (what fills it), ``exporters`` (the way back),
``methods`` (who owns which vertex), ``writer`` (the partitioned dataset), ``dataset`` and ``book`` (how everything above this
layer reads it).
"""

from __future__ import annotations

from atta.partition.book import PartitionBook
from atta.partition.dataset import CSC, Dataset, Part
from atta.partition.graph import Graph, GraphWriter
from atta.partition.run import partition_graph
from atta.partition.schema import Schema, TableSpec

__all__ = ["CSC", "Dataset", "Graph", "GraphWriter", "Part", "PartitionBook", "Schema", "TableSpec", "partition_graph"]
