"""Judge a partitioning by its workload: sample some batches and count what they need from other partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atta.errors import ConfigError, UnknownNameError
from atta.partition.dataset import Dataset
from atta.partition.schema import Schema
from atta.samplers import kernels
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.shard import Shard


@dataclass(frozen=True)
class Prediction:
    """Means over ``batches`` sampled batches of ``seeds`` seeds of partition ``part``, and the standard errors of these means.

    Attributes:
        rows: vertices of a batch; remote_rows: the vertices that other partitions own. Their table rows cross the
            network.
        remote_bytes: bytes of these table rows; remote_frontier: vertices expanded at other partitions.
        contested_rows: the remote rows that batches of some other partition ask for at least as often. Moving such a
            row gains nothing: it is then remote for the other partition. Only other seeds per partition would help.
        halo_per_hop: share of other partitions' vertices among the vertices that a hop reaches first."""

    part: int
    batches: int
    seeds: float
    rows: tuple[float, float]
    remote_rows: tuple[float, float]
    remote_bytes: tuple[float, float]
    remote_frontier: tuple[float, float]
    contested_rows: float
    halo_per_hop: tuple[float, ...]


def predict(
    dataset: Dataset,
    num_neighbors: Sequence[int],
    *,
    batch_size: int = 1024,
    batches: int = 8,
    split: str | None = None,
    seed: int = 0,
) -> list[Prediction]:
    """Sample ``batches`` random batches per partition from the vertices of ``split``. None: ``train``, or all vertices
    if no vertex is in that split. The seeds are the same as a loader's with one trainer per partition. All partitions
    must be on this machine. Raises ConfigError: an argument is out of range, or the ``split`` is empty.
    UnknownNameError: no node type has it."""
    if batch_size < 1 or batches < 1 or not num_neighbors or any(k < -1 for k in num_neighbors):
        raise ConfigError(
            f"batch_size {batch_size}, batches {batches}, num_neighbors {list(num_neighbors)}: out of range"
        )
    seed_type, seeds = _seeds(dataset, split)
    shards = [Shard(dataset, part) for part in range(dataset.num_parts)]
    rng = np.random.default_rng(seed)
    found: list[tuple[int, int, list[_Figures]]] = []
    # Loaders deal seeds out to one trainer per partition in the same way: in equal numbers, so a few may belong to a
    # neighbouring partition.
    for part, mine in enumerate(np.array_split(seeds, dataset.num_parts)):
        if len(mine):
            takes = [rng.choice(mine, min(batch_size, len(mine)), replace=False) for _ in range(batches)]
            figures = [
                _batch(dataset, shards, part, {seed_type: take}, num_neighbors=num_neighbors, number=number)
                for number, take in enumerate(takes)
            ]
            found.append((part, len(takes[0]), figures))
    contested = _contested(
        [np.unique(np.concatenate([f.ids for f in figures]), return_counts=True) for *_, figures in found]
    )
    return [
        _summary(part, seeds, figures, rows / batches)
        for (part, seeds, figures), rows in zip(found, contested, strict=True)
    ]


def _seeds(dataset: Dataset, split: str | None) -> tuple[str, np.ndarray]:
    """The node type of the seeds, and all of them."""
    schema, name = dataset.schema, "train" if split is None else split
    for node_type, splits in schema.splits.items():
        if splits.get(name):
            return node_type, np.asarray(dataset.split(node_type, name))
    if split is not None:
        for node_type in (t for t, splits in schema.splits.items() if split in splits):
            schema.split_size(node_type, split)
        raise UnknownNameError.of("split", split, {s for splits in schema.splits.values() for s in splits})
    return schema.node_types[0], np.sort(dataset.used(schema.node_types[0]))


@dataclass(frozen=True)
class _Figures:
    rows: int
    remote_rows: int
    remote_bytes: int
    remote_frontier: int
    fresh: tuple[int, ...]  # per hop
    remote_fresh: tuple[int, ...]
    ids: np.ndarray  # of all rows, one node type after another


