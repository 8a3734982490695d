"""Towards daemons: every method gets messages that are drawn or changed at random."""

from __future__ import annotations

import json
import random
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import atta
from atta.client.control import Connection
from atta.client.tables.lending import Lender
from atta.errors import AttaError
from atta.kvstore.durable.frames import LogPosition, frame
from atta.kvstore.parameters import ParameterSpec, VectorStep
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
from tests.callers import Caller
from tests.fuzz.drawing import change, mutated
from tests.fuzz.targets import HANG_S, Finding

__all__ = ["OF_BACKUPS", "OPTIONS", "Backups", "Methods"]

OPTIONS = ("--tables", "8MiB", "--buffer", "64MiB", "--max-sessions", "16", "--lease", "2s")
"""Of daemons with little room. They need folders for snapshots and tables besides."""
OF_BACKUPS = sorted(name for name in rpc.METHODS if name.startswith("BackupService."))
METHODS = sorted(set(rpc.METHODS) - {"ControlService.Stop"} - set(OF_BACKUPS))
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
LENDER = Lender()
"""Its memory is mapped as long as this process lives."""


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
    spec = json.dumps(MutableSpec("drawn", 10, row_shape=(3,), optimiser=OptimiserSpec.adam()).to_dict())
    dataset = cluster._connections[0].describe().dataset_id
    client, values = tables(cluster), np.ones((5, 4), np.float32).tobytes()
    weights = ParameterSpec("w", (10,), 2, "arrival", VectorStep("sgd", 0.1), lease_s=1.0)
    vector, of_member, whole = values[:40], {"name": "w", "member": 0}, json.dumps(weights.to_dict())
    push: dict[str, Any] = {"name": "plain", "rows": rows, "op": "write", "client": client}
    pull = {"name": "plain", "rows": rows}
    job = control_pb2.JobInfo(job="j", direction="forward")
    loan = LENDER.lend(5 * (16 + 8))
    lent = LENDER.lend(len(values))
    assert loan is not None, "there is room for all that is drawn"
    assert lent is not None, "there is room for all that is drawn"
    lent.memory[:] = np.frombuffer(values, np.uint8)
    return {
        "SessionService.Open": [loader._request for loader in loaders],
        "GraphService.Sample": [graph_pb2.SampleRequest(**types, fan_out=2, rows=rows, wide_rows=True)],
        "GraphService.Probe": [graph_pb2.ProbeRequest(**types, question=q, rows=rows, operands=rows) for q in range(4)],
        "GraphService.Pair": [graph_pb2.PairRequest(**types, count=2, negative=n, rows=rows) for n in (False, True)],
        "KvService.Pull": [kv_pb2.PullRequest(node_type="node", tables=["x"], rows=rows, wide_rows=True)],
        "IdService.Numbers": [ids_pb2.NumbersRequest(node_type="node", width=8, strings=rows)],
        "IdService.Strings": [ids_pb2.StringsRequest(node_type="node", numbers=rows)],
        "TableService.Create": [table_pb2.CreateTableRequest(dataset_id=dataset, spec=spec)],
        "TableService.Push": [
            table_pb2.PushRowsRequest(**push, **to) for to in ({"values": values}, {"memory": lent.message})
        ],
        "TableService.Pull": [table_pb2.PullRowsRequest(**pull, **to) for to in ({}, {"memory": loan.message})],
        "TableService.Locate": [table_pb2.LocateRequest(dataset_id=dataset, policy="edges:node__to__node", ids=rows)],
        "TableService.Save": [table_pb2.SnapshotRequest(name="s", snapshot="0" * 16, hold_s=1)],
        "TableService.Load": [table_pb2.SnapshotRequest(name="s", snapshot="0" * 16, hold_s=1, load_id=3)],
        "ParameterService.Create": [
            weights_pb2.CreateWeightsRequest(spec=whole, values=vector),
            weights_pb2.CreateWeightsRequest(spec=whole, values=vector, version=3, moments=vector),
        ],
        "ParameterService.Join": [weights_pb2.MemberRequest(**of_member)],
        "ParameterService.Begin": [weights_pb2.BeginStepRequest(**of_member)],
        "ParameterService.Push": [weights_pb2.PushGradientRequest(**of_member, values=vector)],
        "ParameterService.Pull": [weights_pb2.PullWeightsRequest(name="w", moments=m) for m in (False, True)],
        "ParameterService.Renew": [weights_pb2.MemberRequest(**of_member)],
        "ParameterService.Leave": [weights_pb2.MemberRequest(**of_member)],
        "LinkService.Attach": [link_pb2.AttachRequest(version=1, part=1)],
        "UpdateService.Publish": [update_pb2.PublishRequest(number=1, phase=phase, id="0" * 16) for phase in range(3)],
        "ControlService.Report": [control_pb2.ReportRequest(keep_s=1, rows=[job])],
    }


