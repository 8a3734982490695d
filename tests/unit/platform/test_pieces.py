"""Requests in pieces: cut and put together again, and refused where the pieces do not make one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, QuotaExceededError
from atta.wire import pieces, rpc
from atta.wire.bulk import ARRAYS_BYTES
from atta.wire.pieces import LEAST_PIECE_BYTES, MESSAGE_BYTES, PIECE_BYTES, PiecedRequest, announced, pieces_of


def announcement(nbytes: int) -> bytes:
    return b"\x07" + nbytes.to_bytes(8, "little")


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Pieces of 8 bytes; 3 are enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", 8)
        patch.setattr(pieces, "LEAST_PIECE_BYTES", 3)
        yield


def put_together(messages: list[bytes]) -> bytes:
    nbytes = announced(messages[0])
    assert nbytes is not None
    request = PiecedRequest(nbytes)
    for piece in messages[1:]:
        assert request.missing_bytes
        request.add(piece)
    return bytes(request.whole())


@given(st.binary(min_size=1, max_size=100))
def test_a_request_comes_back_as_it_was_cut(raw: bytes) -> None:
    messages = list(pieces_of(raw))
    assert b"".join(messages[1:]) == raw
    assert {len(piece) for piece in messages[1:-1]} <= {8}
    assert put_together(messages) == raw


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 12), max_size=30))
def test_pieces_of_any_sizes(raw: bytes, sizes: list[int]) -> None:
    """Against a plain rule: each piece has at least 3 bytes or is the last, and no byte is too much."""
    request, at = PiecedRequest(len(raw)), 0
    for size in sizes:
        if at == len(raw):
            break
        left = len(raw) - at
        good = size == left or 3 <= size < left
        piece = raw[at : at + size].ljust(size, b"x")
        if not good:
            with pytest.raises(ConfigError, match=f"a piece of {size} bytes"):
                request.add(piece)
            break
        request.add(piece)
        at += size
        assert request.missing_bytes == len(raw) - at
    if at == len(raw):
        assert bytes(request.whole()) == raw


@given(st.lists(st.binary(min_size=8, max_size=8), min_size=2, max_size=6), st.data())
def test_lost_and_repeated_pieces(parts: list[bytes], data: st.DataObject) -> None:
    """A call loses and repeats none. A caller that does so sends another request, or one that has no end."""
    raw = b"".join(parts)
    messages, at = list(pieces_of(raw)), data.draw(st.integers(1, len(parts)))
    with pytest.raises(AssertionError, match="8 bytes of the request are missing"):
        put_together(messages[:at] + messages[at + 1 :])
    request = PiecedRequest(len(raw))
    for piece in messages[1:]:
        request.add(piece)
    with pytest.raises(ConfigError, match="where 0 of the request are missing"):
        request.add(messages[at])


@pytest.mark.parametrize(
    "message", [b"\x07", announcement(9) + b"x", announcement(9)[:-1], b"\x07" * 100, announcement(0)]
)
def test_announcements_that_make_no_sense(message: bytes) -> None:
    with pytest.raises(ConfigError, match="announce"):
        announced(message)


@pytest.mark.parametrize("nbytes", [ARRAYS_BYTES + 1, (1 << 64) - 1])
def test_announcements_of_too_much(nbytes: int) -> None:
    with pytest.raises(QuotaExceededError, match=f"a request of {nbytes} bytes is announced"):
        announced(announcement(nbytes))


@pytest.mark.parametrize("name", rpc.METHODS)
def test_no_message_looks_like_an_announcement(name: str) -> None:
    """So a daemon that knows none refuses it, and one that does takes no request for it."""
    method = rpc.METHODS[name]
    assert announced(method.request().SerializeToString()) is None
    assert min((field.number for field in method.request.DESCRIPTOR.fields), default=1) >= 1
    with pytest.raises(ConfigError, match="the request is not a"):
        method.decode_request(announcement(60 << 20))


def test_sizes_fit_each_other() -> None:
    assert LEAST_PIECE_BYTES <= PIECE_BYTES < MESSAGE_BYTES < ARRAYS_BYTES
    assert ARRAYS_BYTES // LEAST_PIECE_BYTES <= 64  # messages of one request
