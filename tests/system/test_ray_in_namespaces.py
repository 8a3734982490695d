"""Ray on two machines, each a network namespace with its own memory files, that know each other only by address."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import atta
from atta.observe.packages import missing
from atta_bench.lab.netlab import Host, NetLab
from tests.system.test_on_ray import alive, expected, parts
from tests.waiting import eventually

__all__ = ["expected", "parts"]  # fixtures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.netns,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing("ray", "torch_geometric")), reason="ray or torch_geometric is not installed"),
]
PORT = 6379
RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=3", "--disable-usage-stats")
PROGRAM = """
import json, sys
import ray
import atta, atta.ray
from atta.train import TrainConfig
from tests.system.test_ray_in_namespaces import digest

data, address, out = sys.argv[1:]
ray.init(address=address, namespace="atta", log_to_driver=False)
with atta.ray.serve(data, name="apart", insecure=True, buffer_bytes=64 << 20) as running:
    with atta.connect(running.target) as cluster:
        found = digest(cluster)
    config = TrainConfig(
        cluster=running.target, trainers=2, epochs=3, num_neighbors=(3, 3), batch_size=16, hidden=8, device="cpu",
        verbose=False,
    )
    report = atta.ray.fit(config)
    told = {"addresses": list(running.addresses), "digest": found, "losses": [e.loss for e in report.epochs]}
with open(out, "w") as file:
    json.dump(told, file)
"""


def digest(cluster: atta.Cluster) -> str:
    found = hashlib.sha256()
    for batch in atta.NeighborLoader(cluster, [3, 3], "train", batch_size=16, shuffle=True, seed=3):
        data = batch.to_pyg()
        for name in ("n_id", "edge_index", "e_id", "x", "y"):
            found.update(data[name].numpy().tobytes())
    return found.hexdigest()


def start(host: Host, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Run words on a host; what Ray keeps in its temporary folder is the host's own."""
    script = 'mkdir -p /tmp/ray && { mountpoint -q /tmp/ray || mount -t tmpfs tmpfs /tmp/ray; } && exec "$@"'
    settings = {f"RAY_{name}": "0" for name in ("enable_worker_prestart", "prestart_worker_first_driver")}
    env = {**settings, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        return host.popen(["sh", "-c", script, "sh", *words], env=env, stdout=out, stderr=subprocess.STDOUT)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Host]]:
    with NetLab(2, shm_bytes=1 << 30) as lab:
        head, other = lab.hosts
        store = f"--object-store-memory={200 << 20}"
        first = [*RAY, store, "--head", f"--port={PORT}", "--include-dashboard=false"]
        nodes = [start(head, [*first, f"--node-ip-address={head.address}"], tmp_path / "head.log")]
        try:
            assert eventually(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), 120)
            joins = [*RAY, store, f"--address={head.address}:{PORT}", f"--node-ip-address={other.address}"]
            nodes.append(start(other, joins, tmp_path / "other.log"))
            assert eventually(lambda: "Ray runtime started" in (tmp_path / "other.log").read_text(), 120)
            yield [head, other]
        finally:
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            for node in nodes:
                try:
                    node.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(node.pid, signal.SIGKILL)
                    node.wait()


def test_daemons_and_trainers_on_two_machines(
    cluster: list[Host], parts: Path, expected: list[float], tmp_path: Path
) -> None:
    head, other = cluster
    out = tmp_path / "told.json"
    words = [sys.executable, "-c", PROGRAM, str(parts), f"{head.address}:{PORT}", str(out)]
    program = start(head, words, tmp_path / "program.log")
    assert program.wait(300) == 0, (tmp_path / "program.log").read_text()
    told = json.loads(out.read_text())
    assert {address.rpartition(":")[0] for address in told["addresses"]} == {head.address, other.address}
    assert told["losses"] == pytest.approx(expected, abs=1e-5)
    with atta.local(parts, threads=1) as here:
        assert told["digest"] == digest(here)
    assert eventually(lambda: not alive(str(parts)), 10)
