"""Requests for batches: each answer is read to its end, and only what nobody wants any more is cancelled."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from atta.client.next_call import NextCall
from atta.client.sessions.keeper import SessionState


class Cancelled(grpc.RpcError):
    pass


class Call:
    """What gRPC returns: messages, and an end that comes after them. It notes in ``said`` what is done with it."""

    def __init__(self, name: str, messages: int, said: list[str]) -> None:
        self.name, self.said, self.cancelled = name, said, False
        self._left = messages

    def __iter__(self) -> Call:
        return self

    def __next__(self) -> str:
        if self.cancelled:
            raise Cancelled
        if not self._left:
            self.said.append(f"{self.name} ends")
            raise StopIteration
        self._left -= 1
        return self.name

    def cancel(self) -> None:
        self.cancelled = True
        self.said.append(f"cancel {self.name}")


class Daemon:
    """A connection that only closes sessions."""

    address = "daemon:1"

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def call(self, name: str, _request: Any, **_: Any) -> None:
        self.said.append(name)


def test_a_call_is_read_to_its_end_before_the_next_one() -> None:
    said: list[str] = []
    first = NextCall(Call("first", 1, said))
    assert next(first) == "first"
    second = NextCall(Call("second", 1, said), first)
    assert said == []
    assert next(second) == "second"
    assert said == ["first ends"]


def test_a_call_that_failed_does_not_hold_up_the_next_one() -> None:
    said: list[str] = []
    lost = NextCall(Call("lost", 1, said))
    lost.cancel()
    with pytest.raises(Cancelled):
        next(lost)
    assert next(NextCall(Call("again", 1, said), lost)) == "again"


def test_whoever_waits_for_the_end_of_the_call_before_is_freed_by_a_cancel() -> None:
    said: list[str] = []
    first = NextCall(Call("first", 1, said))
    second = NextCall(Call("second", 1, said), first)
    second.cancel()
    assert said == ["cancel first", "cancel second"]
    with pytest.raises(Cancelled):
        next(second)


@pytest.mark.parametrize("answered", [True, False])
def test_a_session_with_an_answered_call_is_closed_before_the_call(answered: bool) -> None:
    said: list[str] = []
    state = SessionState(Daemon(said), None, "s")  # type: ignore[arg-type]
    call = NextCall(Call("batch", 1, said))
    call.answered = answered
    state.asks(call)
    state.close()
    state.close()
    expected = ["SessionService.Close", "cancel batch"]
    assert said == expected if answered else ["cancel batch", *expected]
