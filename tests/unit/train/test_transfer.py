"""Batches on the way to the device, and the clock of the transfer."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from atta.errors import ConfigError
from atta.train.launching.worker import choose_device
from atta.train.steps.timing import Stopwatch
from atta.train.steps.transfer import on_device

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Fake:
    """A batch with one tensor."""

    def __init__(self, number: int) -> None:
        self.number = number

    def to_pyg(self) -> Any:
        from torch_geometric.data import Data

        return Data(x=torch.full((1000, 100), float(self.number)), batch_size=self.number)


def test_order_and_content_on_the_cpu() -> None:
    watch = Stopwatch(CPU)
    seen = [(b.number, d.batch_size, float(d.x[0, 0])) for b, d in on_device([Fake(i) for i in range(4)], CPU, watch)]  # type: ignore[attr-defined,list-item]
    assert seen == [(i, i, float(i)) for i in range(4)]
    assert set(watch.totals()) == {"wait", "copy"}


def test_an_empty_epoch() -> None:
    assert list(on_device([], CPU, Stopwatch(CPU))) == []


def test_errors_of_the_source_come_through() -> None:
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
        choose_device("auto", 0, 3)


@needs_cuda
def test_order_and_content_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    watch = Stopwatch(device)
    sums = []
    for _, data in on_device([Fake(i) for i in range(20)], device, watch):  # type: ignore[list-item]
        start = watch.now()
        sums.append((data.x @ data.x.T).sum())
        watch.add("compute", start, watch.now())
    assert [float(s) for s in sums] == [float(i * i) * 100 * 1000 * 1000 for i in range(20)]
    assert watch.totals()["compute"] > 0
