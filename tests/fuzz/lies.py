"""Towards clients: daemons whose replies are changed on the way, guided by the definitions of the messages.

A relay stands before each of two daemons. It passes everything on, and changes a reply to one method. Whoever asked
must get an answer (which may be wrong: nobody can check a row) or one of Atta's errors, within its deadline.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import atta
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.owners import sampled
from atta.daemon.peers.peers import Peer
from atta.errors import AttaError
from atta.kvstore.parameters import ParameterSpec, VectorStep
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.observe.figures import JobFigures
from atta.partition.dataset import Dataset
from atta.protos.v1 import link_pb2, session_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.wire import rpc
from tests.fuzz.drawing import change, mutated
from tests.fuzz.targets import Finding

__all__ = ["OPTIONS", "Lies"]

OPTIONS = ("--tables", "64MiB", "--buffer", "64MiB", "--lease", "5s", "--max-sessions", "64", "--cache", "0")
DEADLINE_S = 2.0
"""Of every call."""
LIMIT_S = 3 * DEADLINE_S
"""What a few calls may take, of which one is answered with a lie."""
LONGER = {"TableService.Save": 10, "TableService.Load": 10}
"""Methods with so many times that deadline. gRPC waits for it if a call with one answer gets two."""
BUSY = 3
"""A lie may take this much longer for each second that the truth takes on a busy machine."""
GIVEN_UP_S = 60.0
CLEAN = 20
"""After so many inputs all tables are deleted."""
EDGE = "node__to__node"
NO_MESSAGE = b"\0"
"""Begins a lie that is no message: then JSON with a status and its text, or with how often the reply is sent."""
STATUSES = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
LENGTHS = [(f"grpc.max_{way}_message_length", rpc.MAX_MESSAGE_BYTES) for way in ("send", "receive")]


class Liar(grpc.GenericRpcHandler):
    """A relay at ``address`` before a daemon at ``target``. ``lie(method, reply)`` gives what is sent instead."""

    def __init__(self, target: str, lie: Callable[[str, bytes], bytes]) -> None:
        self._lie = lie
        self._channel = grpc.insecure_channel(target, options=LENGTHS)
        self._server = grpc.server(ThreadPoolExecutor(32), handlers=[self], options=LENGTHS)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        path = details.method
        name = path.rsplit(".", 1)[1].replace("/", ".")

        def passed_on(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            metadata = [(key, value) for key, value in context.invocation_metadata() if key.startswith("atta-")]
            limit = min(context.time_remaining() or GIVEN_UP_S, GIVEN_UP_S)
            answers = self._channel.stream_stream(path)(requests, metadata=metadata, timeout=limit)
            try:
                for truth in answers:
                    reply = by_grpc(truth) if name == "SessionService.Open" else truth
                    told = self._lie(name, reply)
                    if not told.startswith(NO_MESSAGE):
                        yield told
                        continue
                    about = json.loads(told[1:])
                    if "code" in about:
                        context.abort(grpc.StatusCode[about["code"]], about["details"])
                    yield from [reply] * about["repeat"]
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())

        return grpc.stream_stream_rpc_method_handler(passed_on)

    def close(self) -> None:
        self._server.stop(grace=None).wait()
        self._channel.close()


def by_grpc(opened: bytes) -> bytes:
    """The reply to ``Open`` without the daemon's socket, which would lead past the relay."""
    reply = session_pb2.OpenReply.FromString(opened)
    reply.ClearField("nearby")
    return reply.SerializeToString()


