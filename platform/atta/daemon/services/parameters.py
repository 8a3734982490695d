"""``ParameterService``: the weights of training jobs without barriers, which ``atta.kvstore.parameters`` has. All of it runs on
the event loop, so steps of the optimiser are made one after the other."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import structlog

from atta.daemon.services.handling import Context
from atta.errors import ConfigError, UnknownNameError, blaming
from atta.kvstore.parameter_jobs import ArrivalJob, ParameterJobs, Pushed, Started, SummedJob, WeightsJob
from atta.kvstore.parameters import ParameterSpec
from atta.protos.v1 import weights_pb2
from atta.wire.bulk import BEGIN_VALUES, CREATE_MOMENTS, CREATE_VALUES, GRADIENT_VALUES, WEIGHTS_MOMENTS, WEIGHTS_VALUES
from atta.wire.rpc import Bulk

log = structlog.get_logger("atta.daemon")
LONG_POLL_S = 20.0
"""How long a ``Begin`` waits for slower members at most before it answers; well before its deadline."""
WEIGHTS_LOOK_S = 0.5
"""How often the daemon looks for leases that are over."""


class ParameterService:
    """``ParameterService`` of a daemon."""

    def __init__(self, jobs: ParameterJobs, part: int) -> None:
        self._jobs, self._part = jobs, part
        self._changed: dict[str, asyncio.Event] = {}  # by job; set when somebody who waits may go on
        self._updates = self._repeated = 0.0

    def stats(self) -> dict[str, float]:
        return {
            "weights": float(len(self._jobs)),
            "weights_bytes": float(self._jobs.used_bytes),
            "weights_gradients": self._updates,
            "weights_repeated": self._repeated,
        }

    async def create(self, request: Bulk, context: Context) -> weights_pb2.WeightsState:
        spec = ParameterSpec.from_json(request.message.spec)
        values = _vector(spec, request.payloads.get(CREATE_VALUES, b""))
        raw = request.payloads.get(CREATE_MOMENTS)
        moments = None if raw is None else _vector(spec, raw)
        return _state(self._jobs.create(spec, values, _now(), version=request.message.version, moments=moments))

    async def join(self, request: weights_pb2.MemberRequest, context: Context) -> weights_pb2.JoinReply:
        step = _of_trainers(self._job(request.name)).join(request.member, request.life, _now())
        self._wake(request.name)
        return weights_pb2.JoinReply(step=step)

    async def begin(self, request: weights_pb2.BeginStepRequest, context: Context) -> Bulk:
        """``ParameterService.Begin``: waits, if it must, for at most a quarter of a lease."""
        name = request.name
        lease_s = self._job(name).spec.lease_s
        until = _now() + max(0.0, min(request.wait_s, LONG_POLL_S, lease_s / 4))
        while True:
            changed = self._changed.setdefault(name, asyncio.Event())
            if (started := self._begun(request)) is not None:
                return _begun(started)
            if (left := until - _now()) <= 0:
                return Bulk(weights_pb2.BeginStepReply(wait=True))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)

    async def push(self, request: Bulk, context: Context) -> weights_pb2.PushGradientReply:
        message = request.message
        job = self._job(message.name)
        pushed = _pushed(job, message, _vector(job.spec, request.payloads.get(GRADIENT_VALUES, b"")))
        if pushed.applied:
            self._updates += 1
            self._wake(message.name)
        else:
            self._repeated += 1
        return weights_pb2.PushGradientReply(applied=pushed.applied, version=pushed.version, done=pushed.done)

    async def pull(self, request: weights_pb2.PullWeightsRequest, context: Context) -> Bulk:
        job = self._job(request.name)
        version = request.version if request.HasField("version") else job.weights.version
        reply = weights_pb2.PullWeightsReply(version=version, done=job.done)
        payloads = {WEIGHTS_VALUES: job.weights.of(version)}
        if request.moments:
            if version != job.weights.version:
                raise ConfigError(f"weights of {request.name}: moments are kept of the present version only")
            job.spec.check_state()
            payloads[WEIGHTS_MOMENTS] = job.weights.moments
        return Bulk(reply, payloads)

    async def renew(self, request: weights_pb2.MemberRequest, context: Context) -> weights_pb2.WeightsState:
        """``ParameterService.Renew``. An interval has no lease of its own: its job lives on."""
        job = self._job(request.name)
        if isinstance(job, ArrivalJob):
            job.renew(request.member, request.life, _now())
        return _state(job)

    async def leave(self, request: weights_pb2.MemberRequest, context: Context) -> weights_pb2.WeightsState:
        job = _of_trainers(self._job(request.name))
        job.leave(request.member, request.life, _now())
        self._wake(request.name)
        return _state(job)

    async def drop(self, request: weights_pb2.DropWeightsRequest, context: Context) -> weights_pb2.DropWeightsReply:
        existed = self._jobs.delete(request.name)
        self._wake(request.name)
        return weights_pb2.DropWeightsReply(existed=existed)

    async def end_leases(self, *, every_s: float = WEIGHTS_LOOK_S) -> None:
        """Until cancelled: let members go on when the lease of a slower one is over, and drop jobs that have died."""
        while True:
            await asyncio.sleep(every_s)
            for name in self._jobs.expire(_now()):
                log.warning("lease of weights ran out", job=name, part=self._part)
                self._wake(name)

    def _job(self, name: str) -> WeightsJob:
        with blaming(UnknownNameError, f"part {self._part}", of=UnknownNameError):
            return self._jobs.get(name, _now())

    def _begun(self, request: weights_pb2.BeginStepRequest) -> Started | None:
        job = self._job(request.name)
        if isinstance(job, ArrivalJob):
            return job.begin(request.member, request.life, request.step, _now())
        return job.begin(request.member, request.step)

    def _wake(self, name: str) -> None:
        if (changed := self._changed.pop(name, None)) is not None:
            changed.set()


def _pushed(job: WeightsJob, message: weights_pb2.PushGradientRequest, gradient: np.ndarray) -> Pushed:
    if isinstance(job, ArrivalJob):
        return job.push(message.member, message.life, message.step, gradient, _now())
    return job.push(message.member, message.step, message.layer, message.version, gradient)


def _begun(started: Started) -> Bulk:
    reply = weights_pb2.BeginStepReply(version=started.version, done=started.done)
    return Bulk(reply, {} if started.values is None else {BEGIN_VALUES: started.values})


def _of_trainers(job: WeightsJob) -> ArrivalJob:
    if isinstance(job, SummedJob):
        raise ConfigError(f"weights of {job.spec.name}: intervals do not join and leave")
    return job


def _state(job: WeightsJob) -> weights_pb2.WeightsState:
    return weights_pb2.WeightsState(version=job.weights.version, done=job.done)


def _vector(spec: ParameterSpec, raw: bytes | memoryview) -> np.ndarray:
    if (nbytes := memoryview(raw).nbytes) % spec.itemsize:
        raise ConfigError(f"weights of {spec.name}: {nbytes} bytes are not numbers of {spec.dtype}")
    return np.frombuffer(raw, spec.dtype)


def _now() -> float:
    return asyncio.get_running_loop().time()
