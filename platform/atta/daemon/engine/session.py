"""A session: one consumer's stream of batches for one epoch, from its output queue to the hands of the consumer.

Batches come in order and are numbered 0, 1, 2, ...; asking for a number again yields the same batch, so a lost answer costs
nothing. A batch delivered in shared memory occupies its slot until the consumer says that the last view of it is gone, or, when the
session has ended, until the kernel says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from atta.daemon.engine.slots import Slot, SlotPool
from atta.errors import AttaError, ConfigError
from atta.samplers.batch.layout import BatchArrays, Layout
from atta.samplers.batch.state import BatchSeeds
from atta.samplers.dag.spec import Plan
from atta.samplers.seed_plan import SeedPlan

__all__ = ["Delivery", "Session", "SessionRequest"]

MAX_HELD_SLOTS = 4
"""Beyond so many shared-memory batches in a consumer's hands, further ones are sent as bytes: a consumer that keeps its
batches must not starve itself of slots."""


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A checked request for a session."""

    plan: Plan
    layout: Layout
    seeds: SeedPlan
    first_batch: int
    seed: int
    epoch: int
    shared_memory: bool
    job: str
    sources: np.ndarray | None = None  # int64, internal ids, by position in the input: the other ends of seed edges
    times: np.ndarray | None = None  # int64, by position in the input
    weight: float = 1.0  # beside other sessions
    codec: str = ""  # of rows that other daemons send; empty: as they are
    exclude: tuple[tuple[str, bool], ...] = ()  # edge types without the batch's seed edges, and whether in reverse

    def batch_seeds(self, batch: int) -> BatchSeeds:
        """What the batch with this id starts from."""
        part = self.seeds.batch_slice(self.seeds.index_of(batch))
        chosen = self.seeds.input_id[part]
        sources = None if self.sources is None else self.sources[chosen]
        times = None if self.times is None else self.times[chosen]
        return BatchSeeds(self.seeds.seeds[part], chosen, sources, times, self.exclude)


@dataclass(eq=False)
class Delivery:
    """A finished batch: its arrays, the slot that they lie in, and figures about how it was made."""

    batch: int
    out: BatchArrays
    slot: Slot
    stats: dict[str, float]
    shared: bool = False
    senders: int = 0
    """Requests that are being answered with its bytes: until they have ended, its slot is nobody else's."""
    over: bool = False
    """The consumer has taken a later batch."""


@dataclass(eq=False)
class Session:
    """State of one stream. All methods run on the event loop."""

    id: str
    request: SessionRequest
    slots: SlotPool
    last_seen: float
    digest: bytes = b""  # of the request, as it came
    queue: deque[Delivery] = field(default_factory=deque)
    held: dict[int, Delivery] = field(default_factory=dict)
    current: Delivery | None = None
    sequence: int = -1
    error: AttaError | None = None
    roomy_at: float = field(default_factory=time.monotonic)  # when there was last memory to make a batch in
    closed: bool = False
    busy: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

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
        """Bytes of the batches that the consumer has taken and still looks at."""
        lent = [*self.held.values()]
        if self.current is not None and not self.current.shared:
            lent.append(self.current)
        return sum(delivery.out.nbytes for delivery in lent)

    def deliver(self, delivery: Delivery) -> None:
        """A batch is finished."""
        self.queue.append(delivery)
        self._changed.set()

    def fail(self, error: AttaError) -> None:
        """No further batch will come; the consumer learns why at its next request."""
        self.error = self.error or error
        self._changed.set()

    def let_go(self, sequences: Sequence[int]) -> None:
        """The consumer's last views of these batches are gone."""
        for sequence in sequences:
            delivery = self.held.pop(sequence, None)
            if delivery is not None:
                self.slots.release(delivery.slot)

    async def batch(self, sequence: int, wait_s: float) -> tuple[Delivery | None, bool]:
        """Batch number ``sequence`` and whether it was taken from the queue just now; None after ``wait_s`` without one.

        Raises:
            ConfigError: neither the current number nor the next one.
            AttaError: the session has failed.
        """
        deadline = asyncio.get_running_loop().time() + wait_s
        # Checked anew after each wait: other requests may have been answered meanwhile, and this one be out of date.
        while not self._answers_again(sequence):
            if self.queue:
                return self._take(sequence), True
            if self.error is not None:
                raise self.error
            if self.closed:
                raise ConfigError("the session has been closed")
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), max(left, 0))
            except TimeoutError:
                return None, False
        return self.current, False

    def _answers_again(self, sequence: int) -> bool:
        """Whether this is the current number; ConfigError unless it is, or the next one."""
        if self.current is None or sequence != self.sequence:
            if sequence != self.sequence + 1:
                raise ConfigError(f"batch number {sequence} asked for after {self.sequence}")
            return False
        if self.current.shared and sequence not in self.held:
            raise ConfigError(f"batch number {sequence} asked for again after it has been let go")
        return True

    def _take(self, sequence: int) -> Delivery:
        self._forget_current()
        self.current, self.sequence = self.queue.popleft(), sequence
        self.slots.lend(self.current.slot, self.current.out.nbytes)
        if self.request.shared_memory and len(self.held) < MAX_HELD_SLOTS:
            self.current.shared = True
            self.held[sequence] = self.current
        return self.current

    @contextmanager
    def sending(self, delivery: Delivery) -> Iterator[None]:
        """Meanwhile the bytes of a batch stay as they are, whatever later requests ask for."""
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

    def close(self) -> None:
        """Free what nobody can be reading; what the consumer may still look at is left to it until it looks away."""
        self.closed = True
        self._changed.set()
        self._forget_current()
        for delivery in self.queue:
            self.slots.release(delivery.slot)
        self.queue.clear()
        for delivery in self.held.values():
            self.slots.abandon(delivery.slot, self.id)
        self.held.clear()
