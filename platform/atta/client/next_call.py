"""A request for a batch that is under way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc

__all__ = ["NextCall", "read_out"]


class NextCall(Iterator[Any]):
    """A request for a batch, and the messages of its answer, which the thread that reads them receives itself.

    gRPC keeps such a call, and with it a connection, until it has been read to its end. But the end of an answer comes
    a little after its last message, and a trainer had better not wait for it. So the next call reads this one to its
    end first. Only who wants no more batches ``ends`` a call.

    Attributes:
        answered: whether the batch has been read, so that nothing but the end of the answer is left.
    """

    def __init__(self, call: Any, before: NextCall | None = None) -> None:
        """``before``: the call that this one follows."""
        self.answered = False
        self._call, self._before = call, before
        self._receives = threading.Lock()  # two threads would take each other's messages

    def __next__(self) -> Any:
        """The next message; raises ``grpc.RpcError``."""
        with self._receives:
            if self._before is not None:
                self._before._finish()
                self._before = None
            return next(self._call)

    def cancel(self) -> None:
        """Have the thread that reads the answer stop waiting for it."""
        if (before := self._before) is not None:
            before.cancel()
        self._call.cancel()

    def end(self) -> None:
        """Give up what has not been read. It waits for no daemon, and repeating it does nothing."""
        self.cancel()
        with self._receives:
            if self._before is not None:
                self._before.end()
                self._before = None
            read_out(self._call)

    def _finish(self) -> None:
        """Read to the end, which has come by now unless the daemon is gone: then nothing else comes from it, either."""
        with self._receives, contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass
        read_out(self._call)


def read_out(call: Any) -> None:
    """Receive what gRPC's core still has to say of a call that is over: at once, as nothing else can come any more.

    gRPC's own ``next`` raises after a cancel and leaves it there. That keeps the connection, even of a closed channel.
    """
    receive = getattr(call, "_consume_next_event", None)  # a call that gRPC's thread receives has none, and needs none
    while receive is not None and call._state.due:
        receive()
