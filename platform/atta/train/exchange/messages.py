"""Rows of other trainers by messages, of this epoch or stale. Gradients of rows travel the other way, under the same rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from atta.errors import ConfigError, NonFiniteError, StaleRowError
from atta.train.cooperative.halo import ReadRows
from atta.train.cooperative.source import Arrival, Direction, Source, row_messages, summed_gradients
from atta.train.exchange.codecs import Packing
from atta.train.exchange.figures import Key, RowFigures
from atta.train.exchange.policies import NEVER, Ages, RowPolicy, Rule

_NEWER = 0.2
"""Weight of an epoch in the moving mean of seconds: five epochs outweigh one that was disturbed."""


@dataclass(frozen=True)
class RowSetting:
    """What a source of rows works with.

    Attributes:
        reads: which rows travel between all trainers.
        figures: where bytes, ages and broadcasts are counted.
        publish_all: tables: own rows that nobody reads are published too.
        seed: predictions: of weights and mini-batches.
    """

    policy: RowPolicy
    reads: ReadRows
    figures: RowFigures
    packing: Packing
    device: torch.device | str = "cpu"
    publish_all: bool = False
    seed: int = 0


class StaleRows(Source):
    """Hidden rows of other trainers and their gradients. All trainers call everything in the same order.

    ``begin``, then ``start`` for each layer, then ``flush``, then all trainers wait for each other, then ``commit``. A
    layer may be started again in the same epoch, when backward computes it anew. Then nothing is sent.

    Both ends know when an owner sends, because they count its versions alike. With a bound on the change of rows only
    the owner knows, and all trainers tell each other before each layer, in a byte each. Messages that nobody reads in
    their epoch stay under way while the next one computes. Gradients among them leave after the epoch, so that they do
    not delay the sum of the weights' gradients.
    """

    def __init__(self, given: RowSetting) -> None:
        world, reads, device = dist.group.WORLD, given.reads, torch.device(given.device)
        assert world is not None
        self.policy, self.figures = given.policy, given.figures
        self.sent, self.crossed = given.figures.sent, given.figures.crossed
        self._group, self._rank, self._device = world, dist.get_rank(), device
        self._packing, self._elsewhere = given.packing, list(reads.elsewhere)
        self._own, self._received = reads.own, reads.received
        whole = np.array_equal(reads.places, np.arange(reads.received))
        self._places = None if whole else torch.from_numpy(reads.places).to(device)
        every = np.arange(reads.own)
        self._sends = [
            # A view of whole blocks needs no copy.
            slice(None) if np.array_equal(rows, every) else torch.from_numpy(rows).to(device)
            for rows in reads.by_reader
        ]
        self._send_rows = torch.from_numpy(reads.lists.send_rows).to(device)
        self._shared = torch.from_numpy(np.unique(reads.lists.send_rows)).to(device)
        self._counts: dict[Direction, list[int]] = {
            "forward": reads.lists.receive_counts.tolist(),
            "backward": reads.lists.send_counts.tolist(),
        }
        self._epoch = 0
        self._started: set[Key] = set()
        self._later: dict[Key, _Messages] = {}  # they are read in a later epoch
        self._versions: dict[Key, list[int]] = {}  # what each owner has sent last
        self._held: dict[Key, HeldRows] = {}
        self._copies: dict[Key, torch.Tensor] = {}  # own rows as they were sent last
        self._means: dict[Key, tuple[int, torch.Tensor]] = {}  # (epoch, rows)
        self._seconds: list[float] = []  # that each trainer computes in an epoch
        self._owners: Sequence[RowPolicy] = [given.policy] * len(self._sends)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the copies of others' rows that are kept for later epochs, those under way included."""
        return sum(rows.nbytes for rows in self._held.values()) + sum(m.nbytes for m in self._later.values())

    @property
    def copied_bytes(self) -> int:
        """Bytes of own rows as they were sent last; 0 unless changes are measured."""
        return sum(copy.nbytes for copy in self._copies.values())

    @property
    def epoch(self) -> int:
        """The present epoch, from 1."""
        return self._epoch

    def begin(self, epoch: int) -> None:
        """Begin an epoch; epochs count from 1."""
        self.figures.clear()
        self._epoch = epoch
        self._started.clear()

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        """Raises NonFiniteError if a row that is sent is infinite or NaN, StaleRowError if one that is read was never sent."""
        if direction == "backward":
            return summed_gradients(self._start((layer, direction), rows), self._send_rows, self._own)
        arrival, places = self._forward(layer, rows), self._places
        return arrival if places is None else arrival.then(lambda found: found.index_select(0, places))

    def flush(self) -> None:
        """Wait until what others read of this epoch, as soon as it is committed, is where they find it. Messages that
        are read in their epoch were waited for when they were read."""

    def commit(self) -> None:
        """End the epoch, after all trainers have flushed it."""
        for messages in self._later.values():
            messages.post()

    def note_seconds(self, seconds: Sequence[float]) -> None:
        """Note how long each trainer has computed in this epoch, without waiting: the same numbers at all trainers, or
        none if speeds do not count."""
        if not seconds:
            return
        before = self._seconds or seconds
        self._seconds = [old + _NEWER * (new - old) for old, new in zip(before, seconds, strict=True)]
        self._owners = self.policy.of_owners(self._seconds)

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves after an epoch. Tensors are not copied. All trainers call it: they wait for the
        messages that are under way."""
        self._take_in()
        return {
            "versions": self._versions,
            "held": {key: rows.state() for key, rows in self._held.items()},
            "copies": self._copies,
            "means": self._means,
            "packing": self._packing.state(),
            "seconds": self._seconds,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved. Raises ConfigError if it is the state of other rows."""
        for key, saved in state["held"].items():
            self._room(key).load_state(saved)
        self._versions = state["versions"]
        self._copies, self._means = state["copies"], state["means"]
        self._packing.load_state(state["packing"])
        if seconds := state.get("seconds"):
            self._seconds, self._owners = seconds, self.policy.of_owners(seconds)

    def close(self) -> None:
        """End, all trainers together. No message is left under way."""
        self._take_in()

    def let_go(self) -> None:
        """End at once after a failure."""

    def _take_in(self) -> None:
        for key in list(self._later):
            self._keep(key, self._later.pop(key))

    def _forward(self, layer: int, rows: torch.Tensor) -> Arrival:
        return self._start((layer, "forward"), rows)

    def _start(self, key: Key, rows: torch.Tensor) -> Arrival:
        rule, keeps = self.policy.reads(self._epoch, key[1]), self.policy.history(key[1]) is not None
        like, again, due = rows[:0].detach(), key in self._started, list[_Messages]()
        if again and keeps:
            return Arrival(lambda: self._await_rows(key, like, rule, due))
        self._started.add(key)
        if key in self._later:
            due.append(self._later.pop(key))
        sending = self._publishers(key, rows)
        messages = self._pack(key, rows, sending)
        if not again:
            self.figures.count(key, broadcast=sending[self._rank])
        if keeps and (rule is None or rule.newest < self._epoch):
            if any(sending):
                self._later[key] = messages
                if key[1] == "forward":
                    messages.post()
        else:
            messages.post()
            due.append(messages)
        return Arrival(lambda: self._await_rows(key, like, rule, due))

    def _await_rows(self, key: Key, like: torch.Tensor, rule: Rule | None, due: Sequence[_Messages]) -> torch.Tensor:
        """The rows that are used, [n, d]; the ``due`` messages are waited for first, the oldest of them first."""
        count = sum(self._counts[key[1]])
        if self.policy.history(key[1]) is None:
            pieces = [rows for messages in due for _, rows in self._unpack(key, messages)]
            self.figures.read(key, Ages(count, 0, 0, 0) if count else Ages())
            return torch.cat(pieces) if pieces else like
        for messages in due:
            self._keep(key, messages)
        if rule is None:
            return like.new_zeros((count, *like.shape[1:]))
        if count == 0:
            self.figures.read(key, Ages())
            return like
        values, versions = self._room(key).newest(rule, key)
        self.figures.read(key, Ages.of(self._epoch, versions))
        return values if self.policy.smooth is None else self._mean(key, values, self.policy.smooth)

    def _mean(self, key: Key, fresh: torch.Tensor, decay: float) -> torch.Tensor:
        epoch, mean = self._means.get(key, (NEVER, fresh))
        if epoch != self._epoch:
            mean = fresh if epoch == NEVER else torch.lerp(fresh, mean, decay)
            self._means[key] = (self._epoch, mean)
        return mean

    def _publishers(self, key: Key, rows: torch.Tensor) -> list[bool]:
        last = self._versions.setdefault(key, [NEVER] * len(self._sends))
        if self.policy.gaps and self.policy.history(key[1]) is not None:
            now, before = rows.detach().index_select(0, self._shared), self._copies.get(key)
            gap = float("inf") if before is None else mean_absolute_difference(now, before)
            mine = self.policy.publishes(self._epoch, key[1], self._rank, last[self._rank], gap)
            if mine:
                self._copies[key] = now
            flags = torch.zeros(len(last), dtype=torch.uint8, device=self._device)
            flags[self._rank] = mine
            dist.all_reduce(flags)
            sending = [bool(flag) for flag in flags.tolist()]
        else:
            sending = [self._due(key, owner, held) for owner, held in enumerate(last)]
        self._versions[key] = [self._epoch if s else v for s, v in zip(sending, last, strict=True)]
        return sending

    def _due(self, key: Key, owner: int, held: int) -> bool:
        return self._owners[owner].publishes(self._epoch, key[1], owner, held)

    def _pack(self, key: Key, rows: torch.Tensor, sending: Sequence[bool]) -> _Messages:
        """The messages of a layer, which ``post`` sends and receives."""
        like, out = rows[:0].detach(), dict[int, torch.Tensor]()
        for member, part in enumerate(self._outgoing(key[1], rows) if sending[self._rank] else ()):
            if len(part):
                check_finite(part, self._rank, self._epoch, key)
                message = self._packing.pack((*key, member), part.detach(), self._epoch)
                out[member] = message
                self.sent[key] += message.nbytes
                self.crossed[key] += message.nbytes * self._elsewhere[member]
        counts = zip(sending, self._counts[key[1]], strict=True)
        into = {
            owner: self._packing.room((*key, owner), count, like)
            for owner, (s, count) in enumerate(counts)
            if s and count
        }
        return _Messages(self._epoch, like, into, row_messages(self._group, out, into))

    def _outgoing(self, direction: Direction, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        rows = rows.detach()
        if direction == "forward":
            return [rows[rows_of_reader] for rows_of_reader in self._sends]
        if self._places is not None:
            rows = rows.new_zeros((self._received, *rows.shape[1:])).index_copy_(0, self._places, rows)
        parts: Sequence[torch.Tensor] = rows.split(self._counts["forward"])
        return parts

    def _unpack(self, key: Key, messages: _Messages) -> list[tuple[int, torch.Tensor]]:
        messages.wait()
        return [
            (owner, self._packing.unpack((*key, owner), message, messages.like, messages.version))
            for owner, message in messages.into.items()
        ]

    def _keep(self, key: Key, messages: _Messages) -> None:
        if messages.like.dim() != 2:
            raise ConfigError(f"layer {key[0]}: stale rows have one dimension, not {[*messages.like.shape[1:]]}")
        for owner, rows in self._unpack(key, messages):
            check_finite(rows, owner, messages.version, key)
            self._room(key).put(owner, rows, messages.version)

    def _room(self, key: Key) -> HeldRows:
        if key not in self._held:
            self._held[key] = HeldRows(self._counts[key[1]], self.policy.history(key[1]) or 0)
        return self._held[key]


class HeldRows:
    """Copies of the rows of one layer and direction that others have sent, which reading asks nobody for. An owner
    sends its rows together, so they have one version. ``history`` versions stay when a newer one comes."""

    def __init__(self, counts: Sequence[int], history: int) -> None:
        self._counts = counts
        self._kept: list[deque[tuple[int, torch.Tensor]]] = [deque(maxlen=history + 1) for _ in counts]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(rows.nbytes for of_owner in self._kept for _, rows in of_owner)

    def put(self, owner: int, rows: torch.Tensor, version: int) -> None:
        """Keep the rows [n, d] of an owner."""
        self._kept[owner].append((version, rows))

    def newest(self, rule: Rule, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
        """The newest rows of all owners that ``rule`` admits [n, d], and their versions int64 [n]. Raises
        StaleRowError: it admits none of an owner; ``key`` says of which layer and direction."""
        values, versions = [], []
        for owner, kept in enumerate(self._kept):
            if not self._counts[owner]:
                continue
            admitted = [(version, rows) for version, rows in kept if rule.oldest <= version <= rule.newest]
            if not admitted:
                has = ", ".join(str(version) for version, _ in kept) or "none"
                raise StaleRowError(
                    f"layer {key[0]}, {key[1]}: rows of trainer {owner} have versions {has}; "
                    f"the reader may use {rule.oldest} to {rule.newest}"
                )
            version, rows = max(admitted, key=lambda found: found[0])
            values.append(rows)
            versions.append(torch.full((len(rows),), version))
        return torch.cat(values), torch.cat(versions)

    def state(self) -> list[list[tuple[int, torch.Tensor]]]:
        """What a checkpoint saves: versions and rows of each owner."""
        return [list(of_owner) for of_owner in self._kept]

    def load_state(self, state: list[list[tuple[int, torch.Tensor]]]) -> None:
        """Become what ``state`` saved. Raises ConfigError if it is the state of other rows."""
        sizes = [{len(rows) for _, rows in of_owner} for of_owner in state]
        if len(sizes) != len(self._counts) or any(
            size not in (set(), {count}) for size, count in zip(sizes, self._counts, strict=True)
        ):
            raise ConfigError(f"the saved rows of owners are {sizes}, this trainer reads {list(self._counts)}")
        for kept, of_owner in zip(self._kept, state, strict=True):
            kept.clear()
            kept.extend(of_owner)


@dataclass
class _Messages:
    """Messages of one layer, of the epoch ``version``. All trainers post their messages in the same order."""

    version: int
    like: torch.Tensor
    into: dict[int, torch.Tensor]
    operations: list[dist.P2POp]  # they hold what is being sent
    works: list[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that come, as they travel."""
        return sum(rows.nbytes for rows in self.into.values())

    def post(self) -> None:
        """Send and receive, unless that is under way."""
        if self.works is None:
            self.works = list(dist.batch_isend_irecv(self.operations)) if self.operations else []

    def wait(self) -> None:
        """Wait until all have come and left."""
        assert self.works is not None, "the messages were never posted"
        for work in self.works:
            work.wait()


def mean_absolute_difference(rows: torch.Tensor, published: torch.Tensor) -> float:
    """How far ``rows`` [n, d] are from those that were published; 0 without rows."""
    return float((rows - published).abs().mean()) if rows.numel() else 0.0


def check_finite(values: torch.Tensor, trainer: int, epoch: int, key: Key) -> None:
    """Raise NonFiniteError if rows that ``trainer`` publishes have an infinity or NaN. A sum of numbers that are not
    all finite is not finite, and takes a tenth of the time of asking each. Only a sum that is not finite may come from
    large numbers."""
    if not (np.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())):
        raise NonFiniteError(trainer, epoch, key[0], "rows" if key[1] == "forward" else "gradients of rows")
