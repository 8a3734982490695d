"""Checks what ``Open`` asks for before any work is done, turns the seeds that a client names (a split, vertices, edges, or
none at all) into internal ids, and finds the session when the same request comes again."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.ma  # np.unique loads it when it is first called, which takes 15 ms

from atta.daemon.config import DaemonConfig
from atta.daemon.engine.session import SessionRequest
from atta.daemon.services.handling import check_printable
from atta.errors import ConfigError, QuotaExceededError, UnknownNameError, WrongDatasetError, known_name
from atta.kvstore.store import known_codec
from atta.observe.machine.memory import apart_from_heap, available_bytes
from atta.partition.dataset import Dataset
from atta.partition.schema import Schema
from atta.protos.v1 import session_pb2
from atta.samplers.batch.layout import Layout, check_draws_alone, layout_of
from atta.samplers.dag.spec import Plan, check_spec
from atta.samplers.seed_plan import SeedPlan, SeedPolicy, plan_seeds, plan_sized, plan_unseeded

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
    """Resolve a ``Seeds`` message. Raises UnknownNameError: no such node type, edge type or split. ConfigError: an id that does
    not exist, or arrays that contradict each other. QuotaExceededError: there is not enough memory to plan them."""
    known_name("node type", seeds.node_type, dataset.schema.node_types)
    times, sizes = _longs("times", seeds.times), _longs("sizes", seeds.sizes)
    source = seeds.WhichOneof("source")
    if (seeds.sizes and source in ("split", "all")) or ((seeds.times or seeds.sizes) and source in ("batches", "part")):
        raise ConfigError("seeds: sizes go with ids, and times with ids, a split or all vertices")
    match source:
        case "split":
            _check_room(dataset.schema.split_size(seeds.node_type, seeds.split))
            internal = np.asarray(dataset.split(seeds.node_type, seeds.split), dtype=np.int64)
            chosen = ChosenSeeds(internal, np.asarray(dataset.ids(seeds.node_type)[internal]))
        case "all":
            _check_room(count := dataset.schema.in_use(seeds.node_type))
            everything, ids = np.arange(count), dataset.ids(seeds.node_type)
            if count < len(ids):
                everything = np.sort(dataset.used(seeds.node_type)).astype(np.int64)
                ids = ids[everything]
            chosen = ChosenSeeds(everything, np.asarray(ids))
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
            internal = dataset.to_used(seeds.node_type, user_ids)
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
        internal[mine] = dataset.to_used(names[number], user_ids[mine])
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
        dataset.to_used(target, ends[1]), position, position, sources=dataset.to_used(source, ends[0]),
        exclude=exclude,
    )  # fmt: skip


def _longs(name: str, data: bytes) -> np.ndarray:
    if len(data) % 8:
        raise ConfigError(f"seeds: {name}: {len(data)} bytes are not a whole number of int64 values")
    return np.frombuffer(data, dtype=np.int64)


LEAST_SHARE = 1e-3
"""Smallest share of the workers that a session may ask for. The largest is its inverse."""
MAX_CAPACITY = 1 << 43
"""Most address space that one batch may span: 8 TiB. A process has 128 TiB."""
ENDED = 4096
"""How many names of ended sessions are remembered."""
NAME_CHARS = 64
"""Longest name of a session."""
_NAME = re.compile(rf"[0-9A-Za-z_-]{{1,{NAME_CHARS}}}")


def check_name(name: str) -> str:
    """A session's name as the client gives it; raises ConfigError unless it is short and plain."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"session {name[:80]!r}: a name has 1 to {NAME_CHARS} letters, digits, - or _")
    return name


def shown_name(name: str) -> str:
    """How a session is called in figures, metrics, traces, logs and errors: by a digest of its name. Whoever knows the
    name itself may take the session's batches and close it, and so the daemon does not even keep it."""
    return hashlib.sha256(name[: NAME_CHARS + 1].encode()).hexdigest()[:32]  # no session has a longer name


@dataclass(eq=False)
class _Opening:
    digest: bytes
    checked: asyncio.Future[SessionRequest]
    waiters: int = 0


