"""Messages that no client of Atta would send: each is refused with a typed error, and the daemon goes on serving."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

import atta
from atta.kvstore.spec import MAX_TEXT, MutableSpec, OptimiserSpec
from atta.protos.v1 import dag_pb2, graph_pb2, session_pb2, table_pb2
from atta.wire import rpc
from atta.wire.pieces import pieces_of
from tests.callers import Caller
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

WRONG = grpc.StatusCode.INVALID_ARGUMENT
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
QUOTA = 220 << 20
METHODS = [name for name in rpc.METHODS if name != "LinkService.Attach"]


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    """One daemon for all tests of this module, with tables ``plain``, ``stepped`` and ``scalar`` of float32."""
    options = ("--tables", str(QUOTA), "--snapshots", str(tmp_path_factory.mktemp("snapshots")))
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=options) as cluster:
        cluster.tables.create(MutableSpec("plain", 100, row_shape=(4,)))
        cluster.tables.create(MutableSpec("stepped", 100, row_shape=(2, 3), optimiser=OptimiserSpec.adam()))
        cluster.tables.create(MutableSpec("scalar", 100))
        yield cluster


@pytest.fixture(scope="module")
def caller(cluster: atta.LocalCluster) -> Iterator[Caller]:
    """A client without scruples. Afterwards the daemon serves others as before, and has no error of its own."""
    caller = Caller(cluster)
    yield caller
    assert len(list(atta.NeighborLoader(cluster, [2], "train", batch_size=60))) == 2
    caller.close()


def create(caller: Caller, spec: str) -> bytes:
    return table_pb2.CreateTableRequest(dataset_id=caller.identity.dataset_id, spec=spec).SerializeToString()


GARBAGE = {
    "no varint": b"\xff" * 20, "cut off": b"\x0a\x05a", "open group": b"\x0b" * 30, "nested groups": b"\x0b" * 100_000,
    "no value": b"\x08", "wire type 7": b"\x0f\x01", "huge length": b"\x0a\xff\xff\xff\xff\x7f",
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_message_is_an_invalid_argument(caller: Caller, name: str) -> None:
    for what, raw in GARBAGE.items():
        code, details = caller.refusal(name, raw)
        assert code is WRONG, what
        assert f"the request is no {rpc.METHODS[name].request.DESCRIPTOR.name}" in details


def test_what_is_no_message_attaches_no_link(pair: atta.LocalCluster) -> None:
    """Only daemons with peers have links."""
    caller = Caller(pair)
    test_what_is_no_message_is_an_invalid_argument(caller, "LinkService.Attach")
    assert len(list(atta.NeighborLoader(pair, [2], "train", batch_size=60))) >= 2
    caller.close()


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"])
def test_what_is_no_message_to_other_services_is_an_invalid_argument(caller: Caller, path: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(caller.channel.unary_stream(path)(b"\xff" * 20, timeout=10))
    assert caught.value.code() is WRONG


LONG = "x" * 60_000
HUGE = 10**400  # no float holds it
BRACKETS = "[" * (MAX_TEXT - 10)


def test_specifications_that_are_no_json_or_long(caller: Caller) -> None:
    """Long ones are not echoed."""
    for text in [BRACKETS, '{"a":' * 3000, "9" * 5000, "[1,", "", "nul", '{"name": "a"', "\\"]:
        found = caller.refusal("TableService.Create", create(caller, text))
        assert found == (WRONG, "table: the description is not JSON")
    for text in [json.dumps(LONG), "[" * 60_000, json.dumps({LONG: 1}), json.dumps({"name": LONG})]:
        found = caller.refusal("TableService.Create", create(caller, text))
        length = f"has {len(text)} characters, at most {MAX_TEXT} are possible"
        assert found == (WRONG, f"table: the description {length}")
    code, details = caller.refusal("TableService.Create", pieces_of(create(caller, "x" * (40 << 20))))
    assert code is FULL
    assert "a CreateTableRequest of 41943" in details
    assert len(details) < 200


VALUES: list[Any] = [
    "y" * 15_000, ["y" * 15_000], {"y" * 15_000: 1}, {"kind": "y" * 15_000}, HUGE, -HUGE, -1, [[[[]]]],
    {"kind": "constant", "value": HUGE}, {"kind": "sgd", "lr": HUGE}, {"kind": "normal", "mean": HUGE, "std": 1},
    "\N{HIRAGANA LETTER A}" * 4_000, {"kind": "zeros", "\ud800": 1},
]  # fmt: skip


@pytest.mark.parametrize("field", ["name", "dtype", "row_shape", "optimiser", "init", "max_rows", "policy", "lease_s"])
def test_specifications_with_wrong_values(caller: Caller, field: str) -> None:
    for value in VALUES:
        text = json.dumps({"name": "wrong", "rows": 3, field: value}, ensure_ascii="ud800" in ascii(value))
        code, details = caller.refusal("TableService.Create", create(caller, text))
        assert code is WRONG, value
        assert len(details) < 1100


def test_long_names_are_not_compared_with_all_that_exist(caller: Caller) -> None:
    for name, field in (
        ("TableService.Pull", "name"),
        ("GraphService.Probe", "edge_type"),
        ("SessionService.Open", "dataset_id"),
    ):
        request = rpc.METHODS[name].request(**{field: "x" * 70_000})
        code, details = caller.refusal(name, request.SerializeToString())
        assert code is FULL
        assert "with a text of 70000 bytes: at most 65536 are possible" in details


@pytest.mark.parametrize("codec", ["", "fp16", "bf16", "int8"])
@pytest.mark.parametrize(("table", "op"), [("plain", "write"), ("scalar", "add"), ("stepped", "step")])
def test_push_and_pull_of_no_rows(cluster: atta.LocalCluster, caller: Caller, table: str, op: str, codec: str) -> None:
    before = cluster.tables.open(table).pull(np.arange(100)).values
    found = table_pb2.RegisterReply.FromString(
        caller.call("TableService.Register", table_pb2.RegisterRequest(name=table).SerializeToString())[0]
    )
    push = table_pb2.PushRowsRequest(name=table, op=op, client=found.client, codec=codec)
    (reply,) = caller.call("TableService.Push", push.SerializeToString())
    assert table_pb2.PushRowsReply.FromString(reply).applied
    assert not caller.call("TableService.Pull", table_pb2.PullRowsRequest(name=table, codec=codec).SerializeToString())
    push.sequence, push.values = 1, b"1234567"
    assert caller.refusal("TableService.Push", push.SerializeToString())[0] is WRONG
    assert np.array_equal(cluster.tables.open(table).pull(np.arange(100)).values, before)


@pytest.mark.parametrize("name", ["TableService.Save", "TableService.Load"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phase": 7}, "phase 7 of a snapshot"),
        ({"phase": -1}, "phase -1 of a snapshot"),
        ({"hold_s": -1.0}, "cannot be held for -1.0 s"),
        ({"hold_s": float("nan")}, "cannot be held for nan s"),
        ({"hold_s": float("inf")}, "cannot be held for inf s"),
        ({"name": "../up"}, "snapshot name '../up'"),
    ],
)
def test_snapshots_with_senseless_numbers(caller: Caller, name: str, changes: dict[str, Any], words: str) -> None:
    request = table_pb2.SnapshotRequest(**{"name": "s", "snapshot": "0" * 16, **changes})
    code, details = caller.refusal(name, request.SerializeToString())
    assert code is WRONG
    assert words in details


def opening(cluster: atta.LocalCluster) -> session_pb2.OpenRequest:
    request = session_pb2.OpenRequest()
    request.CopyFrom(atta.NeighborLoader(cluster, [2], "train", batch_size=4, rank=0, world_size=1)._request)
    return request


@pytest.mark.parametrize("what", ["frontier", "strategy", "policy", "nested options", "huge option"])
def test_sessions_with_senseless_numbers_and_options(cluster: atta.LocalCluster, caller: Caller, what: str) -> None:
    request = opening(cluster)
    if what == "frontier":
        for operator in request.dag.operators:
            if operator.HasField("neighborhood"):
                operator.neighborhood.frontier = 9  # type: ignore[assignment]
    elif what == "strategy":
        negative = request.dag.operators.add(id="negative", inputs=["seed"]).negative
        negative.edge_type = "node__to__node"
        negative.links.CopyFrom(dag_pb2.NegativeLinks(amount=1, strategy=9))  # type: ignore[arg-type]
    elif what == "policy":
        request.policy = 9  # type: ignore[assignment]
    else:
        batch = request.dag.operators.add(id="batch", inputs=["seed"]).batch
        batch.name, batch.edge_type = "saint-nodes", "node__to__node"
        batch.options = BRACKETS if what == "nested options" else json.dumps({"budget": HUGE})
    assert caller.refusal("SessionService.Open", request.SerializeToString())[0] is WRONG


def test_unknown_question(caller: Caller) -> None:
    request = graph_pb2.ProbeRequest(edge_type="node__to__node", question=9)  # type: ignore[arg-type]
    assert caller.refusal("GraphService.Probe", request.SerializeToString())[0] is WRONG


def test_tables_that_are_read_count_until_they_have_been_read(cluster: atta.LocalCluster) -> None:
    reader = Caller(cluster)
    spec = MutableSpec("read", (100 << 20) // 4096, row_shape=(1024,))
    request = table_pb2.PullRowsRequest(name="read", rows=np.arange(spec.rows).tobytes()).SerializeToString()
    calls = []
    for _ in range(2):
        cluster.tables.create(spec)
        calls.append(reader.start("TableService.Pull", request))
        next(calls[-1])
        cluster.tables.delete("read")
    with pytest.raises(atta.QuotaExceededError, match="for mutable tables are used"):
        cluster.tables.create(spec)
    for call in calls:
        call.cancel()
    reader.close()

    def created() -> bool:
        with contextlib.suppress(atta.QuotaExceededError):
            return cluster.tables.create(spec) is not None
        return False

    assert eventually(created)
    cluster.tables.delete("read")
