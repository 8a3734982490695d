"""Towards daemons: every method gets messages that are drawn or changed at random."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np

import atta
from atta.client.control import Connection
from atta.errors import AttaError
from atta.kvstore.parameters.spec import ParameterSpec, VectorStep
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.protos.v1 import (
    backup_pb2,
    control_pb2,
    graph_pb2,
    ids_pb2,
    kv_pb2,
    link_pb2,
    session_pb2,
    table_pb2,
    update_pb2,
    weights_pb2,
)
from atta.wire import rpc
from tests.fuzz.drawing import change, mutated
from tests.fuzz.targets import HANG_S, Finding
from tests.system.hostile import Caller

__all__ = ["OPTIONS", "Methods"]

OPTIONS = ("--tables", "8MiB", "--buffer", "64MiB", "--max-sessions", "16", "--lease", "2s")
"""Of daemons with little room. They need folders for snapshots and tables besides."""
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
    grpc.StatusCode.ABORTED,  # of a primary that is stale, and of a session that has ended
}
REFRESH = 300
"""After so many messages the tables and the session are made anew, which messages may have ended."""
GIVEN_UP_S = 20
"""How long a message that hangs is waited for."""


def tables(cluster: atta.LocalCluster) -> int:
    """Make the tables anew that messages have deleted; returns a client of ``plain``."""
    listed = [{info.name for info in listing(connection)} for connection in cluster._connections]
    present = set.intersection(*listed)
    for name in set().union(*listed) - present | (present - {"plain", "stepped"}):
        cluster.tables.delete(name)
    for spec in (
        MutableSpec("plain", 100, row_shape=(4,), versioned=True),
        MutableSpec("stepped", 10, row_shape=(2,), optimiser=OptimiserSpec.adam()),
    ):
        if spec.name not in present:
            cluster.tables.create(spec)
    return int(cluster._connections[0].call("TableService.Register", table_pb2.RegisterRequest(name="plain")).client)


def listing(connection: Connection) -> Iterator[MutableSpec]:
    """The tables of one daemon."""
    for info in connection.call("TableService.List", table_pb2.ListMutableRequest()).tables:
        yield MutableSpec.from_json(info.spec)


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
    about = json.dumps({"dataset": dataset, "parts": [0, 1], "daemons": 2})
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
        "LinkService.Attach": [link_pb2.AttachRequest(version=1, part=1)],
        "UpdateService.Publish": [update_pb2.PublishRequest(number=1, phase=phase, id="0" * 16) for phase in range(3)],
        "ControlService.Report": [
            control_pb2.ReportRequest(keep_s=1, rows=[control_pb2.JobInfo(job="j", direction="forward")])
        ],
    }


class Methods:
    """A target; see ``tests.fuzz.targets.Target``. ``cluster``: two daemons with ``OPTIONS``."""

    name = "methods"

    def __init__(self, cluster: atta.LocalCluster) -> None:
        self._cluster, self._caller, self._tried = cluster, Caller(cluster), 0
        self._known: dict[str, list[Any]] = corpus(cluster)
        self.replied: set[str] = set()
        """Methods that have answered."""

    def once(self, rng: random.Random) -> str:
        """Send a drawn message."""
        self._tried += 1
        if self._tried % REFRESH == 1:
            try:
                self._refresh()
            except AttaError as error:  # messages have taken all room; leases end soon
                self._known["SessionService.Next"] = []
                assert [c.describe().pid for c in self._cluster._connections] == self._cluster.pids
                return f"no new session: {type(error).__name__}"
        name = rng.choice(METHODS)
        return self.again(name, drawn(name, self._known, rng))

    def again(self, what: str, data: bytes) -> str:
        """Send a message. One that takes long is sent twice more: the machine may have been busy."""
        end, seconds = self._sent(what, data)
        for _ in range(2):
            if seconds <= HANG_S:
                return end
            end, seconds = self._sent(what, data)
        if seconds <= HANG_S:
            return end
        raise Finding(what, data, f"takes {seconds:.1f} s each time")

    def _sent(self, name: str, raw: bytes) -> tuple[str, float]:
        began, code, details = time.monotonic(), grpc.StatusCode.OK, ""
        try:
            for reply in self._caller.call(name, raw, timeout=GIVEN_UP_S):
                rpc.METHODS[name].decode_reply(reply)
                self.replied.add(name)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
        seconds = time.monotonic() - began
        if code not in TYPED and not (code is grpc.StatusCode.DEADLINE_EXCEEDED and seconds > GIVEN_UP_S - 1):
            raise Finding(name, raw, f"{code} {details}")
        return code.name, seconds

    def _refresh(self) -> None:
        client = tables(self._cluster)
        self._known["TableService.Push"][0].client = client
        opened = (
            self._cluster._connections[0].pinned().call("SessionService.Open", self._known["SessionService.Open"][0])
        )
        session = opened.session
        self._known |= {
            "SessionService.Next": [
                session_pb2.NextRequest(session=session, sequence=n, released=[n]) for n in range(3)
            ],
            "SessionService.Renew": [session_pb2.RenewRequest(sessions=[session, "x"])],
            "SessionService.Close": [session_pb2.CloseRequest(session=session)] if self._tried % 2 else [],
        }

    def close(self) -> None:
        """End all calls."""
        self._caller.close()


def drawn(name: str, known: dict[str, list[Any]], rng: random.Random) -> bytes:
    """A request near one that a daemon accepts, or near none."""
    message = rpc.METHODS[name].request()
    if known.get(name) and rng.random() < 0.9:
        message.CopyFrom(rng.choice(known[name]))
    if rng.random() < 0.8:
        change(message, rng, rng.choice([0.05, 0.2, 0.6]))
    raw = bytes(message.SerializeToString())
    return mutated(raw, rng) if rng.random() < 0.4 else raw