class _Calls(ABC):
    """A target whose inputs are requests of some methods."""

    name: str
    methods: Sequence[str]

    def __init__(self) -> None:
        self._tried = 0
        self._caller: Caller
        self._known: dict[str, list[Any]] = {}
        """Requests that are accepted, or were once."""
        self.replied: set[str] = set()
        """Methods that have answered."""

    @abstractmethod
    def _refresh(self) -> str:
        """Make anew what messages may have ended; returns why that cannot be done now."""

    def once(self, rng: random.Random) -> str:
        self._tried += 1
        if self._tried % REFRESH == 1 and (cannot := self._refresh()):
            return cannot
        name = rng.choice(self.methods)
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

    def close(self) -> None:
        self._caller.close()


class Methods(_Calls):
    """All methods but those of a backup; see ``tests.fuzz.targets.Target``. ``cluster``: two daemons with ``OPTIONS``."""

    name, methods = "methods", METHODS

    def __init__(self, cluster: atta.LocalCluster) -> None:
        super().__init__()
        self._cluster, self._caller = cluster, Caller(cluster)
        self._known = corpus(cluster)

    def _refresh(self) -> str:
        try:
            self._known["TableService.Push"][0].client = tables(self._cluster)
            self._open()
        except AttaError as error:  # messages have taken all room; leases end soon
            self._known["SessionService.Next"] = []
            assert [c.describe().pid for c in self._cluster._connections] == self._cluster.pids
            return f"no new session: {type(error).__name__}"
        return ""

    def _open(self) -> None:
        pinned = self._cluster._connections[0].pinned()
        session = pinned.call("SessionService.Open", self._known["SessionService.Open"][0]).session
        self._known |= {
            "SessionService.Next": [
                session_pb2.NextRequest(session=session, sequence=n, released=[n]) for n in (0, 1, 2)
            ],
            "SessionService.Renew": [session_pb2.RenewRequest(sessions=[session, "x"])],
            "SessionService.Close": [session_pb2.CloseRequest(session=session)] if self._tried % 2 else [],
        }


class Backups(_Calls):
    """The methods of a daemon that keeps a backup. It is started anew with an empty folder: messages may promote the
    copy, or follow it with the highest epoch there is."""

    name, methods = "backups", OF_BACKUPS

    def __init__(self, start: Callable[[str], AbstractContextManager[atta.LocalCluster]], folder: Path) -> None:
        """``start``: a daemon that keeps its tables in the folder it is given."""
        super().__init__()
        self._start, self._folder, self._running = start, folder, ExitStack()
        self._cluster = self._begin()

    def _begin(self) -> atta.LocalCluster:
        cluster = self._running.enter_context(self._start(str(self._folder / str(self._tried))))
        self._running.callback(shutil.rmtree, self._folder / str(self._tried), ignore_errors=True)
        self._caller = Caller(cluster)
        self._running.callback(self._caller.close)
        dataset = cluster._connections[0].describe().dataset_id
        self._known = sequence({"dataset": dataset, "parts": [0, 1], "daemons": 1})
        return cluster

    def _refresh(self) -> str:
        if self._tried > 1:
            assert [c.describe().pid for c in self._cluster._connections] == self._cluster.pids
            self._running.close()
            self._running = ExitStack()
            self._cluster = self._begin()
        return ""

    def close(self) -> None:
        self._running.close()


def sequence(about: Mapping[str, Any]) -> dict[str, list[Any]]:
    store, appended = backup_pb2.StoreName(id=b"0" * 16, epoch=1), []
    before = LogPosition(0, 0)
    for number in range(3):
        body = bytes([number]) * 8
        _, after = frame([body], before, before.lsn)
        ends = {"before": before, "after": after}
        places = {name: backup_pb2.LogPlace(lsn=at.lsn, chain=at.chain) for name, at in ends.items()}
        of_file = {"file_epoch": 1, "new_file": number == 0, "sizes": [8], "bodies": body}
        appended.append(backup_pb2.AppendRequest(store=store, **places, **of_file))
        before = after
    end, said = appended[-1].after, json.dumps(about)
    appended.append(backup_pb2.AppendRequest(store=store, before=end, bodies=b"0" * 8, more=True))
    return {
        "BackupService.Follow": [backup_pb2.FollowRequest(store=store, about=said, reach=at) for at in (None, end)],
        "BackupService.Append": appended,
        "BackupService.Piece": [
            backup_pb2.PieceRequest(store=store, at=end, path="tables/t", data=b"0" * 40),
            backup_pb2.PieceRequest(store=store, at=end, complete=True),
        ],
        "BackupService.Promote": [backup_pb2.PromoteRequest()],
        "BackupService.Vote": [backup_pb2.VoteRequest(store=store, candidate="127.0.0.1:7")],
    }


def drawn(name: str, known: dict[str, list[Any]], rng: random.Random) -> bytes:
    message = rpc.METHODS[name].request()
    if known.get(name) and rng.random() < 0.9:
        message.CopyFrom(rng.choice(known[name]))
    if rng.random() < 0.8:
        change(message, rng, rng.choice([0.05, 0.2, 0.6]))
    raw = bytes(message.SerializeToString())
    return mutated(raw, rng) if rng.random() < 0.4 else raw
