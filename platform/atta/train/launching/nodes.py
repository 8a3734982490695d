"""The machines of a training run, in torchrun's terms: number of nodes, rank of this node, meeting point."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from atta.errors import ConfigError
from atta.train.config import TrainConfig
from atta.wire.clusterfile import check_address

INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Nodes:
    """The nodes of a run: with T trainers on N nodes, node n has ranks n T/N to (n + 1) T/N - 1.

    Attributes:
        count: number of nodes.
        rank: number of this machine, from 0.
        endpoint: ``host:port`` of node 0, a free port there; None on a single node.
        wait: whether daemons and hosts may still be starting. With several nodes they always may: nobody knows who
            starts first.

    Raises:
        ConfigError: the settings make no sense.
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
    """The interface whose address this machine uses towards ``endpoint``; None: not known.

    Raises ConfigError where the host has no address.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of datagrams: nothing is sent
            mine = probe.getsockname()[0]
    except OSError as error:
        raise ConfigError(f"--rdzv-endpoint {endpoint}: {error.strerror or error}") from error
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.partition("%")[0] == mine for a in addresses):
            return name
    return None
