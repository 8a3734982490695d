"""Models that other runs, and other commands, take out of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atta.client.cluster import Cluster
from atta.client.tables.rows import rows_of_all
from atta.errors import ConfigError, DataError
from atta.partition.disk.mirror import Mirror
from atta.train.checkpoint.files import BEST, LAST, read_file

EMBEDDINGS = "embeddings."
"""Where weights have the rows of node types without features."""
IDS = "embedding_ids"
"""Where files have the vertices of rows; see ``SavedEmbeddings``."""
NO_EMBEDDINGS = f"has no embeddings: runs write them into {BEST}, after an epoch that was the best or at their end"
"""What is wrong with a checkpoint of a model that needs some."""
_WRAPPERS = ("gnn.", "module.")
_SAMPLED = "gnn."  # where models of sampled batches have the names of the others


@dataclass(frozen=True)
class SavedEmbeddings:
    """Learnt rows of node types without features.

    Attributes:
        rows: [vertices, width] by node type, by ascending user ids.
        ids: int64 [vertices], ascending, of the types whose ids are other numbers than 0, 1, 2, ...
        path: of their file.
    """

    rows: Mapping[str, torch.Tensor]
    ids: Mapping[str, torch.Tensor]
    path: Path = Path()

    @classmethod
    def taken(cls, path: Path, saved: Mapping[str, Any], weights: dict[str, torch.Tensor]) -> SavedEmbeddings:
        """Those of a file that was read, out of its ``weights``; raises DataError if it does not tell the vertices."""
        names = [name for name in weights if name.startswith(EMBEDDINGS)]
        rows = {name.removeprefix(EMBEDDINGS): weights.pop(name) for name in names}
        ids = saved.get(IDS)
        if not isinstance(ids, dict | None) or (rows and ids is None):
            raise DataError(path, "does not tell whose embeddings it has")
        _check_tensors(path, ids or {})
        for node_type, of_type in rows.items():
            if of_type.dim() != 2:
                raise DataError(path, f"embeddings of {node_type}: {list(of_type.shape)}, not a row for each vertex")
        return cls(rows, ids or {}, path)

    def places(self, cluster: Cluster, node_type: str) -> np.ndarray:
        """int64 [vertices]: where a table of the cluster has each row of a type.

        Raises:
            DataError: the graph has other vertices of this type.
        """
        count, ids = len(self.rows[node_type]), self.ids.get(node_type)
        if ids is not None and (ids.dtype != torch.int64 or ids.shape != (count,)):
            raise DataError(self.path, f"embeddings of {node_type}: {count} rows, ids {ids.dtype} {list(ids.shape)}")
        try:
            return rows_of_all(cluster, f"nodes:{node_type}", count, None if ids is None else ids.cpu().numpy())
        except ConfigError as error:
            raise DataError(self.path, f"its embeddings are of another graph: {error}") from None


@dataclass(frozen=True)
class SavedModel:
    """A model as a checkpoint has it.

    Attributes:
        path: of its file.
        shape: settings that determine the weights: model, hidden, heads, depth.
        weights: by the names that the model has without a trainer around it.
        embeddings: rows of node types without features.
    """

    path: Path
    shape: Mapping[str, Any]
    weights: Mapping[str, torch.Tensor]
    embeddings: SavedEmbeddings


def load_model(folder: str | Path) -> SavedModel:
    """The best model of a folder of checkpoints; where there was no evaluation, that of the last checkpoint.

    Raises:
        DataError: there is none, or it is damaged or of another version.
    """
    place = Mirror(folder)
    path = next((p for p in (place.pull(BEST), place.pull(LAST)) if p.exists()), None)
    if path is None:
        raise DataError(folder, f"has no {BEST} and no {LAST}: not a folder of atta train --checkpoint")
    saved = read_file(path, torch.device("cpu"))
    shape, weights = saved.get("shape"), saved.get("model")
    if not isinstance(shape, dict) or not isinstance(weights, dict):
        raise DataError(path, "has no model")
    _check_tensors(path, weights)
    found = bare(weights)
    embeddings = SavedEmbeddings.taken(path, saved, found)
    return SavedModel(path, shape, found, embeddings)


def bare(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by the names of the model itself: trainers wrap it, each strategy in its own way."""
    return {
        next((name.removeprefix(w) for w in _WRAPPERS if name.startswith(w)), name): t for name, t in weights.items()
    }


def _check_tensors(path: Path, weights: Mapping[object, object]) -> None:
    """Raise DataError unless the weights are tensors with names."""
    for name, found in weights.items():
        if not isinstance(name, str) or not isinstance(found, torch.Tensor):
            raise DataError(path, f"its model has {name!r}, which is no tensor with a name")


def load_weights(path: str | Path, model: torch.nn.Module, device: torch.device) -> SavedEmbeddings:
    """Fill the model with the weights of another run's checkpoint, whatever its strategy; returns its embeddings.

    path: a file that ``save_checkpoint`` or ``save_best`` wrote, or a folder with one (``best.pt`` comes first).

    Raises:
        DataError: there is no such file, it is damaged, or its weights have other names or shapes.
    """
    place = Mirror(path)
    path = place.path
    if path.is_dir():
        path = next((p for p in (place.pull(BEST), place.pull(LAST)) if p.exists()), path / BEST)
    if not path.exists():
        raise DataError(path, "--init-from: there is no such file")
    saved = read_file(path, device)
    weights = saved.get("model")
    if not isinstance(weights, dict):
        raise DataError(path, "--init-from: holds no model")
    _check_tensors(path, weights)
    embeddings = SavedEmbeddings.taken(path, saved, weights)
    given = {name.removeprefix(_SAMPLED): tensor for name, tensor in weights.items()}
    own = {name.removeprefix(_SAMPLED): name for name in model.state_dict()}
    wanted = {name: model.state_dict()[full].shape for name, full in own.items()}
    for name in sorted(given.keys() | wanted.keys()):
        there = tuple(given[name].shape) if name in given else "absent"
        here = tuple(wanted[name]) if name in wanted else "absent"
        if there != here:
            raise DataError(path, f"--init-from: does not fit this model: {name} is {there} there and {here} here")
    model.load_state_dict({own[name]: tensor for name, tensor in given.items()})
    return embeddings
