"""Steps that nobody answers or waits for end; memory has bounds when an end does not read; what is urgent comes first."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from atta import _native
from atta.daemon.peers.links import LinkSteps
from atta.daemon.peers.watching import ENOUGH, LEAST_S, SHARE
from atta.wire.retries import ASK_AFTER_S
from tests.unit.native.links.ends import PATIENCE_S, Owner, ask, done, eventually, pairs, pull, sample, unanswered
from tests.unit.native.links.frames import PULL, PULLED, SAMPLE, SAMPLED, Frame, receive

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
        step, out = self.links.step(), np.full((len(ROWS), 25), -1.0, np.float32)
        pull(step, ROWS, [out], [owner])
        return step, out

    async def ask(self, owner: int) -> tuple[_native.Step, np.ndarray]:
        step, out = self.pull(owner)
        await self.steps.run(step, "pull", 0)
        return step, out

    async def check_answered(self) -> None:
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
    async with asking(6 * ASK_AFTER_S) as me:
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


def served(owner: Owner) -> socket.socket:
    near, far = pairs("unix")
    owner.links.serve(far.detach())
    return near


def test_a_peer_that_does_not_read_costs_an_owner_one_piece() -> None:
    owner = Owner()
    rows = np.zeros(100_000, np.int32)
    with served(owner) as near:
        near.setblocking(True)
        for number in range(8):
            near.sendall(Frame(PULL, rows.tobytes(), request=number + 1, key=1, rows=len(rows)).encoded())
        before = -1.0
        while (made := owner.links.stats()["link_sent_bytes"]) != before:  # until it makes no more
            before = made
            time.sleep(0.2)
        assert 0 < made < 4 << 20  # of 80 MB
        for number in range(8):
            first = 0
            while first < len(rows):
                frame = receive(near)
                assert (frame.kind, frame.request, frame.first_row) == (PULLED, number + 1, first)
                first += frame.rows


def test_an_owner_reads_no_more_requests_than_it_keeps_and_answers_all() -> None:
    owner, count = Owner(), 300_000
    many = b"".join(Frame(PULL, bytes(4), request=number + 1, key=2).encoded() for number in range(64))
    with served(owner) as near:
        near.setblocking(True)
        stuck = Frame(PULL, bytes(4 * 100_000), request=1, key=1, rows=100_000, age_ms=10**6).encoded()
        near.sendall(stuck)
        sent, near_sent = 0, memoryview(many)
        near.settimeout(1.0)
        rest = near_sent
        try:
            while sent < count:
                rest = rest[near.send(rest) :]
                if not rest:
                    rest, sent = near_sent, sent + 64
        except TimeoutError:
            pass
        assert 50_000 < sent < count, "the owner reads on and on"
        near.setblocking(False)
        answered = 0
        while answered < sent:
            frame = receive(near)
            answered += frame.rows == 1


def test_requests_that_an_owner_does_not_read_have_a_bound() -> None:
    with unanswered() as (me, _):
        rows, out = np.arange(1 << 20), np.zeros(1 << 20, np.uint8)  # 4 MB a request
        steps = []
        for _ in range(24):
            steps.append(me.step())
            pull(steps[-1], rows, [out])
            ask(me, steps[-1])
        assert [step.done for step in steps] == [False] * 17 + [True] * 7
        assert {step.left()[0][5] for step in steps[17:]} == {"there is no link that takes it"}
        for step in steps:
            step.give_up("late")
        assert all(step.done for step in steps)


def test_a_link_that_never_rests_keeps_no_bytes_that_it_has_sent() -> None:
    me, (near, far) = _native.Links(1), pairs("unix")
    rows, out = np.arange(1 << 20), np.zeros(1 << 20, np.uint8)
    with far:
        far.setblocking(True)
        me.attach(1, near.detach())
        for turn in range(60):  # 240 MB, and always some that was not sent
            step = me.step()
            pull(step, rows, [out])
            ask(me, step)
            if turn >= 10:
                left = (4 << 20) + 64
                while left:
                    left -= len(far.recv(left))
            step.give_up("late")
            assert step.left()[0][5] == "late"


def test_expansions_come_before_rows_and_old_batches_before_young_ones() -> None:
    owner = _native.Links(1)
    owner.add_edges(np.array([0, 2]), np.array([5, 6], np.int32), np.array([7, 8], np.int32), np.zeros(1, np.int64))
    owner.prepare(0, 0, None)
    owner.add_table(0, np.zeros((1, 100_000), np.uint8))
    near, far = pairs("unix")
    owner.serve(far.detach())
    rows = {"rows": 100, "key": 1, "arrays": bytes(400)}
    with near:
        near.sendall(
            Frame(PULL, request=1, age_ms=10, **rows).encoded()
            + Frame(PULL, request=2, age_ms=90_000, **rows).encoded()
            + Frame(SAMPLE, bytes(4), request=3, age_ms=0, fan_out=1).encoded()
            + Frame(PULL, request=4, age_ms=50_000, **rows).encoded()
            + Frame(SAMPLE, bytes(4), request=5, age_ms=70_000, fan_out=-1).encoded()
        )
        order: list[int] = []
        answered = dict.fromkeys(range(1, 6), 0)
        while any(answered[number] < (1 if number in (3, 5) else 100) for number in answered):
            frame = receive(near)
            assert frame.kind == (SAMPLED if frame.request in (3, 5) else PULLED)
            answered[frame.request] += frame.rows
            if frame.request not in order:
                order.append(frame.request)
    assert order == [5, 3, 2, 4, 1]
    assert answered == {1: 100, 2: 100, 3: 1, 4: 100, 5: 1}


def test_many_links_come_and_go() -> None:
    owner, me = Owner(threads=2), _native.Links(2)
    for turn in range(150):
        owner.link_to(me)
        step = me.step()
        sample(step, np.arange(5))
        ask(me, step)
        if turn % 3 == 0:
            me.detach(1)
            eventually(lambda step=step: step.done)
        else:
            done(me, step)
            assert step.left() == []
            me.detach(1)
    eventually(lambda: me.stats()["links_broken"] == 150)
