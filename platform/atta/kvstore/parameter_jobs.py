"""The weights of all jobs of a daemon, within a quota: those whose gradients are applied as they come (DIGEST-A), and
those whose gradients are summed by epochs (Dorylus). A job in which all are silent is dropped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from atta.errors import ConfigError, NonFiniteError, QuotaExceededError, UnknownClientError, known_name
from atta.kvstore.parameters import JOB_LEASES, ParameterSpec, WeightVersions, checked_vector


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
    """The weights of a job whose gradients are applied as they come. A member joins, then repeats: ``begin`` step n (it
    gets weights), ``push`` the gradient of step n. Members that never joined hold the others until their first lease is
    over. Times are in seconds of any one clock."""

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
        step is not behind the slowest of the others. Joining again with the same life changes nothing. Raises
        ConfigError: there is no such member; UnknownClientError: a later life has joined, or the lease of this life is
        over."""
        self.expire(now)
        member = self._member(number)
        if life < max(1, member.life) or (life == member.life and not member.counted):
            raise self._over(number, life)
        if life > member.life:
            if not member.counted:  # it goes on beside the slowest; if all leases are over, beside the fastest
                counted = [one.finished for one in self._members if one.counted]
                present = min(counted) if counted else max(one.finished for one in self._members)
                member.finished = max(member.finished, present)
            member.life, member.counted, member.started = life, True, member.finished - 1
        member.until = now + self.spec.lease_s
        return member.finished

    def begin(self, number: int, life: int, step: int, now: float) -> Started | None:
        """The weights for a step; None: others are too far behind, ask again later. May be repeated. Raises
        UnknownClientError: as ``join``; also if the member never joined; ConfigError: it is not the turn of that step.
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


@dataclass(slots=True)
class _Sum:
    """The gradients of one layer and epoch. ``total``: of the first ``added`` intervals; ``waiting``: of later ones."""

    total: np.ndarray | None = None
    added: int = 0
    waiting: dict[int, np.ndarray] = field(default_factory=dict)

    def has(self, interval: int) -> bool:
        return interval < self.added or interval in self.waiting

    def add(self, interval: int, gradient: np.ndarray) -> None:
        self.waiting[interval] = np.array(gradient)
        while self.added in self.waiting:
            following = self.waiting.pop(self.added)
            with np.errstate(over="ignore", invalid="ignore"):
                self.total = following if self.total is None else self.total + following
            self.added += 1


class SummedJob:
    """The weights of a job of intervals. Times do not matter: an epoch needs the gradients of all intervals. Any
    process may ask for any interval, and several may do the same work: the first result counts. An interval begins its
    next epoch at most ``spec.bound`` epochs after the slowest. Epochs count from 0."""

    def __init__(
        self, spec: ParameterSpec, values: np.ndarray, version: int = 0, moments: np.ndarray | None = None
    ) -> None:
        """``values``, ``moments``: as ``WeightVersions`` takes them, of ``version``: so many epochs are over. Raises
        ConfigError or NonFiniteError if they do not fit the description."""
        assert spec.bound is not None, "checked when the description was made"
        self.spec, self.weights, self._bound = spec, WeightVersions(spec, values, version, moments), spec.bound
        self._finished = [version] * spec.members
        self._pinned: dict[tuple[int, int], int] = {}  # (epoch, interval): version
        self._sums: defaultdict[int, list[_Sum]] = defaultdict(lambda: [_Sum() for _ in spec.layers])  # by epoch
        self._broken: NonFiniteError | None = None

    @property
    def done(self) -> bool:
        """Whether all updates have been made."""
        return 0 < self.spec.max_updates <= self.weights.version

    @property
    def spread(self) -> int:
        """The latest epoch that an interval has begun, less the epochs that the slowest has finished; from 0."""
        latest = max((epoch for epoch, _ in self._pinned), default=0)
        return max(0, latest - min(self._finished))

    def begin(self, interval: int, epoch: int) -> Started | None:
        """The weights that every task of this interval and epoch uses; None: others are too far behind, ask later.

        The first call pins the present version. A call after the end of the interval's epoch has no weights. Raises
        ConfigError: there is no such interval, or it is not the turn of that epoch; NonFiniteError: training has
        diverged."""
        self._check(interval)
        if epoch < self._finished[interval] or self.done:
            return Started(self.weights.version, None, self.done)
        if epoch > self._finished[interval]:
            raise ConfigError(f"interval {interval}: epoch {epoch} cannot begin; next is {self._finished[interval]}")
        if epoch > min(self._finished) + self._bound:
            return None
        if (epoch, interval) not in self._pinned:
            self._pinned[epoch, interval] = self.weights.pin()
        version = self._pinned[epoch, interval]
        return Started(version, self.weights.of(version))

    def push(self, interval: int, epoch: int, layer: int, version: int, gradient: np.ndarray) -> Pushed:
        """Add the gradient [weights of the layer] of an interval, unless it was added before.

        After it has been answered, the layer of this interval and epoch is done: no repetition changes anything. Raises
        ConfigError: the epoch has not begun, the gradient is of other weights than the pinned ones, or has another
        shape or dtype; NonFiniteError: the gradient has an infinity or NaN, and nothing has changed; or the weights
        have after the step, and the job has ended."""
        self._check(interval)
        if not 0 <= layer < len(self.spec.layers):
            raise ConfigError(f"weights of {self.spec.name}: there is no layer {layer} of {len(self.spec.layers)}")
        if epoch < self._finished[interval]:
            return Pushed(False, self.weights.version, self.done)
        pinned = self._pinned.get((epoch, interval))
        if pinned is None:
            raise ConfigError(f"interval {interval}: epoch {epoch} has not begun")
        if version != pinned:
            raise ConfigError(f"interval {interval}, epoch {epoch}: a gradient of version {version}, not {pinned}")
        sums = self._sums[epoch]
        if sums[layer].has(interval):
            return Pushed(False, self.weights.version, self.done)
        checked_vector(self.spec, gradient, self.spec.layers[layer], member=interval, step=epoch, layer=layer)
        sums[layer].add(interval, gradient)
        if all(one.has(interval) for one in sums):
            self._finished[interval] += 1
            self.weights.release(self._pinned.pop((epoch, interval)))
            self._apply(epoch)
        return Pushed(True, self.weights.version, self.done)

    def _apply(self, epoch: int) -> None:
        """Make the step of ``epoch`` if it is complete. All earlier ones are: an interval ends one epoch after another."""
        if min(self._finished) <= epoch:
            return
        totals = [one.total for one in self._sums.pop(epoch)]
        try:
            self.weights.update(np.concatenate([total for total in totals if total is not None]))
        except ArithmeticError as error:
            self._broken = NonFiniteError(0, epoch, 0, "weights after the step")
            raise self._broken from error

    def _check(self, interval: int) -> None:
        if self._broken is not None:
            raise self._broken
        if not 0 <= interval < self.spec.members:
            raise ConfigError(f"weights of {self.spec.name}: there is no interval {interval} of {self.spec.members}")


MAX_JOBS_WITH_WEIGHTS = 64
WeightsJob = ArrivalJob | SummedJob


class ParameterJobs:
    """Creates, finds and drops the weights of jobs. Times are in seconds of any one clock."""

    def __init__(self, room: Callable[[], int]) -> None:
        """``room``: how many bytes all jobs together may take now."""
        self._room = room
        self._jobs: dict[str, WeightsJob] = {}
        self._heard: dict[str, float] = {}

    @property
    def used_bytes(self) -> int:
        """The most memory that the jobs take together."""
        return sum(job.spec.nbytes for job in self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def create(
        self,
        spec: ParameterSpec,
        values: np.ndarray,
        now: float,
        *,
        version: int = 0,
        moments: np.ndarray | None = None,
    ) -> WeightsJob:
        """A job that begins with weights ``values`` [size]; or the one that was created so before, as it is now.

        version, moments: of a job that goes on; see ``SummedJob``.

        Raises:
            ConfigError: a job of that name has another description; the weights do not fit it; gradients that are
                applied on arrival cannot go on from another version than 0.
            NonFiniteError: the weights have an infinity or NaN.
            QuotaExceededError: no room, or too many jobs.
        """
        if (existing := self._jobs.get(spec.name)) is not None:
            if existing.spec != spec:
                raise ConfigError(f"weights of {spec.name} exist, and were described otherwise: {existing.spec}")
            return self.get(spec.name, now)
        if len(self._jobs) >= MAX_JOBS_WITH_WEIGHTS:
            raise QuotaExceededError(f"weights of {spec.name}: {len(self._jobs)} jobs have weights here already")
        room = self._room()
        if self.used_bytes + spec.nbytes > room:
            raise QuotaExceededError(
                f"weights of {spec.name}: {spec.nbytes} bytes at most, {self.used_bytes} of {room} bytes are taken; "
                "start the daemons with more --tables"
            )
        if spec.applies == "summed":
            job: WeightsJob = SummedJob(spec, values, version, moments)
        elif version or moments is not None:
            raise ConfigError(f"weights of {spec.name}: a job whose gradients are applied on arrival begins anew")
        else:
            job = ArrivalJob(spec, values, now)
        self._jobs[spec.name], self._heard[spec.name] = job, now
        return job

    def get(self, name: str, now: float) -> WeightsJob:
        """The job of that name. Raises UnknownNameError: there is none, or all its members were silent for too long."""
        known_name("job with weights", name, self._jobs)
        self._heard[name] = now
        return self._jobs[name]

    def delete(self, name: str) -> bool:
        """Drop a job; False: there was none."""
        self._heard.pop(name, None)
        return self._jobs.pop(name, None) is not None

    def expire(self, now: float) -> list[str]:
        """End leases that are over. Returns the names of jobs that were dropped or whose members have changed."""
        changed = [name for name, job in self._jobs.items() if isinstance(job, ArrivalJob) and job.expire(now)]
        silent = [
            name for name, heard in self._heard.items() if now - heard > JOB_LEASES * self._jobs[name].spec.lease_s
        ]
        for name in silent:
            self.delete(name)
        return list(dict.fromkeys(changed + silent))
