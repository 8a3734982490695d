"""A session: one consumer's stream of batches for one epoch, from its output queue to the consumer. Asking for a number again
yields the same batch, so a lost answer costs nothing."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from atta.daemon.engine.slots import Slot, SlotPool
from atta.daemon.versions import VersionView
from atta.errors import AttaError, ConfigError
from atta.observe.figures import SessionFigures
from atta.partition.schema import Schema
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.batch.layout import BatchArrays, Layout
from atta.samplers.dag.spec import Plan
from atta.samplers.seed_plan import SeedPlan
from atta.scheduler.coarse import SessionView
from atta.wire.memfiles import TOKEN_BYTES

MAX_HELD_SLOTS = 4
"""Largest number of shared-memory batches that a consumer may hold. Further ones are sent as bytes, so that a consumer
that keeps its batches does not run out of slots."""


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A checked request for a session."""

    plan: Plan = field(repr=False)
    layout: Layout = field(repr=False)
    seeds: SeedPlan = field(repr=False)
    first_batch: int
    seed: int
    epoch: int
    shared_memory: bool
    job: str
    sources: np.ndarray | None = field(default=None, repr=False)
    """int64, internal ids, by position in the input: the other ends of seed edges."""
    times: np.ndarray | None = field(default=None, repr=False)
    """int64, by position in the input; None: none are needed, or vertices have their own."""
    types: np.ndarray | None = field(default=None, repr=False)
    """int32, by position in the input: node types of seeds by number in the schema; None: all are of one."""
    share: float = 1.0  # of the workers, relative to other sessions
    codec: str = ""  # of rows that other daemons send; empty: none
    exclude: tuple[tuple[str, bool], ...] = ()
    """Edge types from which the batch's seed edges are left out, and whether in reverse."""
    shifts: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)  # of tables whose rows are summed
    edge_ids: bool = False  # whether batches have them
    wide_ids: bool = False  # whether all ids of batches are int64
    schema: Schema | None = field(default=None, repr=False)  # of the version that it was checked for

    def position(self, batch: int) -> StreamPosition:
        """What the draws of the batch with this id depend on."""
        step = self.epoch * self.seeds.batches + self.seeds.index_of(batch)
        return StreamPosition(self.seed, self.epoch, batch, step)

    def batch_seeds(self, batch: int) -> BatchSeeds:
        """What the batch with this id starts from."""
        part = self.seeds.batch_slice(self.seeds.index_of(batch))
        chosen, seeds = (np.asarray(ids[part], np.int64) for ids in (self.seeds.input_id, self.seeds.seeds))
        sources = None if self.sources is None else self.sources[chosen]
        times = None if self.times is None else self.times[chosen]
        if self.types is None:
            return BatchSeeds(seeds, chosen, sources, times, self.exclude)
        order = np.argsort(self.types[chosen], kind="stable")
        return BatchSeeds(seeds[order], chosen[order], types=self.types[chosen][order])


@dataclass(eq=False)
class Delivery:
    """A finished batch: its arrays, the slot that they lie in, and figures about how it was made."""

    batch: int
    out: BatchArrays = field(repr=False)
    slot: Slot
    stats: dict[str, float]
    shared: bool = False
    """Whether the consumer reads it in shared memory."""
    senders: int = 0
    """Number of requests that are being answered with its bytes; not negative. Meanwhile its slot stays its own."""
    told: bool = False
    """Whether the engine knows that the consumer has taken it. A repeated request does not count."""
    over: bool = False
    """Whether the consumer has taken a later batch. A shared batch is never over, its slot comes back in other ways."""


