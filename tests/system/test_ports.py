"""Clusters beside a program that opens and closes ports. ``ATTA_STARTS=200`` starts more of them."""

from __future__ import annotations

import os

import pytest

import atta
from tests.churn import churning
from tests.system.conftest import SmallGraph

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
