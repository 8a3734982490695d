"""Files of checkpoints: zip archives as ``torch.save`` writes them, whose comment is a checksum of all bytes before it."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from atta.client.cluster import Cluster
from atta.client.tables.rows import rows_of_all
from atta.errors import ConfigError, DataError, blaming
from atta.partition.disk.files import open_regular
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import StagedFile, disk_full, remove_partial_file
from atta.partition.schema import Schema
from atta.train.settings.minibatch import EDGE_CLASSES, UNTABLED

LAST = "checkpoint.pt"
BEST = "best.pt"
BEST_WEIGHTS = "best.safetensors"
VERSION = 2
_MARK = b"atta-xxh3:"  # then 16 hex digits, which end the file
_DIGITS = 16


@dataclass(frozen=True)
class RunPlace:
    """The next batch of a run, after ``epoch`` complete epochs.

    Attributes:
        batch: batches of the epoch under way that each trainer has done; 0: the epoch has not begun.
        step: optimiser steps of the epoch under way.
    """

    epoch: int
    batch: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch}, step {self.step}"


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that checkpoints cannot be written to, before training begins. It leaves nothing behind, and removes the
    partial file of an earlier run that was killed. Raises ConfigError, and DiskFullError: there is no space left.
    """
    mirror = Mirror(folder)
    mirror.check_writable()
    folder = mirror.path
    for path in (folder / LAST, folder / BEST, folder / BEST_WEIGHTS):
        if path.exists() and not path.is_file():
            raise ConfigError(f"--checkpoint {folder}: {path.name} in it is not a regular file")
        remove_partial_file(path)
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        full = disk_full(folder, error)
        raise full or ConfigError(f"--checkpoint {folder}: cannot be written: {error.strerror}") from None


def read_file(path: Path, device: torch.device) -> dict[str, Any]:
    """What a file holds, with tensors on ``device``; raises DataError if it is no checkpoint, damaged, or of another version."""
    with blaming(DataError, path, "cannot be read as a checkpoint"), open_regular(path) as file:
        content = file.read()
    # A damaged mark looks like a file without a checksum, so a file without one is refused too.
    if content[-_DIGITS - len(_MARK) : -_DIGITS] != _MARK:
        raise DataError(path, "does not end with its checksum: cut short, altered, or not written by atta train")
    if content[-_DIGITS:] != _digest(content[:-_DIGITS]):
        raise DataError(path, "altered: its checksum differs from its content")
    try:
        saved = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception as error:  # torch calls what a file names with what it holds, so any error may come of it
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(path, f"cannot be read as a checkpoint: {cause}") from error
    if not isinstance(saved, dict):
        raise DataError(path, "is no checkpoint")
    if saved.get("version") != VERSION:
        raise DataError(path, f"checkpoint version {saved.get('version')!r}; this release reads version {VERSION}")
    return saved


def write_file(folder: str | Path, name: str, state: dict[str, Any]) -> Mirror:
    """Write and seal a file of the folder. A crash leaves the old file or the new one. Raises the errors of ``StagedFile``."""
    content, place = io.BytesIO(), Mirror(folder)  # torch.save hides errors of files
    torch.save({"version": VERSION, **state}, content)
    with StagedFile(place.path / name, overwrite=True) as partial:
        partial.write_bytes(seal(content.getvalue()))
    place.push(name)
    return place


def seal(archive: bytes) -> bytes:
    """Append the checksum of an archive as its comment."""
    size = len(_MARK) + _DIGITS
    sealed = archive[:-2] + size.to_bytes(2, "little") + _MARK
    return sealed + _digest(sealed)


def _digest(content: bytes) -> bytes:
    return xxhash.xxh3_64(content).hexdigest().encode()


CLASSES, NAMES = "classes", "names"
_SHOWN = 3
EMBEDDINGS = "embeddings."
"""Where weights have the rows of node types without features."""
IDS = "embedding_ids"
"""Where files have the vertices of rows; see ``SavedEmbeddings``."""
NO_EMBEDDINGS = f"has no embeddings: runs write them into {BEST}, after an epoch that was the best or at their end"
"""What is wrong with a checkpoint of a model that needs some."""
_WRAPPERS = ("gnn.", "module.")


@dataclass(frozen=True)
class SavedEmbeddings:
    """Learnt rows [vertices, width] of node types without features, by ascending user ids; ``ids`` int64 [vertices], of
    the types whose ids are other numbers than 0, 1, 2, ...; ``path``: of their file."""

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
        """int64 [vertices]: where a table of the cluster has each row of a type. Raises DataError: the graph has other
        vertices of this type."""
        count, ids = len(self.rows[node_type]), self.ids.get(node_type)
        if ids is not None and (ids.dtype != torch.int64 or ids.shape != (count,)):
            raise DataError(self.path, f"embeddings of {node_type}: {count} rows, ids {ids.dtype} {list(ids.shape)}")
        with blaming(DataError, self.path, "its embeddings are of another graph", of=ConfigError):
            return rows_of_all(cluster, f"nodes:{node_type}", count, None if ids is None else ids.cpu().numpy())


