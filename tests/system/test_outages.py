"""A daemon that is away for a while, in each possible way. ``tests.soak.outages`` runs longer ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.soak.outages import Outage, OutageTest, lane, make_dataset


@pytest.fixture(scope="module")
def outage_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutageTest]:
    folder = tmp_path_factory.mktemp("outages")
    with lane(make_dataset(folder), folder / "lane", through_proxy=True) as found:
        yield found


@pytest.mark.parametrize("kind", ["drop", "stop", "kill"])
def test_batches_are_those_of_an_undisturbed_run(outage_test: OutageTest, kind: str) -> None:
    result = outage_test.run_round(Outage(kind, 1.5))
    assert result.good, result
    assert result.batches > 50
    assert result.acknowledged > 0
