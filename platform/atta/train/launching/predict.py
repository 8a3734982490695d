"""``atta.predict``: computes rows of many vertices in this process, or this process's part of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import atta
from atta.client.inference.files import FORMATS, FileSink, described
from atta.client.inference.plan import share_count
from atta.client.inference.run import (
    InferenceTask,
    LayerwiseInference,
    Targets,
    feature_width,
    layer_widths,
    target_count,
)
from atta.client.inference.sinks import MemorySink, Predictions, Sink, TableSink
from atta.client.loaders.dag import place_of
from atta.client.loaders.seeds import InputNodes, as_ids
from atta.errors import ConfigError, UnknownNameError
from atta.observe.progress import Progress
from atta.train.settings.predict import WHAT

if TYPE_CHECKING:
    from atta.client.inference.block import Layer

__all__ = ["PredictJob", "predict"]

_COLUMNS = dict(zip(WHAT, ("embedding", "score", "class"), strict=True))


def predict(
    cluster: atta.Cluster,
    model: str | Path | Sequence[Any],
    nodes: InputNodes = None,
    *,
    what: str = "embeddings",
    out: str | Path | None = None,
    table: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Predictions | None:
    """Compute rows of all vertices, of a split or of given ids, layer by layer over all their in-neighbours.

    Args:
        cluster: from ``atta.connect`` or ``atta.local``.
        model: folder of ``atta train --checkpoint``, or the layers of a model, first to last: PyG layers, modules of
            ``torch.nn`` between them, and modules of your own that are called as ``layer((x, x[:n]), edge_index)`` and
            return rows of the first n vertices.
        nodes: name of a split, user ids, or None for all vertices. Repeated ids count once.
        what: of a checkpoint: ``"embeddings"``, ``"scores"`` or ``"classes"``. Of a list of layers the last one's rows
            are taken; with ``"classes"`` the position of the largest number in each.
        out: folder for files; table: name of a mutable table to write. With neither the result is returned.
        rank, world_size: number of this process, and of all that run the same line (default: torchrun's RANK and
            WORLD_SIZE). Each writes files of its own.
        progress: is told of what has been done.
        **options: ``features`` (node table with the input of the first layer, ``"x"``), ``format`` (of files:
            ``"parquet"`` or ``"npy"``), ``files`` (how many; default: one per process, or more with more partitions),
            ``batch_size`` (vertices that a layer computes at a time), ``device`` (of torch, ``"cpu"``).

    Returns:
        The result; None if it is written.

    Raises:
        ConfigError: an argument makes no sense, or the model does not fit the graph.
        DataError: the checkpoint is missing or damaged, or of other features.
        RemoteError: a daemon does not answer.
    """
    rank, world = place_of("RANK", rank, 0), place_of("WORLD_SIZE", world_size, 1)
    if out is None and table is None and world > 1:
        raise ConfigError(f"{world} processes: give out= or table=, for each has only a part of the result")
    job = PredictJob(cluster, model, nodes, what, out=out, table=table, rank=rank, world=world, **options)
    inference = job.inference(progress)
    inference.run()
    if world == 1:
        inference.clean()
    return job.sink.result() if isinstance(job.sink, MemorySink) else None


@dataclass
class PredictJob:
    """What one process of an inference does, checked before it begins. Arguments are those of ``predict``.

    Attributes:
        count: number of vertices asked for.
        width: numbers per row that is written.
        sink: takes the results.
        task: what is computed.
    """

    cluster: atta.Cluster
    model: str | Path | Sequence[Any]
    nodes: InputNodes
    what: str
    _: KW_ONLY
    out: str | Path | None = None
    table: str | None = None
    rank: int = 0
    world: int = 1
    features: str = "x"
    format: str = "parquet"
    files: int | None = None
    batch_size: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Raises the errors of ``predict``."""
        for what, value, known in (("kind of prediction", self.what, WHAT), ("format", self.format, FORMATS)):
            if value not in known:
                raise UnknownNameError.of(what, value, known)
        if self.out is not None and self.table is not None:
            raise ConfigError("give a folder for files or a table, not both")
        nodes: Targets = self.nodes if isinstance(self.nodes, str) else None
        if self.nodes is not None and nodes is None:
            nodes = np.unique(as_ids("nodes", self.nodes))
        channels = feature_width(self.cluster.schema, self.features)
        self.count = target_count(self.cluster.schema, nodes)
        layers, digest = self._layers(channels)
        widths = layer_widths(layers, channels)
        self.width = 1 if self.what == "classes" else widths[-1]
        before = None if self.out is None else described(self.out)
        shares = self.files or (before or {}).get("files") or share_count(self.world, self.cluster.num_parts)
        about = {
            "dataset": self.cluster.dataset_id,
            "model": digest,
            "what": self.what,
            "features": self.features,
            "nodes": nodes if nodes is None or isinstance(nodes, str) else _digest(nodes.tobytes()),
        }
        self.sink = self._sink(shares, about)
        key = _digest(json.dumps([about, shares]).encode())
        finish: Callable[[np.ndarray], np.ndarray] = _best if self.what == "classes" else np.asarray
        self.task = InferenceTask(
            layers, widths, nodes, key, shares, self.features, self.rank, self.world, self.batch_size, finish
        )

    @property
    def finished(self) -> bool:
        """Whether an earlier run has finished everything."""
        return all(self.sink.finished(share) for share in range(self.task.shares))

    def inference(
        self, progress: Progress | None = None, check: Callable[[], None] = lambda: None
    ) -> LayerwiseInference:
        """What computes it; see ``LayerwiseInference``."""
        return LayerwiseInference(self.cluster, self.task, self.sink, progress=progress, check=check)

    def _layers(self, channels: int) -> tuple[list[Layer], str]:
        import torch

        from atta.train.checkpoint import load_model
        from atta.train.models.layers import digest_of, layers_of, saved_model, wrapped

        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ConfigError(f"device {self.device!r}: {str(error).partition(chr(10))[0]}") from None
        if not isinstance(self.model, str | Path):
            modules: Sequence[Any] = self.model
            return wrapped(modules, device), digest_of(modules)
        model = saved_model(load_model(self.model), channels)
        return layers_of(model, device, hidden=self.what == "embeddings"), digest_of([model])

    def _sink(self, shares: int, about: dict[str, Any]) -> Sink:
        if self.out is not None:
            return FileSink(self.out, self.format, shares, _COLUMNS[self.what], about)
        if self.table is not None:
            node_type = self.cluster.schema.node_types[0]
            return TableSink(self.cluster, node_type, self.table, None if self.what == "classes" else self.width)
        return MemorySink()


def _best(scores: np.ndarray) -> np.ndarray:
    """int64 [n]: the column of the largest score in each row of scores [n, classes]."""
    return np.asarray(scores.argmax(axis=1).astype(np.int64))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
