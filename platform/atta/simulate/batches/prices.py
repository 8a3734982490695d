"""What a scenario's tasks, requests, batches and sessions cost, in seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from atta.samplers.dag.instance import Kind, OwnedVertices, Task
from atta.simulate.profile import Linear
from atta.simulate.scenario import BatchModel

__all__ = ["Prices", "RequestPrice"]


@dataclass(frozen=True)
class TaskPrice:
    """CPU seconds."""

    fixed_s: float
    per_unit_s: float


@dataclass(frozen=True)
class RequestPrice:
    """Bytes per unit of cost, and the work at both ends."""

    request: float
    answer: float
    serve: TaskPrice
    receive: TaskPrice


class Prices:
    """What tasks cost in seconds and bytes, by (kind, hop) of their operator; the same for all machines."""

    def __init__(self, model: BatchModel) -> None:
        profile, loop = model.profile, model.profile.loop
        second = 1e-6 / model.uncrowded
        self.hop = {op.id: op.hop for op in model.plan.ops} | {"": 0}
        self.batch_s, self.session_s = second * profile.batch_us, second * profile.session_us
        self.loop_batch_s, self.loop_task_s = second * loop.batch_us, second * loop.task_us
        self.loop_request_s, self.loop_answer_s = second * loop.request_us, second * loop.answer_us
        self.loop_byte_s, self.loop_session_s = second * loop.us_per_byte, second * loop.session_us
        self.wake_s = 1e-6 * profile.wake_us
        self._local: dict[tuple[Kind, int], TaskPrice] = {}
        self._remote: dict[tuple[Kind, int], RequestPrice] = {}
        for hop in range(len(model.hops)):
            for kind in Kind:
                price = model.remote(kind.value, hop)
                self._local[kind, hop] = _price(model.local(kind.value, hop), second)
                self._remote[kind, hop] = RequestPrice(
                    price.request_bytes, price.answer_bytes, _price(price.serve, second), _price(price.receive, second)
                )

    def local(self, task: Task) -> float:
        """CPU seconds of a task at home."""
        price = self._local[task.kind, self.hop[task.op]]
        return price.fixed_s + price.per_unit_s * task.cost

    def cost(self, kind: Kind, share: OwnedVertices) -> float:
        """One owner's part of the cost of a task of other owners."""
        return share.feature_bytes if kind is Kind.FEATURE else share.degree

    def remote(self, task: Task) -> RequestPrice:
        """The cost of a request that a task of other owners sends."""
        return self._remote[task.kind, self.hop[task.op]]

    def copied(self, nbytes: float) -> float:
        """CPU seconds to copy rows at hand."""
        return self._local[Kind.FEATURE, 0].per_unit_s * nbytes


def _price(cost: Linear, second: float) -> TaskPrice:
    return TaskPrice(second * cost.fixed_us, second * cost.us_per_unit)
