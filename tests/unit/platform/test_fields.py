"""The fields of a message are counted as they lie on the wire, without parsing it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import QuotaExceededError
from atta.protos.v1 import control_pb2, graph_pb2, session_pb2, table_pb2
from atta.wire import rpc
from atta.wire.bulk import ARRAYS_BYTES, MAX_FIELDS, PLAIN_BYTES, check_fields, count_fields

KINDS = sorted({m.request for m in rpc.METHODS.values()} | {m.reply for m in rpc.METHODS.values()}, key=str)
MANY = 1 << 30


def fill(message: Any, rng: random.Random, depth: int = 0) -> None:
    """Set fields of a message at random."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        entry = field.message_type is not None and field.message_type.GetOptions().map_entry
        if entry:
            getattr(message, field.name)["key"] = 3
        elif field.is_repeated:
            for _ in range(rng.randrange(4)):
                if field.message_type is not None:
                    fill(getattr(message, field.name).add(), rng, depth + 1)
                else:
                    getattr(message, field.name).append(value_of(field, rng))
        elif field.message_type is not None:
            fill(getattr(message, field.name), rng, depth + 1)
        else:
            setattr(message, field.name, value_of(field, rng))


def value_of(field: FieldDescriptor, rng: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = "x" * rng.randrange(300)
            return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.random()
        case FieldDescriptor.CPPTYPE_ENUM:
            return 1
    return rng.choice([1, 127, 128, (1 << 31) - 1])


def parsed_fields(message: Message) -> int:
    """The same count from the parsed message: the elements of a packed field, and the field itself."""
    count = 0
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            count += 3 * len(values)  # an entry, its key and its value
        elif field.message_type is not None:
            count += sum(1 + parsed_fields(one) for one in values)
        elif field.is_repeated and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            count += 1 + len(values)
        else:
            count += len(values)
    return count


@given(st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_fields_are_those_of_the_parsed_message(kind: type[Message], rng: random.Random) -> None:
    message = kind()
    fill(message, rng)
    assert count_fields(kind, message.SerializeToString(), MANY) == parsed_fields(message)


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_are_counted_or_refused(kind: type[Message], raw: bytes) -> None:
    try:
        kind.FromString(raw)
    except DecodeError:
        valid = False
    else:
        valid = True
    try:
        assert count_fields(kind, raw, MANY) <= len(raw)
    except QuotaExceededError:
        assert not valid  # the field says that it is long, and the message ends before
    except ValueError:
        # Groups, which no message of ours has, are valid to protobuf, and so are tags that it does not know.
        assert not valid or any(byte & 7 in (3, 4) for byte in raw)


TINY = 4 << 20


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("TableService.Push", b"\x98\x06\x01" * (TINY // 3)),  # of an unknown number
        ("TableService.Push", b"\x12\x00" * (TINY // 2)),
        ("SessionService.Open", b"\x12\x02\x12\x00" * (TINY // 4)),  # operators without anything
        ("SessionService.Open", b"\x12\x84\x80\x80\x02" + b"\x12\x00" * (TINY // 2 + 2)),  # the same in one DAG
        ("GraphService.Sample", b"\x52\x00" * (TINY // 2)),
        ("KvService.Pull", b"\x12\x00" * (TINY // 2)),
        ("SessionService.Next", b"\x1a\xa0\xd0\x07" + b"\x01" * 125_984),  # packed
        ("TableService.Forget", table_pb2.ForgetClientRequest(clients=range(MAX_FIELDS + 1)).SerializeToString()),
        ("SessionService.Renew", b"\x0a\x00" * 100_000),
        (
            "ControlService.Report",
            control_pb2.ReportRequest(rows=[control_pb2.JobInfo()] * 100_000).SerializeToString(),
        ),
    ],
)
def test_a_message_of_tiny_fields_is_refused(name: str, raw: bytes) -> None:
    method = rpc.METHODS[name]
    with pytest.raises(
        QuotaExceededError, match=rf"a {method.request.DESCRIPTOR.name} of {len(raw)} bytes has more than"
    ):
        method.decode_request(raw)


def test_arrays_may_be_large_and_other_requests_may_not() -> None:
    array = b"\0" * (PLAIN_BYTES + 8)
    sample = graph_pb2.SampleRequest(rows=array, trees=array, times=array)
    assert rpc.METHODS["GraphService.Sample"].decode_request(sample.SerializeToString()) == sample
    opening = session_pb2.OpenRequest(seeds=session_pb2.Seeds(ids=array))
    assert rpc.METHODS["SessionService.Open"].decode_request(opening.SerializeToString()) == opening
    for kind, most in ((table_pb2.CreateTableRequest, PLAIN_BYTES), (table_pb2.PullRowsRequest, ARRAYS_BYTES)):
        with pytest.raises(QuotaExceededError, match=f"at most {most} are possible"):
            check_fields(kind, b"\x0a" * (most + 1))
