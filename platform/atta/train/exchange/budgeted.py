"""The trainer that keeps a budget of accuracy: it measures, and rows travel as ``atta.train.exchange.budget`` chooses."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from atta.errors import ConfigError
from atta.train.cooperative.exchange import TrainerBatch, own_backward, sum_gradients
from atta.train.cooperative.source import Direction
from atta.train.exchange.budget import WAYS, BudgetPolicy, Cell, Choices, Level, RowErrors, next_choices
from atta.train.exchange.codecs import DeltaPacking, FixedCodec, Packing, Peer
from atta.train.exchange.figures import Key
from atta.train.exchange.messages import RowSetting, StaleRows
from atta.train.exchange.policies import NEVER
from atta.train.exchange.trainer import ExchangeTrainer, other_source
from atta.train.reports.epochs import EpochReport

_NOTED = 128
"""At least so many rows of a message, if it has them, stand for all: at equal distances, which tells enough of sums."""


class ChosenPacking(DeltaPacking):
    """Each owner's rows in the codec of its level. Both ends keep what the reader has, exact rows too, so differences
    follow them. Notes how far own rows are from what readers have and get: three sums of squares by layer and direction.

    Attributes:
        seen: of differences before and after this epoch's messages, and of the rows, since it was cleared.
    """

    def __init__(self, rank: int, level: Callable[[Cell], Level]) -> None:
        """``level``: of a cell at present; ``rank``: of this trainer."""
        super().__init__()
        self.seen: dict[Key, npt.NDArray[np.float64]] = {}
        self._rank, self._level = rank, level

    def codec_from(self, peer: Peer) -> FixedCodec:
        return FixedCodec(self._level(peer).codec)

    def codec_to(self, peer: Peer) -> FixedCodec:
        return self.codec_from((*peer[:2], self._rank))

    def room(self, peer: Peer, rows: int, like: torch.Tensor) -> torch.Tensor:
        exact = self.codec_from(peer).name == "none"
        return Packing.room(self, peer, rows, like) if exact else super().room(peer, rows, like)

    def pack(self, peer: Peer, rows: torch.Tensor, version: int) -> torch.Tensor:
        before, _ = self._sent.get(peer, (None, NEVER))
        if self.codec_to(peer).name == "none":
            message = rows.contiguous()
            self._sent[peer] = rows.cpu().clone(), version
        else:
            message = super().pack(peer, rows, version)
        self._note(peer, rows.cpu(), before)
        return message

    def skip(self, peer: Peer, rows: torch.Tensor) -> None:
        """Note ``rows`` [n, d] that are not sent."""
        self._note(peer, rows.cpu(), self._sent[peer][0])

    def unpack(self, peer: Peer, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        if self.codec_from(peer).name != "none":
            return super().unpack(peer, message, like, version)
        self._read[peer] = message.cpu(), version
        return message

    def _note(self, peer: Peer, rows: torch.Tensor, before: torch.Tensor | None) -> None:
        now, every = self._sent[peer][0], max(1, len(rows) // _NOTED)
        # numpy: torch's calls take longer than these sums.
        mine, new, old = (
            part.detach()[::every].cpu().numpy() for part in (rows, now, now if before is None else before)
        )
        parts = mine if before is None else mine - old, mine - new, mine
        squares = every * np.array([np.square(part).sum() for part in parts])
        self.seen[peer[:2]] = self.seen.get(peer[:2], np.zeros(3)) + squares


class BudgetRows(StaleRows):
    """Rows of which each owner sends as much as the choices allow."""

    policy: BudgetPolicy

    def __init__(self, given: RowSetting) -> None:
        super().__init__(given)
        self._packing: ChosenPacking = ChosenPacking(self._rank, lambda cell: self.policy.level(cell, self._epoch))
        self._before: dict[Key, list[int]] = {}

    @property
    def copied_bytes(self) -> int:
        return sum(rows.nbytes for rows, _ in self._packing.state()["sent"].values())

    @property
    def versions(self) -> dict[Cell, int]:
        """The epochs of the rows that readers hold."""
        return {
            (*key, owner): version for key, of_key in self._versions.items() for owner, version in enumerate(of_key)
        }

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._packing.seen.clear()

    def table(self) -> torch.Tensor:
        """What this trainer has seen: float32 [layers and directions, trainers, 3], 0 for others, so that it can be
        added up."""
        table = torch.zeros((len(self._versions), len(self._sends), 3))
        for place, key in enumerate(sorted(self._versions)):
            table[place, self._rank] = torch.from_numpy(self._packing.seen.get(key, np.zeros(3)))
        return table.to(self._device)

    def seen(self, table: torch.Tensor) -> dict[Cell, RowErrors]:
        """What all have seen, of cells whose rows are not all 0, and that were sent before; ``table``: the sum of all."""
        found = {}
        for key, of_key in zip(sorted(self._versions), table.tolist(), strict=True):
            for owner, (gap, error, norm) in enumerate(of_key):
                if norm > 0 and (held := self._before[key][owner]) != NEVER:
                    age = max(1, self._epoch - held)
                    found[*key, owner] = RowErrors(math.sqrt(gap / norm), math.sqrt(error / norm), age)
        return found

    def _due(self, key: Key, owner: int, held: int) -> bool:
        return self.policy.sends((*key, owner), self._epoch, held)

    def _publishers(self, key: Key, rows: torch.Tensor) -> list[bool]:
        self._before[key] = self._versions.get(key, [NEVER] * len(self._sends))
        return super()._publishers(key, rows)

    def _pack(self, key: Key, rows: torch.Tensor, sending: Sequence[bool]) -> Any:
        if rows.dim() == 2 and rows.dtype is not torch.float32:
            raise ConfigError(f"--accuracy-loss: packs float32, not {rows.dtype}")
        messages = super()._pack(key, rows, sending)
        for member, part in enumerate(() if sending[self._rank] else self._outgoing(key[1], rows)):
            if len(part):
                self._packing.skip((*key, member), part)
        back: Direction = "backward" if key[1] == "forward" else "forward"
        self.figures.whole[key] += sum(self._counts[back]) * rows.element_size() * math.prod(rows.shape[1:])
        return messages


class BudgetTrainer(ExchangeTrainer):
    """As exact exchange, but rows may lose what the budget allows. An epoch in which this is measured takes its step
    with the exact gradient."""

    rows = BudgetRows
    policy: BudgetPolicy
    stale: BudgetRows

    def train_epoch(self, epoch: int) -> EpochReport:
        """The choices are renewed after it."""
        self._errors: dict[str, list[float]] = {}
        self._measure_s = 0.0
        report, policy = super().train_epoch(epoch), self.policy
        assert report.rows is not None
        worst = max((error for _, error in self._errors.values()), default=None)
        was = policy.choices
        policy.choices = next_choices(was, policy.plan, self._seen, worst, self._points())
        if self._errors or policy.choices.levels != was.levels:
            self.display.line(f"epoch {epoch:3d}  {self._said(worst)}")
        rows = dataclasses.replace(
            report.rows,
            gradient_errors=self._errors,
            allowed_error=policy.plan.allowed,
            row_bounds={way: was.bound(policy.plan, way) for way in WAYS},
            measure_s=self._max(self._measure_s),
        )
        return dataclasses.replace(report, rows=rows)

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One step. The errors of rows are added up with the gradients."""
        loss, cheap = own_backward(self.cooperative, batch, count, self.objective.loss_sum), list[torch.Tensor]()
        epoch = self.stale.epoch
        if measures := self.policy.measures(epoch):
            start = time.perf_counter()
            cheap = [p.grad for p in self.cooperative.parameters() if p.grad is not None]
            loss = self._exact_backward(batch, count)
            self._measure_s = time.perf_counter() - start
        self.stale.flush()
        table = self.stale.table()
        sum_gradients(self.cooperative.parameters(), self.groups, loss, *cheap, table)
        if measures:
            self._errors = self._compared(cheap)
        self._seen = self.stale.seen(table)
        for cell, one in self._seen.items():
            self.figures.row_errors[cell[:2]] = max(self.figures.row_errors.get(cell[:2], 0.0), one.error)
        self.figures.choices.update(self._levels(epoch))
        self.update_weights()
        return loss

    def rank_state(self) -> dict[str, Any]:
        return super().rank_state() | {"choices": dataclasses.asdict(self.policy.choices)}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        super().load_rank_state(state)
        try:
            self.policy.choices = Choices(**state["choices"])
        except (KeyError, TypeError) as error:
            raise ConfigError(f"--resume: the checkpoint was made without --accuracy-loss: {error}") from error

    def _exact_backward(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """Forward and backward with rows of this epoch; their bytes are counted."""
        sent, crossed = self.exact.sent.copy(), self.exact.crossed.copy()
        with other_source(batch.graph, self.exact):
            loss = own_backward(self.cooperative, batch, count, self.objective.loss_sum)
        self.figures.sent.update(self.exact.sent - sent)
        self.figures.crossed.update(self.exact.crossed - crossed)
        return loss

    def _compared(self, cheap: Iterable[torch.Tensor]) -> dict[str, list[float]]:
        """For each layer of the model, the cosine of the ``cheap`` gradient and the exact one, and their distance,
        relative to the exact one or to what Adam divides it by, the larger of both: a small gradient late in a run moves
        weights little. All trainers get the same numbers, although their processors may round differently."""
        known = [(layer_of(name), p) for name, p in self.model.named_parameters() if p.grad is not None]
        sums: dict[str, torch.Tensor] = {}
        for (layer, parameter), other in zip(known, cheap, strict=True):
            exact = parameter.grad
            assert exact is not None
            squares = exact.square(), mean_square(self.optimizer, parameter), other.square(), (exact - other).square()
            found = torch.stack([part.sum(dtype=torch.float64) for part in (exact * other, *squares)])
            sums[layer] = sums.get(layer, torch.zeros_like(found)) + found
        errors = {}
        for layer, values in sums.items():
            dot, exacts, means, others, distance = values.tolist()
            cosine = dot / math.sqrt(others * exacts) if others * exacts else float(others == exacts)
            error = math.sqrt(distance / max(exacts, means)) if exacts else float(distance > 0)
            errors[layer] = [self._max(cosine), self._max(error)]
        return errors

    def _points(self) -> list[float]:
        """All evaluations so far, higher ones better: points of accuracy, or percent of the best figure."""
        found = [value for e in self.done if (value := e.metric(self.watched.metric)) is not None]
        if self.watched.rises or not found:
            return [100 * value for value in found]
        return [-100 * value / max(1e-12, abs(min(found))) for value in found]

    def _levels(self, epoch: int) -> dict[Key, list[str]]:
        """Names of the levels in an epoch, by rank of owners."""
        levels: dict[Key, list[str]] = {}
        for cell in sorted(self.stale.versions, key=lambda cell: (cell[0], WAYS.index(cell[1]), cell[2])):
            levels.setdefault(cell[:2], []).append(self.policy.level(cell, epoch).name)
        return levels

    def _said(self, worst: float | None) -> str:
        """What is chosen from now on, and what was measured, in a line."""
        levels = self._levels(self.stale.epoch + 1).items()
        said = "; ".join(f"layer {layer} {way} {counted(names)}" for (layer, way), names in levels)
        measured = f"gradient off by {worst:.2g}, allowed {self.policy.plan.allowed:.2g}; " if worst is not None else ""
        return f"{measured}rows: {said}"


def mean_square(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> torch.Tensor:
    """Adam's mean of the squares of a parameter's gradients, without its bias; 0 before the first step."""
    state, decay = optimizer.state.get(parameter, {}), optimizer.defaults["betas"][1]
    if "exp_avg_sq" not in state:
        return torch.zeros_like(parameter)
    mean: torch.Tensor = state["exp_avg_sq"] / (1 - decay ** float(state["step"]))
    return mean


def counted(names: Sequence[str]) -> str:
    """Names of levels of owners: ``int8``, or ``int8 x3, int8/2`` where they differ."""
    times: Mapping[str, int] = {name: names.count(name) for name in dict.fromkeys(names)}
    return names[0] if len(times) == 1 else ", ".join(f"{name} x{count}" for name, count in times.items())


def layer_of(parameter: str) -> str:
    """The layer that a parameter belongs to: ``convs.1`` of ``convs.1.lin.weight``; its first word without a number."""
    numbered = re.match(r".*?\d+(?=\.|$)", parameter)
    return numbered[0] if numbered else parameter.partition(".")[0]
