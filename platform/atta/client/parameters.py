"""The weights of a job on a daemon, as trainers use them: it begins a step, computes, pushes a gradient."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

import numpy as np

from atta.client.control import Connection
from atta.errors import ConfigError, DeadlineError, RemoteError
from atta.kvstore.parameters import ParameterSpec
from atta.protos.v1 import weights_pb2
from atta.wire import rpc
from atta.wire.bulk import BEGIN_VALUES, CREATE_MOMENTS, CREATE_VALUES, GRADIENT_VALUES, WEIGHTS_MOMENTS, WEIGHTS_VALUES
from atta.wire.rpc import Bulk

_MOST_BEGIN_S = 60.0


class StepWeights(NamedTuple):
    """Weights for a step: ``values`` [size], read-only, of ``version``. None: the job, or the step, is over."""

    version: int
    values: np.ndarray | None
    done: bool


class Update(NamedTuple):
    """``applied``: whether the message changed the weights; ``version``: the present one; ``done``: the job is over."""

    applied: bool
    version: int
    done: bool


class JobState(NamedTuple):
    """What a job goes on from: after ``version`` updates, ``values`` [size], and ``moments`` of the optimiser: those of
    Adam one after the other, [2 * size]."""

    version: int
    values: np.ndarray
    moments: np.ndarray


class JobWeights:
    """The weights of one job. Requests may be repeated: the daemon applies each gradient once. RestartedError says that
    it has been started anew (the weights are gone then), UnknownNameError that it does not have the job any more,
    UnknownClientError that the life of a member is over."""

    def __init__(self, connection: Connection, spec: ParameterSpec) -> None:
        """``connection``: to the process of the daemon that holds the weights (``Connection.pinned``)."""
        self._connection, self.spec = connection, spec

    def create(self, values: np.ndarray, state: JobState | None = None) -> int:
        """Begin the job with ``values`` [size], unless it exists; returns the present version. ``state``: go on from it instead
        (``applies="summed"`` only). Raises QuotaExceededError, and ConfigError for a job with another description."""
        request = weights_pb2.CreateWeightsRequest(spec=json.dumps(self.spec.to_dict()))
        payloads = {CREATE_VALUES: self._sent(values)}
        if state is not None:
            self.spec.check_state()
            request.version = state.version
            payloads = {CREATE_VALUES: self._sent(state.values), CREATE_MOMENTS: self._sent(state.moments)}
        return int(self._connection.call("ParameterService.Create", Bulk(request, payloads)).version)

    def join(self, member: int, life: int) -> int:
        """Take part as ``member``; returns the step to begin with. A member that starts anew takes a larger ``life``."""
        return int(self._connection.call("ParameterService.Join", self._member(member, life)).step)

    def begin(self, member: int, step: int, *, life: int = 0, within_s: float) -> StepWeights:
        """The weights for a step (of an interval: for an epoch). Waits for slower members. Raises DeadlineError: slower
        members are still too far behind after ``within_s`` seconds."""
        until, name = time.monotonic() + within_s, self.spec.name
        while True:
            left = max(0.0, until - time.monotonic())
            wait_s = min(left, _MOST_BEGIN_S, self._connection.deadline_s / 2)
            request = weights_pb2.BeginStepRequest(name=name, member=member, life=life, step=step, wait_s=wait_s)
            reply = self._connection.call("ParameterService.Begin", request)
            message = reply.message
            if not message.wait:
                raw = reply.payloads.get(BEGIN_VALUES)
                return StepWeights(int(message.version), None if not raw else self._received(raw), message.done)
            if time.monotonic() >= until:
                raise DeadlineError(
                    self._connection.address,
                    f"step {step} of member {member}: others are too far behind, for {within_s:g} s",
                )

    def push(
        self, member: int, step: int, gradient: np.ndarray, *, life: int = 0, layer: int = 0, version: int = 0
    ) -> Update:
        """Send the gradient of a step, which is applied once. ``layer``, ``version``: of an interval's gradient. Raises
        ConfigError: the gradient has another shape or dtype than the weights; RemoteError: the gradient, or the
        weights after the step, have an infinity or NaN."""
        request = weights_pb2.PushGradientRequest(
            name=self.spec.name, member=member, life=life, step=step, layer=layer, version=version
        )
        reply = self._connection.call("ParameterService.Push", Bulk(request, {GRADIENT_VALUES: self._sent(gradient)}))
        return Update(reply.applied, int(reply.version), reply.done)

    def pull(self, version: int | None = None) -> StepWeights:
        """The present weights, or those of an older version that is still pinned (else ConfigError)."""
        reply = self._connection.call(
            "ParameterService.Pull", weights_pb2.PullWeightsRequest(name=self.spec.name, version=version)
        )
        values = self._received(reply.payloads.get(WEIGHTS_VALUES, b""))
        return StepWeights(int(reply.message.version), values, reply.message.done)

    def state(self) -> JobState:
        """What a later job may go on from. Raises ConfigError if it is too long for a message."""
        self.spec.check_state()
        request = weights_pb2.PullWeightsRequest(name=self.spec.name, moments=True)
        reply = self._connection.call("ParameterService.Pull", request)
        values = self._received(reply.payloads.get(WEIGHTS_VALUES, b""))
        moments = self._received(reply.payloads.get(WEIGHTS_MOMENTS, b""), self.spec.optimiser.moments)
        return JobState(int(reply.message.version), values, moments)

    def renew(self, member: int, life: int) -> None:
        """A sign of life, while a step is computed."""
        self._connection.call("ParameterService.Renew", self._member(member, life))

    def leave(self, member: int, life: int) -> None:
        """The member has ended: the others do not wait for it any more."""
        self._connection.call("ParameterService.Leave", self._member(member, life))

    def drop(self) -> bool:
        """End the job; False: there was none."""
        request = weights_pb2.DropWeightsRequest(name=self.spec.name)
        return bool(self._connection.call("ParameterService.Drop", request).existed)

    def _member(self, member: int, life: int) -> weights_pb2.MemberRequest:
        return weights_pb2.MemberRequest(name=self.spec.name, member=member, life=life)

    def _sent(self, values: np.ndarray) -> np.ndarray:
        """The daemon reads bytes as the job's dtype, so another dtype is refused here; it checks the rest."""
        if values.dtype.str != self.spec.dtype or values.ndim != 1:
            found = f"{values.dtype.str} {list(values.shape)}"
            raise ConfigError(f"weights of {self.spec.name}: {found} is not one row of {self.spec.dtype}")
        return np.ascontiguousarray(values)

    def _received(self, raw: memoryview | bytes, times: int = 1) -> np.ndarray:
        """``times`` as many numbers as the job has weights; raises RemoteError if a reply has more or fewer."""
        with rpc.understanding(self._connection.address):
            found = np.frombuffer(raw, self.spec.dtype)
        if len(found) != times * self.spec.size:
            raise RemoteError(self._connection.address, f"sends {len(found)} numbers of {times * self.spec.size}")
        return found
