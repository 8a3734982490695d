"""Who a daemon is, how it does, and stopping it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from atta.daemon.engine import Engine
from atta.daemon.guard import guarded
from atta.observe.machine import machine_id
from atta.protos.v1 import control_pb2
from atta.version import __version__

__all__ = ["ControlService"]


class ControlService:
    """``ControlService`` of a daemon; ``stats`` are its counters, ``stop`` is called once to begin draining."""

    def __init__(self, engine: Engine, stats: Callable[[], dict[str, float]], stop: Callable[[], None]) -> None:
        self._engine, self._stats, self._stop = engine, stats, stop

    @guarded
    async def describe(self, request: Any, context: Any) -> Any:
        """``ControlService.Describe``."""
        dataset = self._engine.dataset
        return control_pb2.DescribeReply(
            version=__version__,
            dataset_id=dataset.dataset_id,
            part=self._engine.shard.part,
            num_parts=dataset.num_parts,
            schema=json.dumps(dataset.schema.to_json()),
            host=machine_id(),
            pid=os.getpid(),
        )

    @guarded
    async def stats(self, request: Any, context: Any) -> Any:
        """``ControlService.Stats``."""
        return control_pb2.StatsReply(counters=self._stats())

    @guarded
    async def stop(self, request: Any, context: Any) -> Any:
        """``ControlService.Stop``: answers, then drains."""
        self._stop()
        return control_pb2.StopReply()
