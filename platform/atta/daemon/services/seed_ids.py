"""Turns the seeds that a client names (a split, vertices, edges, or none at all) into internal ids."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atta.errors import ConfigError, QuotaExceededError, UnknownNameError
from atta.observe.machine.memory import available_bytes
from atta.partition.dataset import Dataset
from atta.protos.v1 import session_pb2

MAX_BATCHES = 1 << 31
PLAN_BYTES = 64
"""Bytes of memory per seed while a session is planned: ids, hashes, orders and their copies."""
UNCHECKED_BYTES = 4 << 20
"""Plans of so few bytes need no look at what is free. It reads a dozen files, once per epoch of every trainer."""


@dataclass(frozen=True)
class ChosenSeeds:
    """Checked seeds, by position in the user's input. The vertices of a split, or all of a type, have no particular
    order here; their positions, and so ``times``, are by ascending user id.

    Attributes:
        internal: int64 [S] internal ids of vertices, or of the targets of edges.
        keys: int64 [S], from which permutations are computed: user ids of vertices, positions of edges.
        position: int64 [S], None for a split.
        sources: int64 [S], the sources of seed edges.
        times: int64 [S], for temporal methods.
        sizes: int64 [B], number of seeds of each batch, if the client has cut the batches.
        batches: number of batches without seeds; 0: there are seeds.
        exclude: (edge type, whether reversed): where a batch's seed edges are left out.
        types: int32 [S], node types by number in the schema; None: all are of one.
        places: int64 [S], by partition, then by type and internal id: the order in which seeds of several types lie near
            each other; None: that of ``internal``.
    """

    internal: np.ndarray
    keys: np.ndarray
    position: np.ndarray | None = None
    sources: np.ndarray | None = None
    times: np.ndarray | None = None
    sizes: np.ndarray | None = None
    batches: int = 0
    exclude: tuple[tuple[str, bool], ...] = ()
    types: np.ndarray | None = None
    places: np.ndarray | None = None


def choose_seeds(dataset: Dataset, seeds: session_pb2.Seeds) -> ChosenSeeds:
    """Resolve a ``Seeds`` message. Raises UnknownNameError: no such node type, edge type or split. ConfigError: an id
    that does not exist, or arrays that contradict each other. QuotaExceededError: there is not enough memory to plan
    them."""
    if seeds.node_type not in dataset.schema.node_types:
        raise UnknownNameError.of("node type", seeds.node_type, dataset.schema.node_types)
    times, sizes = _longs("times", seeds.times), _longs("sizes", seeds.sizes)
    source = seeds.WhichOneof("source")
    if (seeds.sizes and source in ("split", "all")) or ((seeds.times or seeds.sizes) and source in ("batches", "part")):
        raise ConfigError("seeds: sizes go with ids, and times with ids, a split or all vertices")
    match source:
        case "split":
            _check_room(dataset.schema.split_size(seeds.node_type, seeds.split))
            members = dataset.split(seeds.node_type, seeds.split)
            internal = np.asarray(members, dtype=np.int64)
            chosen = ChosenSeeds(internal, np.asarray(dataset.ids(seeds.node_type)[internal]))
        case "all":
            _check_room(dataset.schema.node_counts[seeds.node_type])
            everything = np.arange(dataset.schema.node_counts[seeds.node_type])
            chosen = ChosenSeeds(everything, np.asarray(dataset.ids(seeds.node_type)))
        case "part":
            return _part(dataset, seeds)
        case "batches":
            if not 1 <= seeds.batches <= MAX_BATCHES:
                raise ConfigError(f"{seeds.batches} batches: must be 1 to {MAX_BATCHES}")
            nothing = np.empty(0, dtype=np.int64)
            return ChosenSeeds(nothing, nothing, batches=seeds.batches)
        case "links":
            chosen = _links(dataset, seeds)
        case _ if seeds.types:
            chosen = _of_types(dataset, seeds)
        case _:
            user_ids = _longs("ids", seeds.ids)
            internal = dataset.to_internal(seeds.node_type, user_ids)
            chosen = ChosenSeeds(internal, user_ids, np.arange(len(user_ids)))
    if seeds.times and len(times) != len(chosen.internal):
        raise ConfigError(f"seeds: {len(times)} times for {len(chosen.internal)} seeds")
    return replace(chosen, times=times if seeds.times else None, sizes=sizes if seeds.sizes else None)


def _check_room(seeds: int) -> None:
    """Refuse more seeds than there is memory to plan. A message can name many of them in a few bytes."""
    wanted = seeds * PLAN_BYTES
    if wanted > UNCHECKED_BYTES and wanted > (free := available_bytes()):
        raise QuotaExceededError(
            f"no memory left for a session of {seeds} seeds: it takes up to {wanted >> 20} MiB for a moment, "
            f"{free >> 20} MiB are available"
        )


def _part(dataset: Dataset, seeds: session_pb2.Seeds) -> ChosenSeeds:
    if not seeds.part < dataset.partitions.num_parts:
        raise ConfigError(f"seeds: partition {seeds.part} of {dataset.partitions.num_parts}")
    first, stop = dataset.partitions.range(seeds.node_type, seeds.part)
    _check_room(stop - first)
    keys = np.asarray(dataset.ids(seeds.node_type)[first:stop])
    order = np.argsort(keys, kind="stable")
    return ChosenSeeds(first + order, keys[order], sizes=np.array([stop - first]))


def _of_types(dataset: Dataset, seeds: session_pb2.Seeds) -> ChosenSeeds:
    user_ids, names = _longs("ids", seeds.ids), dataset.schema.node_types
    if len(seeds.types) != 4 * len(user_ids):
        raise ConfigError(f"seeds: {len(seeds.types)} bytes of types for {len(user_ids)} seeds")
    types = np.frombuffer(seeds.types, np.int32)
    if len(types) and not 0 <= types.min() <= types.max() < len(names):
        raise ConfigError(f"seeds: types from {types.min()} to {types.max()}, the schema has {len(names)}")
    if seeds.times or seeds.sizes:
        raise ConfigError("seeds: those of several types have no times and no sizes of batches")
    internal, owners = np.empty_like(user_ids), np.empty_like(user_ids)
    for number in np.unique(types).tolist():
        mine = types == number
        internal[mine] = dataset.to_internal(names[number], user_ids[mine])
        owners[mine] = np.searchsorted(dataset.partitions.offsets[names[number]], internal[mine], side="right")
    places = np.empty_like(internal)
    places[np.lexsort((internal, types, owners))] = np.arange(len(internal))
    return ChosenSeeds(internal, user_ids, np.arange(len(user_ids)), types=types, places=places)


def _links(dataset: Dataset, seeds: session_pb2.Seeds) -> ChosenSeeds:
    links, schema = seeds.links, dataset.schema
    source, target = schema.endpoints(schema.check_edge_type(links.edge_type))
    ends = _longs("sources", links.sources), _longs("targets", links.targets)
    if len(ends[0]) != len(ends[1]):
        raise ConfigError(f"seeds: {len(ends[0])} sources for {len(ends[1])} targets")
    exclude = ((links.edge_type, False),) if links.exclude else ()
    if links.exclude_reverse:
        if schema.endpoints(schema.check_edge_type(links.exclude_reverse)) != (target, source):
            raise ConfigError(f"edge type {links.exclude_reverse!r} cannot hold the reverses of {links.edge_type!r}")
        exclude = (*exclude, (links.exclude_reverse, True))
    position = np.arange(len(ends[0]))
    return ChosenSeeds(
        dataset.to_internal(target, ends[1]),
        position,
        position,
        sources=dataset.to_internal(source, ends[0]),
        exclude=exclude,
    )


def _longs(name: str, data: bytes) -> np.ndarray:
    if len(data) % 8:
        raise ConfigError(f"seeds: {name}: {len(data)} bytes are not a whole number of int64 values")
    return np.frombuffer(data, dtype=np.int64)
