"""Messages, packed by hand and counted as they lie on the wire; requests in pieces; errors keep their type."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from atta import errors
from atta.errors import (
    AttaError,
    ConfigError,
    DataError,
    QuotaExceededError,
    RemoteError,
    UnavailableError,
    UnknownNameError,
)
from atta.observe import lastwords
from atta.protos.v1 import graph_pb2, kv_pb2, session_pb2, table_pb2
from atta.wire import bulk, pieces, rpc
from atta.wire.bulk import (
    ARRAYS_BYTES,
    MAX_FIELDS,
    PLAIN_BYTES,
    PULL_DATA,
    PULL_REPLY,
    SAMPLE_COUNTS,
    SAMPLE_EDGE_IDS,
    SAMPLE_NEIGHBORS,
    SAMPLE_REPLY,
    check_fields,
    count_fields,
)
from atta.wire.pieces import PiecedRequest, announced, pieces_of
from tests.unit.platform.table_owner import Refused

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
    spec: Any = importlib.util.find_spec("atta.wire.bulk")
    with pytest.raises(ValueError, match="has no bytes field 'data'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


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


KINDS = sorted({m.request for m in rpc.METHODS.values()} | {m.reply for m in rpc.METHODS.values()}, key=str)
MANY = 1 << 30


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def fill(message: Any, rng: random.Random) -> None:
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        value = getattr(message, field.name)
        if is_map(field):
            value["key"] = value_of(field.message_type.fields_by_name["value"], rng)
        elif field.is_repeated:
            for _ in range(rng.randrange(4)):
                if field.message_type is not None:
                    fill(value.add(), rng)
                else:
                    value.append(value_of(field, rng))
        elif field.message_type is not None:
            fill(value, rng)
        else:
            setattr(message, field.name, value_of(field, rng))


def value_of(field: FieldDescriptor, rng: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = "x" * rng.randrange(300)
            return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.random()
        case FieldDescriptor.CPPTYPE_BOOL | FieldDescriptor.CPPTYPE_ENUM:
            return 1
    return rng.choice([1, 127, 128, (1 << 31) - 1])


def parsed_fields(message: Message) -> int:
    """The same count from the parsed message: the elements of a packed field, and the field itself."""
    count = 0
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if is_map(field):
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
        ("ControlService.Report", b"\x12\x00" * 100_000),
    ],
)
def test_a_message_of_tiny_fields_is_refused(name: str, raw: bytes) -> None:
    method = rpc.METHODS[name]
    words = rf"a {method.request.DESCRIPTOR.name} of {len(raw)} bytes has more than"
    with pytest.raises(QuotaExceededError, match=words):
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


def announcement(nbytes: int) -> bytes:
    return b"\x07" + nbytes.to_bytes(8, "little")


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        *((bad, ConfigError, "announce") for bad in (b"\x07", announcement(9) + b"x", b"\x07" * 100, announcement(0))),
        (announcement(9)[:-1], ConfigError, "announce"),
        (announcement(ARRAYS_BYTES + 1), QuotaExceededError, f"a request of {ARRAYS_BYTES + 1} bytes is announced"),
        (announcement((1 << 64) - 1), QuotaExceededError, f"a request of {(1 << 64) - 1} bytes is announced"),
    ],
)
def test_announcements_that_make_no_sense(message: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        announced(message)


@pytest.mark.parametrize("name", rpc.METHODS)
def test_no_message_looks_like_an_announcement(name: str) -> None:
    """So a daemon that knows none refuses it, and one that does takes no request for it."""
    method = rpc.METHODS[name]
    assert announced(method.request().SerializeToString()) is None
    assert min((field.number for field in method.request.DESCRIPTOR.fields), default=1) >= 1
    with pytest.raises(ConfigError, match="the request is no"):
        method.decode_request(announcement(60 << 20))


def arrived(error: BaseException) -> errors.AttaError:
    """What an error of another process is here."""
    return rpc.error_from("b:2", Refused(error), 2.5)


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("fan-out -3"),
        errors.UnknownNameError("unknown split 'tran'"),
        errors.QuotaExceededError("too many sessions"),
        errors.WrongDatasetError("a:1", "serves dataset 12"),
        errors.RestartedError("a:1", "has been started anew"),
        errors.DaemonEndedError("[::1]:7", "the daemon of partition 1 was killed: out of memory?"),
        errors.DataError("part-0000/x.npy", "truncated"),
        errors.ChangedFileError("part-0000/x.npy", "truncated"),
    ],
)
def test_round_trip(error: errors.AttaError) -> None:
    back = arrived(error)
    expected = errors.RemoteError if type(error) is errors.DataError else type(error)
    assert type(back) is expected
    assert str(error) in str(back)


@pytest.mark.parametrize("kind", [errors.DeadlineError, errors.UnavailableError])
def test_a_third_daemon_that_is_late_or_gone_is_not_this_one_started_anew(kind: type[errors.RemoteError]) -> None:
    error = kind("c:3", "no daemon answers")
    assert rpc.status_of(error)[0] is not grpc.StatusCode.UNAVAILABLE
    back = arrived(error)
    assert type(back) is errors.PeerLostError
    assert str(back) == f"b:2: another daemon does not answer: {error}"
    assert str(arrived(back)) == str(back), "who passes it on is not named"


@pytest.mark.parametrize(
    ("code", "details", "broke"),
    [
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", True),
        ("UNAVAILABLE", "GOAWAY received; Error code: 0", True),
        ("CANCELLED", "", True),
        ("CANCELLED", "Received RST_STREAM with error code 8", True),
        ("CANCELLED", "Locally cancelled by application!", False),
        ("CANCELLED", "Channel closed!", False),
        ("INTERNAL", "Received RST_STREAM with error code 2", True),
        ("UNKNOWN", "Stream removed", True),
        ("INTERNAL", "c:3: the connection broke (Received RST_STREAM with error code 2)", False),
        ("UNKNOWN", "ValueError: x", False),
        ("ABORTED", "Connection reset", False),
    ],
)
def test_a_call_that_breaks_off_has_lost_its_daemon(code: str, details: str, broke: bool) -> None:
    failure = Refused(RuntimeError())
    failure._status = grpc.StatusCode[code], details
    error = rpc.error_from("b:2", failure, 2.5)
    assert isinstance(error, errors.UnavailableError) == broke
    assert str(error).startswith("b:2: ")


REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7070: "


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            f"{REFUSED}Failed to connect to remote host: Connection refused",
            "nothing listens there (connection refused)",
        ),
        ("errors resolving h:7: [field:hostname lookup error:h:7: Domain name not found]", "host not found"),
        ("DNS resolution failed for h:7: C-ares status is not ARES_SUCCESS", "host not found"),
        (f"{REFUSED}connection attempt timed out before receiving SETTINGS frame", "the connection timed out"),
        (f"{REFUSED}Failed parsing HTTP/2 (Expected SETTINGS frame)", "what listens there is no daemon"),
        (f"{REFUSED}Socket closed", "what listens there closes connections at once"),
        (f"{REFUSED}Failed to connect to remote host: No route to host", "No route to host"),
        ("Socket closed", "Socket closed"),  # of a connection that there was
    ],
)
def test_why_nobody_answers_is_said_in_words_of_users(details: str, said: str) -> None:
    failure = Refused(RuntimeError())
    failure._status = grpc.StatusCode.UNAVAILABLE, details
    error = rpc.error_from("b:2", failure, 2.5)
    assert (type(error), str(error)) == (errors.UnavailableError, f"b:2: no daemon answers: {said}")


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (KeyError("x"), "INTERNAL", errors.RemoteError),
        (RuntimeError("x"), "INTERNAL", errors.RemoteError),
        (MemoryError("of 1 GiB"), "RESOURCE_EXHAUSTED", errors.QuotaExceededError),
        (RuntimeError("can't start new thread"), "RESOURCE_EXHAUSTED", errors.QuotaExceededError),
    ],
)
def test_a_bug_is_reported_as_such_and_a_lack_of_memory_is_a_bound(error: Exception, code: str, kind: type) -> None:
    found, details = rpc.status_of(error)
    assert found is grpc.StatusCode[code]
    assert code != "INTERNAL" or type(error).__name__ in details
    assert type(arrived(error)) is kind
    assert str(error) in str(arrived(error))


class Channel:
    def __init__(self) -> None:
        self.calls = list[tuple[str, Any]]()

    def __getattr__(self, kind: str) -> Any:
        def make(path: str, request_serializer: Any, response_deserializer: Any) -> Any:
            def begin(request: Any, **options: Any) -> str:
                sent = request if kind.startswith("unary") else list(request)
                self.calls.append((kind, sent))
                return f"{path} {options}"

            begin.future = begin
            return begin

        return make


ERRORS = [
    AttaError("something: went wrong"),
    ConfigError("--buffer: 1 is less than 64MiB"),
    UnknownNameError.of("split", "trian", ["train"]),
    DataError("/data/odd: name/x.npy", "truncated: 3 bytes instead of 4"),
    QuotaExceededError("no memory left"),
    UnavailableError("10.0.0.1:7070", "no daemon answers"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_survives(error: AttaError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lastwords.read(tmp_path / "words") is None
    monkeypatch.delenv(lastwords.VARIABLE, raising=False)
    lastwords.leave(AttaError("unheard"))  # there is no file for it
    monkeypatch.setenv(lastwords.VARIABLE, str(tmp_path / "words"))
    lastwords.leave(error)
    found = lastwords.read(tmp_path / "words")
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "DataError"',
        *(json.dumps({"kind": kind, "message": "x", "fields": {}}) for kind in ("annotations", "Path", 3)),
        json.dumps({"kind": "AttaError", "message": "x", "fields": 3}),
    ],
)
def test_nonsense_is_no_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text(text)
    assert lastwords.read(tmp_path / "words") is None


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Pieces of 8 bytes; 3 are enough. So it stays to the end of the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", 8)
        patch.setattr(pieces, "LEAST_PIECE_BYTES", 3)
        yield


def put_together(messages: list[bytes]) -> bytes:
    nbytes = announced(messages[0])
    request = PiecedRequest(nbytes)
    for piece in messages[1:]:
        assert request.missing_bytes
        request.add(piece)
    return bytes(request.whole())


@pytest.mark.usefixtures("small")
@given(st.binary(min_size=1, max_size=100))
def test_a_request_comes_back_as_it_was_cut(raw: bytes) -> None:
    messages = list(pieces_of(raw))
    assert b"".join(messages[1:]) == raw
    assert {len(piece) for piece in messages[1:-1]} <= {8}
    assert put_together(messages) == raw


@pytest.mark.usefixtures("small")
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


@pytest.mark.usefixtures("small")
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
