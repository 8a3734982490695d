"""``atta bench scheduler`` without daemons: settings, and how busy the scarcest resource was."""

from __future__ import annotations

from typing import Any

import pytest

from atta_bench.lab.netlab import bits_per_s
from atta_bench.lab.processes import Measured, Usage
from atta_bench.loader.scheduler import SchedulerBench, figures


@pytest.mark.parametrize(("rate", "bits"), [("1gbit", 1e9), ("200mbit", 2e8), ("1.5kbit", 1500.0), ("8bit", 8.0)])
def test_rates(rate: str, bits: float) -> None:
    assert bits_per_s(rate) == bits


def epoch(rank: int, number: int, **more: Any) -> dict[str, Any]:
    sizes = {"batches": 10, "seeds": 100, "nodes": 500, "edges": 1000, "feature_bytes": 9, "remote_rows": 5.0}
    times = {"start": 2.0 * number, "stop": 2.0 * number + 2.0}
    return {"rank": rank, "epoch": number, **times, **sizes, **more}


def test_the_busiest_resource_is_named() -> None:
    bench = SchedulerBench((2, 2), 8, data="somewhere", think_ms=50.0, link="1mbit")
    epochs = [
        epoch(r, n, make_ms=[1.0] * 9 + [11.0], queue_bytes=100.0 * r + n or None) for r in range(2) for n in range(2)
    ]
    # Four seconds, two hosts. 125,000 bytes are a quarter of what a link of 1 Mbit/s carries.
    # 20 batches of 50 ms each are a quarter of the four seconds.
    found = figures(
        Measured(epochs[:2], epochs, Usage(4.0, 2.0, 1.0, (130_000, 70_000)), Usage(4.0, 2.0, 1.0, (125_000, 60_000))),
        bench=bench,
        hosts=2,
    )
    assert found["epoch_s"] == 2.0
    assert found["seeds_per_s"] == 100.0
    assert found["busy/link"] == pytest.approx(0.25)
    assert found["busy/consumer"] == pytest.approx((40 * 0.05 + 1.0) / 8)
    assert found["busiest"] == max(found["busy/link"], found["busy/consumer"], found["busy/cores"])
    assert found["completion_ms"] == pytest.approx(2.0)
    assert found["completion_ms_p95"] == 11.0
    assert found["queue_bytes"] == 101.0


def test_peers_without_such_figures_have_none() -> None:
    epochs = [epoch(r, 0) for r in range(2)]
    found = figures(
        Measured(epochs, epochs, Usage(2.0, 2.0, 1.0, (0, 0)), Usage(2.0, 2.0, 1.0, (0, 0))),
        bench=SchedulerBench((2, 2), 8, data="somewhere"),
        hosts=2,
    )
    assert set(found) >= {"seeds_per_s", "epoch_s", "busy/cores", "busiest"}
    assert not {"completion_ms", "queue_bytes", "busy/link", "busy/consumer"} & set(found)
