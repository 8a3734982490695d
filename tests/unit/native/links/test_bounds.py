"""Memory has bounds when an end does not read, and what is urgent comes first."""

from __future__ import annotations

import socket
import time

import numpy as np

from atta import _native
from tests.unit.native.links.ends import Owner, ask, done, eventually, pairs, pull, sample, unanswered
from tests.unit.native.links.frames import PULL, PULLED, SAMPLE, SAMPLED, Frame, receive


def served(owner: Owner) -> socket.socket:
    """The asking end of a new link, without anybody behind it."""
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
                assert frame is not None
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
            assert frame is not None
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
            assert frame is not None
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
