"""What ``atta render`` writes runs: the batch script under stubs of Slurm, where addresses of loopback stand for nodes,
and the pods of Kubernetes, where host names resolve late, as on a cluster that is still starting.
"""

from __future__ import annotations

import json
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

from atta.cli.cluster.rendering.manifests import (
    CLUSTER,
    DeploymentPlan,
    KubernetesPlan,
    kubernetes_manifest,
    slurm_script,
)
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import needs_of
from atta_bench.lab.netlab import Host, NetLab
from tests.addresses import held_port

pytestmark = pytest.mark.slow

ATTA = (sys.executable, "-m", "atta.cli.main")
TRAIN = ("--model", "sage", "--layers", "2", "--hidden", "8", "--dropout", "0", "--device", "cpu", "--epochs", "2",
         "--num-neighbors", "3", "--batch-size", "16")  # fmt: skip
HOSTS = ("127.0.0.1", "127.0.0.2")
SRUN = """#!/bin/bash
# Runs the command once per task, as srun does. A node is an address of loopback, so "any address" is that one.
tasks=1
log=/dev/null
while [[ $1 == --* ]]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; --output=*) log=${1#*=} ;; esac
    shift
done
pids=()
for ((task = 0; task < tasks; task++)); do
    words=("${@//0.0.0.0/127.0.0.$((task + 1))}")
    if [[ $2 == train && $task == 0 ]]; then words+=(--json "$REPORT"); fi
    SLURM_PROCID=$task SLURM_NODEID=$task "${words[@]}" > "${log//%t/$task}" 2>&1 &
    pids+=($!)
done
trap 'kill "${pids[@]}"' TERM
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
"""


@pytest.fixture(scope="module")
def dataset(classes: Path) -> Path:
    return classes / "parts"


@pytest.fixture(scope="module")
def by_hand(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    report = tmp_path_factory.mktemp("by_hand") / "report.json"
    words = ["train", "--data", str(dataset), "--trainers", "2", *TRAIN, "--json", str(report)]
    subprocess.run([*ATTA, *words], check=True, timeout=120, env=environment(), capture_output=True)
    return losses(report)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def losses(report: Path) -> list[float]:
    return [epoch["loss"] for epoch in json.loads(report.read_text())["epochs"]]


def plan(dataset: Path, **more: int) -> DeploymentPlan:
    needs = tuple(needs_of(Dataset.open(dataset)))
    more |= {"nodes": 2, "trainers": 2, "buffer": 1 << 28}
    return DeploymentPlan("run", str(dataset), needs, train=TRAIN, tls=False, **more)


def test_the_script_of_slurm_trains(dataset: Path, by_hand: list[float], tmp_path: Path) -> None:
    stubs = tmp_path / "bin"
    stubs.mkdir()
    hosts = "\\n".join(HOSTS)
    for name, text in {
        "srun": SRUN,
        "scontrol": f"#!/bin/sh\nprintf '{hosts}\\n'\n",
        "atta": f'#!/bin/sh\nexec {sys.executable} -m atta.cli.main "$@"\n',
    }.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    script = tmp_path / "run.sbatch"
    ports = {name: held_port() for name in ("port", "link_port", "metrics_port", "meeting_port")}
    script.write_text(slurm_script(plan(dataset, **ports), {}, {}))
    env = environment(
        PATH=f"{stubs}:{os.environ['PATH']}", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="node[1-2]",
        SLURM_SUBMIT_DIR=str(tmp_path), REPORT=str(tmp_path / "report.json"),
    )  # fmt: skip
    done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, timeout=170, check=False)
    logs = {log.name: log.read_text() for log in (tmp_path / "run-7").glob("*.log")}
    assert done.returncode == 0, (done.stderr, logs)
    assert losses(tmp_path / "report.json") == pytest.approx(by_hand, rel=1e-5)
    assert set(logs) == {"daemon-0.log", "daemon-1.log"}
    assert all("stopped" in log for log in logs.values())  # they have drained


# -- pods, each in a network namespace with a host name of its own -----------------------------------------------------

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


@pytest.fixture
def lab() -> Iterator[NetLab]:
    with NetLab(4) as found:
        yield found


@pytest.mark.netns
@pytest.mark.timeout(300)
def test_pods_train_although_names_resolve_late(
    dataset: Path, by_hand: list[float], lab: NetLab, tmp_path: Path
) -> None:
    cluster = KubernetesPlan(plan(dataset, cache=1 << 26), "atta:1", "claim")
    objects = [*yaml.safe_load_all(kubernetes_manifest(cluster))]
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
        for pod in pods["StatefulSet"]:  # they end as an engine would end them
            assert pod.process is not None
            pod.process.send_signal(signal.SIGTERM)
            assert pod.process.wait(60) == 0
    finally:
        for pod in everybody:
            if pod.process is not None and pod.process.poll() is None:
                os.kill(pod.process.pid, signal.SIGKILL)
