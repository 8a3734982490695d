"""Rows that their owners send to the trainers that read them. A reader keeps copies if it may read them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from atta.errors import ConfigError
from atta.train.cooperative.across.figures import RowFigures
from atta.train.cooperative.across.packing import Packing
from atta.train.cooperative.across.reads import ReadRows, agreed
from atta.train.cooperative.across.ways import Outgoing
from atta.train.cooperative.exchange.source import Arrival
from atta.train.stale.decisions.common import Decisions, Published
from atta.train.stale.replicas import ReplicaTable
from atta.train.stale.rules import NEVER, Ages, Rule, mean_absolute_difference
from atta.train.stale.table import Direction, TableShape, check_finite

__all__ = ["MessageWay", "message_way"]


class MessageWay:
    """A ``Way`` in which owners send and readers keep what they may read later.

    Both ends know when an owner sends, because they count its versions alike. With a bound on the change of rows only
    the owner knows, and all trainers tell each other before each layer, in a byte each.

    Messages that nobody reads in their epoch stay under way while the next one computes, until their layer is read.
    Gradients among them leave after the epoch, so that they do not delay the sum of the weights' gradients.
    """

    def __init__(
        self,
        direction: Direction,
        decisions: Decisions,
        counts: Sequence[int],
        group: dist.ProcessGroup,
        *,
        packing: Packing,
        elsewhere: Sequence[bool],
        figures: RowFigures,
        published: torch.Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Args:
        direction: of the rows.
        decisions: what is read and published, and when.
        counts: rows that come from each rank.
        group: all trainers.
        packing: how rows look in messages.
        elsewhere: for each rank whether it is on another server.
        figures: where bytes, ages and broadcasts are counted.
        published: int64 [p], own rows that others read; their change is measured if ``decisions`` ask for it.
        device: where rows are.
        """
        self._direction: Direction = direction
        self._decisions, self._group, self._packing, self._figures = decisions, group, packing, figures
        self._counts, self._elsewhere = list(counts), list(elsewhere)
        self._rank, self._ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
        self._device, self._published = torch.device(device), published
        self._rows = torch.arange(sum(counts), device=device)
        owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
        self._owners = owners
        self._epoch = 0
        self._started: set[int] = set()
        self._later: dict[int, _Messages] = {}  # by layer; they are read in a later epoch
        self._versions: dict[int, list[int]] = {}
        self._tables: dict[int, ReplicaTable] = {}
        self._copies: dict[int, torch.Tensor] = {}
        self._means: dict[int, tuple[int, torch.Tensor]] = {}  # (epoch, rows)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the copies of others' rows, without their versions."""
        return sum(table.nbytes - 8 * table.shape.slots * table.shape.rows for table in self._tables.values())

    @property
    def copied_bytes(self) -> int:
        """Bytes of own rows as they were sent last; 0 unless changes are measured."""
        return sum(copy.nbytes for copy in self._copies.values())

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._started.clear()

    def start(self, layer: int, rows: torch.Tensor, outgoing: Callable[[torch.Tensor], Outgoing]) -> Arrival:
        """Raises NonFiniteError if a row that is sent is infinite or NaN, StaleRowError if one that is read was never sent."""
        rule = self._decisions.reads(self._epoch, self._direction)
        keeps = self._decisions.keeps(self._direction) is not None
        if layer in self._started and keeps:
            return _Read(self, layer, rows, rule, [])
        again, due = layer in self._started, self._later.pop(layer, None)
        earlier = [] if due is None else [due]
        self._started.add(layer)
        sending = self._publishers(layer, rows)
        messages = self._packed(layer, rows, outgoing(rows) if sending[self._rank] else None, sending)
        if not again:
            self._count(layer, sending)
        if keeps and rule is None and not any(sending):  # nothing ever comes, so nothing has to be kept
            return _Read(self, layer, rows, rule, earlier)
        if keeps and (rule is None or rule.newest < self._epoch):
            self._later[layer] = messages
            if self._direction == "forward":
                messages.post()
            return _Read(self, layer, rows, rule, earlier)
        messages.post()
        return _Read(self, layer, rows, rule, [*earlier, messages])

    def flush(self) -> None:
        """What is read in its epoch was waited for when it was read."""

    def commit(self) -> None:
        """Layers with messages under way follow when these have come."""
        for messages in self._later.values():
            messages.post()
        for layer, table in self._tables.items():
            if layer not in self._later:
                table.commit(self._epoch)

    def state(self) -> dict[str, Any]:
        """Waits for the messages that are under way."""
        self._take_in()
        tables = {
            layer: (table.shape.widths[layer, self._direction], table.state()) for layer, table in self._tables.items()
        }
        return {
            "versions": self._versions,
            "tables": tables,
            "copies": self._copies,
            "means": self._means,
            "packing": self._packing.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Raises ConfigError if it is the state of other rows."""
        self._versions = state["versions"]
        for layer, (width, saved) in state["tables"].items():
            values, _ = saved["rows"][f"{layer} {self._direction}"]
            self._table(layer, values.new_empty((0, width))).load_state(saved)
        self._copies, self._means = state["copies"], state["means"]
        self._packing.load_state(state["packing"])

    def close(self) -> None:
        """No message is left under way."""
        self._take_in()

    def arrived(self, layer: int, like: torch.Tensor, rule: Rule | None, due: Sequence[_Messages]) -> torch.Tensor:
        """The rows that are used, [n, d]; the ``due`` messages are waited for first, the oldest of them first."""
        key = (layer, self._direction)
        if self._decisions.keeps(self._direction) is None:
            pieces = [rows for messages in due for _, rows in self._unpacked(messages)]
            self._figures.read(key, Ages(len(self._rows), 0, 0, 0) if len(self._rows) else Ages())
            return torch.cat(pieces) if pieces else like.new_empty((0, *like.shape[1:]))
        for messages in due:
            self._keep(messages)
        if rule is None:
            return like.new_zeros((len(self._rows), *like.shape[1:]))
        found = self._table(layer, like).fetch(layer, self._direction, self._rows, rule)
        self._figures.read(key, Ages.of(self._epoch, found.versions))
        return self._smoothed(layer, found.values) if self._decisions.smooths else found.values

    def _smoothed(self, layer: int, fresh: torch.Tensor) -> torch.Tensor:
        epoch, mean = self._means.get(layer, (NEVER, None))
        if mean is None or epoch != self._epoch:
            mean = self._decisions.smoothed(mean, fresh)
            self._means[layer] = (self._epoch, mean)
        return mean

    def _publishers(self, layer: int, rows: torch.Tensor) -> list[bool]:
        """Which ranks send their rows of a layer now."""
        last = self._versions.setdefault(layer, [NEVER] * len(self._ranks))
        if not (self._decisions.gaps and self._decisions.keeps(self._direction) is not None):
            sending = [
                self._decisions.publishes(self._epoch, self._direction, owner, Published(version))
                for owner, version in enumerate(last)
            ]
        else:
            assert self._published is not None
            now, before = rows.detach().index_select(0, self._published), self._copies.get(layer)
            gap = float("inf") if before is None else mean_absolute_difference(now, before)
            mine = self._decisions.publishes(self._epoch, self._direction, self._rank, Published(last[self._rank], gap))
            if mine:
                self._copies[layer] = now
            sending = agreed(self._group, mine, self._device)
        self._versions[layer] = [self._epoch if s else v for s, v in zip(sending, last, strict=True)]
        return sending

    def _packed(self, layer: int, like: torch.Tensor, outgoing: Outgoing | None, sending: list[bool]) -> _Messages:
        into: dict[int, torch.Tensor] = {}
        out: list[torch.Tensor] = []
        operations = []
        for member, rank in enumerate(self._ranks):
            if sending[member] and self._counts[member]:
                into[member] = self._packing.room(self._counts[member], like)
                operations.append(dist.P2POp(dist.irecv, into[member], rank, self._group))
            if outgoing is not None and len(rows := outgoing[member]):
                check_finite(rows, trainer=self._rank, epoch=self._epoch, layer=layer, direction=self._direction)
                message = self._packing.pack((layer, self._direction, member), rows.detach(), self._epoch)
                out.append(message)
                operations.append(dist.P2POp(dist.isend, message, rank, self._group))
                self._figures.sent[layer, self._direction] += message.nbytes
                self._figures.crossed[layer, self._direction] += message.nbytes * self._elsewhere[member]
        return _Messages(layer, self._epoch, like[:0].detach(), into, out, operations)

    def _count(self, layer: int, sending: list[bool]) -> None:
        count = self._figures.broadcasts if sending[self._rank] else self._figures.skipped
        count[layer, self._direction] += 1

    def _unpacked(self, messages: _Messages) -> list[tuple[int, torch.Tensor]]:
        messages.wait()
        key = (messages.layer, self._direction)
        return [
            (owner, self._packing.unpack((*key, owner), message, messages.like, messages.version))
            for owner, message in messages.into.items()
        ]

    def _take_in(self) -> None:
        """Wait for the messages of an epoch that has been committed."""
        later, self._later = self._later, {}
        for messages in later.values():
            self._keep(messages).commit(messages.version)

    def _keep(self, messages: _Messages) -> ReplicaTable:
        table = self._table(messages.layer, messages.like)
        for owner, rows in self._unpacked(messages):
            table.publish(messages.layer, self._direction, self._rows[self._owners == owner], rows, messages.version)
        if messages.version < self._epoch:  # of an epoch that has been committed
            table.commit(messages.version)
        return table

    def _table(self, layer: int, like: torch.Tensor) -> ReplicaTable:
        if layer not in self._tables:
            if like.dim() != 2:
                raise ConfigError(f"layer {layer}: stale rows have one dimension, not those of {list(like.shape[1:])}")
            history = self._decisions.keeps(self._direction)
            assert history is not None
            widths = {(layer, self._direction): like.shape[1]}
            shape = TableShape(len(self._rows), widths, history=history, dtype=like.dtype)
            self._tables[layer] = ReplicaTable(shape, self._owners, device=self._device)
        return self._tables[layer]


def message_way(
    direction: Direction,
    decisions: Decisions,
    reads: ReadRows,
    *,
    packing: Packing,
    figures: RowFigures,
    device: torch.device | str = "cpu",
) -> MessageWay:
    """The way of ``reads`` between all trainers. Arguments are those of ``MessageWay``."""
    world = dist.group.WORLD
    assert world is not None
    counts = reads.lists.receive_counts if direction == "forward" else reads.lists.send_counts
    return MessageWay(
        direction,
        decisions,
        counts.tolist(),
        world,
        packing=packing,
        elsewhere=reads.elsewhere,
        figures=figures,
        published=torch.from_numpy(np.unique(reads.lists.send_rows)).to(device),
        device=device,
    )


@dataclass
class _Messages:
    """Messages of one layer; ``out`` holds what is being sent until it has left."""

    layer: int
    version: int
    like: torch.Tensor
    into: dict[int, torch.Tensor]
    out: list[torch.Tensor]
    operations: list[dist.P2POp]
    works: list[Any] = field(default_factory=list)

    def post(self) -> None:
        """Send and receive, unless that is under way. All trainers post their messages in the same order."""
        operations, self.operations = self.operations, []
        if operations:
            self.works = list(dist.batch_isend_irecv(operations))

    def wait(self) -> None:
        """Wait until all have come and left."""
        assert not self.operations, "the messages were never posted"
        for work in self.works:
            work.wait()


class _Read:
    def __init__(
        self, way: MessageWay, layer: int, like: torch.Tensor, rule: Rule | None, due: Sequence[_Messages]
    ) -> None:
        self._way, self._layer, self._like, self._rule, self._due = way, layer, like[:0].detach(), rule, due

    def finish(self) -> torch.Tensor:
        return self._way.arrived(self._layer, self._like, self._rule, self._due)