@dataclass(eq=False)
class Session:
    """State of one stream. All methods run on the event loop."""

    id: str  # how it is shown; the name that its client asks by is a secret
    request: SessionRequest
    slots: SlotPool
    last_seen: float
    digest: bytes = b""  # of the request, as it came
    view: VersionView | None = None  # what it reads of the tables; None: the dataset's own rows
    queue: deque[Delivery] = field(default_factory=deque, repr=False)
    """Finished and not taken: neither shared, over nor being sent."""
    held: dict[int, Delivery] = field(default_factory=dict, repr=False)
    """Shared batches that the consumer reads, by number: at most MAX_HELD_SLOTS, none newer than ``sequence``."""
    current: Delivery | None = None  # the latest one taken; None before the first one, and once closed
    sequence: int = -1  # number of the latest batch taken; -1: none
    error: AttaError | None = None
    roomy_at: float = field(default_factory=time.monotonic)  # when there was last memory to make a batch in
    closed: bool = False  # then ``queue`` and ``held`` are empty
    busy: int = 0
    token: bytes = field(default_factory=partial(secrets.token_bytes, TOKEN_BYTES), repr=False)  # of a nearby consumer
    asked: bool = False  # whether the consumer has asked for a batch
    refused: Callable[[], str] | None = None  # why its client may not have it any more ("": it may); None: anybody may
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: set[Callable[[], None]] = field(default_factory=set, repr=False)

    @property
    def batches(self) -> int:
        """Batches of this session in all."""
        return self.request.seeds.batches - self.request.first_batch

    @property
    def seeds_taken(self) -> int:
        """Seeds of the batches that the consumer has taken."""
        plan, first = self.request.seeds, self.request.first_batch
        if self.sequence < 0:
            return 0
        return int(plan.batch_slice(first + self.sequence).stop - plan.batch_slice(first).start)

    @property
    def lent_bytes(self) -> int:
        """Bytes of the batches that the consumer has taken and still reads."""
        lent = [*self.held.values()]
        if self.current is not None and not self.current.shared:
            lent.append(self.current)
        return sum(delivery.out.nbytes for delivery in lent)

    def deliver(self, delivery: Delivery) -> None:
        """A batch is finished."""
        self.queue.append(delivery)
        self._change()

    def fail(self, error: AttaError) -> None:
        """No further batch will come. The consumer learns why at its next request."""
        self.error = self.error or error
        self._change()

    def when_changed(self, call: Callable[[], None]) -> None:
        """Have the event loop call ``call`` once: when a batch is finished, or the session has failed or ended."""
        self._waiting.add(call)

    def _change(self) -> None:
        self._changed.set()
        if self._waiting:
            loop = asyncio.get_running_loop()
            for call in self._waiting:
                loop.call_soon(call)
            self._waiting.clear()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Meanwhile a request for a batch is being answered, and the lease does not run out."""
        self.begin_answer()
        try:
            yield
        finally:
            self.end_answer()

    def begin_answer(self) -> None:
        """A request for a batch has come. ``end_answer`` must follow."""
        self.busy += 1
        self.asked = True
        self.last_seen = time.monotonic()

    def end_answer(self) -> None:
        """A request for a batch has been answered, or the consumer has given it up."""
        self.busy -= 1
        self.last_seen = time.monotonic()

    def let_go(self, sequences: Sequence[int]) -> None:
        """The consumer's last views of these batches are gone."""
        for sequence in sequences:
            if (delivery := self.held.pop(sequence, None)) is not None:
                self.slots.release(delivery.slot)

    async def batch(self, sequence: int, wait_s: float) -> Delivery | None:
        """Batch number ``sequence``; without one, wait for ``wait_s`` seconds. Raises ConfigError: neither the current
        number nor the next one. AttaError: the session has failed."""
        deadline = asyncio.get_running_loop().time() + wait_s
        # Look again after each wait: other requests may have been answered meanwhile, so this one may be out of date.
        while (delivery := self.batch_at_once(sequence)) is None:
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), max(left, 0))
            except TimeoutError:
                return None
        return delivery

    def batch_at_once(self, sequence: int) -> Delivery | None:
        """Batch number ``sequence``, or None if it is not finished. Raises as ``batch``."""
        if self._answers_again(sequence):
            return self.current
        if self.queue:
            self._forget_current()
            self.current, self.sequence = self.queue.popleft(), sequence
            self.slots.lend(self.current.slot, self.current.out.nbytes)
            if self.request.shared_memory and len(self.held) < MAX_HELD_SLOTS:
                self.current.shared = True
                self.held[sequence] = self.current
            return self.current
        if self.error is not None:
            raise self.error
        if self.closed:
            raise ConfigError("the session has been closed")
        return None

    def _answers_again(self, sequence: int) -> bool:
        """Whether this is the current number; ConfigError unless it is, or the next one."""
        if self.current is None or sequence != self.sequence:
            if sequence != self.sequence + 1:
                raise ConfigError(f"batch number {sequence} asked for after {self.sequence}")
            return False
        if self.current.shared and sequence not in self.held:
            raise ConfigError(f"batch number {sequence} asked for again after it has been let go")
        return True

    @contextmanager
    def sending(self, delivery: Delivery) -> Iterator[None]:
        """Meanwhile the bytes of a batch stay as they are, also if later requests ask for other batches."""
        delivery.senders += 1
        try:
            yield
        finally:
            delivery.senders -= 1
            self._free_if_over(delivery)

    def _forget_current(self) -> None:
        current, self.current = self.current, None
        if current is not None and not current.shared:
            current.over = True
            self._free_if_over(current)

    def _free_if_over(self, delivery: Delivery) -> None:
        if delivery.over and not delivery.senders:
            self.slots.release(delivery.slot)

    @property
    def version(self) -> int:
        """The version of the tables that all of its batches have."""
        return 0 if self.view is None else self.view.number

    def figures(self, view: SessionView | None) -> SessionFigures:
        """What the daemon knows of the consumer. ``view``: what the scheduler knows of the batches; None if the session has
        failed, as the scheduler has then closed it."""
        request = self.request
        return SessionFigures(
            session=self.id,
            job=request.job,
            epoch=request.epoch,
            rank=request.seeds.rank,
            world_size=request.seeds.world,
            batches=self.batches,
            taken=self.sequence + 1,
            seeds=self.seeds_taken,
            queued=view.finished if view else 0,
            in_flight=view.in_flight if view else 0,
            queued_bytes=view.finished_bytes if view else 0,
            lent_bytes=self.lent_bytes,
            score=view.score if view and view.launched < view.batches else None,
            sigma=view.sigma if view else None,
            sample_ms=view.sample_ms if view else None,
            train_ms=view.train_ms if view else None,
            error=str(self.error or ""),
        )

    def close(self) -> None:
        """Free the slots that are not read. The consumer keeps those that it may still read, until it lets go of them."""
        self.closed = True
        self._change()
        self._forget_current()
        for delivery in self.queue:
            self.slots.release(delivery.slot)
        self.queue.clear()
        for delivery in self.held.values():
            self.slots.abandon(delivery.slot, self.id)
        self.held.clear()
