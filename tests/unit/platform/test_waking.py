"""Waiting that no processor time shows."""

from __future__ import annotations

import asyncio
import threading

from atta.observe.machine.threads import timer_lateness_s, wake_s


def test_waking_takes_a_moment_and_leaves_nothing_behind() -> None:
    before = threading.active_count()
    assert 0 < wake_s(tries=5) < 10
    assert threading.active_count() == before


def test_timers_are_never_early_and_may_be_tried_within_an_event_loop() -> None:
    async def within() -> float:
        return timer_lateness_s(tries=3)

    assert 0 <= asyncio.run(within()) < 10
