"""``atta.predict``: computes rows of many vertices in this process, or this process's part of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

import atta
from atta.client.inference.reading import present_version
from atta.client.inference.run import Inference
from atta.client.inference.sinks import FORMATS, FileSink, MemorySink, Sink, TableSink, described, discard
from atta.client.inference.stages import Stage, Targets, layerwise_stages, sampled_stages
from atta.client.inference.task import (
    INNER_PRODUCTS,
    InferenceTask,
    PairScore,
    Predictions,
    TopTargets,
    feature_width,
    share_count,
    target_count,
)
from atta.client.loaders.dag import TrainerRank
from atta.client.loaders.seeds import InputNodes, as_ids
from atta.daemon.config import WHAT
from atta.errors import AttaError, ConfigError, DataError, UnknownNameError
from atta.observe.lastwords import first_line
from atta.observe.progress import Progress
from atta.partition.graph.strings import as_strings
from atta.samplers.arguments import integers, whole
from atta.train.settings.common import TYPED_MODELS
from atta.train.settings.minibatch import EDGE_CLASSES, LINK, UNTABLED
from atta.train.settings.predict import check_apart

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import Schema
    from atta.train.checkpoint.files import SavedModel

_Made = tuple[list[Stage], int, str, PairScore]
"""Stages, numbers per row of the last layer, a digest of the model, and what scores pairs."""
MOST_TARGETS = 1 << 16
_COLUMNS = dict(zip(WHAT, ("embedding", "score", "class"), strict=True))


def predict(
    cluster: atta.Cluster,
    model: str | Path | Sequence[Any],
    nodes: InputNodes = None,
    *,
    what: str = "embeddings",
    links: ArrayLike | None = None,
    top: int | None = None,
    num_neighbors: Sequence[int] | None = None,
    edge_tables: Mapping[str, str] | None = None,
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
            return rows of the first n vertices, or else as ``layer(x, edge_index)``. Each is tried on a small graph.
        nodes: name of a split, user ids (strings where vertices have such), or None for all vertices. Repeated ids count once.
        what: of a checkpoint: ``"embeddings"``, ``"scores"`` or ``"classes"``. Of a list of layers the last one's rows
            are taken; with ``"classes"`` the position of the largest number in each.
        links: [n, 2], user ids of pairs: instead of rows give a score from both ends' embeddings: that of the decoder
            of a checkpoint of ``--task link``, otherwise their dot product. Of a checkpoint of ``--task edge-classes``
            a score per class, or with ``what="classes"`` the class.
        top: give each of ``nodes`` this many targets with the best scores, the best first, instead of rows. Targets that
            it has an edge to are left out, and so is the vertex itself. Of equal scores the smaller id comes first.
        num_neighbors: compute on sampled batches with these fan-outs, from the vertices outwards: one per layer that is
            computed (embeddings need the last one only of deep models), or one for all; None: exactly.
        edge_tables: of a list of layers: by argument of the layers the edge table that it gets, such as
            ``{"edge_weight": "weight"}``. Each layer gets those that it takes. Where edges have tables and a layer takes
            some, say ``{}`` if it was trained without.
        out: folder for files; table: name of a mutable table to write. With neither the result is returned.
        rank, world_size: number of this process, and of all that run the same line (default: those of torch's
            process group, or torchrun's RANK and WORLD_SIZE). Each writes files of its own.
        progress: is told of what has been done.
        **options: ``features`` (node table with the input of the first layer, ``"x"``), ``format`` (of files:
            ``"parquet"``, ``"npy"``, ``"csv"``), ``files`` (how many; default: one per process, or more with more partitions),
            ``batch_size`` (vertices that a layer computes at a time), ``seed`` (of sampled batches), ``device`` (of
            torch, ``"cpu"``), ``node_type`` (of a model of pairs of a typed graph: the end whose vertices are computed;
            default: the targets'), ``relation`` (of ``top``: name of the relation whose edges are left out; default: the model's,
            or the only one).

    Returns:
        The result; None if it is written. Where vertices have string ids, the ids of the result and of files are strings.

    Raises:
        ConfigError: an argument makes no sense, the model does not fit the graph, or a layer gives a vertex other rows
            in a block than on the whole graph.
        DataError: the checkpoint is missing or damaged, or of other features.
        RemoteError: a daemon does not answer.
    """
    if "mode" in options:
        raise ConfigError("mode: give num_neighbors, the fan-outs of sampled batches; without them rows are exact")
    place = TrainerRank.of(rank, world_size)
    if out is None and table is None and place.world > 1:
        raise ConfigError(f"{place.world} processes: give out= or table=, for each has only a part of the result")
    job = PredictJob(
        cluster, model, nodes, what, links=links, top=top, num_neighbors=num_neighbors, edge_tables=edge_tables, out=out,
        table=table, rank=place.rank, world=place.world, **options,
    )  # fmt: skip
    inference = job.inference(progress)
    try:
        inference.run()
    except BaseException:
        if isinstance(job.sink, MemorySink):  # nobody can go on with it
            with contextlib.suppress(AttaError):
                inference.clean()
        raise
    if inference.over():
        inference.clean()
    return job.sink.result() if isinstance(job.sink, MemorySink) else None