class Lies:
    """A target; see ``tests.fuzz.targets.Target``. ``cluster``: two daemons with ``OPTIONS``; ``data``: their dataset."""

    name = "replies"

    def __init__(self, cluster: atta.LocalCluster, data: Path) -> None:
        self._cluster, self._count = cluster, 0
        self._dataset = Dataset.open(data, parts=[], verify=False)
        self._liars = [Liar(address, self._told) for address in cluster.addresses]
        self._addresses = [liar.address for liar in self._liars]
        self._drawn: Callable[[str, bytes], bytes] | None = None
        self._method, self._left, self._sent = "", 0, b""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="peers", daemon=True).start()
        self._asks: dict[str, Callable[[], None]] = {
            "connect": lambda: self._connected(lambda cluster: cluster.addresses),
            "watch": lambda: self._connected(watch),
            "batches": lambda: self._connected(batches),
            "operator": lambda: self._connected(operator),
            "tensor": lambda: self._connected(tensor),
            "optimiser": lambda: self._connected(optimiser),
            "weights": lambda: self._connected(weights),
            "peer": self._peer,
        }
        self._methods = {name: self._replies(ask) for name, ask in self._asks.items()}
        self.asked = set().union(*self._methods.values())
        """Methods whose replies are changed."""

    def _replies(self, ask: Callable[[], None]) -> list[str]:
        found: list[str] = []
        self._drawn, self._method, self._left = lambda method, reply: found.append(method) or reply, "*", 1 << 30
        ask()
        self._left = 0
        return sorted(set(found))

    def _told(self, method: str, reply: bytes) -> bytes:
        if self._method not in {method, "*"} or self._drawn is None:
            return reply
        self._left -= 1
        if self._method != "*" and self._left != 0:
            return reply
        told = self._drawn(method, reply)
        if self._method != "*":
            self._sent = told
        return told

    # -- the target ----------------------------------------------------------------------------------------------------

    def once(self, rng: random.Random) -> str:
        self._count += 1
        if self._count % CLEAN == 0:  # what was given up has left tables behind, which a snapshot would write
            for table in self._cluster.tables.specs():
                self._cluster.tables.delete(table)
        name = rng.choice(sorted(self._asks))
        method, at = rng.choice(self._methods[name]), rng.choice([1, 1, 1, 2, 3])
        self._sent = b""
        end, seconds = self._tried(name, method, at, lambda method, reply: lie(method, reply, rng))
        return self._confirmed(name, method, self._sent, end, seconds)

    def again(self, what: str, data: bytes) -> str:
        """Answer a method with a reply of the corpus, whatever is asked."""
        end = "unused"
        for name in sorted(self._asks):
            if what in self._methods[name]:
                end, seconds = self._tried(name, what, 1, lambda _method, _reply: data)
                end = self._confirmed(name, what, data, end, seconds)
        return end

    def _confirmed(self, name: str, method: str, data: bytes, end: str, seconds: float) -> str:
        """Whether it took long is decided by trying it again, beside the truth: the machine may have been busy."""
        honest, limit = 0.0, LIMIT_S * LONGER.get(method, 1)
        for _ in range(2):
            if seconds <= limit + BUSY * honest:
                return end
            _, honest = self._tried(name, "", 1, lambda _method, reply: reply)
            end, seconds = self._tried(name, method, 1, lambda _method, _reply: data)
        if seconds > limit + BUSY * honest:
            raise Finding(method, data, f"{name} takes {seconds:.1f} s each time, truly {honest:.1f} s: {end}")
        return end

    def _tried(self, name: str, method: str, at: int, drawn: Callable[[str, bytes], bytes]) -> tuple[str, float]:
        self._drawn, self._method, self._left = drawn, method, at
        ended: list[BaseException | str] = []

        def run() -> None:
            try:
                self._asks[name]()
                ended.append("OK")
            except BaseException as error:
                ended.append(error)

        began = time.monotonic()
        thread = threading.Thread(target=run, name=f"ask-{name}", daemon=True)
        thread.start()
        thread.join(GIVEN_UP_S)
        seconds = time.monotonic() - began
        self._left = 0
        if not ended:
            frames = sys._current_frames().get(thread.ident or 0)
            return f"hangs: {''.join(traceback.format_stack(frames)[-4:])}", seconds
        (end,) = ended
        if isinstance(end, str):
            return end, seconds
        if not isinstance(end, AttaError):
            told = "".join(traceback.format_exception(end)[-3:])
            raise Finding(method, self._sent, f"{name} ends with {type(end).__name__}: {told}") from end
        return type(end).__name__, seconds

    def close(self) -> None:
        for liar in self._liars:
            liar.close()

    # -- what is asked -------------------------------------------------------------------------------------------------

    def _connected(self, ask: Callable[[atta.Cluster], Any]) -> None:
        with atta.connect(self._addresses, deadline_s=DEADLINE_S) as cluster:
            ask(cluster)

    def _peer(self) -> None:
        asyncio.run_coroutine_threadsafe(self._ask_peer(), self._loop).result(GIVEN_UP_S)

    async def _ask_peer(self) -> None:
        peer = Peer(1, self._addresses[1], self._dataset, PeerSettings(DEADLINE_S, connect_s=DEADLINE_S))
        rows = np.arange(20)
        try:
            for key, fan_out in ((11, 3), (12, -1)):
                assert await sampled(peer, SampleItem(EDGE, rows, rows, fan_out, False, Method.UNIFORM, key))
            assert len(await peer.pull(FeatureItem("node", ("x",), rows, rows))) >= 0
            assert len(await peer.probe(EDGE, 0, rows)) == len(rows)
            assert len(await peer.pair(EDGE, rows, count=2, negative=True, stream_key=3)) == 2 * len(rows)
            await peer.attach(link_pb2.AttachRequest(version=1, part=0))
        finally:
            await peer.connection.close()


