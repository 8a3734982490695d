"""The record of upgrades tells lost, repeated and wrong batches from those of the local sampler."""

from __future__ import annotations

from typing import Any

from atta_bench.chaos.graph import ChaosGraph
from atta_bench.upgrade import expected, seeds_complete, wrong_batches
from atta_bench.upgrade_consumer import BATCH, EPOCHS


def taken(graph: ChaosGraph, laps: int) -> list[dict[str, Any]]:
    """The lines of the only consumer; its digests are those of the local sampler."""
    ends = [graph.seeds[at : at + BATCH].tolist() for at in range(0, len(graph.seeds), BATCH)]
    lines: list[dict[str, Any]] = [
        {"lap": lap, "epoch": epoch, "batch": at, "batch_id": at, "seeds": seeds, "t": 0.0}
        for lap in range(laps)
        for epoch in range(EPOCHS)
        for at, seeds in enumerate(ends)
    ]
    right = expected(graph, lines)
    return [{**line, "digest": right[line["epoch"]][line["batch"]]} for line in lines]


def test_each_fault_of_a_stream_is_told() -> None:
    graph = ChaosGraph.drawn()
    lines = taken(graph, 2)
    last = lines[-1]
    assert seeds_complete(graph, [lines])
    assert not seeds_complete(graph, [lines[1:]])
    assert wrong_batches(graph, "c", lines) == []
    assert "comes too early" in wrong_batches(graph, "c", [*lines[:-2], last])[0]
    assert "comes twice" in wrong_batches(graph, "c", [*lines, last])[0]
    assert "differs" in wrong_batches(graph, "c", [*lines[:-1], {**last, "digest": "x"}])[0]
    assert wrong_batches(graph, "c", [*lines, {"error": "UnavailableError: x", "t": 0.0}]) == ["c: UnavailableError: x"]
