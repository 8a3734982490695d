"""``atta.connect(..., wait=True)`` finds daemons that start late, or elsewhere than they were. Clusters start beside a
program that opens and closes ports; ``ATTA_STARTS=200`` starts more of them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import atta
from atta.client import cluster as client
from atta.errors import AttaError, DeadlineError
from tests.addresses import held_addresses
from tests.churn import churning
from tests.system.conftest import SmallGraph


@pytest.fixture
def one(placements: dict[str, atta.LocalCluster]) -> atta.LocalCluster:
    return placements["1 parts by random, 1 threads"]


def entry(address: str) -> str:
    return f'[[daemon]]\npart = 0\naddress = "{address}"\n'


def test_a_daemon_that_moves_meanwhile_is_found(
    one: atta.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file first names an address where nobody listens."""
    monkeypatch.setattr(client, "LOOKED_UP_S", 0.2)
    file, next_file = tmp_path / "cluster.toml", tmp_path / "next.toml"
    file.write_text(entry(held_addresses(1)[0]))
    next_file.write_text(entry(one.addresses[0]))
    move = threading.Timer(0.5, next_file.rename, [file])
    move.start()
    began = time.monotonic()
    with atta.connect(file, wait=True, deadline_s=60) as found:
        assert found.dataset_id == one.dataset_id
    assert time.monotonic() - began > 0.4
    move.join()


def test_who_does_not_come_is_named_with_the_whole_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOKED_UP_S", 0.2)
    (silent,) = held_addresses(1)
    (tmp_path / "cluster.toml").write_text(entry(silent))
    with pytest.raises(
        DeadlineError, match=rf"part 0 at {silent}: no daemon answers: nothing listens there.*waited 1 s"
    ):
        atta.connect(tmp_path / "cluster.toml", wait=True, deadline_s=1)


def test_a_file_that_is_gone_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOKED_UP_S", 0.2)
    file = tmp_path / "cluster.toml"
    file.write_text(entry(held_addresses(1)[0]))
    gone = threading.Timer(0.5, file.unlink)
    gone.start()
    with pytest.raises(AttaError, match="cannot be read"):
        atta.connect(file, wait=True, deadline_s=60)
    gone.join()


STARTS = int(os.environ.get("ATTA_STARTS", "10"))


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * STARTS)
def test_clusters_start_beside_a_program_that_opens_and_closes_ports(small_graph: SmallGraph) -> None:
    """It has a quarter of all ports at any time: of twenty ports that are let go, it would get some."""
    with churning(rate=1000, held=7000):
        for _ in range(STARTS):
            with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
                loader = atta.NeighborLoader(cluster, [2], "train", batch_size=64)
                assert sum(batch.batch_size for batch in loader) == len(small_graph.train)
