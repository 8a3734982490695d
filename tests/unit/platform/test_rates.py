"""Rates are differences of counters over the daemon's own clock. Samples that do not belong together give none."""

from __future__ import annotations

import pytest

from atta.client.watch import Sample, rates
from tests.unit.platform.figures import job, session

BEFORE = {
    "uptime_seconds": 100.0, "machine_cores": 4.0, "machine_busy_seconds": 1000.0, "cpu_s": 50.0,
    "batches": 200.0, "remote_bytes": 1000.0, "cache_rows_asked": 10.0, "cache_rows_hit": 10.0,
    "requests_GraphService.Sample": 5.0, "requests_SessionService.Next": 7.0, "sent_bytes_KvService.Pull": 100.0,
}  # fmt: skip
AFTER = {
    "uptime_seconds": 102.0, "machine_cores": 4.0, "machine_busy_seconds": 1004.0, "cpu_s": 53.0,
    "batches": 300.0, "remote_bytes": 5000.0, "cache_rows_asked": 110.0, "cache_rows_hit": 85.0,
    "requests_GraphService.Sample": 25.0, "requests_SessionService.Next": 999.0, "sent_bytes_KvService.Pull": 300.0,
    "requests_KvService.Pull": 4.0,
}  # fmt: skip


def sample(counters: dict[str, float], **more: object) -> Sample:
    return Sample(0, "a:1", counters, **more)  # type: ignore[arg-type]


def test_a_daemon_between_two_samples() -> None:
    found = rates(sample(BEFORE), sample(AFTER))
    assert found.machine_cpu_percent == 50  # 4 s of 4 cores in 2 s
    assert found.daemon_cpu_percent == 150
    assert found.batches_per_s == 50
    assert found.remote_bytes_per_s == 2000
    assert found.cache_hit_rate == 0.75
    assert found.served_requests_per_s == 12  # of peers alone; a method without earlier calls counts from 0
    assert found.served_bytes_per_s == 100


def test_bytes_by_link_between_two_samples() -> None:
    before = sample({**BEFORE, "peer_received_bytes_1": 100.0})
    after = sample({**AFTER, "peer_received_bytes_1": 500.0, "peer_received_bytes_12": 8.0})
    assert rates(before, after).received_per_s == {1: 200, 12: 4}
    assert rates(None, after).received_per_s == {}


def test_a_session_between_two_samples() -> None:
    before = sample(BEFORE, at=50.0, sessions=(session(taken=10, seeds=1000),))
    after = sample(AFTER, at=54.0, sessions=(session(taken=30, seeds=2900), session(session="new", taken=2, seeds=200)))
    old, new = rates(before, after).sessions
    assert (old.batches_per_s, old.seeds_per_s) == (5, 475)
    assert (new.batches_per_s, new.seeds_per_s) == (0.5, 50)
    assert new.figures.session == "new"


def test_jobs_are_in_the_document() -> None:
    (shown,) = rates(None, sample(AFTER, jobs=(job(),))).to_dict()["jobs"]
    assert (shown["job"], shown["direction"], shown["age_max"], shown["skipped"]) == ("sancus-5e55", "forward", 2.0, 5)


@pytest.mark.parametrize(
    "before",
    [
        None,
        Sample(0, "a:1", error="no daemon answers"),
        sample({**AFTER, "uptime_seconds": 5000.0}, at=5000.0),  # the daemon has restarted since
        sample(AFTER, at=54.0),  # no time has passed
    ],
)
def test_without_an_earlier_sample_there_are_no_rates(before: Sample | None) -> None:
    found = rates(before, sample(AFTER, at=54.0, sessions=(session(),)))
    assert found.batches_per_s is None
    assert found.machine_cpu_percent is None
    assert found.sessions[0].batches_per_s is None
    assert found.sessions[0].figures == session()


def test_no_row_asked_for_is_no_hit_rate() -> None:
    found = rates(sample(BEFORE), sample({**BEFORE, "uptime_seconds": 101.0}))
    assert found.cache_hit_rate is None
    assert found.batches_per_s == 0


def test_a_silent_daemon_keeps_its_reason() -> None:
    found = rates(sample(BEFORE), Sample(3, "b:2", error="no answer within the deadline"))
    shown = found.to_dict()
    assert (shown["part"], shown["address"], shown["error"]) == (3, "b:2", "no answer within the deadline")
    assert shown["sessions"] == []
    assert shown["batches_per_s"] is None
