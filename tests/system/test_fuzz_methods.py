"""Every method of a daemon gets messages that are drawn or changed at random: each answer is a reply or a typed error.

``ATTA_FUZZ_S=3600`` fuzzes for an hour instead of a few seconds. A message that fails is printed; it belongs in CORPUS.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor

import atta
from atta.kvstore.parameters.spec import ParameterSpec, VectorStep
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.protos.v1 import backup_pb2, control_pb2, graph_pb2, ids_pb2, kv_pb2, table_pb2, weights_pb2
from atta.wire import rpc
from tests.system.conftest import SmallGraph
from tests.system.hostile import Caller

FUZZ_S = float(os.environ.get("ATTA_FUZZ_S", "3"))
METHODS = sorted(set(rpc.METHODS) - {"ControlService.Stop"})
TYPED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.ABORTED,  # of a primary that is stale
}
INTEGERS = [0, 1, 2, 3, 7, 64, 1 << 16, (1 << 31) - 1]
WIDE = [*INTEGERS, 1 << 31, (1 << 32) - 1]
LONG = [*WIDE, 1 << 32, (1 << 63) - 1]
TEXTS = [
    "", "x", "node", "node__to__node", "train", "plain", "stepped", "write", "add", "step", "fp16", "int8", "nodes:node",
    "edges:node__to__node", "saint-nodes", "..", "a/b", "\0", "y" * 300, "0" * 16, "{", '{"budget": 30}', "[" * 5000,
]  # fmt: skip
ARRAYS = [b"", b"\0" * 8, b"\0" * 4, b"\1" * 7, b"\xff" * 16, np.arange(9).tobytes(), np.array([1 << 62, -1]).tobytes(),
          np.arange(40, dtype=np.float32).tobytes()]  # fmt: skip
REALS = [0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("nan")]
VALUES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: [*INTEGERS, -1, -(1 << 31)],
    FieldDescriptor.CPPTYPE_INT64: [*LONG, -1, -(1 << 63)],
    FieldDescriptor.CPPTYPE_UINT32: WIDE,
    FieldDescriptor.CPPTYPE_UINT64: [*LONG, (1 << 64) - 1],
    FieldDescriptor.CPPTYPE_BOOL: [False, True],
    FieldDescriptor.CPPTYPE_DOUBLE: REALS,
    FieldDescriptor.CPPTYPE_FLOAT: REALS,
    FieldDescriptor.CPPTYPE_ENUM: [0, 1, 2, 9, -1],
}


def value_of(field: FieldDescriptor, rng: random.Random) -> Any:
    """A value that means something, or is far from it."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(TEXTS if field.type == FieldDescriptor.TYPE_STRING else ARRAYS)
    return rng.choice(VALUES[field.cpp_type])


def change(message: Any, rng: random.Random, share: float) -> None:
    """Change about this share of the fields of a message, at any depth."""
    for field in message.DESCRIPTOR.fields:
        found = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if rng.random() < share:
                found[rng.choice(TEXTS)] = 3
        elif field.message_type is not None:
            for inner in found if field.is_repeated else [found] * message.HasField(field.name):
                change(inner, rng, share)
            if rng.random() < share / 3:
                change(found.add() if field.is_repeated else found, rng, 0.5)
        elif rng.random() < share:
            if field.is_repeated:
                found.extend(value_of(field, rng) for _ in range(rng.randrange(4)))
            elif rng.random() < 0.2:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, value_of(field, rng))


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, left out, doubled or cut off."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(4)]
            case 2:
                data[at:at] = data[at : at + rng.randrange(20)] or b"\xff"
            case _:
                del data[at + rng.randrange(1 + len(data) - at) :]
    return bytes(data)


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    """A daemon with little room."""
    options = ("--tables", "8MiB", "--buffer", "64MiB", "--max-sessions", "16", "--lease", "2s",
               "--snapshots", str(tmp_path_factory.mktemp("snapshots")), "--keep-backup",
               "--tables-dir", str(tmp_path_factory.mktemp("tables")))  # fmt: skip
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=options, log_level="error") as cluster:
        yield cluster


def tables(cluster: atta.LocalCluster) -> int:
    """Make the tables anew that messages have deleted; returns a client of ``plain``."""
    present = set(cluster.tables.specs())
    for spec in (
        MutableSpec("plain", 100, row_shape=(4,), versioned=True),
        MutableSpec("stepped", 10, row_shape=(2,), optimiser=OptimiserSpec.adam()),
    ):
        if spec.name not in present:
            cluster.tables.create(spec)
    return int(cluster._connections[0].call("TableService.Register", table_pb2.RegisterRequest(name="plain")).client)


