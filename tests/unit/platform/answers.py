"""What services of the tests make their answers with."""

from __future__ import annotations

from atta.daemon.peers.peers import CHUNK_BYTES
from atta.daemon.services.data import AnswerMaker, TurnPool
from atta.daemon.services.rooms import AnswerRoom


def maker(threads: int = 1) -> AnswerMaker:
    """For dataset "d", on threads of its own."""
    return AnswerMaker("d", "here", TurnPool(threads, "test"), AnswerRoom(1 << 30, 3 * CHUNK_BYTES))
