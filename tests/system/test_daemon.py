"""Real daemons as operators and peers see them: health, reflection, metrics, bad files and bad requests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import atta
from atta.daemon.peers.peers import CHUNK_BYTES
from atta.partition.dataset import Dataset
from atta.protos.v1 import control_pb2, graph_pb2
from atta.wire import rpc
from atta.wire.bulk import SAMPLE_COUNTS, SAMPLE_NEIGHBORS
from atta.wire.identity import Bound, Identity
from tests.addresses import held_addresses, held_port
from tests.system.conftest import SmallGraph

TOO_MUCH = bytes(4 * CHUNK_BYTES)
MINUS_1 = np.int32(-1).tobytes()


@pytest.fixture(scope="module")
def daemon(small_graph: SmallGraph):  # type: ignore[no-untyped-def]
    metrics = held_port()
    with atta.local(
        small_graph.dataset(1, "random"), threads=1, options=("--metrics", f"127.0.0.1:{metrics}")
    ) as cluster:
        channel = grpc.insecure_channel(cluster.addresses[0])
        yield cluster, channel, metrics
        channel.close()


def test_health_and_reflection(daemon: Any) -> None:
    _, channel, _ = daemon
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "atta.v1.SessionService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {f"atta.v1.{s}Service" for s in ("Graph", "Kv", "Session", "Control")} <= services


def test_metrics(daemon: Any) -> None:
    cluster, _, port = daemon
    list(atta.NeighborLoader(cluster, [2], batch_size=64))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        text = page.read().decode()
    found = re.search(r'^atta_batches_total\{part="0"\} ([0-9.]+)$', text, re.MULTILINE)
    assert found is not None
    assert float(found[1]) >= 2


@pytest.mark.parametrize(
    ("name", "request_", "code", "words"),
    [
        ("KvService.Pull", {"node_type": "node", "tables": ["z"], "rows": b""}, "NOT_FOUND", "node/z"),
        ("KvService.Pull", {"node_type": "node", "tables": ["x"], "rows": np.int32(300).tobytes()}, "INVALID_ARGUMENT", "row 300"),
        ("KvService.Pull", {"node_type": "node", "tables": ["x"], "rows": b"123"}, "INVALID_ARGUMENT", "3 bytes"),
        ("GraphService.Sample", {"edge_type": "a__b__c", "fan_out": 2}, "NOT_FOUND", "a__b__c"),
        ("GraphService.Sample", {"edge_type": "node__to__node", "fan_out": -7}, "INVALID_ARGUMENT", "-7"),
        ("GraphService.Sample", {"edge_type": "node__to__node", "rows": MINUS_1, "fan_out": -1}, "INVALID_ARGUMENT", "row"),
        ("GraphService.Sample", {"edge_type": "node__to__node", "rows": MINUS_1, "fan_out": 1}, "INVALID_ARGUMENT", "row -1"),
        ("KvService.Pull", {"node_type": "node", "tables": ["x"], "rows": TOO_MUCH}, "INVALID_ARGUMENT", "in one request"),
    ],
)  # fmt: skip
def test_bad_requests_get_a_reason_and_the_daemon_goes_on(
    daemon: Any, name: str, request_: Any, code: str, words: str
) -> None:
    cluster, channel, _ = daemon
    request_ = rpc.METHODS[name].request(**request_)
    call = partial(rpc.stub(channel, name), metadata=named(cluster))
    ask = list if rpc.METHODS[name].streams else (lambda answer: answer)
    with pytest.raises(grpc.RpcError) as caught:
        ask(call(request_, timeout=10))
    assert caught.value.code().name == code
    assert words in caught.value.details()
    assert len(list(atta.NeighborLoader(cluster, [2], batch_size=64))) == 2


def named(cluster: atta.Cluster) -> tuple[tuple[str, str], ...]:
    return Identity(0, cluster.dataset_id).header(Bound.DATA)


def test_a_message_has_the_first_rows_as_many_as_fit(daemon: Any, small_graph: SmallGraph) -> None:
    cluster, channel, _ = daemon
    indptr = Dataset.open(small_graph.dataset(1, "random")).part(0).csc("node__to__node").indptr
    degrees = np.tile(np.diff(indptr), 20_000)
    rows = np.tile(np.arange(len(indptr) - 1, dtype=np.int32), 20_000)
    request = graph_pb2.SampleRequest(edge_type="node__to__node", rows=rows.tobytes(), fan_out=-1, stream_key=5)
    reply = rpc.stub(channel, "GraphService.Sample")(request, timeout=10, metadata=named(cluster))
    counts = np.frombuffer(reply.payloads[SAMPLE_COUNTS], np.int32)
    fit = int(np.searchsorted(np.cumsum(8 * degrees + 4), CHUNK_BYTES, side="right"))
    assert counts.tolist() == degrees[:fit].tolist()
    assert 4 * counts.sum() == len(reply.payloads[SAMPLE_NEIGHBORS]) > 0


def test_random_bytes_do_not_bring_the_daemon_down(daemon: Any) -> None:
    cluster, channel, _ = daemon
    incarnation = rpc.stub(channel, "ControlService.Describe")(control_pb2.DescribeRequest(), timeout=10).incarnation
    named = Identity(0, cluster.dataset_id, incarnation)
    rng, refused = np.random.default_rng(5), set()
    for name, method in rpc.METHODS.items():
        if name == "ControlService.Stop":
            continue
        make = channel.unary_stream if method.streams else channel.unary_unary
        call = make(method.path, request_serializer=bytes, response_deserializer=bytes)
        for size in (1, 7, 40, 300):
            try:  # bytes that happen to be a valid message may get an answer
                answer = call(rng.bytes(size), timeout=10, metadata=named.header(method.bound))
                assert len(list(answer) if method.streams else [answer]) < 10
            except grpc.RpcError as error:
                refused.add(error.code().name)
    assert "INVALID_ARGUMENT" in refused
    assert not refused & {"INTERNAL", "UNKNOWN"}, (
        "bytes that are not a message are the caller's fault, not the daemon's"
    )
    assert len(list(atta.NeighborLoader(cluster, [2], batch_size=64))) == 2


def serve(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "atta.cli.main",
        "serve",
        "--data",
        str(path),
        "--listen",
        held_addresses(1)[0],
        "--log-level",
        "warning",
    ]
    return subprocess.run(
        [*command, *(options or ("--part", "0"))], capture_output=True, text=True, timeout=60, check=False
    )


def damaged(small_graph: SmallGraph, folder: Path) -> Path:
    copy = folder / "dataset"
    shutil.copytree(small_graph.dataset(2, "metis"), copy)
    return copy


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("atta: error: ")
    assert all(w in lines[0] for w in words), lines[0]


def test_damaged_datasets_are_refused_in_one_line(small_graph: SmallGraph, tmp_path: Path) -> None:
    one_line(serve(tmp_path / "absent"), "absent")
    one_line(serve(small_graph.dataset(2, "metis"), "--part", "5"), "partition 5")
    one_line(serve(small_graph.dataset(2, "metis"), "--part", "0", "--peers", str(tmp_path / "no.toml")), "no.toml")
    path = damaged(small_graph, tmp_path / "a")
    table = path / "part-0000/nodes/node/x.npy"
    table.write_bytes(table.read_bytes()[:-100])
    one_line(serve(path), "part-0000/nodes/node/x.npy")
    path = damaged(small_graph, tmp_path / "b")
    indices = path / "part-0000/edges/node__to__node/indices.npy"
    content = bytearray(indices.read_bytes())
    content[-3] ^= 0xFF
    indices.write_bytes(bytes(content))
    one_line(serve(path), "indices.npy")
    indices.unlink()
    one_line(serve(path), "indices.npy", "missing")
    path = damaged(small_graph, tmp_path / "c")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    one_line(serve(path), "manifest.json", "99")


def test_a_daemon_started_from_a_file(small_graph: SmallGraph, tmp_path: Path) -> None:
    """The file fills in what the command line leaves open.

    ``atta.local`` sets the threads, which override the file's.
    """
    file = tmp_path / "daemon.toml"
    file.write_text('queue = "77MiB"\npolicy = "fifo"\nthreads = 7\nmax-sessions = 1\n')
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=("--config", str(file))) as cluster:
        assert cluster.stats()[0]["queue_limit_bytes"] == 77 << 20
        first = iter(atta.NeighborLoader(cluster, [2], batch_size=64))
        with pytest.raises(atta.QuotaExceededError, match="--max-sessions 1"):
            iter(atta.NeighborLoader(cluster, [2], batch_size=64))
        assert len(list(first)) == 2
    file.write_text("treads = 7\n")
    one_line(serve(small_graph.dataset(1, "random"), "--part", "0", "--config", str(file)), "'treads'", "'threads'")