@dataclass
class PredictJob:
    """What one process of an inference does, checked before it begins. Arguments are those of ``predict``.

    Attributes:
        types: node type of the vertices that are computed; of pairs, those of sources and of targets.
        count: number of vertices, or pairs, asked for.
        width: numbers per row that is written.
    """

    cluster: atta.Cluster
    model: str | Path | Sequence[Any]
    nodes: InputNodes = None
    what: str = "embeddings"
    _: KW_ONLY
    links: ArrayLike | None = None
    top: int | None = None
    relation: str | None = None
    num_neighbors: Sequence[int] | None = None
    edge_tables: Mapping[str, str] | None = None
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
    node_type: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Raises the errors of ``predict``."""
        self._check()
        schema = self.cluster.schema
        saved = _saved(self.model, schema, classes=self._scores_pairs or self.what != "embeddings")
        self.types = predicted_types(schema, saved, self.node_type, pairs=self._scores_pairs)
        pairs, nodes, top = self._asked(saved)
        asked = nodes[self.types[0]] if top is None else top.sources
        self.count = target_count(schema, asked, self.types[0]) if pairs is None else len(pairs)
        for node_type, ids in [*nodes.items(), (self.types[0], asked)]:
            if isinstance(ids, np.ndarray):
                self.cluster.tables.locate(f"nodes:{node_type}", ids)  # raises before anything is computed
        made = self._of_layers if saved is None or not _typed(saved) else self._of_types
        stages, width, digest, score = made(saved, nodes)
        if pairs is not None:
            one = score.pairs(*(np.zeros((1, width), np.float32) for _ in range(2)))
            width = 1 if one.ndim == 1 else one.shape[1]
        self.width = width if self.what != "classes" and top is None else 1
        version = self._present_version(nodes[self.types[0]])
        if self.overwrite and self.out is not None:
            discard(self.out)
        before = None if self.out is None else described(self.out)
        shares = self.files or (before or {}).get("files") or share_count(self.world, self.cluster.num_parts)
        about: dict[str, Any] = {"dataset": self.cluster.dataset_id, "model": digest, "what": self.what}
        about |= {"features": self.features, "nodes": _digest_of_nodes(nodes)}
        about["links"] = None if pairs is None else _digest(pairs)
        exact = self.num_neighbors is None
        about |= {"num_neighbors": self.num_neighbors and [*self.num_neighbors], "seed": None if exact else self.seed}
        more = {
            "edge_tables": dict(self.edge_tables or {}),
            "tables_version": version,
            "node_type": self.node_type,
            "ids": "strings" if any(self.cluster.ids.known(t) for t in self.types) else None,
            "top": top and top.count,
            "relation": top and top.edge_type,
            "sources": top and _digest_of_nodes({"sources": asked}),
            "classes": None if self._scores_pairs else class_names(schema, saved, self.types[0], self.what),
        }
        about |= {name: value for name, value in more.items() if value}
        column = "score" if self._scores_pairs and self.what == "embeddings" else _COLUMNS[self.what]
        self.sink = self._sink(shares, column, about)
        key = _digest(np.frombuffer(json.dumps([about, shares, self.sink.run]).encode(), np.uint8))
        finish = (lambda scores: scores.argmax(axis=1).astype(np.int64)) if self.what == "classes" else np.asarray
        self.task = InferenceTask(
            self.types, stages, key, shares, self.features, self.rank, self.world, self.batch_size, self.seed, pairs,
            top, finish, score, version,
        )  # fmt: skip

    def _present_version(self, nodes: Targets) -> int:
        return present_version(self.cluster, self.types[0], nodes)

    @property
    def finished(self) -> bool:
        """Whether an earlier run has finished everything."""
        return all(self.sink.finished(share) for share in range(self.task.shares))

    def inference(self, progress: Progress | None = None, check: Callable[[], None] = lambda: None) -> Inference:
        """What computes it; see ``Inference``."""
        return Inference(self.cluster, self.task, self.sink, progress=progress, check=check)

    def _check(self) -> None:
        for name, count in (("files", self.files), ("batch_size", self.batch_size)):
            if count is not None:
                whole(name, count, 1)
        if self.num_neighbors is not None:
            fan_outs: Any = self.num_neighbors
            if not isinstance(fan_outs, Sequence) or isinstance(fan_outs, str):
                raise ConfigError(f"num_neighbors {fan_outs!r}: must be a list of fan-outs")
            if any(whole("num_neighbors", fan_out, -1) == 0 for fan_out in fan_outs):
                raise ConfigError("num_neighbors 0: a layer would read no neighbours")
        for what, value, known in (("kind of prediction", self.what, WHAT), ("format", self.format, FORMATS)):
            if value not in known:
                raise UnknownNameError.of(what, value, known)
        if self.out is not None and self.table is not None:
            raise ConfigError("give a folder for files or a table, not both")
        if self.top is not None:
            whole("top", self.top, 1, MOST_TARGETS)
        check_apart(self)
        if self.edge_tables and isinstance(self.model, str | Path):
            raise ConfigError("edge_tables: go with layers of your own, models of atta train read none")
        if self.links is not None and self.what == "classes" and not isinstance(self.model, str | Path):
            raise ConfigError("pairs have classes by a checkpoint of --task edge-classes, not by layers")

    @property
    def _scores_pairs(self) -> bool:
        return self.links is not None or self.top is not None

    def _asked(
        self, saved: SavedModel | None
    ) -> tuple[npt.NDArray[np.int64] | None, dict[str, Targets], TopTargets | None]:
        """The pairs to score, if any, the vertices to compute by node type, and the best targets to find, if any."""
        if self.top is not None:
            edge_type = _ranked_edge_type(self.cluster.schema, self.types, self.relation, saved)
            sources = self._own_nodes()
            nodes = {self.types[0]: sources, self.types[-1]: None}
            return None, nodes, TopTargets(self.top, sources, edge_type)
        if self.links is not None:
            pairs = self._pairs(self.links)
            ends = (self.types[0], pairs[:, 0]), (self.types[-1], pairs[:, 1])
            return pairs, {t: np.unique(np.concatenate([ids for own, ids in ends if own == t])) for t, _ in ends}, None
        return None, {self.types[0]: self._own_nodes()}, None

    def _own_nodes(self) -> Targets:
        if self.nodes is None or isinstance(self.nodes, str):
            return self.nodes
        return np.unique(as_ids("nodes", self._numbered("nodes", self.nodes, self.types[:1])))

    def _pairs(self, given: ArrayLike) -> npt.NDArray[np.int64]:
        """int64 [n, 2], with numbers in place of string ids."""
        strings = as_strings("links", given)
        if strings is not None and strings.ndim == 2 and strings.shape[1] == 2 and len(self.types) == 2:
            ends = zip(strings.T, self.types, strict=True)
            given = np.stack([self._end_numbers(column, t) for column, t in ends], axis=1)
        else:
            given = self._numbered("links", given, self.types)
        pairs = np.asarray(integers("links", given))
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
            raise ConfigError(f"links: must be pairs of ids [n, 2], at least one, not of shape {list(pairs.shape)}")
        return pairs

    def _end_numbers(self, column: npt.NDArray[np.str_], node_type: str) -> npt.NDArray[np.int64]:
        """Numbers of one end's vertices: of their string ids, or where they have none, those that the digits say."""
        if self.cluster.ids.known(node_type):
            return self.cluster.ids.numbers(column, node_type)
        try:
            return column.astype(np.int64)
        except (ValueError, OverflowError):
            raise ConfigError(f"links: the vertices of node type {node_type!r} have numbers as ids") from None

    def _numbered(self, what: str, given: Any, types: Sequence[str]) -> Any:
        if (strings := as_strings(what, given)) is not None:
            return self.cluster.ids.numbers(strings, types[0])
        if named := next(filter(self.cluster.ids.known, types), None):  # whoever has numbers means the strings
            raise ConfigError(f"{what}: node type {named!r} has string ids: give strings")
        return given

    def _of_layers(self, saved: SavedModel | None, nodes: Mapping[str, Targets]) -> _Made:
        """What is computed on a graph with one node type and one edge type."""
        from atta.client.inference.trial import layer_widths
        from atta.train.models.layers import digest_of, layers_of, saved_model
        from atta.train.models.links import saved_decoder, scorer
        from atta.train.models.own import own_layers

        channels, device = feature_width(self.cluster.schema, self.features), self._torch_device()
        score = INNER_PRODUCTS
        if saved is None:
            modules: Sequence[Any] = self.model  # type: ignore[assignment]  # it is no folder
            known = self.cluster.schema.edge_tables[self.cluster.schema.edge_types[0]]
            layers, widths = own_layers(modules, device, channels, known, self.edge_tables)
            digest = digest_of(modules)
        else:
            task, model = self._check_kind(saved), saved_model(saved, channels)
            hidden = task not in UNTABLED and (self.what == "embeddings" or self._scores_pairs)
            layers = layers_of(model, device, hidden=hidden)
            widths = layer_widths(layers, channels)
            decoders = [saved_decoder(saved)] if task in (LINK, EDGE_CLASSES) else []
            score = scorer(decoders[0]) if decoders else score
            digest = digest_of([model, *decoders])
        more: dict[str, Any] = {"pairs": self._scores_pairs, "edge_tables": self.edge_tables}
        if self.num_neighbors is None:
            stages = layerwise_stages(layers, widths, nodes[self.types[0]], **more)
        else:
            stages = sampled_stages(layers, widths, nodes[self.types[0]], self.num_neighbors, **more)
        return stages, widths[-1], digest, score

    def _of_types(self, saved: SavedModel | None, nodes: Mapping[str, Targets]) -> _Made:
        from atta.train.models.typed_layers import SavedTypedModel

        assert saved is not None, "models of typed graphs come from checkpoints"
        if self.features != "x":
            raise ConfigError(f"features {self.features!r}: models of typed graphs read the table x")
        self._check_kind(saved)
        pairs = self._scores_pairs
        hidden = self.what == "embeddings" or pairs
        model = SavedTypedModel.of(saved, self.cluster, self._torch_device(), types=list(nodes), hidden=hidden)
        ends = (self.types[0], self.types[-1]) if pairs else None
        return model.stages(nodes, self.num_neighbors, ends), model.width, model.digest, model.score

    def _torch_device(self) -> torch.device:
        import torch

        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
            return device
        except (RuntimeError, AssertionError) as error:  # the latter where torch was built without the device
            raise ConfigError(f"device {self.device!r}: {first_line(error)}") from None

    def _check_kind(self, saved: SavedModel) -> str:
        """Refuse a kind of prediction that a model's task does not give; returns the task."""
        task: str = saved.shape.get("task", "classes")
        pairs, classes, why = self._scores_pairs, self.what == "classes", ""
        if self.top is not None and task == EDGE_CLASSES:
            why = ": its pairs have no score to rank them by"
        elif pairs and classes and task != EDGE_CLASSES:
            why = ": pairs have scores, but no classes"
        elif not pairs and task in UNTABLED and self.what != "embeddings":
            why = ": ask for embeddings, or give pairs"
        elif not pairs and classes and task not in ("classes", "auto"):  # auto: whoever trained did not say
            why = ", which has no classes: ask for scores"
        if why:
            raise ConfigError(f"{saved.path}: was trained for --task {task}{why}")
        return task

    def _sink(self, shares: int, column: str, about: dict[str, Any]) -> Sink:
        if self.out is not None:
            return FileSink(self.out, self.format, shares, column, about)
        if self.table is not None:
            return TableSink(self.cluster, self.types[0], self.table, None if self.what == "classes" else self.width)
        return MemorySink()


