"""A link that ends or damages bytes, at any place: each step ends, and what it says was answered is right."""

from __future__ import annotations

import gc
import os
import socket
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native
from tests.unit.native.links.ends import (
    Owner,
    Relay,
    ask,
    done,
    eventually,
    linked,
    pairs,
    pull,
    sample,
    sampled,
    unanswered,
)
from tests.unit.native.links.frames import PULL, PULLED, REFUSED, SAMPLED, Frame, receive

TLS = pytest.mark.skipif(not _native.link_tls, reason="built without OpenSSL")
OWNER = Owner(rows=1000, hub=5)
ROWS = np.random.default_rng(0).integers(0, 1000, 30_000)
"""Rows of each request: several answers."""
MOST_UNDER_WAY = (128 << 10) // 108
"""Rows of one answer. They are written as they come, and count when all of them have come."""


class Asked:
    """A step with a sample and a pull of ``ROWS``, whose outputs hold sentinels."""

    def __init__(self, me: _native.Links) -> None:
        self.me, self.step = me, me.step()
        self.floats, self.numbers = np.full((len(ROWS), 25), -1.0, np.float32), np.full(len(ROWS), -1)
        sample(self.step, ROWS, most_edges=5)
        pull(self.step, ROWS, [self.floats, self.numbers], tables=3)
        ask(me, self.step)

    def check(self, *, exact: bool = True) -> int:
        """Wait and check. Returns how many rows were answered. ``exact``: no array was damaged."""
        done(self.me, self.step)
        rows = [len(ROWS), len(ROWS)]
        for item, owner, first, count, _, why in self.step.left():
            assert owner == 1
            assert first + count == len(ROWS)
            assert why
            rows[item] = first
        answers = self.step.answers(0)
        assert len(answers) == (1 if rows[0] else 0)
        for first, counts, neighbors, edge_ids in answers:
            assert (first, len(counts)) == (0, rows[0])
            assert counts.sum() == len(neighbors) == len(edge_ids)
            assert counts.min() >= 0
            if exact:
                expected = OWNER.edges[0].expected(ROWS[: rows[0]], fan_out=5, replace=False, stream_key=9)
                for got, want in zip((counts, neighbors, edge_ids), expected, strict=True):
                    np.testing.assert_array_equal(got, want)
        for out, table in ((self.floats, OWNER.tables[0][0]), (self.numbers, OWNER.tables[0][1])):
            if exact:
                np.testing.assert_array_equal(out[: rows[1]], table[ROWS[: rows[1]]])
            assert (out[rows[1] + MOST_UNDER_WAY :] == -1).all()
        return sum(rows)


def sizes() -> tuple[int, int]:
    me = _native.Links(1)
    with Relay(OWNER, me) as relay:
        assert Asked(me).check() == 2 * len(ROWS)
        return relay.carried[False], relay.carried[True]


REQUESTS, ANSWERS = sizes()


def ends(total: int) -> list[int]:
    return [0, 1, 63, 64, 65, 72, *range(4096, total, total // 9), total - 1]


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=TLS)])
@pytest.mark.parametrize("back", [False, True])
def test_a_link_that_ends_anywhere_keeps_what_was_answered(back: bool, tls: bool) -> None:
    for end in ends((REQUESTS, ANSWERS)[back])[:: 2 if tls else 1]:
        me = _native.Links(1)
        with Relay(OWNER, me, back=back, end=end, tls=tls):
            asked = Asked(me)
            assert asked.check() < 2 * len(ROWS)
        assert not any(refused for *_, refused, _ in asked.step.left())
        assert me.attached(1) == 0


@TLS
@settings(max_examples=40)
@given(st.booleans(), st.data())
def test_a_damaged_byte_of_an_encrypted_link_is_always_noticed(back: bool, data: st.DataObject) -> None:
    me = _native.Links(1)
    flip = data.draw(st.integers(0, (REQUESTS, ANSWERS)[back] - 1))
    with Relay(OWNER, me, back=back, flip=flip, tls=True):
        assert Asked(me).check(exact=True) < 2 * len(ROWS)


