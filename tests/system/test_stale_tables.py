"""Stale rows on real daemons: synchronisations are seen whole, jobs that die leave nothing, full daemons name the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

import atta
from atta.train.exchange.policies import LATEST, Rule, exact
from atta.train.exchange.tables import DaemonTable
from tests.system.conftest import SmallGraph

WIDTHS = {1: 5, 2: 3}


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(3, "random"), threads=1, options=("--tables", "4MiB")) as cluster:
        yield cluster


def table(cluster: atta.Cluster, job: str, widths: dict[int, int] = WIDTHS, **options: Any) -> DaemonTable:
    return DaemonTable(cluster.tables, widths, 300, job=job, node_type="node", **options)


def fetched(held: DaemonTable, layer: int, rows: torch.Tensor, rule: Rule) -> tuple[torch.Tensor, torch.Tensor]:
    return held.fetch(layer, rows, rule).result(60)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64])
def test_two_trainers_read_what_each_synchronisation_has_published(
    small_graph: SmallGraph, cluster: atta.LocalCluster, dtype: torch.dtype
) -> None:
    """Half of the vertices belong to each trainer. Late pulls get the synchronisation that they were meant for."""
    n, generator = len(small_graph.ids), torch.Generator().manual_seed(3)
    published: dict[tuple[int, int], torch.Tensor] = {}  # (version, layer)
    with ExitStack() as stack:
        clusters = [stack.enter_context(atta.connect(cluster.cluster_file)) for _ in range(2)]
        trainers = [table(one, f"twins{dtype.itemsize}", dtype=dtype) for one in clusters]
        stack.callback(trainers[0].close, delete=True)
        stack.callback(trainers[1].close)
        where = trainers[0].locate(small_graph.ids)
        assert sorted(where.tolist()) == list(range(n))
        halves, last = [where[: n // 2], where[n // 2 :]], None
        for epoch in (0, 2, 3, 5, 8):
            late = None if last is None else trainers[1].fetch(2, where, exact(last))
            for layer, width in WIDTHS.items():
                values = published[epoch, layer] = torch.zeros(n, width, dtype=dtype)
                for trainer, rows in zip(trainers, halves, strict=True):
                    values[rows] = torch.randn(len(rows), width, generator=generator, dtype=dtype)
                    trainer.publish(layer, rows, values[rows], epoch)
            for trainer in trainers:
                trainer.flush()
            if late is not None:
                assert torch.equal(late.result(60).values, published[last, 2][where])
            for layer in WIDTHS:
                asked = where[torch.randint(0, n, (40,), generator=generator)]
                for version in {epoch, epoch if last is None else last}:
                    for trainer in trainers:
                        got = fetched(trainer, layer, asked, exact(version))
                        assert torch.equal(got[0], published[version, layer][asked])
                        assert got[1].tolist() == [version] * 40
            last = epoch


def test_rows_that_were_not_part_of_a_synchronisation_are_noticed(
    small_graph: SmallGraph, cluster: atta.LocalCluster
) -> None:
    held = table(cluster, "partly")
    rows = held.locate(small_graph.ids)
    held.publish(1, rows[:10], torch.ones(10, 5), 7)
    held.flush()
    assert fetched(held, 1, rows[:10], exact(7))[0].sum() == 50
    with pytest.raises(
        atta.StaleRowError, match=f"row {int(rows[10])} was never written with a version; the reader may use 7"
    ):
        fetched(held, 1, rows[:11], exact(7))
    with pytest.raises(atta.StaleRowError, match="the rows of epoch 8 are not on the daemons"):
        held.fetch(1, rows[:10], exact(8))
    for version in (8, 9):
        held.publish(1, rows[:10], torch.ones(10, 5), version)
    held.flush()
    with pytest.raises(atta.StaleRowError, match="the rows of epoch 7 are not on the daemons"):  # 9 has its slot
        held.fetch(1, rows[:10], exact(7))
    held.close(delete=True)
    assert not [name for name in cluster.tables.specs() if name.startswith("partly.")]


def test_the_newest_rows_replace_older_ones_at_once(small_graph: SmallGraph, cluster: atta.LocalCluster) -> None:
    held = table(cluster, "newest", slots=1)
    rows = held.locate(small_graph.ids)
    for version, some in ((3, rows[:10]), (5, rows[:4]), (4, rows[:6])):  # a row never gets an older version
        held.publish(1, some, torch.full((len(some), 5), float(version)), version)
        held.flush()
    values, versions = fetched(held, 1, rows[:10], LATEST)
    assert versions.tolist() == [5] * 4 + [4] * 2 + [3] * 4
    assert values[:, 0].tolist() == [float(version) for version in versions]
    with pytest.raises(atta.StaleRowError, match=f"layer 1: row {int(rows[10])} was never published"):
        fetched(held, 1, rows[:11], LATEST)
    held.close(delete=True)


def test_rows_in_fewer_bytes(small_graph: SmallGraph, cluster: atta.LocalCluster) -> None:
    held = table(cluster, "bytes", codec="bf16")
    rows, values = held.locate(small_graph.ids), torch.randn(300, 5)
    held.publish(1, rows, values, 0)
    held.flush()
    assert torch.equal(fetched(held, 1, rows, exact(0))[0], values.bfloat16().float())
    assert held.row_bytes(1) == 5 * 2
    held.close(delete=True)
    with pytest.raises(atta.ConfigError, match="float64"):
        table(cluster, "x", codec="bf16", dtype=torch.float64)


def test_daemons_without_room_name_the_bytes_and_keep_nothing(cluster: atta.LocalCluster) -> None:
    before = set(cluster.tables.specs())
    need = 2 * 300 * (2000 * 4 + 8 + 8000 * 4 + 8)
    with pytest.raises(atta.QuotaExceededError, match=f"stale rows need {need} bytes on the daemons together"):
        table(cluster, "large", {1: 2000, 2: 8000})
    assert set(cluster.tables.specs()) == before