def predicted_types(
    schema: Schema, saved: SavedModel | None, asked: str | None = None, *, pairs: bool = False
) -> tuple[str, ...]:
    """The node type of the vertices that are computed; of ``pairs`` those of sources and of targets, if they are two.
    saved: None for layers of a user's own; asked: the type that the user names, if so. Raises DataError: the graph
    lacks a type of the model, or has several; ConfigError: the model computes no vertices of the type asked for."""
    about: tuple[str, ...] = (schema.node_types[0],)
    if saved is not None and _typed(saved):
        from atta.train.models.typed_layers import types_of

        kind, about = saved.shape["model"], types_of(saved)
        if len(schema.node_types) == len(schema.edge_types) == 1:
            why = f"has a model of typed graphs, {kind}: this graph has one node and one edge type"
            raise DataError(saved.path, why)
        if missing := [t for t in about if t not in schema.node_types]:
            why = f"{kind} was trained for node type {missing[0]!r}, which this graph does not have"
            raise DataError(saved.path, why)
    elif saved is not None and (len(schema.node_types) > 1 or len(schema.edge_types) > 1):
        types = f"node types {', '.join(schema.node_types)} and edge types {', '.join(schema.edge_types)}"
        raise DataError(saved.path, f"has a model of graphs with one node and one edge type: this graph has {types}")
    if pairs:
        return about
    if asked is not None and asked not in about:
        raise ConfigError(f"node type {asked!r}: the model computes vertices of {' and '.join(sorted(set(about)))}")
    return (about[-1] if asked is None else asked,)


