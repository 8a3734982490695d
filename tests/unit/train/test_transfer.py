"""Batches on the way to the device, and the clock of the transfer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from atta.client.loaders.prefetch import pinned_slots
from atta.client.sessions.slots import SlotMaps
from atta.daemon.engine.slots import SlotPool
from atta.errors import ConfigError
from atta.protos.v1.session_pb2 import SharedSlot
from atta.train.launching.worker import choose_device
from atta.train.steps.timing import Stopwatch, on_device

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Fake:
    def __init__(self, number: int) -> None:
        self.number = number

    arrays: ClassVar[dict[str, Any]] = {}

    def to_pyg(self, *, plain: bool) -> Any:
        from torch_geometric.data import Data

        return Data(x=torch.full((1000, 100), float(self.number)), batch_size=self.number)


def test_order_and_content_on_the_cpu() -> None:
    watch = Stopwatch(CPU)
    seen = [(b.number, d.batch_size, float(d.x[0, 0])) for b, d in on_device([Fake(i) for i in range(4)], CPU, watch)]  # type: ignore[attr-defined,list-item]
    assert seen == [(i, i, float(i)) for i in range(4)]
    assert set(watch.totals()) == {"wait", "copy"}
    assert list(on_device([], CPU, watch)) == []

    def source() -> Any:
        yield Fake(0)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        list(on_device(source(), CPU, Stopwatch(CPU)))


def test_phases_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1.0, 3.5, 10.0, 10.25])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    watch = Stopwatch(CPU)
    for phase in ("compute", "compute"):
        watch.add(phase, watch.now(), watch.now())
    watch.add_seconds("sample", 0.5)
    assert watch.totals() == {"compute": 2.75, "sample": 0.5}


def test_choice_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", 0, 2) == CPU
    with pytest.raises(ConfigError, match="no GPU"):
        choose_device("cuda", 0, 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cpu", 0, 2) == CPU
    assert choose_device("auto", 1, 2) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="--trainers 3"):
        choose_device("cuda", 0, 3)
    assert choose_device("auto", 0, 3) == choose_device("auto", 1, 3) == CPU


class InSlot:
    def __init__(self, array: np.ndarray) -> None:
        self.arrays = {"table/node/x": array}

    def to_pyg(self, *, plain: bool) -> Any:
        from torch_geometric.data import Data

        return Data(x=torch.from_numpy(self.arrays["table/node/x"]), edge_index=self.edges())

    def edges(self) -> torch.Tensor:
        return torch.arange(40).view(2, 20)[:, :10]


@needs_cuda
def test_a_gpu_reads_what_slots_hold_now() -> None:
    """Slots are used again, and given back and made anew, under a copy that reads their pinned pages."""
    device, rows, capacity = torch.device("cuda", 0), 5000, 4 << 20
    pool, maps = SlotPool(1 << 30), SlotMaps()

    def batches() -> Iterator[InSlot]:
        for number in range(60):
            slot = pool.acquire(capacity)
            slot.buffer[4096 : 4096 + 400 * rows].view(np.float32)[:] = number
            told = SharedSlot(path=slot.path, capacity=slot.capacity, offset=slot.offset, nonce=slot.nonce)
            told.inode, told.made = slot.arena.inode, slot.made
            memory = maps.lease(told, os.getpid())[4096 : 4096 + 400 * rows]
            yield InSlot(memory.view(np.float32).reshape(rows, 100))
            del memory
            pool.release(slot)
            if number % 10 == 9:
                pool.trim(now=1e6 * number)
                pool.trim(now=1e6 * (number + 1))

    try:
        for number, (_, data) in enumerate(on_device(batches(), device, Stopwatch(device))):  # type: ignore[arg-type]
            assert data.x.is_cuda
            assert bool((data.x == number).all()), number
            assert torch.equal(data.edge_index.cpu(), torch.arange(40).view(2, 20)[:, :10])
        assert pinned_slots().nbytes > 0
    finally:
        pool.close()
