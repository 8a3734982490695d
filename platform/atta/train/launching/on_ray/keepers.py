"""Ray's actors. Each keeps one process of Atta: a daemon without limit, a trainer until it ends. The processes end with
their actors, even if those are killed, for the kernel sees to it (``observe.machine.ending``)."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atta.observe import lastwords
from atta.observe.machine.ending import tethered
from atta.observe.machine.held import HeldAddresses, OwnFolder
from atta.partition.disk.mirror import Mirror
from atta.train.launching.nodes import INTERFACE, interface_towards
from atta.train.launching.on_ray.placement import Care, NextStep
from atta.wire.clusterfile import NAMESPACE, write_cluster

LOOK_S = 0.5
"""How often a keeper looks at its daemon and announces it."""
ANSWER_S = 5.0
"""How long the registry may take to answer."""
END_S = 60.0
"""How long a daemon may take to end: it lets sessions go on, then saves its tables."""

log = logging.getLogger(__name__)


class DaemonKeeper:
    """Runs ``atta serve`` for one partition and starts it again whenever it ends. A thread does so until ``stop``."""

    def __init__(self, part: int, words: Sequence[str], cluster: str) -> None:
        """``words``: of ``atta serve``, without addresses; ``cluster``: the name of the registry's actor."""
        self._words, self._cluster = list(words), cluster
        self._held, self._node, self._care = HeldAddresses(1, _host()), _node(), Care(part)
        (self._address,) = self._held.addresses
        self._own = OwnFolder("atta-ray-")
        self._folder = Path(self._own.name)
        self._child: subprocess.Popen[bytes] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def state(self) -> dict[str, Any]:
        """How the daemon fares: ``address``, ``pid``, ``starts``, ``failures`` in a row and ``words``, its last ones."""
        child, words = self._child, self._folder / "error"
        return {
            "address": self._address,
            "pid": child.pid if child is not None else None,
            "starts": self._care.starts,
            "failures": self._care.failures,
            "words": words.read_text(encoding="utf-8") if self._care.failures and words.exists() else "",
        }

    def stop(self) -> None:
        """End the daemon: its sessions may go on for ``--drain``, and its tables are saved."""
        self._end.set()
        self._thread.join(END_S + ANSWER_S)
        self._own.cleanup()
        self._held.close()

    def _keep(self) -> None:
        while not self._end.wait(LOOK_S):
            try:
                self._look()
            except Exception:  # of any kind: a keeper without limit goes on
                log.exception("daemon of partition %d", self._care.part)
        self._finish()

    def _look(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None
            self._care.ended(time.monotonic())
        self._care.told(self._announce())
        step = self._care.decide(time.monotonic())
        if step is NextStep.START:
            self._start()
        elif step is NextStep.STOP:
            self._finish()

    def _announce(self) -> list[str]:
        import ray

        try:
            registry = ray.get_actor(self._cluster, namespace=NAMESPACE)
            said = registry.announce.remote(self._care.part, self._address, self._node)
            found: list[str] = ray.get(said, timeout=ANSWER_S)
        except (ray.exceptions.RayError, ValueError):  # it is being restarted elsewhere; what was known still holds
            return []
        return found

    def _start(self) -> None:
        addresses = self._care.started(time.monotonic())
        cluster, words = self._folder / "cluster.toml", self._folder / "error"
        words.unlink(missing_ok=True)
        write_cluster(cluster, addresses)
        place = ("--part", str(self._care.part), "--listen", self._address, "--peers", str(cluster))
        command = tethered(("-m", "atta.cli.main", "serve", *place, *self._words))
        environment = {**os.environ, lastwords.VARIABLE: str(words)}
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)

    def _finish(self) -> None:
        """Stop the daemon. ``_look`` notices its end."""
        if self._child is None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class TrainerKeeper:
    """Runs one trainer, the same program as under torch's launcher. It restarts nothing: all ranks start together."""

    def __init__(self) -> None:
        self._host = _host()
        self._held = HeldAddresses(1, self._host)

    def place(self) -> dict[str, Any]:
        """Its node, the host that others reach it at, and a port there that is held for the trainer."""
        return {"node": _node(), "host": self._host, "port": self._held.ports[0]}

    def version(self, folder: str | None, name: str) -> str:
        """A text that changes when a file of ``folder`` is written anew; empty: there is none."""
        return "" if folder is None else Mirror(folder).version(name)

    def train(self, task: Mapping[str, Any], environment: Mapping[str, str], registry: Any) -> dict[str, Any]:
        """Train until the end: ``code`` of the process; ``record`` if it failed; ``epochs`` of the first on its node."""
        with OwnFolder("atta-ray-") as name:
            folder = Path(name)
            task = self._told(task, folder, registry)
            (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
            child = subprocess.Popen(
                tethered(("-m", "atta.train.launching.worker", str(folder))),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, **_interface(environment)},
            )
            while child.poll() is None:
                time.sleep(LOOK_S)
                self._told(task, folder, registry)
            records = [path.read_text(encoding="utf-8") for path in folder.glob("failure-*.json")]
            epochs = folder / "epochs.json"
            return {
                "code": child.returncode,
                "record": records[0] if records else "",
                "epochs": json.loads(epochs.read_text(encoding="utf-8")) if epochs.exists() else [],
            }

    def _told(self, task: Mapping[str, Any], folder: Path, registry: Any) -> Mapping[str, Any]:
        """Write where daemons are now, as a cluster file; returns the task with its name."""
        import ray

        if registry is None:
            return task
        try:
            addresses = ray.get(registry.known.remote(), timeout=ANSWER_S)["addresses"]
        except ray.exceptions.RayError:  # it is being restarted; the file of before still holds
            addresses = []
        file, partial = folder / "cluster.toml", folder / "cluster.partial"
        if addresses or not file.exists():
            write_cluster(partial, addresses or [replicas[0] for replicas in task["addresses"]])
            partial.rename(file)
        return {**task, "file": str(file)}


def _interface(environment: Mapping[str, str]) -> dict[str, str]:
    """The interface towards rank 0, for gloo, which would otherwise resolve the host's name."""
    if INTERFACE in os.environ:
        return {}
    found = interface_towards(f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}")
    return {INTERFACE: found} if found else {}


def _host() -> str:
    import ray.util

    found: str = ray.util.get_node_ip_address()
    return found


def _node() -> str:
    import ray

    found: str = ray.get_runtime_context().get_node_id()
    return found