class Openings:
    """Requests for sessions that are being checked, and sessions that have ended, by shown names."""

    def __init__(self) -> None:
        self._openings: dict[str, _Opening] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._openings)

    def under_way(self, name: str) -> bool:
        """Whether a request for this session is being checked."""
        return name in self._openings

    def end(self, name: str) -> None:
        """The session has ended, or shall not begin. Requests that wait for it now, or come later, are refused."""
        self._ended[name] = None
        self._ended.move_to_end(name)
        if len(self._ended) > ENDED:
            self._ended.popitem(last=False)

    def refuse_ended(self, name: str) -> None:
        """Raise UnknownNameError if the session has ended."""
        if name in self._ended:
            raise unknown(name)

    async def checked(self, name: str, digest: bytes, check: Callable[[], SessionRequest]) -> SessionRequest:
        """The result of ``check``, which runs once on a thread even if the same request comes several times meanwhile.
        Raises ConfigError: the name belongs to another request. UnknownNameError: the session has been closed. Also
        what ``check`` raises."""
        opening = self._openings.get(name)
        if opening is None:
            checked = asyncio.get_running_loop().run_in_executor(None, _checked, check)
            # Perhaps nobody waits for the result any more: its exception counts as seen.
            checked.add_done_callback(lambda future: future.cancelled() or future.exception())
            opening = self._openings[name] = _Opening(digest, checked)
        elif opening.digest != digest:
            raise taken(name)
        opening.waiters += 1
        try:
            result = await asyncio.shield(opening.checked)
        finally:
            opening.waiters -= 1
            if not opening.waiters and self._openings.get(name) is opening:
                del self._openings[name]
        self.refuse_ended(name)
        return result


def _checked(check: Callable[[], SessionRequest]) -> SessionRequest:
    """The result of ``check``. To put many seeds into order takes six times their memory for a moment."""
    with apart_from_heap():
        return check()


def unknown(name: str) -> UnknownNameError:
    """The error for a session that is not there any more, or never was."""
    return UnknownNameError(f"session {name} does not exist (closed, or its lease ran out)")


def taken(name: str) -> ConfigError:
    """The error for a name that belongs to another request."""
    return ConfigError(f"session {name} has been opened with another request")


def check_request(request: session_pb2.OpenRequest, dataset: Dataset, config: DaemonConfig) -> SessionRequest:
    """Check an ``OpenRequest``. Raises ConfigError, UnknownNameError, WrongDatasetError: the request makes no sense
    here. QuotaExceededError: the daemon has too little memory for it."""
    if request.dataset_id and request.dataset_id != dataset.dataset_id:
        raise WrongDatasetError(config.listen, f"it serves dataset {dataset.dataset_id}, not {request.dataset_id}")
    if not 1 <= request.batch_size <= config.max_batch_size:
        raise ConfigError(f"batch size {request.batch_size}: must be 1 to {config.max_batch_size}")
    if not request.rank < request.world_size:
        raise ConfigError(f"rank {request.rank} of {request.world_size} trainers")
    check_printable(request.job)
    plan = check_spec(request.dag, dataset.schema)
    for weights in plan.edge_weights:
        dataset.degrees(weights.edge_type)  # now, as it may be impossible or take a while
    source = request.seeds.WhichOneof("source")
    if plan.links != (source == "links"):
        raise ConfigError("seeds: the DAG starts from edges, or the session does, but not both")
    if source in ("batches", "part") and not any(op.operator is not None for op in plan.ops):
        raise ConfigError("seeds: only a batch operator can do without them, or with a partition's vertices at once")
    if source == "batches":
        check_draws_alone(plan, dataset.schema)
    if request.seeds.node_type != plan.seed.node_type:
        raise ConfigError(f"seeds are of node type {request.seeds.node_type!r}, the DAG has {plan.seed.node_type!r}")
    chosen = choose_seeds(dataset, request.seeds)
    if chosen.types is not None:
        _check_seed_types(plan, chosen.types, dataset)
    if len(chosen.internal) > config.max_seeds:
        raise QuotaExceededError(
            f"a session of {len(chosen.internal)} seeds: this daemon allows {config.max_seeds} (--max-seeds)"
        )
    _check_seed_times(plan, chosen, dataset)
    # Seeds are planned by partition, so that batches do not depend on how many partitions a daemon serves.
    seeds = _plan_seeds(request, chosen, dataset.partitions.num_parts)
    if request.start_batch > seeds.batches:
        raise ConfigError(f"start batch {request.start_batch} of {seeds.batches}")
    # The vertices of a partition are one batch of any size: this daemon holds the partition anyway.
    if source != "part" and not seeds.batch_size <= config.max_batch_size:
        raise ConfigError(f"batch size {seeds.batch_size}: at most {config.max_batch_size}")
    edge_ids, wide_ids = request.edge_ids, request.wide_ids
    layout = layout_of(plan, dataset.schema, seeds.batch_size, edge_ids=edge_ids, wide_ids=wide_ids)
    checked = SessionRequest(
        plan=plan, layout=layout, seeds=seeds, first_batch=request.start_batch, seed=request.seed, epoch=request.epoch,
        shared_memory=request.shared_memory, job=request.job, sources=chosen.sources, times=chosen.times,
        types=chosen.types, share=_share(request.share), codec=known_codec(request.codec), exclude=chosen.exclude,
        edge_ids=edge_ids, wide_ids=wide_ids, schema=dataset.schema,
    )  # fmt: skip
    check_room(layout, least_bytes(plan, dataset.schema, checked), config)
    return checked