def corpus(cluster: atta.LocalCluster) -> dict[str, list[Any]]:
    """Messages that daemons accept, by method: what is near them reaches the code behind the checks."""
    rows, types = np.arange(5).tobytes(), {"edge_type": "node__to__node"}
    hops: dict[str, Any] = {"rank": 0, "world_size": 1, "batch_size": 8}
    loaders = [
        atta.NeighborLoader(cluster, [2, 2], "train", **hops),
        atta.BatchLoader(cluster, "saint-nodes", {"budget": 30}, batches=4, rank=0, world_size=1),
    ]
    edge = graph_pb2.EdgeSample(**types, fan_out=2, rows=rows, wide_rows=True)
    spec = json.dumps(MutableSpec("drawn", 10, row_shape=(3,), optimiser=OptimiserSpec.adam()).to_dict())
    dataset = cluster._connections[0].describe().dataset_id
    client, values = tables(cluster), np.ones((5, 4), np.float32).tobytes()
    weights = ParameterSpec("w", (10,), 2, "arrival", VectorStep("sgd", 0.1), lease_s=1.0)
    about = json.dumps({"dataset": dataset, "parts": [0, 1], "daemons": 1})
    store, place = backup_pb2.StoreName(id=b"0" * 16, epoch=1), backup_pb2.LogPlace()
    vector, of_member = values[:40], {"name": "w", "member": 0}
    push = table_pb2.PushRowsRequest(name="plain", rows=rows, op="write", client=client, values=values)
    return {
        "SessionService.Open": [loader._request for loader in loaders],
        "GraphService.Sample": [graph_pb2.SampleRequest(edge_types=[edge])],
        "GraphService.SampleOnce": [graph_pb2.SampleRequest(edge_types=[edge])],
        "GraphService.Probe": [graph_pb2.ProbeRequest(**types, question=q, rows=rows, operands=rows) for q in range(4)],
        "GraphService.Pair": [graph_pb2.PairRequest(**types, count=2, negative=n, rows=rows) for n in (False, True)],
        "KvService.Pull": [
            kv_pb2.PullRequest(pulls=[kv_pb2.TablePull(node_type="node", tables=["x"], rows=rows, wide_rows=True)])
        ],
        "IdService.Numbers": [ids_pb2.NumbersRequest(node_type="node", width=8, strings=rows)],
        "IdService.Strings": [ids_pb2.StringsRequest(node_type="node", numbers=rows)],
        "TableService.Create": [table_pb2.CreateTableRequest(dataset_id=dataset, spec=spec)],
        "TableService.Push": [push],
        "TableService.Pull": [table_pb2.PullRowsRequest(name="plain", rows=rows)],
        "TableService.Locate": [table_pb2.LocateRequest(dataset_id=dataset, policy="edges:node__to__node", ids=rows)],
        "TableService.Save": [table_pb2.SnapshotRequest(name="s", snapshot="0" * 16, hold_s=1)],
        "TableService.Load": [table_pb2.SnapshotRequest(name="s", snapshot="0" * 16, hold_s=1, load_id=3)],
        "BackupService.Follow": [backup_pb2.FollowRequest(store=store, about=about)],
        "BackupService.Append": [
            backup_pb2.AppendRequest(
                store=store, before=place, after=place, file_epoch=1, new_file=True, sizes=[8], bodies=b"01234567"
            ),
            backup_pb2.AppendRequest(store=store, before=place, bodies=rows, more=True),
        ],
        "BackupService.Piece": [
            backup_pb2.PieceRequest(store=store, at=place, path="tables/t", data=rows),
            backup_pb2.PieceRequest(store=store, at=place, complete=True),
        ],
        "BackupService.Vote": [backup_pb2.VoteRequest(store=store, candidate="127.0.0.1:7")],
        "ParameterService.Create": [
            weights_pb2.CreateWeightsRequest(spec=json.dumps(weights.to_dict()), values=vector),
            weights_pb2.CreateWeightsRequest(
                spec=json.dumps(weights.to_dict()), values=vector, version=3, moments=vector
            ),
        ],
        "ParameterService.Join": [weights_pb2.MemberRequest(**of_member)],
        "ParameterService.Begin": [weights_pb2.BeginStepRequest(**of_member)],
        "ParameterService.Push": [weights_pb2.PushGradientRequest(**of_member, values=vector)],
        "ParameterService.Pull": [
            weights_pb2.PullWeightsRequest(name="w"),
            weights_pb2.PullWeightsRequest(name="w", moments=True),
        ],
        "ParameterService.Renew": [weights_pb2.MemberRequest(**of_member)],
        "ParameterService.Leave": [weights_pb2.MemberRequest(**of_member)],
        "ControlService.Report": [
            control_pb2.ReportRequest(keep_s=1, rows=[control_pb2.JobInfo(job="j", direction="forward")])
        ],
    }


def drawn(name: str, known: dict[str, list[Any]], rng: random.Random) -> bytes:
    """A request near one that a daemon accepts, or near none."""
    message = rpc.METHODS[name].request()
    if name in known and rng.random() < 0.9:
        message.CopyFrom(rng.choice(known[name]))
    if rng.random() < 0.8:
        change(message, rng, rng.choice([0.05, 0.2, 0.6]))
    raw = bytes(message.SerializeToString())
    return mutated(raw, rng) if rng.random() < 0.4 else raw


def test_random_messages_end_as_replies_or_typed_errors(cluster: atta.LocalCluster, seed: int) -> None:
    caller, rng, known = Caller(cluster), random.Random(seed), corpus(cluster)
    end, count, replies = time.monotonic() + FUZZ_S, 0, set()
    while time.monotonic() < end:
        if count % 500 == 0:
            known["TableService.Push"][0].client = tables(cluster)
        name = rng.choice(METHODS)
        raw = drawn(name, known, rng)
        count += 1
        code, details = grpc.StatusCode.OK, ""
        try:
            for reply in caller.call(name, raw, timeout=20):
                rpc.METHODS[name].decode_reply(reply)
                replies.add(name)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
        missing = name.startswith("LinkService") and code is grpc.StatusCode.UNIMPLEMENTED  # one daemon has no links
        assert code in TYPED or missing, f"{name} {raw!r}: {code} {details}"
    caller.close()
    assert count > 50
    assert {"ControlService.Describe", "KvService.ListTables"} & replies
    assert cluster._connections[0].describe().pid == cluster.pids[0]
    assert cluster._connections[0].call("ControlService.Sessions", control_pb2.SessionsRequest()).uptime_s > 0
