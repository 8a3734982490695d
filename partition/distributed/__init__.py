"""Partitioning by tasks on several machines, for graphs that outgrow one; the result is that of one machine, bit for bit.

Tasks read slices of the graph folder and write files into a work folder, which all machines share with the destination.
Only names and counts pass between them. One process places the vertices in turn; it holds what there is per vertex, and
the edges block by block.
"""

from __future__ import annotations

from atta.partition.distributed.by_tasks import partition_by_tasks
from atta.partition.distributed.task_work import InTurn, TaskPool, TaskSizes

__all__ = ["InTurn", "TaskPool", "TaskSizes", "partition_by_tasks"]
