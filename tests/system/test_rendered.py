"""What ``atta render`` writes runs: commands and environments of containers, and the batch script under stubs of Slurm.

They are processes of this machine. Addresses of loopback stand for host names, one for each pod or node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from atta.cli.cluster.rendering.manifests import (
    CLUSTER,
    DATA,
    DeploymentPlan,
    KubernetesPlan,
    kubernetes_manifest,
    slurm_script,
)
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph.needs import needs_of
from tests.addresses import held_port

pytestmark = pytest.mark.slow

ATTA = (sys.executable, "-m", "atta.cli.main")
TRAIN = ("--model", "sage", "--layers", "2", "--hidden", "8", "--dropout", "0", "--device", "cpu", "--epochs", "2",
         "--num-neighbors", "3", "--batch-size", "16")  # fmt: skip
HOSTS = ("127.0.0.1", "127.0.0.2")
POD = "import socket, sys; host = sys.argv.pop(1); socket.gethostname = lambda: host; from atta.cli.main import main; main()"
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
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch_geometric")
    folder = tmp_path_factory.mktemp("rendered")
    sizes = {"nodes": 400, "edges": 4000, "features": 6, "classes": 3, "seed": 5}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, train=0.4, val=0.2, test=0.4, inter=0.2))  # type: ignore[arg-type]
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    return folder / "parts"


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


def plan(dataset: Path, data: str) -> DeploymentPlan:
    numbers = (held_port() for _ in range(4))
    ports = dict(zip(("port", "link_port", "metrics_port", "meeting_port"), numbers, strict=True))
    needs = tuple(needs_of(Dataset.open(dataset)))
    return DeploymentPlan("run", data, needs, nodes=2, trainers=2, train=TRAIN, tls=False, buffer=1 << 28, **ports)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that the test starts; none is left behind."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        process.send_signal(signal.SIGTERM)
    for process in found:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()


def start(pod: str, words: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", POD, pod, *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_containers_of_kubernetes_train(
    dataset: Path, by_hand: list[float], tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    found = KubernetesPlan(plan(dataset, DATA), "atta:1", "claim")
    objects = {
        document["kind"]: document["spec"]
        for document in yaml.safe_load_all(kubernetes_manifest(found))
        if "spec" in document
    }
    (config,) = (
        d["data"]["cluster.toml"] for d in yaml.safe_load_all(kubernetes_manifest(found)) if d["kind"] == "ConfigMap"
    )
    names = dict(zip(found.daemon_hosts(), HOSTS, strict=True))
    names |= {f"run-trainer-{n}.run-trainer": address for n, address in enumerate(HOSTS)}
    names |= {CLUSTER: str(tmp_path / "cluster.toml"), DATA: str(dataset)}

    def here(text: str) -> str:
        for name, local in names.items():
            text = text.replace(name, local)
        return text

    def begin(kind: str, pod: str, address: str, more: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
        (container,) = objects[kind]["template"]["spec"]["containers"]
        told = {entry["name"]: entry["value"] for entry in container["env"]}
        words: list[Any] = [here(word).replace("0.0.0.0", address) for word in container["args"]]
        process = start(pod, [container["command"][1], *words, *more], environment(**told, **variables))
        started.append(process)
        return process

    (tmp_path / "cluster.toml").write_text(here(config))
    trainers = []
    for node in range(objects["Job"]["completions"]):  # trainers come first
        report = ("--json", str(tmp_path / f"{node}.json"))
        index = str(node)
        trainers.append(begin("Job", f"run-trainer-{node}", HOSTS[node], report, JOB_COMPLETION_INDEX=index))
    for part in range(objects["StatefulSet"]["replicas"]):
        begin("StatefulSet", f"run-daemon-{part}", HOSTS[part])
    for trainer in trainers:
        assert trainer.wait(150) == 0, trainer.communicate()[1]
    assert losses(tmp_path / "0.json") == pytest.approx(by_hand, rel=1e-5)
    assert losses(tmp_path / "1.json") == losses(tmp_path / "0.json")


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
    script.write_text(slurm_script(plan(dataset, str(dataset)), {}, {}))
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