def names_of(schema: Schema, shape: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the numbers are called that a model of a ``shape`` reads and gives, as far as the data has names."""
    found, of_edges = dict[str, list[str]](), shape.get("task") == EDGE_CLASSES
    for node_type, tables in schema.columns.items():
        values = schema.classes.get(node_type, {})
        named = [[f"{name}={one}" for one in values.get(f"x/{name}", ())] or [name] for name in tables.get("x", ())]
        found["features" if len(schema.node_types) == 1 else f"features of {node_type}"] = [*chain.from_iterable(named)]
    if of_edges or shape.get("task") not in UNTABLED:
        key, types = ("edge_type", schema.edge_types) if of_edges else ("target", schema.node_types)
        found[CLASSES] = schema.classes.get(str(shape.get(key) or types[0]), {}).get("y", [])
    return {what: names for what, names in found.items() if names}


def check_names(path: Path, shape: Mapping[str, Any], schema: Schema | None, *, classes: bool = True) -> str:
    """Refuse a model of data whose features, or ``classes``, have other names than in ``schema``. Returns how those differ
    that are not refused; empty: they do not. Raises DataError."""
    try:
        names = {str(what): [*map(str, listed)] for what, listed in shape.get(NAMES, {}).items()}
    except (AttributeError, TypeError):
        raise DataError(path, "does not tell the names of its features and classes") from None
    here, borne = {} if schema is None else names_of(schema, shape), ""
    for what, was in names.items():
        now = here.get(what, was)
        if was != now:
            first = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(was, now, strict=False)))
            theirs, ours = (", ".join(map(repr, listed[first:][:_SHOWN])) or "none" for listed in (was, now))
            said = f"was trained with other {what}: from number {first} on it has {theirs}; this data has {ours}"
            if classes or what != CLASSES:
                cure = "give this data the same names in the same order in schema.json and import it again"
                raise DataError(path, f"{said}: {cure}, or train a model on it")
            borne = f"{path}: {said}"
    return borne


@dataclass(frozen=True)
class SavedModel:
    """A model as a checkpoint has it: settings that determine its ``shape``, weights by the names that the model has
    without a trainer around it, rows of node types without features, and how its classes differ from those of the data."""

    path: Path
    shape: Mapping[str, Any]
    weights: Mapping[str, torch.Tensor]
    embeddings: SavedEmbeddings
    other_classes: str


def load_model(folder: str | Path, schema: Schema | None = None, *, classes: bool = True) -> SavedModel:
    """The best model of a folder of checkpoints; where there was no evaluation, that of the last checkpoint. Raises
    DataError: there is none, it is damaged, of another version, or as ``check_names`` for data of ``schema``."""
    path = _best_of(Mirror(folder))
    if path is None:
        raise DataError(folder, f"has no {BEST} and no {LAST}: not a folder of atta train --checkpoint")
    return _read_model(path, torch.device("cpu"), schema, classes=classes)


def load_first(path: str | Path, device: torch.device, schema: Schema) -> SavedModel:
    """The model of another run's checkpoint, a file or a folder (``best.pt`` comes first), to begin with on data of ``schema``.
    Raises DataError: there is no such file, it is damaged, or of features with other names."""
    place = Mirror(path)
    path = (_best_of(place) or place.path / BEST) if place.path.is_dir() else place.path
    if not path.exists():
        raise DataError(path, "--init-from: there is no such file")
    return _read_model(path, device, schema, classes=False)


def fill(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Give a model the weights of a checkpoint, by the names of ``SavedModel``. Raises DataError: they are of other data."""
    own = model.state_dict()
    if said := _misfit(weights, bare(own)):
        raise DataError(path, said)
    model.load_state_dict({name: weights[_bare_name(name)] for name in own})


def _misfit(there: Mapping[str, torch.Tensor], here: Mapping[str, torch.Tensor]) -> str:
    # Of layers that are alike, other data changes the columns of the first one, and the biases of the last one.
    shapes = [(n, *(tuple(w[n].shape) if n in w else "absent" for w in (there, here))) for n in {**there, **here}]
    if not (differ := sorted((n, was, now) for n, was, now in shapes if was != now)):
        return ""
    features = {(was[1], now[1]) for _, was, now in differ if len(was) == len(now) == 2 and was[0] == now[0]}
    outputs = {(was[0], now[0]) for _, was, now in differ if len(was) == len(now) == 1}
    said = [f"{was} features per vertex, this data has {now}" for was, now in features]
    said += [f"{was} classes or other outputs, this data has {now}" for was, now in outputs]
    if not said or len(features) > 1 or len(outputs) > 1 or features & outputs or any("absent" in d for d in differ):
        name, was, now = differ[0]
        return f"does not fit this model: {name} is {was} there and {now} here"
    return f"expects {'; '.join(said)}"


def bare(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by the names of the model itself: trainers wrap it, each strategy in its own way."""
    return {_bare_name(name): weight for name, weight in weights.items()}


def _bare_name(name: str) -> str:
    return next((name.removeprefix(w) for w in _WRAPPERS if name.startswith(w)), name)


def _best_of(place: Mirror) -> Path | None:
    return next((path for path in (place.pull(BEST), place.pull(LAST)) if path.exists()), None)


def _read_model(path: Path, device: torch.device, schema: Schema | None, *, classes: bool) -> SavedModel:
    saved = read_file(path, device)
    shape, weights = saved.get("shape"), saved.get("model")
    if not isinstance(shape, dict) or not isinstance(weights, dict):
        raise DataError(path, "has no model")
    _check_tensors(path, weights)
    found = bare(weights)
    other = check_names(path, shape, schema, classes=classes)
    return SavedModel(path, shape, found, SavedEmbeddings.taken(path, saved, found), other)


def _check_tensors(path: Path, weights: Mapping[object, object]) -> None:
    for name, found in weights.items():
        if not isinstance(name, str) or not isinstance(found, torch.Tensor):
            raise DataError(path, f"its model has {name!r}, which is no tensor with a name")
