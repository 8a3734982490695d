"""The machines of a training run, in torchrun's terms, and the store in which they and their trainers meet."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import psutil

from atta.errors import AttaError, ConfigError, blaming
from atta.observe.lastwords import first_line
from atta.train.config import TrainConfig
from atta.train.meeting import Notes
from atta.wire.clusterfile import check_address

INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Nodes:
    """The nodes of a run: with T trainers on N nodes, node n has ranks n T/N to (n + 1) T/N - 1.

    rank: of this machine; endpoint: ``host:port`` of node 0, a free port there; None on a single node; wait: whether
    daemons and hosts may still be starting, as they always may with several nodes. Raises ConfigError.
    """

    count: int = 1
    rank: int = 0
    endpoint: str | None = None
    wait: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"--nnodes {self.count}: must be at least 1")
        if not 0 <= self.rank < self.count:
            raise ConfigError(f"--node-rank {self.rank}: there are {self.count} nodes, from 0 on")
        if (self.endpoint is None) != (self.count == 1):
            raise ConfigError(
                "--nnodes and --rdzv-endpoint HOST:PORT go together: where the nodes meet, an address of node 0"
            )
        if self.endpoint is not None:
            try:
                check_address(self.endpoint)
            except ConfigError as error:
                raise ConfigError(f"--rdzv-endpoint {error}, such as 10.0.0.1:29400") from None
            if self.endpoint.endswith(":0"):
                raise ConfigError(f"--rdzv-endpoint {self.endpoint}: name a port, such as 29400: all nodes meet there")

    def __str__(self) -> str:
        return f"node {self.rank} of {self.count} at {self.endpoint}"

    def trainers_here(self, config: TrainConfig) -> int:
        """Number of trainers that this machine starts; raises ConfigError if the run does not fit the nodes."""
        if self.count == 1:
            return config.trainers
        if config.cluster is None:
            raise ConfigError(
                "--nnodes: give --cluster with the daemons of all machines; --data starts daemons for one machine"
            )
        if config.max_restarts:
            raise ConfigError(f"--max-restarts {config.max_restarts}: goes with one machine, not with --nnodes")
        here, rest = divmod(config.trainers, self.count)
        if rest or not here:
            raise ConfigError(
                f"--trainers {config.trainers}: is the number on all machines, which --nnodes {self.count} must divide"
            )
        return here

    @property
    def early(self) -> bool:
        """Whether this machine may be earlier than daemons and other machines, and so waits for them."""
        return self.wait or self.count > 1

    @contextlib.contextmanager
    def interface_named(self) -> Iterator[None]:
        """Tell gloo, within the block, which interface reaches the other nodes; otherwise it resolves the host name."""
        name = None if self.endpoint is None or INTERFACE in os.environ else interface_towards(self.endpoint)
        if name is None:
            yield
            return
        os.environ[INTERFACE] = name  # trainers inherit it
        try:
            yield
        finally:
            del os.environ[INTERFACE]


def interface_towards(endpoint: str) -> str | None:
    """The interface that this machine uses towards ``endpoint``, if known. Raises ConfigError: the host has no address."""
    host, _, port = endpoint.rpartition(":")
    with blaming(ConfigError, f"--rdzv-endpoint {endpoint}"):
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of datagrams: nothing is sent
            mine = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.partition("%")[0] == mine for a in addresses):
            return name
    return None


_SILENT_S = 60.0
"""A machine that is silent for so long has gone."""
_SIGN_S = 2.0
_MOST_BYTES = 1 << 20


class Rank(NamedTuple):
    """One trainer among all, in torchrun's terms."""

    rank: int
    world: int
    local_rank: int
    local_world: int

    def environment(self) -> dict[str, str]:
        """The variables that torchrun sets, but for where the trainers meet."""
        return dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), map(str, self), strict=True))


class MeetingPlace:
    """The store is in the process of node 0, on loopback if there is no other node, at ``address``. ``run``: a name that no
    other run has."""

    def __init__(self, nodes: Nodes, wait_s: float) -> None:
        """Wait at most ``wait_s`` seconds for the other nodes. Raises AttaError if they do not come."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._nodes, self._signs, self._next = nodes, 0, 0.0
        timeout = timedelta(seconds=wait_s)
        missing = f"{nodes}: the others did not come or went away"
        with blaming(AttaError, missing, of=(RuntimeError, AttaError), say=first_line):
            self.address = nodes.endpoint or ""
            more: dict[str, Any] = {}
            if nodes.endpoint is None:
                with socket.socket() as listening:
                    listening.bind(("127.0.0.1", 0))
                    listening.listen(1024)
                    self.address = f"127.0.0.1:{listening.getsockname()[1]}"
                    more["master_listen_fd"] = listening.detach()
            host, _, port = self.address.rpartition(":")
            self._store: Any = TCPStore(
                host.strip("[]"), int(port), None, nodes.rank == 0, timeout, wait_for_workers=False, **more
            )
            notes = self._notes = Notes(self._store).below("nodes")
            if nodes.rank == 0:
                notes.put("run", secrets.token_hex(8).encode())
            self.run = notes.get("run", most=_MOST_BYTES, within_s=wait_s).decode()
            notes.put(f"here/{nodes.rank}", b"")
            notes.wait([f"here/{rank}" for rank in range(nodes.count)], wait_s)
        self._heard = {rank: (0, time.monotonic()) for rank in range(nodes.count) if rank != nodes.rank}

    def look(self) -> None:
        """Give a sign of life now and then, and look for others'. Raises AttaError: a machine has failed, or gives none."""
        if self._nodes.count == 1 or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SIGN_S
        self._signs += 1
        with blaming(AttaError, f"{self._nodes}: node 0 went away", of=RuntimeError, say=first_line):
            self._store.set(f"sign/{self._nodes.rank}", str(self._signs))
            for rank, (signs, since) in self._heard.items():
                if self._notes.has(f"failed/{rank}"):
                    raise AttaError(f"{self._nodes}: node {rank} has failed: the cause is reported there")
                found = int(self._store.get(f"sign/{rank}")) if self._store.check([f"sign/{rank}"]) else 0
                if found > signs:
                    self._heard[rank] = found, time.monotonic()
                elif time.monotonic() - since > _SILENT_S and not self._notes.has(f"ended/{rank}"):
                    raise AttaError(f"{self._nodes}: node {rank} did not come or went away")

    def fail(self) -> None:
        """Tell the other machines that trainers of this one have failed."""
        with contextlib.suppress(RuntimeError):  # node 0 has gone: the others know
            self._notes.put(f"failed/{self._nodes.rank}", b"")

    def all_ended(self, restarts: Mapping[int, int], wait_s: float) -> list[int]:
        """When the trainers of this machine have ended: await those of all, within ``wait_s`` seconds, or raise AttaError;
        returns their restarts, by rank."""
        ranks = range(self._nodes.count)
        with blaming(AttaError, f"{self._nodes}: node 0 went away", of=RuntimeError, say=first_line):
            text = ",".join(f"{rank}:{number}" for rank, number in restarts.items())
            self._notes.put(f"ended/{self._nodes.rank}", text.encode())
            texts = [self._notes.get(f"ended/{rank}", most=_MOST_BYTES, within_s=wait_s).decode() for rank in ranks]
            self._notes.put(f"heard/{self._nodes.rank}", b"")
            if self._nodes.rank == 0:  # the store ends with this process
                self._notes.wait([f"heard/{rank}" for rank in ranks], wait_s)
        pairs = (pair.split(":") for text in texts for pair in text.split(","))
        return [number for _, number in sorted((int(rank), int(number)) for rank, number in pairs)]