@settings(max_examples=60)
@given(st.booleans(), st.data())
def test_a_damaged_byte_never_breaks_a_structure(back: bool, data: st.DataObject) -> None:
    me = _native.Links(1)
    flip = data.draw(st.one_of(st.integers(0, 71), st.integers(0, (REQUESTS, ANSWERS)[back] - 1)))
    with Relay(OWNER, me, back=back, flip=flip):
        asked = Asked(me)
        # The header of the first frame has a check. What is in arrays can be another valid value.
        answered = asked.check(exact=flip < 64)
    malformed = me.stats()["links_malformed"]
    if flip < 64:
        assert answered < 2 * len(ROWS)
        assert malformed == (1 if back else 0)
    if not back:
        assert malformed == 0
    elif not malformed:
        assert answered == 2 * len(ROWS)
    del asked, me


@pytest.mark.parametrize("how", [socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("before", [True, False])
def test_half_closed_links(how: int, kind: str, before: bool) -> None:
    near, far = pairs(kind)
    with far:
        me = _native.Links(1)
        me.attach(1, near.detach())
        if before:
            far.shutdown(how)
        asked = Asked(me)
        if not before:
            assert receive(far) is not None
            far.shutdown(how)
        if how == socket.SHUT_RD:  # nothing tells an end that has nothing to send; deadlines do
            asked.step.give_up("late")
        assert asked.check() == 0


def test_an_owner_forgets_a_peer_that_sends_no_more() -> None:
    owner, (near, far) = Owner(), pairs("unix")
    owner.links.serve(far.detach())
    with near:
        near.shutdown(socket.SHUT_WR)
        assert receive(near) is None
    assert owner.links.stats()["links_malformed"] == 0


def wrong_answers() -> dict[str, Frame]:
    one = np.ones(1, np.int32).tobytes()
    rows = np.zeros(25, np.float32).tobytes()
    return {
        "a count below 0": Frame(SAMPLED, np.array([-1], np.int32).tobytes(), edges=0),
        "too many edges of a row": Frame(SAMPLED, np.array([6], np.int32).tobytes() + bytes(48), edges=6),
        "another sum": Frame(SAMPLED, one + bytes(16), edges=2),
        "lengths that contradict each other": Frame(SAMPLED, one + bytes(5), edges=1),
        "an impossible number of edges": Frame(SAMPLED, one, edges=1 << 40, nbytes=4 + (8 << 40)),
        "more rows than were asked": Frame(SAMPLED, bytes(4 * 40_000), rows=40_000),
        "no rows": Frame(SAMPLED, b"", rows=0),
        "later rows first": Frame(SAMPLED, one + bytes(8), first_row=1, edges=1),
        "rows for a sample": Frame(PULLED, rows),
        "edges for a pull": Frame(SAMPLED, one + bytes(8), request=2, edges=1),
        "rows of another size": Frame(PULLED, rows, request=2),
        "rows that would take all memory": Frame(PULLED, b"", request=2, rows=1, nbytes=1 << 50),
        "lengths that overflow": Frame(PULLED, b"", request=2, rows=1, nbytes=(1 << 64) - 1),
        "a long reason": Frame(REFUSED, b"x" * 513),
        "a request": Frame(1, bytes(4)),
        "no kind": Frame(200),
        "no frame": Frame(SAMPLED, one, magic=1),
    }


@pytest.mark.parametrize("name", wrong_answers())
def test_a_wrong_answer_ends_the_link(name: str) -> None:
    with unanswered() as (me, far):
        asked = Asked(me)
        assert receive(far) is not None
        far.sendall(wrong_answers()[name].encoded())
        assert asked.check() == 0
        assert {left[4] for left in asked.step.left()} == {False}
        stats = me.stats()
        assert (stats["links_malformed"], stats["links_broken"], me.attached(1)) == (1, 1, 0)


def test_a_wrong_answer_takes_nothing_from_the_right_one_before_it() -> None:
    with unanswered() as (me, far):
        step, count = me.step(), np.array([2], np.int32).tobytes()
        sample(step, np.arange(3))
        ask(me, step)
        good = count + np.array([11, 12], np.int32).tobytes() + np.array([13, 14], np.int32).tobytes()
        bad = np.array([9], np.int32).tobytes()
        far.sendall(Frame(SAMPLED, good, edges=2).encoded() + Frame(SAMPLED, bad, first_row=1).encoded())
        done(me, step)
        ((first, *found),) = step.answers(0)
        assert first == 0
        assert [array.tolist() for array in found] == [[2], [11, 12], [13, 14]]
        assert [left[2:5] for left in step.left()] == [(1, 2, False)]


def test_a_reason_that_is_no_text_is_shown_all_the_same() -> None:
    with unanswered() as (me, far):
        step = me.step()
        sample(step, np.arange(1))
        ask(me, step)
        far.sendall(Frame(REFUSED, b"no\xff\x00way").encoded())
        done(me, step)
        assert step.left() == [(0, 1, 0, 1, True, "no??way")]


WEIGHTS_WITHOUT_SUMS = Frame(PULL, bytes(4), flags=128, key=1).encoded()


@pytest.mark.parametrize(
    "arrays", [b"\xff" * 4000, bytes(4000), np.random.default_rng(7).bytes(4000), WEIGHTS_WITHOUT_SUMS]
)
def test_garbage_ends_one_link_of_an_owner(arrays: bytes) -> None:
    (owner, me), (near, far) = linked(), pairs("unix")
    owner.links.serve(far.detach())
    with near:
        near.sendall(arrays)
        assert receive(near) is None
    assert owner.links.stats()["links_malformed"] == 1
    assert me.attached(1) == 1
    sampled(me, np.arange(3))


def test_nothing_is_written_after_a_step_was_given_up() -> None:
    owner, me = linked()
    rows = np.random.default_rng(1).integers(0, owner.rows, 200_000)
    partly = 0
    for turn in range(30):
        out, step = np.full((len(rows), 25), -1.0, np.float32), me.step()
        pull(step, rows, [out])
        ask(me, step)
        time.sleep(turn * 0.001)
        step.give_up("late")
        held = out.copy()
        assert step.done
        if left := step.left():
            ((_, _, first, _, _, why),) = left
            assert why == "late"
            assert (held[first + MOST_UNDER_WAY :] == -1).all()
            np.testing.assert_array_equal(held[:first], owner.tables[0][0][rows[:first]])
            partly += 1
            time.sleep(0.01)
        np.testing.assert_array_equal(out, held)
        assert step.number in me.finished()
    assert partly
    assert me.attached(1) == 1


def test_a_step_that_nobody_holds_any_more_is_given_up() -> None:
    _owner, me = linked()
    rows = np.zeros(100_000, np.int64)
    for _ in range(20):
        step = me.step()
        pull(step, rows, [np.zeros((len(rows), 25), np.float32)])
        ask(me, step)
        del step
        gc.collect()
    sampled(me, rows)


@pytest.mark.parametrize("how", ["detach", "close", "the owner closes", "nobody holds them"])
def test_links_that_are_closed_under_way(how: str) -> None:
    owner, me = Owner(threads=2), _native.Links(2)
    for _ in range(3):
        owner.link_to(me)
    steps, outs = [], []
    for _ in range(6):
        outs.append(np.full((200_000, 25), -1.0, np.float32))
        steps.append(me.step())
        pull(steps[-1], np.zeros(200_000, np.int64), [outs[-1]])
        ask(me, steps[-1])
    if how == "detach":
        me.detach(1)
    elif how == "close":
        me.close()
    elif how == "the owner closes":
        owner.links.close()
    else:
        del me
        gc.collect()
    eventually(lambda: all(step.done for step in steps))
    for step, out in zip(steps, outs, strict=True):
        first = step.left()[0][2] if step.left() else len(out)
        assert (out[:first] == owner.tables[0][0][0]).all()
        assert (out[first + MOST_UNDER_WAY :] == -1).all()


def test_links_that_are_closed_or_no_sockets_lose_all_at_once() -> None:
    me, (near, far) = _native.Links(1), pairs("unix")
    me.close()
    me.close()
    me.attach(1, near.detach())
    me.serve(far.detach())
    asked = Asked(me)
    assert asked.check() == 0
    assert me.attached(1) == 0
    me = _native.Links(1)
    with open("/dev/null", "rb") as file:
        me.attach(1, os.dup(file.fileno()))
    assert Asked(me).check() == 0
