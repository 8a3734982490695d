"""Pods that ``atta render kubernetes`` writes, each in a network namespace with a host name of its own.

Trainers come first. The names of other pods resolve only later, as on a cluster that is still starting.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from atta.cli.cluster.rendering.manifests import CLUSTER, DeploymentPlan, KubernetesPlan, kubernetes_manifest
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import needs_of
from atta_bench.lab.netlab import Host, NetLab
from tests.system.test_rendered import ATTA, TRAIN, by_hand, dataset, losses

__all__ = ["by_hand", "dataset"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(300)]

UNKNOWN_S = 30
"""How long the names of other pods do not resolve."""


class Pod:
    """A container's process on a host of its own. Its /etc/hosts lists itself, and later all pods, as a cluster's DNS
    would."""

    def __init__(self, name: str, service: str, host: Host, folder: Path) -> None:
        self.name, self.host, self.folder = name, host, folder
        self.line = f"{host.address} {name}.{service} {name}\n"
        folder.mkdir()
        self.hosts, self.log = folder / "hosts", folder / "log"
        self.tell([self])
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.process: subprocess.Popen[bytes] | None = None

    def tell(self, pods: Sequence[Pod]) -> None:
        """Let the names of ``pods`` resolve. The file stays the same one, as it is mounted."""
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(pod.line for pod in pods))

    def start(self, words: Sequence[str], env: dict[str, str]) -> None:
        files = [(self.hosts, "/etc/hosts"), (self.folder / "resolv.conf", "/etc/resolv.conf")]
        mounts = [f"mount --bind {shlex.quote(str(file))} {place}" for file, place in files]
        named = f"echo {self.name} > /proc/sys/kernel/hostname"
        script = " && ".join([*mounts, named, f"exec {shlex.join(words)}"])
        with self.log.open("wb") as log:
            command = ["unshare", "--uts", "sh", "-c", script]
            self.process = self.host.popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)

    def stop(self) -> int:
        """End it as an engine would, and give its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@pytest.fixture
def lab() -> Iterator[NetLab]:
    with NetLab(4) as found:
        yield found


def test_pods_train_although_names_resolve_late(
    dataset: Path, by_hand: list[float], lab: NetLab, tmp_path: Path
) -> None:
    needs = tuple(needs_of(Dataset.open(dataset)))
    cluster = DeploymentPlan(
        "run", str(dataset), needs, nodes=2, trainers=2, train=TRAIN, tls=False, cache=1 << 26, buffer=1 << 28
    )
    objects = [*yaml.safe_load_all(kubernetes_manifest(KubernetesPlan(cluster, "atta:1", "claim")))]
    specs = {found["kind"]: found["spec"] for found in objects if "spec" in found}
    names = {found["kind"]: found["metadata"]["name"] for found in objects}
    (config,) = (found["data"]["cluster.toml"] for found in objects if found["kind"] == "ConfigMap")
    (tmp_path / "cluster.toml").write_text(config)
    counts = {"Job": specs["Job"]["completions"], "StatefulSet": specs["StatefulSet"]["replicas"]}
    assert counts == {"Job": 2, "StatefulSet": 2}
    assert specs["Job"]["template"]["spec"]["subdomain"] == names["Job"]
    assert specs["StatefulSet"]["serviceName"] == names["StatefulSet"]

    hosts = iter(lab.hosts)
    pods = {
        kind: [Pod(f"{names[kind]}-{i}", names[kind], next(hosts), tmp_path / f"{kind}-{i}") for i in range(count)]
        for kind, count in counts.items()
    }
    everybody = [pod for of_kind in pods.values() for pod in of_kind]

    def start(kind: str, index: int, more: Sequence[str] = (), **variables: str) -> None:
        (container,) = specs[kind]["template"]["spec"]["containers"]
        command = [*container["command"], *container["args"], *more]
        words = [str(tmp_path / "cluster.toml") if word == CLUSTER else word for word in command]
        assert words[0] == "atta"
        told = {entry["name"]: entry["value"] for entry in container["env"]}
        pods[kind][index].start([*ATTA, *words[1:]], {**told, "OMP_NUM_THREADS": "1", **variables})

    try:
        for index in range(2):
            report = ("--json", str(tmp_path / f"{index}.json"))
            start("Job", index, report, JOB_COMPLETION_INDEX=str(index))
        for index in range(2):
            start("StatefulSet", index)
        time.sleep(UNKNOWN_S)
        running = {pod.name: pod.process is not None and pod.process.poll() is None for pod in everybody}
        assert all(running.values()), (running, *(pod.log.read_text() for pod in everybody))
        for pod in everybody:
            pod.tell(everybody)
        for pod in pods["Job"]:
            assert pod.process is not None
            assert pod.process.wait(150) == 0, pod.log.read_text()
        assert losses(tmp_path / "0.json") == pytest.approx(by_hand, rel=1e-5)
        assert losses(tmp_path / "1.json") == losses(tmp_path / "0.json")
        assert [pod.stop() for pod in pods["StatefulSet"]] == [0, 0]
    finally:
        for pod in everybody:
            if pod.process is not None and pod.process.poll() is None:
                os.kill(pod.process.pid, signal.SIGKILL)


def test_a_pod_has_a_name_and_hosts_of_its_own(lab: NetLab, tmp_path: Path) -> None:
    pods = [Pod(f"pod-{n}", "pods", host, tmp_path / f"{n}") for n, host in enumerate(lab.hosts[:2])]
    asks = "import socket, sys; print(socket.gethostname(), [socket.getaddrinfo(n, 1)[0][4][0] for n in sys.argv[1:]])"
    pods[0].tell(pods)
    for pod in pods:
        pod.start([sys.executable, "-c", asks, "pod-0.pods", "pod-1.pods"], {})
    assert [pod.process is not None and pod.process.wait(30) for pod in pods] == [0, 1]
    assert pods[0].log.read_text() == f"pod-0 {[pod.host.address for pod in pods]}\n"
    assert "Name or service not known" in pods[1].log.read_text() or "resolution" in pods[1].log.read_text()
