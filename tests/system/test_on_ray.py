"""Daemons and trainers that Ray keeps: the batches and losses of ``atta train``, also after losses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import atta
import atta.ray
from atta.errors import AttaError, ConfigError, DataError, QuotaExceededError, UnavailableError
from atta.observe.packages import missing
from atta.train import TrainConfig, fit
from atta.train.launching.on_ray import serving
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing("ray", "torch_geometric")), reason="ray or torch_geometric is not installed"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def parts(classes: Path) -> Path:
    return classes / "parts"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of three nodes on this machine; programs that the tests start find it too."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for setting in ("enable_worker_prestart", "prestart_worker_first_driver"):
            patch.setenv(f"RAY_{setting}", "0")  # processes that nobody needs here
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        patch.setenv("RAY_ADDRESS", cluster.address)
        for _ in range(2):
            cluster.add_node(num_cpus=3)
        try:
            ray.init(namespace="atta", log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="module")
def served(nodes: Any, parts: Path) -> Iterator[atta.ray.Served]:
    with atta.ray.serve(parts, name="small", insecure=True, buffer_bytes=64 * MIB) as running:
        yield running


def config(**changes: Any) -> TrainConfig:
    given = {"cluster": "ray:small", "trainers": 2, "epochs": 3, "num_neighbors": (3, 3), "batch_size": 16, "hidden": 8}
    return TrainConfig(**{**given, "device": "cpu", "verbose": False, **changes})


def losses(report: Any) -> list[float]:
    return [epoch.loss for epoch in report.epochs]


@pytest.fixture(scope="module")
def expected(parts: Path) -> list[float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return losses(fit(replace(config(), cluster=None, data=str(parts))))


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


def alive(words: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if words in line and "-m atta." in line:
            found.append(process)
    return found


def trainers() -> list[psutil.Process]:
    """Those of the cluster that this process has started. Other programs of this machine have theirs."""
    own = psutil.Process().children(recursive=True)
    return [process for process in alive("atta.train.launching.worker") if process in own]


def test_commands_take_the_name(served: atta.ray.Served) -> None:
    command = [sys.executable, "-m", "atta.cli.main", "status", "--cluster", "ray:small", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [d["error"] for d in json.loads(done.stdout)["daemons"]] == [None, None]


def test_trainers_run_elsewhere_where_their_homes_are_full(
    nodes: Any, served: atta.ray.Served, expected: list[float]
) -> None:
    import ray
    from ray._private.state import available_resources_per_node
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Idle:
        def here(self) -> bool:
            return True

    def fill(node: str, cores: float) -> Any:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(Idle).options(num_cpus=cores, scheduling_strategy=where).remote()

    free = {node: found.get("CPU", 0.0) for node, found in available_resources_per_node().items()}
    idle = [fill(node, cores) for node, cores in free.items() if cores]
    extra = nodes.add_node(num_cpus=2)
    nodes.wait_for_nodes()
    try:
        assert all(ray.get([actor.here.remote() for actor in idle], timeout=60))
        assert losses(atta.ray.fit(config())) == pytest.approx(expected, abs=1e-5)
    finally:
        for actor in idle:
            ray.kill(actor)
        nodes.remove_node(extra)


def test_a_run_survives_its_daemons_and_trainers(
    served: atta.ray.Served, expected: list[float], tmp_path: Path
) -> None:
    """Kills a daemon in epoch 1, and a trainer once there is a checkpoint. The curve is the same."""
    longer = config(epochs=12, checkpoint=str(tmp_path / "runs"))
    killed: list[str] = []
    before = [state["starts"] for state in served.states()]

    def kill() -> None:
        assert eventually(trainers, 120)
        for state in served.states()[:1]:
            os.kill(state["pid"], signal.SIGKILL)
            killed.append("daemon")
        assert eventually(lambda: (tmp_path / "runs/checkpoint.pt").exists(), 120)
        trainer = trainers()
        if trainer:
            trainer[0].kill()
            killed.append("trainer")

    plain = atta.ray.fit(config(epochs=12))
    with meanwhile(kill):
        report = atta.ray.fit(longer, max_failures=3)
    assert killed == ["daemon", "trainer"]
    assert served.states()[0]["starts"] > before[0]
    assert losses(report) == pytest.approx(losses(plain), abs=1e-5)
    assert losses(report)[:3] == pytest.approx(expected, abs=1e-5)


def test_without_failures_allowed_the_loss_of_a_trainer_is_an_error(served: atta.ray.Served) -> None:
    def kill() -> None:
        assert eventually(trainers, 120)
        for process in trainers():
            process.kill()

    with meanwhile(kill), pytest.raises(AttaError, match="was killed by SIGKILL"):
        atta.ray.fit(config(epochs=200))


def test_a_run_survives_the_loss_of_a_node(nodes: Any, parts: Path, tmp_path: Path, expected: list[float]) -> None:
    """A node with a daemon and its trainer goes away; a third one takes over."""
    import ray

    extra = nodes.add_node(num_cpus=2, resources={"lost": 1})
    nodes.wait_for_nodes()
    with atta.ray.serve(parts, name="moving", insecure=True, buffer_bytes=64 * MIB) as running:
        where = atta.wire.clusterfile.ask_ray(running.target).nodes
        if extra.node_id not in where:  # Ray chose the others: lose one of those
            extra = next(n for n in nodes.worker_nodes if n.node_id in where)
        lost: list[bool] = []

        def lose() -> None:
            assert eventually(lambda: (tmp_path / "runs/checkpoint.pt").exists(), 120)
            nodes.remove_node(extra, allow_graceful=False)
            lost.append(True)

        longer = config(cluster="ray:moving", epochs=12, checkpoint=str(tmp_path / "runs"))
        with meanwhile(lose):
            report = atta.ray.fit(longer, max_failures=3)
        assert lost
        assert len(losses(report)) == 12
        assert losses(report)[:3] == pytest.approx(expected, abs=1e-5)
        assert extra.node_id not in atta.wire.clusterfile.ask_ray(running.target).nodes
    assert ray.is_initialized()


def test_what_goes_wrong_at_the_start_has_a_name(nodes: Any, parts: Path, served: atta.ray.Served) -> None:
    with pytest.raises(ConfigError, match="runs already"):
        atta.ray.serve(parts, name="small", insecure=True)
    assert serving._KEPT["small"] is served, "the refusal of a second one lets the first one go on"
    with pytest.raises(DataError):
        atta.ray.serve(parts / "absent", name="absent", insecure=True)
    with pytest.raises(QuotaExceededError, match="no room for 2 daemons"):
        atta.ray.serve(parts, name="large", insecure=True, threads=500, deadline_s=2)
    with pytest.raises(ConfigError, match="insecure"):
        atta.ray.serve(parts, name="open", buffer_bytes=64 * MIB)
    with pytest.raises(UnavailableError, match="knows no such cluster"):
        atta.connect("ray:nobody")


DRIVER = """
import sys, time, atta.ray
atta.ray.serve(sys.argv[1], name="orphan", insecure=True, buffer_bytes=64 << 20)
print("serving", flush=True)
if sys.argv[2] == "shutdown":
    import ray
    ray.shutdown()
    print("shut down", flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize("how", ["shutdown", "kill"])
def test_no_process_outlives_the_program(nodes: Any, tmp_path: Path, parts: Path, how: str) -> None:
    own = tmp_path / f"orphan-{how}"
    own.symlink_to(parts)
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(own), how], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "serving\n"
            if how == "shutdown":
                assert driver.stdout.readline() == "shut down\n"
            else:
                time.sleep(3)  # daemons stay, although the program has not kept what serve returned
                assert len(alive(str(own))) == 2
                driver.kill()
            assert eventually(lambda: not alive(str(own)), 10)
        finally:
            driver.kill()


def test_a_run_may_start_its_own_daemons(nodes: Any, parts: Path, expected: list[float]) -> None:
    before = alive(str(parts))  # of other tests
    report = atta.ray.fit(replace(config(), cluster=None, data=str(parts)), insecure=True)
    assert losses(report) == pytest.approx(expected, abs=1e-5)
    assert eventually(lambda: set(alive(str(parts))) <= set(before), 10)
