"""The hand-packed messages are ordinary protobuf: the protobuf runtime is the oracle in both directions."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from atta.protos.v1 import graph_pb2, kv_pb2
from atta.wire import bulk as wire

FIELDS = frozenset({3, 4, 5})


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.binary(max_size=300),
)
def test_packed_equals_protobuf(etype: int, first: int, wide: bool, a: bytes, b: bytes, c: bytes) -> None:
    head = graph_pb2.SampleChunk(edge_type=etype, first_row=first, wide_neighbors=wide)
    full = graph_pb2.SampleChunk(
        edge_type=etype, first_row=first, wide_neighbors=wide, counts=a, neighbors=b, edge_ids=c
    )
    packed = wire.pack(head, {3: a, 4: b, 5: c})
    assert graph_pb2.SampleChunk.FromString(packed) == full
    for raw in (packed, full.SerializeToString()):
        message, payloads = wire.unpack(graph_pb2.SampleChunk, raw, FIELDS)
        assert message == head
        assert [bytes(payloads.get(n, b"")) for n in (3, 4, 5)] == [a, b, c]


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_parsed_but_never_crashes(raw: bytes) -> None:
    try:
        message, payloads = wire.unpack(kv_pb2.PullChunk, raw, frozenset({4}))
    except (ValueError, DecodeError):
        return
    assert isinstance(message, kv_pb2.PullChunk)
    assert all(len(view) <= len(raw) for view in payloads.values())


def test_truncated_payload_is_refused() -> None:
    raw = wire.pack(kv_pb2.PullChunk(pull=1), {4: b"x" * 100})
    with pytest.raises(ValueError, match="passes its end"):
        wire.unpack(kv_pb2.PullChunk, raw[:-1], frozenset({4}))