def class_names(schema: Schema, saved: SavedModel | None, node_type: str, what: str) -> Sequence[str] | None:
    """Names of predicted classes: the graph's, or else the model's."""
    own = schema.classes.get(node_type, {}).get("y")
    learnt = {} if saved is None else saved.shape.get("names", {})
    return own or learnt.get("classes") if what == "classes" else None


def _ranked_edge_type(schema: Schema, types: Sequence[str], relation: str | None, saved: SavedModel | None) -> str:
    """The edge type from sources to targets that ``top`` is about: the one that is named, the model's, or the only one.
    Raises ConfigError if that says none, or several."""
    between = [e for e in schema.edge_types if schema.endpoints(e) == (types[0], types[-1])]
    trained = None if saved is None else saved.shape.get("edge_type")
    said = relation or (trained if trained in between else None)
    if said is not None:
        return schema.find_edge_type(said, between)
    if len(between) == 1:
        return between[0]
    none = "there is none; models of atta train --task link recommend vertices of another type"
    known = f"name one of {', '.join(between)} as the relation" if between else none
    raise ConfigError(f"top: looks at edges from {types[0]!r} to {types[-1]!r}: {known}")


def _typed(saved: SavedModel) -> bool:
    return saved.shape.get("model") in TYPED_MODELS


def _saved(model: str | Path | Sequence[Any], schema: Schema, *, classes: bool) -> SavedModel | None:
    """The model of a checkpoint; None for layers of a user's own."""
    if not isinstance(model, str | Path):
        return None
    from atta.train.checkpoint.files import load_model

    return load_model(model, schema, classes=classes)


def _digest(content: npt.NDArray[Any]) -> str:
    return hashlib.blake2b(content.tobytes(), digest_size=8).hexdigest()


def _digest_of_nodes(nodes: Mapping[str, Targets]) -> str | list[str] | None:
    """Which vertices are asked for, as files say it."""
    said = [_digest(asked) if isinstance(asked, np.ndarray) else asked for asked in nodes.values()]
    return said[0] if len(said) == 1 else [str(one) for one in said]
