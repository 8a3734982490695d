"""The socket over which a consumer asks a daemon on its machine for batches: what both ends agree on.

A consumer sends the token of its session, and then a ``NextRequest`` for each batch. The daemon answers each one with a
``BatchHeader``; the batch lies in shared memory. Each of these is one packet, so they need no frames. A daemon that has
anything else to say hangs up. Then the consumer asks again by ``SessionService.Next``, which has an answer for
everything.
"""

from __future__ import annotations

import socket
import struct

__all__ = ["HEADER_BYTES", "REQUEST_BYTES", "TOKEN_BYTES", "other_end", "packets"]

TOKEN_BYTES = 16
REQUEST_BYTES = 16 << 10
"""Largest request."""
HEADER_BYTES = 64 << 10
"""Largest answer."""
_CREDENTIALS = struct.Struct("3i")


def packets() -> socket.socket:
    """A Unix socket that keeps the limits of packets. It does not block."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def other_end(sock: socket.socket) -> tuple[int, int]:
    """The process id and the user id behind the other end, as the kernel has noted them."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)
