"""Settings of a sampler daemon: one frozen object, the same from the command line, Python and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atta.errors import ConfigError
from atta.wire.clusterfile import check_address

__all__ = ["DaemonConfig"]


@dataclass(frozen=True)
class DaemonConfig:
    """What a daemon may use and how long it waits; units stand in the names."""

    data: str
    part: int
    listen: str = "127.0.0.1:0"
    peers: Mapping[int, str] = field(default_factory=dict)
    threads: int = 2
    """Worker threads for the tasks of this daemon's own DAGs; as many again serve other daemons."""
    requests: int = 16
    """Tasks that may wait for other daemons at a time."""
    verify: bool = True
    """Check every file's checksum at start (one read of the partition)."""
    memory: str = "auto"
    """Where the partition lies: "copy" loads it (random reads are faster from huge pages), "map" leaves it to the page cache,
    "auto" loads it if that takes no more than a quarter of the free memory."""
    buffer_bytes: int = 4 << 30
    """Most memory that batch buffers may occupy, over all sessions."""
    queue_bytes: int = 1 << 30
    """Most bytes of batches in flight or waiting, per session."""
    cache_bytes: int = 1 << 30
    """Most memory for rows of other partitions, kept once they have been pulled; 0 = none are kept."""
    cache_share: float | None = None
    """Most of those rows, as a share of the number of HALO vertices; None = as many as fit."""
    cache_rank: str = "degree"
    """Whose rows: HALO vertices with the most edges into the partition ("degree"), those that sampling is expected to visit most
    ("access"), or whatever was asked for lately ("recent")."""
    cache_fanouts: tuple[int, ...] = (15, 10, 5)
    """Fan-outs, hop by hop, that "access" expects."""
    share_pulls: bool = True
    """Rows that several batches in flight want cross the network once."""
    table_bytes: int = 4 << 30
    """Most memory that mutable tables may take, if that much can be had; creating more is refused."""
    snapshots: str = ""
    """Folder for snapshots of mutable tables, among them "shutdown", written when the daemon ends; empty: none are kept."""
    lease_s: float = 60.0
    """A session whose consumer gives no sign of life for so long is closed."""
    peer_deadline_s: float = 60.0
    peer_delay_s: float = 0.0
    """Every request to another daemon waits so long first: experiments with distant machines."""
    drain_s: float = 10.0
    """After SIGTERM, running sessions may go on for so long."""
    max_sessions: int = 256
    max_batch_size: int = 1 << 20
    policy: str = "two-level"
    prefetch: int = 4
    trace_events: int = 65_536
    """Entries of the daemon's memory of what it did, about 300 bytes each; 0 = none. See ``atta trace``."""
    metrics: str = ""
    """Address, host:port, of Prometheus metrics over HTTP; empty: none, unless ``metrics_port`` says otherwise."""
    metrics_port: int = 0
    """The same on every address of this machine; 0 = none."""
    exit_with_parent: bool = False
    """Stop when standard input closes: embedded daemons never outlive their parent."""

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port for metrics; None: there are none.

        Raises:
            ConfigError: it is given twice, or is no address.
        """
        if not self.metrics:
            return ("0.0.0.0", self.metrics_port) if self.metrics_port else None
        if self.metrics_port:
            raise ConfigError("--metrics and --metrics-port: give one of them")
        host, _, port = check_address(self.metrics).rpartition(":")
        if int(port) == 0:
            raise ConfigError(f"--metrics {self.metrics}: name a port, so that it can be found")
        return host, int(port)
