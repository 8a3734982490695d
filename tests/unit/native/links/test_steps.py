"""Steps that nobody answers, that are late, or that nobody waits for any more: each ends, and says what is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from atta import _native
from atta.daemon.peers.links import LinkSteps
from atta.daemon.peers.watching import ENOUGH, LEAST_S, SHARE
from atta.wire.retries import ASK_AFTER_S
from tests.unit.native.links.ends import PATIENCE_S, Owner, pairs, pull
from tests.unit.native.links.frames import PULLED, Frame

OWNER = Owner(rows=1000, hub=5)
ROWS = np.random.default_rng(3).integers(0, 1000, 2000)
MUTE = 2
"""The number of an owner that takes requests and never answers."""


class Asking:
    """A daemon with a link to ``OWNER``, number 1, and one to a peer that never answers."""

    def __init__(self, deadline_s: float) -> None:
        self.links, self.looked = _native.Links(1), list[list[int]]()
        OWNER.link_to(self.links)
        near, self.mute = pairs("unix")
        self.links.attach(MUTE, near.detach())
        self.steps = LinkSteps(self.links, deadline_s, self._look)

    async def _look(self, silent: list[int]) -> None:
        self.looked.append(silent)

    def pull(self, owner: int) -> tuple[_native.Step, np.ndarray]:
        """A step that pulls ``ROWS`` of an owner, and where they go."""
        step, out = self.links.step(), np.full((len(ROWS), 25), -1.0, np.float32)
        pull(step, ROWS, [out], [owner])
        return step, out

    async def ask(self, owner: int) -> tuple[_native.Step, np.ndarray]:
        """The same, once it has ended."""
        step, out = self.pull(owner)
        await self.steps.run(step, "pull", 0)
        return step, out

    async def check_answered(self) -> None:
        """The other owner still answers all rows, and answers them right."""
        step, out = await self.ask(1)
        assert step.left() == []
        np.testing.assert_array_equal(out, OWNER.tables[0][0][ROWS])


@asynccontextmanager
async def asking(deadline_s: float) -> AsyncIterator[Asking]:
    me = Asking(deadline_s)
    me.steps.open()
    try:
        yield me
    finally:
        me.steps.close()
        me.links.close()
        me.mute.close()


def check_nothing_came(step: _native.Step, out: np.ndarray, why: str) -> None:
    """All rows are left, for this reason, and none was refused by the owner."""
    assert step.done
    assert step.left() == [(0, MUTE, 0, len(ROWS), False, why)]
    assert (out == -1).all()


async def test_steps_of_one_turn_are_all_answered_and_a_mute_owner_keeps_none_waiting() -> None:
    async with asking(PATIENCE_S) as me:
        await asyncio.gather(*(me.check_answered() for _ in range(20)))
    async with asking(PATIENCE_S) as me:
        stuck = asyncio.ensure_future(me.ask(MUTE))
        await me.check_answered()
        assert not stuck.done()
        stuck.cancel()


async def test_a_step_ends_at_its_deadline() -> None:
    async with asking(0.2) as me:
        began = asyncio.get_running_loop().time()
        check_nothing_came(*await me.ask(MUTE), "no answer within the deadline")
        assert asyncio.get_running_loop().time() - began >= 0.2
        await me.check_answered()


async def test_a_step_of_which_nobody_waits_is_given_up() -> None:
    async with asking(PATIENCE_S) as me:
        step, out = me.pull(MUTE)
        waiting = asyncio.ensure_future(me.steps.run(step, "pull", 0))
        await asyncio.sleep(0.02)
        assert not step.done
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        check_nothing_came(step, out, "nobody waits for it")
        await me.check_answered()


async def test_late_steps_are_given_up_before_their_deadline_but_few_of_them() -> None:
    async with asking(PATIENCE_S) as me:
        for _ in range(ENOUGH):
            me.steps.hedges.answered("pull", 0.0)
        assert me.steps.hedges.patience("pull") == LEAST_S
        check_nothing_came(*await me.ask(MUTE), "late")
        stuck = asyncio.ensure_future(me.ask(MUTE))
        await asyncio.sleep(3 * LEAST_S)
        assert not stuck.done()  # one in 1 / SHARE requests may be repeated
        assert me.steps.hedges.sent == 1
        for _ in range(int(1 / SHARE)):
            await me.check_answered()
        check_nothing_came(*await stuck, "late")
        stuck.cancel()


async def test_peers_are_asked_whether_they_are_there_while_a_step_takes_long() -> None:
    async with asking(1.5 * ASK_AFTER_S) as me:
        await me.check_answered()
        assert me.looked == []
        await me.ask(MUTE)
        assert me.looked == [[MUTE]]


async def test_an_owner_that_still_sends_is_not_silent() -> None:
    """It owes an answer for long, but something comes all the time: here a little of a piece, again and again."""
    async with asking(2.5 * ASK_AFTER_S) as me:
        long = asyncio.ensure_future(me.ask(MUTE))
        await asyncio.sleep(0)  # it is asked
        answer = Frame(PULLED, np.zeros(len(ROWS) * 100, np.uint8).tobytes(), request=1, rows=len(ROWS)).encoded()
        for at in range(0, 4000, 100):
            me.mute.sendall(answer[at : at + 100])
            await asyncio.sleep(2 * ASK_AFTER_S / 40)
            assert me.links.silent(ASK_AFTER_S) == []
        assert me.looked == []
        assert me.links.silent(0.0) == [MUTE]
        await long
        assert me.links.silent(0.0) == []  # it was given up, so nothing is owed


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR])
async def test_a_step_ends_when_its_link_ends_at_the_other_side(how: int) -> None:
    async with asking(PATIENCE_S) as me:
        step, out = me.pull(MUTE)
        waiting = asyncio.ensure_future(me.steps.run(step, "pull", 0))
        await asyncio.sleep(0.02)
        me.mute.shutdown(how)
        await waiting
        ((item, owner, first, rows, refused, why),) = step.left()
        assert (item, owner, first, rows, refused) == (0, MUTE, 0, len(ROWS), False)
        assert why
        assert (out == -1).all()
        await me.check_answered()