def _check_seed_types(plan: Plan, types: np.ndarray, dataset: Dataset) -> None:
    """Raise ConfigError unless the DAG starts at all types of the seeds."""
    for number in np.unique(types).tolist():
        if (name := dataset.schema.node_types[number]) not in (plan.seed.node_type, *plan.seed.others):
            raise ConfigError(f"seeds are of node type {name!r}, at which the DAG does not start")


def _check_seed_times(plan: Plan, chosen: ChosenSeeds, dataset: Dataset) -> None:
    """Seeds have times if the sampling is temporal: those that came with them, or vertices their own. Reads the times
    of vertices, so that a batch need not wait for them. Raises ConfigError: there are none, or there is no use for
    them. DataError: see ``Dataset.times``."""
    if not plan.temporal:
        if chosen.times is not None:
            raise ConfigError("seeds: temporal sampling needs their times, and no other has a use for them")
        return
    dataset.schema.check_times()
    timed = [node_type for node_type in dataset.schema.node_types if dataset.times(node_type) is not None]
    if chosen.times is None and plan.links:
        raise ConfigError("seeds: temporal sampling needs their times (edge_label_time)")
    if chosen.times is None and plan.seed.node_type not in timed:
        raise ConfigError(
            f"seeds: temporal sampling needs their times (input_time): vertices of type {plan.seed.node_type!r} have no "
            "table 'time'"
        )


def with_schema(request: SessionRequest, schema: Schema, config: DaemonConfig) -> SessionRequest:
    """The same request for a version with other numbers of edges. Raises QuotaExceededError or ConfigError as
    ``check_request``."""
    edge_ids, wide_ids, plan = request.edge_ids, request.wide_ids, request.plan
    layout = layout_of(plan, schema, request.seeds.batch_size, edge_ids=edge_ids, wide_ids=wide_ids)
    check_room(layout, least_bytes(plan, schema, request), config)
    return replace(request, layout=layout, schema=schema)


def _plan_seeds(request: session_pb2.OpenRequest, chosen: ChosenSeeds, parts: int) -> SeedPlan:
    if chosen.sizes is not None or chosen.batches:
        if request.shuffle or request.drop_last:
            raise ConfigError("batches of given sizes come in the given order: no shuffle, no drop_last")
        # A partition's vertices are one batch, for every rank that asks.
        pad = request.pad or request.seeds.WhichOneof("source") == "part"
        if chosen.sizes is None:
            return plan_unseeded(chosen.batches, rank=request.rank, world=request.world_size, pad=pad)
        return plan_sized(chosen.internal, chosen.sizes, rank=request.rank, world=request.world_size, pad=pad)
    if request.policy not in {policy.value for policy in SeedPolicy}:
        raise ConfigError(f"seed policy {request.policy}: there is none of this number")
    plan = plan_seeds(
        chosen.internal if chosen.places is None else chosen.places, chosen.keys, batch_size=request.batch_size,
        parts=parts, policy=SeedPolicy(request.policy), rank=request.rank, world=request.world_size, seed=request.seed,
        epoch=request.epoch, shuffle=request.shuffle, drop_last=request.drop_last, pad=request.pad,
        position=chosen.position,
    )  # fmt: skip
    return (plan if chosen.places is None else replace(plan, seeds=chosen.internal[plan.input_id])).narrowed()


def least_bytes(plan: Plan, schema: Schema, request: SessionRequest) -> int:
    """Lower bound of the bytes of the session's first batch: its seeds with their ids and rows, without neighbours."""
    if request.first_batch >= request.seeds.batches:
        return 0
    part = request.seeds.batch_slice(request.first_batch)
    node_type, places = plan.seed.node_type, int(part.stop - part.start)
    # Which vertices these get is not known yet.
    if plan.links or plan.seed.others or any(op.operator is not None for op in plan.ops):
        return 8 * places
    tables = schema.node_tables[node_type]
    row = 8 + sum(tables[name].row_bytes for of, name in plan.tables if of == node_type)
    return 8 * places + row * len(np.unique(request.seeds.seeds[part]))


def check_room(layout: Layout, least: int, config: DaemonConfig) -> None:
    """Refuse batches that could span too much address space, and those whose ``least`` bytes exceed all buffers."""
    if layout.capacity > MAX_CAPACITY:
        raise ConfigError(
            f"a batch could take {layout.capacity >> 40} TiB, at most {MAX_CAPACITY >> 40} are possible: "
            "lower the batch size or the fan-outs"
        )
    if least > config.most_buffer_bytes:
        raise QuotaExceededError(
            f"the seeds of one batch take {least >> 20} MiB, all buffers together {config.most_buffer_bytes >> 20} MiB: "
            "raise --buffer or lower the batch size"
        )


def _share(value: float) -> float:
    """A session's share of the workers, 1 if none is given; ConfigError outside 0.001 to 1000."""
    if value and not LEAST_SHARE <= value <= 1 / LEAST_SHARE:
        raise ConfigError(f"share {value:g}: must be {LEAST_SHARE:g} to {1 / LEAST_SHARE:g}")
    return value or 1.0
