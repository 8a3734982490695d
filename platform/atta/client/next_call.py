"""A request for a batch that is under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["NextCall"]


class NextCall(Iterator[Any]):
    """A request for a batch, and the messages of its answer, which the thread that reads them receives itself.

    gRPC keeps such a call, and with it a connection, until it has been read to its end. But the end of an answer comes
    a little after its last message, and a trainer had better not wait for it. So the next call ends this one.
    """

    def __init__(self, call: Any, before: NextCall | None = None) -> None:
        """``before``: the call to end when this one is read."""
        self._call, self._before = call, before
        self._receives = threading.Lock()  # two threads would take each other's messages

    def __next__(self) -> Any:
        """The next message; raises ``grpc.RpcError``."""
        with self._receives:
            self._end_before()
            return next(self._call)

    def cancel(self) -> None:
        """Have the thread that reads the answer stop waiting for it."""
        self._call.cancel()

    def end(self) -> None:
        """Give up what has not been read. It waits for no daemon, and repeating it does nothing."""
        self._call.cancel()
        with self._receives:
            self._end_before()
            _read_out(self._call)

    def _end_before(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before.end()


def _read_out(call: Any) -> None:
    """Receive what gRPC's core still has to say of a cancelled call: at once, as nothing else can come any more.

    gRPC's own ``next`` raises after a cancel and leaves it there. That keeps the connection, even of a closed channel.
    """
    receive = getattr(call, "_consume_next_event", None)  # a call that gRPC's thread receives has none, and needs none
    while receive is not None and call._state.due:
        receive()
