"""Frames written and read in Python, from their description in ``frames.hpp`` alone."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, replace

from tests.unit.native.links.ends import PATIENCE_S

SAMPLE, PULL, SAMPLED, PULLED, REFUSED = 1, 2, 17, 18, 19
HEADER = struct.Struct("<IBBHQQIIiIQQII")
MASK, GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


def mixed(x: int) -> int:
    x = (x + GOLDEN) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class Frame:
    kind: int
    arrays: bytes = b""
    flags: int = 0
    item: int = 0
    request: int = 1
    key: int = 0
    rows: int = 1
    first_row: int = 0
    fan_out: int = 0
    method: int = 0
    edges: int = 0
    age_ms: int = 0
    magic: int = 0x46545441
    nbytes: int | None = None

    def encoded(self) -> bytes:
        size = len(self.arrays) if self.nbytes is None else self.nbytes
        fields = (self.magic, self.kind, self.flags, self.item, self.request, self.key, self.rows, self.first_row)
        fields += (self.fan_out, self.method, self.edges, size, self.age_ms)
        words = struct.unpack("<8Q", HEADER.pack(*fields, 0))
        check = 0
        for word in words:
            check = mixed(check ^ word)
        return HEADER.pack(*fields, check & 0xFFFFFFFF) + self.arrays + b"\0" * (-len(self.arrays) % 8)


def receive(sock: socket.socket) -> Frame | None:
    head = _exactly(sock, HEADER.size)
    if head is None:
        return None
    magic, kind, flags, item, request, key, rows, first, fan_out, method, edges, size, age_ms, _ = HEADER.unpack(head)
    arrays = _exactly(sock, (size + 7) // 8 * 8)
    if arrays is None:
        return None
    frame = Frame(kind, arrays[:size], flags, item, request, key, rows, first, fan_out, method, edges, age_ms, magic)
    assert frame.encoded()[:64] == head
    return replace(frame, nbytes=None)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    until, found = time.monotonic() + PATIENCE_S, bytearray()
    while len(found) < size:
        assert time.monotonic() < until, "no frame comes"
        try:
            more = sock.recv(size - len(found))
        except BlockingIOError:
            time.sleep(0.001)
            continue
        except ConnectionError:
            return None
        if not more:
            return None
        found += more
    return bytes(found)
