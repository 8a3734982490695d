"""What must hold in the state machines of daemons and tables, and how it is checked after every event.

The programs themselves have none of this, so it costs them nothing. Other machines have a method ``validate``.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from atta.daemon.engine.session import MAX_HELD_SLOTS, Session
from atta.daemon.engine.slots import SlotPool, _pages
from atta.daemon.peers.owners import LOOKS, RESTS, Key, PullsUnderWay, _Habit, _LastPulls
from atta.daemon.peers.sockets import MOST_TOKENS, TOKEN_BYTES, Tokens
from atta.daemon.peers.watching import ENOUGH, LEAST_S, MOST, Hedges
from atta.daemon.peers.watching import WINDOW as ANSWERS
from atta.daemon.services.rooms import Room
from atta.errors import DataError
from atta.kvstore.durable.logfile import TABLES_FILE
from atta.kvstore.durable.saved import _REPLACED, SnapshotParts, TablesFile
from atta.kvstore.mutable.sequences import WINDOW, Client, Sequences, _ClientPushes
from atta.kvstore.mutable.table import MutableTable, ShardArrays
from atta.kvstore.parameter_jobs import ArrivalJob, SummedJob
from atta.kvstore.parameters import WeightVersions
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.train.dorylus.hand_out import HandOut, PoolSize
from atta.train.dorylus.progress import PipelineProgress
from atta.wire.memfiles import Gaps


def validate(machine: Any, *given: Any) -> None:
    """Raise AssertionError where an invariant of ``machine`` does not hold."""
    check = globals().get("check_" + re.sub(r"(?<!^)(?=[A-Z])", "_", type(machine).__name__.lstrip("_")).lower())
    check(machine, *given) if check is not None else machine.validate(*given)


def watch(monkeypatch: pytest.MonkeyPatch, machine: type, *events: str) -> None:
    """Validate every object of class ``machine`` after each call of the methods ``events``."""
    for name in events:
        monkeypatch.setattr(machine, name, _validated(vars(machine)[name]))


def _validated(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def later(self: Any, *args: Any, **options: Any) -> Any:
            result = await method(self, *args, **options)
            validate(self)
            return result

        return later

    @functools.wraps(method)
    def now(self: Any, *args: Any, **options: Any) -> Any:
        result = method(self, *args, **options)
        validate(self)
        return result

    return now


def check_room(self: Room) -> None:
    assert self.used_bytes == sum(self._by_connection.values()) <= self._in_all, f"{self.used_bytes} bytes are used"
    for connection, nbytes in self._by_connection.items():
        assert 0 < nbytes <= self._per_connection, f"connection {connection} has {nbytes} bytes"
    for connection, queue in self._waiting.items():
        assert queue, f"nobody waits on connection {connection}"
        share, waiting = queue[0]
        assert waiting.done() or not self._fits(share), f"connection {connection} waits, and there is room"


def check_slot_pool(self: SlotPool) -> None:
    free = [slot for slots in self._free.values() for slot in slots]
    slots = [*free, *self._out, *self._left]
    assert len(slots) == len({id(slot) for slot in slots}), "a slot is both free and in use"
    for capacity, of_size in self._free.items():
        assert all(slot.capacity == capacity for slot in of_size), f"free slots of {capacity} bytes have another size"
    assert self._lent.keys() <= self._out, "a slot is lent that is not in use"
    assert all(count >= 0 for count in self._sessions.values()), f"sessions by size: {dict(self._sessions)}"
    ranges: dict[int, list[tuple[int, int]]] = {id(arena): [] for arena in self._arenas}
    for slot in slots:
        assert id(slot.arena) in ranges, "a slot's arena is unknown"
        ranges[id(slot.arena)].append((slot.offset, slot.offset + _pages(slot.capacity)))
    for arena in self._arenas:
        validate(arena.gaps, sorted(ranges[id(arena)]))
        assert not arena.gaps.whole, "an arena without slots is kept"


def check_session(self: Session) -> None:
    name = f"session {self.id!r}"
    assert self.sequence >= -1, f"{name}: sequence {self.sequence}"
    assert len(self.held) <= MAX_HELD_SLOTS, f"{name}: the consumer holds {len(self.held)} slots"
    for number, delivery in self.held.items():
        assert 0 <= number <= self.sequence, f"{name}: batch number {number} is held before it was taken"
        assert delivery.shared, f"{name}: batch number {number} is held, but was sent as bytes"
        assert not delivery.over, f"{name}: batch number {number} is held, but its slot was freed"
    for delivery in self.queue:
        fresh = not (delivery.shared or delivery.over or delivery.senders)
        assert fresh, f"{name}: batch {delivery.batch} is in the queue, but was taken"
    if self.current is not None:
        assert self.sequence >= 0, f"{name}: a batch is current before any was taken"
        assert not self.current.over, f"{name}: the current batch is over"
        assert self.current.senders >= 0, f"{name}: {self.current.senders} requests send the current batch"
    if self.closed:
        left = self.current, *self.queue, *self.held.values()
        assert not any(left), f"{name} is closed, but batches are left"
    assert not self.closed or self._changed.is_set(), f"{name} is closed, but requests still wait"


def check_hedges(self: Hedges) -> None:
    assert 0.0 <= self._allowed <= MOST, f"{self._allowed} second requests may be sent"
    assert 0 <= self.won <= self.sent, f"{self.won} of {self.sent} second requests were answered first"
    assert all(len(seen) <= ANSWERS for seen in self._seen.values()), "too many answers are remembered"
    known = {kind for kind, seen in self._seen.items() if len(seen) >= ENOUGH}
    assert self._patience.keys() == known, f"patience for {sorted(self._patience)}, enough answers of {sorted(known)}"
    assert all(wait >= LEAST_S for wait in self._patience.values()), f"impatient: {self._patience}"


def check_tokens(self: Tokens) -> None:
    assert len(self._given) <= MOST_TOKENS, f"{len(self._given)} tokens are good"
    assert all(len(token) == TOKEN_BYTES for token in self._given), "a token has another length"
    ends = [end for end, _ in self._given.values()]
    assert ends == sorted(ends), "tokens are out of order"


def check_habit(self: _Habit, node_type: str) -> None:
    most = RESTS if self.rests else LOOKS
    assert 1 <= self.left <= most, f"{node_type}: {self.left} pulls are left of {most}"
    assert 0 <= self.shared <= self.rows, f"{node_type}: {self.shared} of {self.rows} rows were found"


def check_last_pulls(self: _LastPulls, key: Key) -> None:
    lengths = len(self._pull), len(self._position)
    assert lengths[0] == lengths[1] >= self._index.size, f"{key}: {self._index.size} rows in arrays of {lengths}"


def check_pulls_under_way(self: PullsUnderWay) -> None:
    assert not any(last.open for last in self._spare.values()), "a pull is open, and its rows are forgotten"
    for node_type, habit in self._habits.items():
        validate(habit, node_type)
    for key, last in self._last.items():
        assert last.open, f"{key}: no pull is open, and it is still kept"
        numbers = [*last.open]
        assert numbers == sorted(numbers), f"{key}: pulls are out of order"
        validate(last, key)
        owed = [shared for pull in last.open.values() for shared in pull.promised]
        for number, pull in last.open.items():
            assert pull.number == number <= self._count, f"{key}: pull {pull.number} is kept as {number}"
            assert pull.key == key, f"{key}: pull {number} is one of {pull.key}"
            later = {id(shared) for n, other in last.open.items() if n <= number for shared in other.expected}
            assert not any(id(shared) in later for shared in pull.promised), f"{key}: pull {number} promises backwards"
            rows = [row for shared in pull.expected for row in shared.chosen.tolist()]
            assert len(rows) == len({*rows}), f"{key}: pull {number} expects a row twice"
        for shared in owed:
            lengths = len(shared.chosen), len(shared.sources), len(shared.positions)
            assert len({*lengths}) == 1, f"{key}: shared rows of unequal lengths {lengths}"
            # A batch that was given up cancels what it waits for.
            assert not shared.came.done() or shared.came.cancelled(), f"{key}: rows came before their pull ended"


def check_shard_arrays(self: ShardArrays, spec: MutableSpec) -> None:
    values = (len(self.values), *spec.row_shape)
    assert self.values.dtype.str == spec.dtype, f"values are {self.values.dtype.str}, not {spec.dtype}"
    assert self.values.shape == values, f"values are {self.values.shape}, not {values}"
    assert (self.versions is not None) == spec.versioned, "versions do not fit the table's description"
    if self.versions is not None:
        assert self.versions.shape == values[:1], f"versions are {self.versions.shape} for {values[0]} rows"
        assert int(self.versions.min(initial=0)) >= -1, "a version is below -1"
    wanted = () if spec.optimiser is None else tuple(spec.optimiser.state_names)
    assert set(self.state) == set(wanted), f"the optimiser has {sorted(self.state)}, not {sorted(wanted)}"
    for name, array in self.state.items():
        assert array.shape == values, f"the optimiser's {name} is {array.shape} for values of {values}"


def check_mutable_table(self: MutableTable) -> None:
    contents = self._contents
    validate(contents, self.spec)
    rows, last = len(contents.values), self.first_row + len(contents.values)
    assert self.first_row >= 0, f"the first row is {self.first_row}"
    assert last <= self.spec.limit, f"rows {self.first_row}..{last} of {self.spec.limit}"
    assert rows >= self.created_rows, f"{rows} rows are left of {self.created_rows}"
    assert self.step >= 0, f"step {self.step}"
    validate(self._sequences)


def check_client_pushes(self: _ClientPushes, client: Client) -> None:
    assert self.expected >= 0, f"client {client!r}: expects push {self.expected}"
    assert self.expected not in self.ahead, f"client {client!r}: push {self.expected} is missing, and has been applied"
    late = [n for n in self.ahead | self.busy if not self.expected <= n < self.expected + WINDOW]
    assert not late, f"client {client!r}: pushes {sorted(late)} lie outside the window that begins at {self.expected}"
    twice = self.ahead & self.busy
    assert not twice, f"client {client!r}: pushes {sorted(twice)} have been applied, and are being applied"
    assert not (self.over and self.busy), (
        f"client {client!r}: pushes {sorted(self.busy)} came after a snapshot was loaded"
    )


def check_sequences(self: Sequences) -> None:
    with self._changed:
        known = len(self._clients)
        assert known <= self._max_clients, f"{known} clients are remembered, at most {self._max_clients} may be"
        for client, seen in self._clients.items():
            validate(seen, client)


def check_arrival_job(self: ArrivalJob) -> None:
    for number, member in enumerate(self._members):
        assert member.finished - 1 <= member.started <= member.finished, f"member {number}: {member}"
    assert self.spec.bound is None or self.spread <= self.spec.bound, f"the spread is {self.spread}"
    assert self.weights.stashed == 0, "nobody pins versions of such a job"
    assert not self.spec.max_updates or self.weights.version <= self.spec.max_updates, "too many updates"


def check_summed_job(self: SummedJob) -> None:
    validate(self.weights, Counter(self._pinned.values()))
    if self._broken is None:
        assert self.weights.version == min(self._finished), "every epoch that all have finished is one update"
    assert self.spread <= self._bound, f"the spread is {self.spread}"
    assert max(self._finished) <= min(self._finished) + self._bound + 1, f"finished: {self._finished}"
    assert len(self._sums) <= self._bound + 1, f"epochs {sorted(self._sums)} are open"
    assert self.weights.stashed <= self._bound + 1, f"{self.weights.stashed} old versions are kept"
    for (epoch, interval), _ in self._pinned.items():
        assert epoch == self._finished[interval], f"interval {interval}: epoch {epoch} is pinned"


def check_weight_versions(self: WeightVersions, pinned: Counter[int]) -> None:
    assert self._pins == pinned, f"pins are {self._pins}, not {pinned}"
    assert set(self._kept) == {self.version} | set(pinned), f"versions {sorted(self._kept)} are kept"


def check_tables(self: Tables) -> None:
    tables = self._tables
    for name, table in tables.items():
        assert name == table.spec.name, f"table {table.spec.name} is held as {name}"
        validate(table)
    used = sum(table.nbytes for table in tables.values())
    assert used <= self.quota_bytes, f"{used} of {self.quota_bytes} bytes for mutable tables are used"


def check_snapshot_parts(self: SnapshotParts) -> None:
    for path in self._others():
        named = path.name.removeprefix(f"{self.place.name}.")
        if path.suffix == ".partial" or named == _REPLACED:
            continue
        assert (path / TABLES_FILE).is_file(), f"{path}: holds no {TABLES_FILE}, but is not being written"
        try:
            found = TablesFile(path).contents.id
        except DataError:
            continue  # a damaged disk is not a broken invariant
        assert found == named, f"{path}: holds the part of snapshot {found}"


def check_gaps(self: Gaps, taken: list[tuple[int, int]]) -> None:
    assert all(stop < start for (_, stop), (start, _) in pairwise(self._gaps)), f"gaps touch: {self._gaps}"
    at = 0
    for start, stop in sorted([*self._gaps, *taken]):
        assert start == at < stop, f"the range {start} to {stop} follows one that ends at {at}"
        at = stop
    assert at == self._nbytes, f"ranges end at {at} of {self._nbytes}"


def check_pipeline_progress(self: PipelineProgress) -> None:
    begun = [one.epoch for one in self._intervals if one.version is not None]
    assert max(begun, default=0) - self.finished <= self._bound, "intervals are too many epochs apart"
    assert self.oldest <= (0 if self._mode != "async" else self._bound + 1), f"a row of age {self.oldest} was read"
    for number, one in enumerate(self._intervals):
        assert 0 <= one.stage <= len(self.stages), f"interval {number} is at stage {one.stage}"
        if one.version is None:
            assert not one.unacknowledged, f"interval {number} sent gradients before it had weights"
            assert all(self.stages[s].by_trainer for s in range(one.stage)), f"interval {number} had none"
        if one.stage == len(self.stages):
            assert one.unacknowledged, f"interval {number} should have begun its next epoch"


def check_hand_out(self: HandOut) -> None:
    for work, task in self._open.items():
        assert task.again <= self._most, f"{work} was relaunched {task.again} times"
        assert task.waiting or task.workers, f"nobody does {work}, and it does not wait"
        assert {w for w, (doing, _) in self._doing.items() if doing == work} == task.workers, f"workers of {work}"


def check_pool_size(self: PoolSize) -> None:
    assert 1 <= self.size <= self._limit, f"{self.size} workers, at most {self._limit}"
    assert 0 <= self._rises < 3, f"{self._rises} rises"
