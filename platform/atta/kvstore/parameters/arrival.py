"""Weights that change whenever a gradient comes (DIGEST-A): no trainer waits for others, or only within a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from atta.errors import ConfigError, NonFiniteError, UnknownClientError
from atta.kvstore.parameters.spec import ParameterSpec, WeightVersions, checked_vector


class Started(NamedTuple):
    """What a member may do: use weights ``values`` [size] of ``version``; or stop, if the job is ``done``."""

    version: int
    values: np.ndarray | None
    done: bool = False


class Pushed(NamedTuple):
    """``applied``: whether this message changed anything. ``version``: the present one. ``done``: the job is over."""

    applied: bool
    version: int
    done: bool = False


@dataclass(slots=True)
class _Member:
    """``finished``: steps so far. ``started``: the highest step that it may push, -1: none. ``life``: the larger, the
    later it was started; 0: it never joined. ``until``: when its lease ends; ``counted``: its lease is not over."""

    until: float
    finished: int = 0
    started: int = -1
    life: int = 0
    counted: bool = True


class ArrivalJob:
    """The weights of a job whose gradients are applied as they come.

    A member joins, then repeats: ``begin`` step n (it gets weights), ``push`` the gradient of step n. Members that never
    joined hold the others until their first lease is over. Times are in seconds of any one clock.
    """

    def __init__(self, spec: ParameterSpec, values: np.ndarray, now: float) -> None:
        """``values``: [size], version 0. Raises ConfigError or NonFiniteError if they do not fit the description."""
        self.spec, self.weights = spec, WeightVersions(spec, values)
        self._members = [_Member(now + spec.lease_s) for _ in range(spec.members)]

    @property
    def done(self) -> bool:
        """Whether all updates have been made."""
        return 0 < self.spec.max_updates <= self.weights.version

    @property
    def spread(self) -> int:
        """The highest step that a counted member has started, less the steps that the slowest has finished; from 0."""
        counted = [member for member in self._members if member.counted]
        highest = max((member.started for member in counted), default=0)
        return max(0, highest - min((member.finished for member in counted), default=0))

    def join(self, number: int, life: int, now: float) -> int:
        """Let member ``number`` take part; returns the step that it begins with.

        A member that starts anew, or whose lease was over, joins with a larger ``life``. After the end of a lease its
        step is not behind the slowest of the others. Joining again with the same life changes nothing.

        Raises:
            ConfigError: there is no such member.
            UnknownClientError: a later life has joined, or the lease of this life is over.
        """
        self.expire(now)
        member = self._member(number)
        if life < max(1, member.life) or (life == member.life and not member.counted):
            raise self._over(number, life)
        if life > member.life:
            if not member.counted:
                member.finished = max(member.finished, self._present_step())
            member.life, member.counted, member.started = life, True, member.finished - 1
        member.until = now + self.spec.lease_s
        return member.finished

    def begin(self, number: int, life: int, step: int, now: float) -> Started | None:
        """The weights for a step; None: others are too far behind, ask again later. May be repeated.

        Raises:
            UnknownClientError: as ``join``; also if the member never joined.
            ConfigError: it is not the turn of that step.
        """
        member = self._alive(number, life, now)
        if self.done:
            return Started(self.weights.version, None, done=True)
        if step != member.finished:
            raise ConfigError(f"member {number}: step {step} cannot begin, the next one is {member.finished}")
        if step > member.started:
            slowest = min(m.finished for m in self._members if m.counted)
            if self.spec.bound is not None and step > slowest + self.spec.bound:
                return None
            member.started = step
        return Started(self.weights.version, self.weights.of(self.weights.version))

    def push(self, number: int, life: int, step: int, gradient: np.ndarray, now: float) -> Pushed:
        """Apply the gradient [size] of a step, unless it was applied before.

        Raises:
            UnknownClientError: as ``begin``.
            ConfigError: the step has not begun, or the gradient has another shape or dtype.
            NonFiniteError: the gradient, or the weights after it, have an infinity or NaN. Nothing has changed.
        """
        member = self._alive(number, life, now)
        if step < member.finished or self.done:
            return Pushed(False, self.weights.version, self.done)
        if step != member.started:
            raise ConfigError(f"member {number}: step {step} has not begun")
        checked_vector(self.spec, gradient, self.spec.size, member=number, step=step, layer=0)
        try:
            self.weights.update(gradient)
        except ArithmeticError as error:
            raise NonFiniteError(number, step, 0, "weights after the step") from error
        member.finished += 1
        return Pushed(True, self.weights.version, self.done)

    def renew(self, number: int, life: int, now: float) -> None:
        """A sign of life, which extends the lease. Raises UnknownClientError, as ``begin``."""
        self._alive(number, life, now)

    def leave(self, number: int, life: int, now: float) -> None:
        """The member has ended: it holds nobody any more. A message of an earlier life changes nothing."""
        member = self._member(number)
        if life == member.life:
            member.counted, member.until = False, now

    def expire(self, now: float) -> bool:
        """End leases that are over; True: a member does not hold the others any more."""
        over = [member for member in self._members if member.counted and member.until < now]
        for member in over:
            member.counted = False
        return bool(over)

    def _present_step(self) -> int:
        """Where a member goes on whose lease was over: beside the slowest; if all leases are over, beside the fastest."""
        counted = [member.finished for member in self._members if member.counted]
        return min(counted) if counted else max(member.finished for member in self._members)

    def _alive(self, number: int, life: int, now: float) -> _Member:
        self.expire(now)
        member = self._member(number)
        if life < 1 or life != member.life or not member.counted:
            raise self._over(number, life)
        member.until = now + self.spec.lease_s
        return member

    def _member(self, number: int) -> _Member:
        if not 0 <= number < len(self._members):
            raise ConfigError(f"weights of {self.spec.name}: there is no member {number} of {len(self._members)}")
        return self._members[number]

    def _over(self, number: int, life: int) -> UnknownClientError:
        return UnknownClientError(
            f"weights of {self.spec.name}: member {number} has not joined with life {life}, its lease is over, or a "
            "later life has joined"
        )