def _batch(
    dataset: Dataset,
    shards: Sequence[Shard],
    home: int,
    seeds: Mapping[str, np.ndarray],
    *,
    num_neighbors: Sequence[int],
    number: int,
) -> _Figures:
    schema, book = dataset.schema, dataset.book
    known = {t: kernels.Compactor(schema.node_counts[t]) for t in schema.node_types}
    for t, ids in seeds.items():
        known[t].insert(ids)

    def away(node_type: str, start: int) -> int:
        lo, hi = book.range(node_type, home)
        ids = known[node_type].ids(start, known[node_type].size)
        return int(np.count_nonzero((ids < lo) | (ids >= hi)))

    starts = dict.fromkeys(known, 0)
    fresh, remote_fresh, frontier = [], [], 0
    for hop, fan_out in enumerate(num_neighbors, start=1):
        stops = {t: c.size for t, c in known.items()}
        for edge_type in sorted(schema.edge_types):
            source, target = schema.endpoints(edge_type)
            ids = known[target].ids(starts[target], stops[target])
            rows, _ = kernels.split_by_owner(ids, book.offsets[target])
            key = stream_key(0, 0, number, hop, hash_string(edge_type))
            for part, mine in enumerate(rows):
                if len(mine):
                    answer = shards[part].sample(edge_type, mine, fan_out=fan_out, replace=False, stream_key=key)
                    known[source].insert(answer.neighbors)
                    frontier += len(mine) * (part != home)
        starts = stops
        fresh.append(sum(c.size - stops[t] for t, c in known.items()))
        remote_fresh.append(sum(away(t, stops[t]) for t in known))
    remote = {t: away(t, 0) for t in known}
    row_bytes = {t: sum(s.row_bytes for s in schema.node_tables[t].values()) for t in known}
    return _Figures(
        sum(c.size for c in known.values()),
        sum(remote.values()),
        sum(remote[t] * row_bytes[t] for t in known),
        frontier,
        tuple(fresh),
        tuple(remote_fresh),
        _all_ids(schema, known),
    )


def _all_ids(schema: Schema, known: Mapping[str, kernels.Compactor]) -> np.ndarray:
    base, found = 0, []
    for t, compactor in known.items():
        found.append(compactor.ids(0, compactor.size).astype(np.int64) + base)
        base += schema.node_counts[t]
    return np.concatenate(found)


def _contested(asked: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[int]:
    """Per partition the rows that it would still ask others for, if every vertex lay where most batches ask for it."""
    if not asked:
        return []
    ids = np.concatenate([ids for ids, _ in asked])
    times = np.concatenate([times for _, times in asked])
    whose = np.repeat(np.arange(len(asked)), [len(ids) for ids, _ in asked])
    order = np.lexsort((whose, -times, ids))  # the first entry of each vertex is the partition that asks most for it
    first = np.ones(len(ids), np.bool_)
    first[1:] = ids[order][1:] != ids[order][:-1]
    losers = order[~first]
    lost = np.bincount(whose[losers], weights=times[losers], minlength=len(asked))
    return [int(rows) for rows in lost]


def _summary(part: int, seeds: int, figures: Sequence[_Figures], contested: float) -> Prediction:
    def of(name: str) -> tuple[float, float]:
        values = np.array([getattr(f, name) for f in figures], dtype=np.float64)
        spread = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
        return float(values.mean()), spread

    fresh = np.sum([f.fresh for f in figures], axis=0)
    halo = np.sum([f.remote_fresh for f in figures], axis=0) / np.maximum(1, fresh)
    return Prediction(
        part, len(figures), float(seeds), of("rows"), of("remote_rows"), of("remote_bytes"), of("remote_frontier"),
        contested, tuple(float(h) for h in halo),
    )  # fmt: skip
