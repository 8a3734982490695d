"""``atta.predict``: computes rows of many vertices in this process, or this process's part of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

import atta
from atta.client.inference.files import FORMATS, FileSink, described
from atta.client.inference.plan import share_count
from atta.client.inference.run import Inference, InferenceTask, feature_width, inner_products, target_count
from atta.client.inference.sinks import MemorySink, Predictions, Sink, TableSink
from atta.client.inference.stages import Stage, Targets, layer_widths, layerwise_stages, sampled_stages, typed_stages
from atta.client.loaders.dag import place_of
from atta.client.loaders.seeds import InputNodes, as_ids
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.observe.progress import Progress
from atta.partition.graph.strings import as_strings
from atta.samplers.arguments import integers
from atta.train.settings import TYPED_MODELS
from atta.train.settings.links import EDGE_CLASSES, LINK, UNTABLED
from atta.train.settings.predict import WHAT

if TYPE_CHECKING:
    import torch

    from atta.client.inference.block import Layer
    from atta.partition.schema import Schema
    from atta.train.checkpoint import SavedModel

__all__ = ["PredictJob", "predict", "predicted_type"]

PairScore = Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32]], npt.NDArray[np.float32]]
_Made = tuple[list[Stage], Sequence[int], str, PairScore]
"""Stages, numbers per row before and after each layer, a digest of the model, and what scores pairs."""
_COLUMNS = dict(zip(WHAT, ("embedding", "score", "class"), strict=True))


def predict(
    cluster: atta.Cluster,
    model: str | Path | Sequence[Any],
    nodes: InputNodes = None,
    *,
    what: str = "embeddings",
    links: ArrayLike | None = None,
    num_neighbors: Sequence[int] | None = None,
    out: str | Path | None = None,
    table: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Predictions | None:
    """Compute rows of all vertices, of a split or of given ids; by default layer by layer over all their in-neighbours.

    Args:
        cluster: from ``atta.connect`` or ``atta.local``.
        model: folder of ``atta train --checkpoint``, or the layers of a model, first to last: PyG layers, modules of
            ``torch.nn`` between them, and modules of your own that are called as ``layer((x, x[:n]), edge_index)`` and
            return rows of the first n vertices.
        nodes: name of a split, user ids (numbers or strings), or None for all vertices. Repeated ids count once.
        what: of a checkpoint: ``"embeddings"``, ``"scores"`` or ``"classes"``. Of a list of layers the last one's rows
            are taken; with ``"classes"`` the position of the largest number in each.
        links: [n, 2], user ids of pairs: instead of rows give a score from both ends' embeddings: that of the decoder
            of a checkpoint of ``--task link``, otherwise their dot product.
        num_neighbors: compute on sampled batches with these fan-outs, from the vertices outwards: one per layer that is
            computed (embeddings need the last one only of deep models), or one for all; None: exactly.
        out: folder for files; table: name of a mutable table to write. With neither the result is returned.
        rank, world_size: number of this process, and of all that run the same line (default: torchrun's RANK and
            WORLD_SIZE). Each writes files of its own.
        progress: is told of what has been done.
        **options: ``features`` (node table with the input of the first layer, ``"x"``), ``format`` (of files:
            ``"parquet"`` or ``"npy"``), ``files`` (how many; default: one per process, or more with more partitions),
            ``batch_size`` (vertices that a layer computes at a time), ``seed`` (of sampled batches), ``device`` (of
            torch, ``"cpu"``).

    Returns:
        The result; None if it is written. Where vertices have string ids, the ids of the result and of files are
        strings.

    Raises:
        ConfigError: an argument makes no sense, or the model does not fit the graph.
        DataError: the checkpoint is missing or damaged, or of other features.
        RemoteError: a daemon does not answer.
    """
    rank, world = place_of("RANK", rank, 0), place_of("WORLD_SIZE", world_size, 1)
    if out is None and table is None and world > 1:
        raise ConfigError(f"{world} processes: give out= or table=, for each has only a part of the result")
    job = PredictJob(
        cluster, model, nodes, what, links=links, num_neighbors=num_neighbors, out=out, table=table, rank=rank,
        world=world, **options,
    )  # fmt: skip
    inference = job.inference(progress)
    inference.run()
    if world == 1:
        inference.clean()
    return job.sink.result() if isinstance(job.sink, MemorySink) else None


@dataclass
class PredictJob:
    """What one process of an inference does, checked before it begins. Arguments are those of ``predict``.

    Attributes:
        node_type: of the vertices that are computed.
        count: number of vertices, or pairs, asked for.
        width: numbers per row that is written.
        sink: takes the results.
        task: what is computed.
    """

    cluster: atta.Cluster
    model: str | Path | Sequence[Any]
    nodes: InputNodes = None
    what: str = "embeddings"
    _: KW_ONLY
    links: ArrayLike | None = None
    num_neighbors: Sequence[int] | None = None
    out: str | Path | None = None
    table: str | None = None
    rank: int = 0
    world: int = 1
    features: str = "x"
    format: str = "parquet"
    files: int | None = None
    batch_size: int | None = None
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Raises the errors of ``predict``."""
        self._check()
        schema, saved = self.cluster.schema, _saved(self.model)
        self.node_type = predicted_type(schema, saved)
        pairs, nodes = self._asked()
        self.count = target_count(schema, nodes, self.node_type) if pairs is None else len(pairs)
        made = self._of_layers if saved is None or not _typed(saved) else self._of_types
        stages, widths, digest, score = made(saved, nodes, pairs=pairs is not None)
        self.width = widths[-1] if self.what != "classes" and pairs is None else 1
        before = None if self.out is None else described(self.out)
        shares = self.files or (before or {}).get("files") or share_count(self.world, self.cluster.num_parts)
        about = {
            "dataset": self.cluster.dataset_id,
            "model": digest,
            "what": self.what,
            "features": self.features,
            "nodes": _digest(nodes) if isinstance(nodes, np.ndarray) else nodes,
            "links": None if pairs is None else _digest(pairs),
            "num_neighbors": None if self.num_neighbors is None else list(self.num_neighbors),
            "seed": None if self.num_neighbors is None else self.seed,
        }
        if self.cluster.ids.known(self.node_type):
            about["ids"] = "strings"
        self.sink = self._sink(shares, "score" if pairs is not None else _COLUMNS[self.what], about)
        key = _digest(np.frombuffer(json.dumps([about, shares]).encode(), np.uint8))
        finish: Callable[[np.ndarray], np.ndarray] = _best if self.what == "classes" else np.asarray
        self.task = InferenceTask(
            stages, key, shares, self.features, self.rank, self.world, self.batch_size, self.seed, pairs, finish, score,
            self.node_type,
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether an earlier run has finished everything."""
        return all(self.sink.finished(share) for share in range(self.task.shares))

    def inference(self, progress: Progress | None = None, check: Callable[[], None] = lambda: None) -> Inference:
        """What computes it; see ``Inference``."""
        return Inference(self.cluster, self.task, self.sink, progress=progress, check=check)

    def _check(self) -> None:
        for what, value, known in (("kind of prediction", self.what, WHAT), ("format", self.format, FORMATS)):
            if value not in known:
                raise UnknownNameError.of(what, value, known)
        if self.out is not None and self.table is not None:
            raise ConfigError("give a folder for files or a table, not both")
        if self.links is None:
            return
        if self.nodes is not None or self.what != "embeddings":
            raise ConfigError("pairs are scored by the embeddings of their ends: give no vertices and no other kind")
        if self.table is not None:
            raise ConfigError("scores of pairs go into files, not into a table of vertices")

    def _asked(self) -> tuple[npt.NDArray[np.int64] | None, Targets]:
        """The pairs to score, if any, and the vertices to compute."""
        if self.links is not None:
            pairs = np.asarray(integers("links", self._numbered("links", self.links)))
            if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
                raise ConfigError(f"links: must be pairs of ids [n, 2], at least one, not of shape {list(pairs.shape)}")
            return pairs, np.unique(pairs)
        if self.nodes is None or isinstance(self.nodes, str):
            return None, self.nodes
        return None, np.unique(as_ids("nodes", self._numbered("nodes", self.nodes)))

    def _numbered(self, what: str, given: Any) -> Any:
        """``given`` with numbers in place of string ids."""
        strings = as_strings(what, given)
        return given if strings is None else self.cluster.ids.numbers(strings, self.node_type)

    def _of_layers(self, saved: SavedModel | None, nodes: Targets, *, pairs: bool) -> _Made:
        """What is computed on a graph with one node type and one edge type."""
        channels = feature_width(self.cluster.schema, self.features)
        layers, digest, score = self._layers(saved, channels)
        widths = layer_widths(layers, channels)
        if self.num_neighbors is None:
            return layerwise_stages(layers, widths, nodes, pairs=pairs), widths, digest, score
        return sampled_stages(layers, widths, nodes, self.num_neighbors, pairs=pairs), widths, digest, score

    def _of_types(self, saved: SavedModel | None, nodes: Targets, *, pairs: bool) -> _Made:
        """What is computed on a typed graph."""
        from atta.train.models.typed_layers import SavedTypedModel

        assert saved is not None, "models of typed graphs come from checkpoints"
        if self.num_neighbors is not None:
            raise ConfigError("typed graphs are predicted layer by layer, over all in-neighbours: give no fan-outs")
        if self.features != "x":
            raise ConfigError(f"features {self.features!r}: models of typed graphs read the table x")
        self._check_kind(saved)
        schema, dataset_id = self.cluster.schema, self.cluster.dataset_id
        hidden = self.what == "embeddings"
        model = SavedTypedModel.of(saved, schema, dataset_id, self._torch_device(), hidden=hidden)
        stages = typed_stages(model.layers, model.embeddings, model.widths, nodes, pairs=pairs)
        return stages, model.widths, model.digest, inner_products

    def _layers(self, saved: SavedModel | None, channels: int) -> tuple[list[Layer], str, PairScore]:
        from atta.train.models.layers import digest_of, layers_of, saved_model, wrapped
        from atta.train.models.links import saved_decoder, scorer

        device = self._torch_device()
        if saved is None:
            assert not isinstance(self.model, str | Path)
            modules: Sequence[Any] = self.model
            return wrapped(modules, device), digest_of(modules), inner_products
        task = self._check_kind(saved)
        model = saved_model(saved, channels)
        if task not in UNTABLED:
            hidden = self.what == "embeddings"
            return layers_of(model, device, hidden=hidden), digest_of([model]), inner_products
        if task == EDGE_CLASSES and self.links is not None:
            raise ConfigError(f"{saved.path}: was trained for --task {task}, which does not score pairs")
        if task != LINK:
            return layers_of(model, device, hidden=False), digest_of([model]), inner_products
        decoder = saved_decoder(saved)
        return layers_of(model, device, hidden=False), digest_of([model, decoder]), scorer(decoder)

    def _torch_device(self) -> torch.device:
        import torch

        try:
            return torch.device(self.device)
        except RuntimeError as error:
            raise ConfigError(f"device {self.device!r}: {str(error).partition(chr(10))[0]}") from None

    def _check_kind(self, saved: SavedModel) -> str:
        """Refuse a kind of prediction that a model's task does not give; returns the task."""
        task: str = saved.shape.get("task", "classes")
        if task in UNTABLED and self.what != "embeddings":
            raise ConfigError(f"{saved.path}: was trained for --task {task}: ask for embeddings, or give pairs")
        if self.what == "classes" and task not in ("classes", "auto"):  # auto: whoever trained did not say
            raise ConfigError(f"{saved.path}: was trained for --task {task}, which has no classes: ask for scores")
        return task

    def _sink(self, shares: int, column: str, about: dict[str, Any]) -> Sink:
        if self.out is not None:
            return FileSink(self.out, self.format, shares, column, about)
        if self.table is not None:
            return TableSink(self.cluster, self.node_type, self.table, None if self.what == "classes" else self.width)
        return MemorySink()


def predicted_type(schema: Schema, saved: SavedModel | None) -> str:
    """The node type that a model is about; ``saved``: None for layers of a user's own.

    Raises:
        DataError: the checkpoint has a model of typed graphs, and the graph is none, or lacks the type.
        ConfigError: it has one of both ends of links, which nothing is predicted with so far.
    """
    if saved is None or not _typed(saved):
        return schema.node_types[0]
    kind, target = saved.shape["model"], saved.shape.get("target")
    task = saved.shape.get("task")
    if task in (LINK, EDGE_CLASSES):
        raise ConfigError(f"{saved.path}: was trained for --task {task} on a typed graph: predict takes none of these")
    if len(schema.node_types) == len(schema.edge_types) == 1:
        raise DataError(saved.path, f"has a model of typed graphs, {kind}: this graph has one node and one edge type")
    if target not in schema.node_types:
        raise DataError(saved.path, f"{kind} was trained for node type {target!r}, which this graph does not have")
    return str(target)


def _typed(saved: SavedModel) -> bool:
    return saved.shape.get("model") in TYPED_MODELS


def _saved(model: str | Path | Sequence[Any]) -> SavedModel | None:
    """The model of a checkpoint; None for layers of a user's own."""
    if not isinstance(model, str | Path):
        return None
    from atta.train.checkpoint import load_model

    return load_model(model)


def _best(scores: np.ndarray) -> np.ndarray:
    """int64 [n]: the column of the largest score in each row of scores [n, classes]."""
    return np.asarray(scores.argmax(axis=1).astype(np.int64))


def _digest(content: npt.NDArray[Any]) -> str:
    return hashlib.blake2b(content.tobytes(), digest_size=8).hexdigest()
