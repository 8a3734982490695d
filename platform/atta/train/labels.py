"""Checks the labels of the training vertices before training begins.

A label is a class, 0 to classes - 1, or -1 for no label. Vertices without a label do not count in the loss and in accuracies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

import atta
from atta.client.loaders.dag import DagLoader
from atta.errors import ConfigError
from atta.partition.schema import TableSpec
from atta.samplers.dag.spec import Hops, neighbor_spec

__all__ = ["UNLABELLED", "LabelCounts", "check_label_table", "count_labels", "labelled_loss"]

UNLABELLED = -1
_TOGETHER = 1 << 18
"""Number of labels per request."""


@dataclass(frozen=True)
class LabelCounts:
    """Labels of some training vertices.

    Attributes:
        vertices: number of vertices.
        unlabelled: number of vertices with label -1.
        outside: number of vertices whose label is neither a class nor -1.
    """

    vertices: int = 0
    unlabelled: int = 0
    outside: int = 0

    @classmethod
    def of(cls, labels: np.ndarray, classes: int) -> LabelCounts:
        """Count integer labels [n]."""
        unlabelled = int((labels == UNLABELLED).sum())
        inside = int(((labels >= 0) & (labels < classes)).sum())
        return cls(len(labels), unlabelled, len(labels) - unlabelled - inside)

    def __add__(self, other: LabelCounts) -> LabelCounts:
        return LabelCounts(
            self.vertices + other.vertices, self.unlabelled + other.unlabelled, self.outside + other.outside
        )

    def checked(self, classes: int) -> str | None:
        """A message for the user if some vertices have no label; None otherwise.

        Raises:
            ConfigError: some labels are not classes, or no vertex has a label.
        """
        if self.outside:
            raise ConfigError(
                f"{self.outside} of {self.vertices} training vertices have a label in table y that is neither one of the "
                f"{classes} classes (0 to {classes - 1}) nor -1 (no label)"
            )
        if self.vertices and self.unlabelled == self.vertices:
            raise ConfigError(f"none of the {self.vertices} training vertices has a label: all are -1 in table y")
        if self.unlabelled:
            return (
                f"{self.unlabelled} of {self.vertices} training vertices have no label (-1 in table y) and are left out"
            )
        return None


def check_label_table(spec: TableSpec, classes: int | None) -> int:
    """Return the number of classes; raises ConfigError if table ``y`` does not have one class per vertex."""
    if np.dtype(spec.dtype).kind not in "iub":
        raise ConfigError(f"training needs integer labels, table y holds {np.dtype(spec.dtype)}")
    if spec.row_shape not in ((), (1,)):
        raise ConfigError(f"training needs one label per vertex, y has rows of shape {spec.row_shape}")
    if not classes:
        raise ConfigError("training needs labels: no vertex has one (all are -1 in table y)")
    return classes


def count_labels(cluster: atta.Cluster, split: str, classes: int, rank: int, world: int) -> LabelCounts:
    """Count the labels of this rank's share of a split. Each vertex is in one rank's share.

    Raises RemoteError if a daemon does not answer.
    """
    node_type = cluster.schema.node_types[0]
    if not cluster.schema.splits[node_type].get(split):
        return LabelCounts()
    labels_alone = neighbor_spec(cluster.schema, Hops([]), seed_type=node_type, tables={node_type: ["y"]})
    loader = DagLoader(
        cluster,
        labels_alone,
        input_nodes=(node_type, split),
        batch_size=_TOGETHER,
        rank=rank,
        world_size=world,
        pad=False,
        edge_ids=False,
    )
    return sum((LabelCounts.of(batch.table("y").reshape(-1), classes) for batch in loader), LabelCounts())


def labelled_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over rows of scores [n, classes] with a label (int64 [n]) other than -1; 0 if there are none."""
    total = F.cross_entropy(scores, labels, ignore_index=UNLABELLED, reduction="sum")
    return total / (labels != UNLABELLED).sum().clamp(min=1)
