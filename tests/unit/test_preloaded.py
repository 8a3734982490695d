"""The process that starts trainers for tests."""

from __future__ import annotations

import socket

from tests.preloaded.parent import start


def test_a_caller_that_is_killed_before_it_asks_starts_nothing() -> None:
    caller, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other_end.close()
    assert start(caller, ()) is None
    assert caller.fileno() == -1