def lie(method: str, reply: bytes, rng: random.Random) -> bytes:
    """A reply that no daemon would give."""
    kind = rng.random()
    if kind < 0.1:
        details = rng.choice(["", "x", "access refused: x", "another daemon does not answer: x", "y" * 10_000, "\n"])
        return NO_MESSAGE + json.dumps({"code": rng.choice(STATUSES), "details": details}).encode()
    if kind < 0.15:
        return NO_MESSAGE + json.dumps({"repeat": rng.choice([0, 2])}).encode()
    if kind < 0.75:
        message = rpc.METHODS[method].reply.FromString(reply)
        change(message, rng, rng.choice([0.05, 0.2, 0.6]))
        return bytes(message.SerializeToString())
    told = mutated(reply, rng)
    return told if not told.startswith(NO_MESSAGE) else b"\x08" + told


def watch(cluster: atta.Cluster) -> None:
    """What ``atta status`` and ``atta trace`` ask."""
    connection = cluster._connections[0]
    assert isinstance(connection.stats(), dict)
    connection.sessions()
    connection.unreached()
    figures = JobFigures("j", 0, "forward", 1, 1, 1, None, None, None, 0, 0)
    connection.report([figures], 1.0)
    cluster.trace()


def batches(cluster: atta.Cluster) -> None:
    settings: dict[str, Any] = {"batch_size": 20, "rank": 0, "world_size": 1}
    for batch in atta.NeighborLoader(cluster, [3, 2], "train", **settings):
        assert batch.n_id().dtype == np.int64
        batch.edge_index().sum()
        batch.table("x").sum()
        batch.num_sampled_nodes()
        batch.num_sampled_edges()


def operator(cluster: atta.Cluster) -> None:
    for batch in atta.BatchLoader(cluster, "saint-nodes", {"budget": 30}, batches=3, rank=0, world_size=1):
        batch.n_id().sum()
        batch.edge_index().sum()


def tensor(cluster: atta.Cluster) -> None:
    name = f"t{time.monotonic_ns()}"
    found = atta.DistTensor(cluster, (40, 3), name=name, max_rows=60)
    rows = np.arange(10)
    found[rows] = np.ones((10, 3), np.float32)
    found.add(rows, np.ones((10, 3), np.float32))
    assert found[rows].shape == (10, 3)
    cluster.tables.locate(f"edges:{EDGE}", np.arange(5))
    cluster.tables.specs()
    found.grow(50)
    found.delete()


def optimiser(cluster: atta.Cluster) -> None:
    name = f"o{time.monotonic_ns()}"
    table = cluster.tables.create(MutableSpec(name, 20, row_shape=(2,), optimiser=OptimiserSpec.adam(), versioned=True))
    table.push(np.arange(4), np.ones((4, 2), np.float32), "step").wait()
    assert table.pull(np.arange(4), versions=True).values.shape == (4, 2)
    cluster.tables.open(name)
    cluster.tables.save("s")
    cluster.tables.delete(name)


def weights(cluster: atta.Cluster) -> None:
    spec = ParameterSpec(f"w{time.monotonic_ns()}", (10,), 2, "arrival", VectorStep("sgd", 0.1), lease_s=5.0)
    job = cluster.weights(spec)
    job.create(np.ones(10, np.float32))
    job.join(1, 1)
    job.leave(1, 1)
    step = job.join(0, 1)
    begun = job.begin(0, step, life=1, within_s=1.0)
    job.push(0, step, np.ones(10, np.float32), life=1)
    job.pull()
    assert begun is not None
    job.drop()
