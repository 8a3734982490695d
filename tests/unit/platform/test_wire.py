"""The hand-packed messages are ordinary protobuf: the protobuf runtime is the oracle in both directions."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, RemoteError
from atta.protos.v1 import graph_pb2, kv_pb2, table_pb2
from atta.wire import bulk, rpc
from atta.wire.bulk import PULL_DATA, PULL_REPLY, SAMPLE_COUNTS, SAMPLE_EDGE_IDS, SAMPLE_NEIGHBORS, SAMPLE_REPLY

ROOT = Path(__file__).parents[3]


@given(st.booleans(), st.booleans(), st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_packed_equals_protobuf(wide: bool, wide_ids: bool, a: bytes, b: bytes, c: bytes) -> None:
    head = graph_pb2.SampleReply(wide_neighbors=wide, wide_edge_ids=wide_ids)
    full = graph_pb2.SampleReply(wide_neighbors=wide, wide_edge_ids=wide_ids, counts=a, neighbors=b, edge_ids=c)
    packed = bulk.pack(head, {SAMPLE_COUNTS: a, SAMPLE_NEIGHBORS: b, SAMPLE_EDGE_IDS: c})
    assert graph_pb2.SampleReply.FromString(packed) == full
    for raw in (packed, full.SerializeToString()):
        message, payloads = bulk.unpack(graph_pb2.SampleReply, raw, SAMPLE_REPLY)
        assert message == head
        assert [bytes(payloads.get(n, b"")) for n in (SAMPLE_COUNTS, SAMPLE_NEIGHBORS, SAMPLE_EDGE_IDS)] == [a, b, c]


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_parsed_but_never_crashes(raw: bytes) -> None:
    try:
        message, payloads = bulk.unpack(kv_pb2.PullReply, raw, PULL_REPLY)
    except (ValueError, DecodeError):
        return
    assert isinstance(message, kv_pb2.PullReply)
    assert all(len(view) <= len(raw) for view in payloads.values())


def test_truncated_payload_is_refused() -> None:
    raw = bulk.pack(kv_pb2.PullReply(), {PULL_DATA: b"x" * 100})
    with pytest.raises(ValueError, match="passes its end"):
        bulk.unpack(kv_pb2.PullReply, raw[:-1], PULL_REPLY)


def test_fields_are_known_by_the_names_of_the_descriptors() -> None:
    for kind, numbers in ((graph_pb2.SampleReply, SAMPLE_REPLY), (kv_pb2.PullReply, PULL_REPLY)):
        names = [kind.DESCRIPTOR.fields_by_number[number].name for number in numbers]
        assert bulk.bytes_fields(kind, *names) == numbers
    assert kv_pb2.PullReply.DESCRIPTOR.fields_by_number[PULL_DATA].name == "data"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kv_pb2.PullReply, "dat"),  # renamed
        (kv_pb2.PullReply, "rows"),  # a number
        (table_pb2.SnapshotsReply, "ids"),  # text, and more than one
    ],
)
def test_a_field_that_the_message_lacks_is_an_error_at_once(kind: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"atta.v1.{kind.DESCRIPTOR.name} has no bytes field '{name}'"):
        bulk.bytes_fields(kind, name)


def test_a_renamed_field_is_an_error_of_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed:
        DESCRIPTOR = table_pb2.RegisterReply.DESCRIPTOR  # without a field "data"

    monkeypatch.setattr(kv_pb2, "PullReply", Renamed)
    spec = importlib.util.find_spec("atta.wire.bulk")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ValueError, match="has no bytes field 'data'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_payloads_of_the_method_table_belong_to_its_messages() -> None:
    for name, method in rpc.METHODS.items():
        for kind, numbers in ((method.reply, method.payload), (method.request, method.request_payload)):
            known = kind.DESCRIPTOR.fields_by_number
            assert all(known[number].type == known[number].TYPE_BYTES for number in numbers), name


def test_no_other_module_knows_numbers_of_fields() -> None:
    """Neither ``payloads[4]`` nor ``Bulk(message, {4: ...})``: fields have names."""
    raw = re.compile(r"payloads(\.get\(|\[)\d|Bulk\(.*\{\d+:|prefix\([^()]*(\([^()]*\))?[^()]*, \d+,")
    folders = [ROOT / name for name in ("platform", "samplers", "bench")]
    guilty = [str(path) for folder in folders for path in folder.rglob("*.py") if raw.search(path.read_text())]
    assert guilty == []


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), KeyError("x"), IndexError(), TypeError(), OverflowError(), MemoryError(), RecursionError()],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_the_peer(error: Exception) -> None:
    with pytest.raises(RemoteError, match="a:1: sends an answer that cannot be read"), rpc.understanding("a:1"):
        raise error
    with pytest.raises(ConfigError, match="mine"), rpc.understanding("a:1"):
        raise ConfigError("mine")
    with pytest.raises(RemoteError, match="a:1: ends a call without an answer that can be read"):
        rpc.answered("a:1", None)
    assert rpc.answered("a:1", error) is error
