"""What all engines are told of a cluster: its daemons, its trainers, and the commands that run them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.partition.graph.needs import Needs
from atta.wire.clusterfile import check_address

__all__ = ["DRAIN_S", "GRACE_S", "DeploymentPlan", "bracketed"]

DRAIN_S = 30
"""How long daemons let sessions go on when an engine stops them."""
GRACE_S = 60
"""How long an engine waits before it kills a daemon: after draining it saves tables and closes connections."""
_MOST_PORT = 65_535


@dataclass(frozen=True)
class DeploymentPlan:
    """A cluster that an engine is to run: one daemon per partition, and trainers on ``nodes`` machines.

    Attributes:
        name: begins the names of everything that is made.
        data: folder of the partitioned dataset where daemons run.
        needs: of each partition's daemon.
        port, link_port, metrics_port, meeting_port: of a daemon, of its links, of its figures; where trainers meet.
        cache, buffer: bytes for hot rows and for batches, of each daemon.
        nodes: machines with trainers; 0: daemons alone.
        trainers: number of trainers on all of them.
        train: further words of ``atta train``.
        tls: whether daemons and trainers have certificates. Otherwise everybody who reaches a port is trusted.

    Raises:
        ConfigError: numbers make no sense.
    """

    name: str
    data: str
    needs: tuple[Needs, ...]
    port: int = 7070
    link_port: int = 7071
    metrics_port: int = 9090
    meeting_port: int = 29400
    cache: int = 1 << 30
    buffer: int = 1 << 30
    nodes: int = 0
    trainers: int = 0
    train: tuple[str, ...] = ()
    tls: bool = True

    def __post_init__(self) -> None:
        ports = (self.port, self.link_port, self.metrics_port, self.meeting_port)
        if len({*ports}) < len(ports) or not all(1024 <= port <= _MOST_PORT for port in ports):
            raise ConfigError(f"ports {', '.join(map(str, ports))}: must differ, from 1024 to {_MOST_PORT}")
        if self.nodes and (self.trainers < self.nodes or self.trainers % self.nodes):
            raise ConfigError(f"--trainers {self.trainers}: is the number on all machines, which --nnodes must divide")
        if taken := sorted(_OURS.intersection(word.partition("=")[0] for word in self.train)):
            raise ConfigError(f"{taken[0]}: is set by atta render; leave it out")

    @property
    def parts(self) -> int:
        """Number of partitions, and of daemons."""
        return len(self.needs)

    @property
    def memory(self) -> int:
        """Bytes that the largest daemon asks for."""
        return max(needs.memory(self.cache, self.buffer) for needs in self.needs)

    def daemon(
        self, cluster: str, tls: Mapping[str, str], *, part: str = "auto", listen: str = "", metrics: str = ""
    ) -> list[str]:
        """The command of a daemon. ``cluster``: the cluster file there; ``tls``: options and files."""
        words = ["atta", "serve", "--data", self.data, "--part", part, "--peers", cluster]
        words += ["--listen", listen or f"0.0.0.0:{self.port}", "--link-port", str(self.link_port)]
        words += ["--metrics", metrics or f"0.0.0.0:{self.metrics_port}", "--drain", f"{DRAIN_S}s"]
        words += ["--cache", str(self.cache), "--buffer", str(self.buffer), "--log-format", "json"]
        return words + ([word for pair in tls.items() for word in pair] if self.tls else ["--insecure"])

    def trainer(self, cluster: str, first: str, *, node: str = "auto") -> list[str]:
        """The command of a machine with trainers. ``first``: host name of machine 0."""
        words = ["atta", "train", "--cluster", cluster, "--trainers", str(self.trainers)]
        words += ["--nnodes", str(self.nodes), "--node-rank", node]
        if self.nodes > 1:
            words += ["--rdzv-endpoint", f"{first}:{self.meeting_port}"]
        return [*words, *self.train]

    def cluster_file(self, hosts: Sequence[str], tls: Mapping[str, str]) -> str:
        """The text of the cluster file. ``hosts``: of each partition's daemon; ``tls``: what callers bring.

        Raises:
            ConfigError: a host is none.
        """
        addresses = [check_address(f"{host}:{self.port}") for host in hosts]
        entries = [f'[[daemon]]\npart = {part}\naddress = "{address}"\n' for part, address in enumerate(addresses)]
        if self.tls:
            entries.append("[tls]\n" + "".join(f'{key} = "{path}"\n' for key, path in tls.items()))
        return "\n".join(entries)


def bracketed(host: str) -> str:
    """``host`` as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


_OURS = frozenset(("--cluster", "--data", "--trainers", "--nnodes", "--node-rank", "--rdzv-endpoint"))
