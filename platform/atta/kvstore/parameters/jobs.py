"""The weights of all jobs of a daemon, within a quota. A job in which all are silent is dropped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atta.errors import ConfigError, QuotaExceededError, UnknownNameError
from atta.kvstore.parameters.arrival import ArrivalJob
from atta.kvstore.parameters.spec import JOB_LEASES, ParameterSpec
from atta.kvstore.parameters.summed import SummedJob

__all__ = ["MAX_JOBS_WITH_WEIGHTS", "ParameterJobs", "WeightsJob"]

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
        existing = self._jobs.get(spec.name)
        if existing is not None:
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
        if name not in self._jobs:
            raise UnknownNameError.of("job with weights", name, self._jobs)
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
