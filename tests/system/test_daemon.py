"""Real daemons as operators and peers see them: health, reflection, metrics, bad files and bad requests."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
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
from atta.protos.v1 import graph_pb2
from atta.wire import rpc
from atta.wire.bulk import SAMPLE_COUNTS, SAMPLE_NEIGHBORS
from atta.wire.clusterfile import write_cluster
from atta.wire.identity import Bound, Identity
from tests.system.conftest import SmallGraph
from tests.system.test_daemon_down import run

TOO_MUCH = bytes(4 * CHUNK_BYTES)
MINUS_1 = np.int32(-1).tobytes()


@pytest.fixture(scope="module")
def daemon(small_graph: SmallGraph) -> Iterator[tuple[atta.LocalCluster, grpc.Channel]]:
    local = atta.local(small_graph.dataset(1, "random"), threads=1)
    with local as cluster, grpc.insecure_channel(cluster.addresses[0]) as channel:
        yield cluster, channel


def test_health_and_reflection(daemon: Any) -> None:
    _, channel = daemon
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "atta.v1.SessionService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {f"atta.v1.{s}Service" for s in ("Graph", "Kv", "Session", "Control")} <= services


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
def test_bad_requests_are_refused_with_a_reason(daemon: Any, name: str, request_: Any, code: str, words: str) -> None:
    cluster, channel = daemon
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
    cluster, channel = daemon
    indptr = Dataset.open(small_graph.dataset(1, "random")).part(0).csc("node__to__node").indptr
    degrees = np.tile(np.diff(indptr), 20_000)
    rows = np.tile(np.arange(len(indptr) - 1, dtype=np.int32), 20_000)
    request = graph_pb2.SampleRequest(edge_type="node__to__node", rows=rows.tobytes(), fan_out=-1, stream_key=5)
    reply = rpc.stub(channel, "GraphService.Sample")(request, timeout=10, metadata=named(cluster))
    counts = np.frombuffer(reply.payloads[SAMPLE_COUNTS], np.int32)
    fit = int(np.searchsorted(np.cumsum(8 * degrees + 4), CHUNK_BYTES, side="right"))
    assert counts.tolist() == degrees[:fit].tolist()
    assert 4 * counts.sum() == len(reply.payloads[SAMPLE_NEIGHBORS]) > 0


def test_a_daemon_started_from_a_file(small_graph: SmallGraph, tmp_path: Path) -> None:
    file = tmp_path / "daemon.toml"
    file.write_text('queue = "77MiB"\npolicy = "fifo"\nthreads = 7\nmax-sessions = 1\n')
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=("--config", str(file))) as cluster:
        assert cluster.stats()[0]["queue_limit_bytes"] == 77 << 20
        first = iter(atta.NeighborLoader(cluster, [2], batch_size=64))
        with pytest.raises(atta.QuotaExceededError, match="--max-sessions 1"):
            iter(atta.NeighborLoader(cluster, [2], batch_size=64))
        assert len(list(first)) == 2
    file.write_text("treads = 7\n")
    said = refused(small_graph.dataset(1, "random"), "--config", str(file))
    assert re.search("'treads'.*'threads'", said)


def refused(data: Path, *words: str) -> str:
    """The one line that a daemon says which does not start."""
    done = run("serve", "--data", data, "--part", "0", "--listen", "127.0.0.1:7", "--log-level", "warning", *words)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch("atta: error: .*\n", done.stderr)
    return done.stderr


def test_damaged_datasets_are_refused_in_one_line(small_graph: SmallGraph, tmp_path: Path) -> None:
    path = tmp_path / "absent"
    assert "absent" in refused(path)
    shutil.copytree(small_graph.dataset(2, "metis"), path)
    table, indices = (path / f"part-0000/{name}.npy" for name in ("nodes/node/x", "edges/node__to__node/indices"))
    content = bytearray(indices.read_bytes())
    content[-3] ^= 0xFF
    indices.write_bytes(bytes(content))
    assert "indices.npy" in refused(path)
    indices.unlink()
    assert re.search(r"indices.npy.*missing", refused(path))
    content[-3] ^= 0xFF
    indices.write_bytes(bytes(content))
    whole = table.read_bytes()
    table.write_bytes(whole[:-100])
    assert "part-0000/nodes/node/x.npy" in refused(path)
    table.write_bytes(whole)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    assert re.search("manifest.json.*99", refused(path))


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        (1, "--durability replica", "belong together"),
        (1, "--backup h:1", "belong together"),
        (1, "--keep-backup --durability process", "no --durability of its own"),
        (1, "--durability replica --backup 127.0.0.1:7", "own address"),
        (1, "--promote-after 5s", "only a daemon with --keep-backup"),
        (1, "--promote-after 5s --keep-backup --peers one.toml", "--peers names 2 daemons; a majority needs 3 or more"),
        (1, "--metrics 9090", "host:port"),
        (1, "--metrics 127.0.0.1:0", "name a port"),
        (1, "--metrics 127.0.0.1:9090 --metrics-port 9090", "one of them"),
        (2, "--part 5", "partition 5"),
        (2, "--peers no.toml", "no.toml"),
        (4, "--part 3-4", "partition 4 does not exist"),
        (4, "--part 0-1 --memory map", "cannot be mapped one after another"),
    ],
)
def test_options_that_conflict(small_graph: SmallGraph, tmp_path: Path, parts: int, options: str, words: str) -> None:
    write_cluster(tmp_path / "one.toml", [("127.0.0.1:7", "127.0.0.1:8")])
    data = small_graph.dataset(parts, "metis" if parts == 2 else "random")
    given = [str(tmp_path / word) if word.endswith(".toml") else word for word in options.split()]
    assert words in refused(data, *given)
