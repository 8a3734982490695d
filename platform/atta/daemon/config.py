"""Settings of a daemon. ``atta serve`` makes its options and the keys of its TOML file from them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from atta.errors import ConfigError, UnknownNameError
from atta.kvstore.durable.backup import LEAST
from atta.observe.machine.memory import total_bytes
from atta.observe.machine.processor import usable_cores
from atta.observe.settings import NoOption, Option, check_bounds
from atta.partition.graph.needs import memory_size
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.policies import POLICIES
from atta.wire.clusterfile import listening_at
from atta.wire.parts import Addresses, replicas_of

WHAT = ("embeddings", "scores", "classes")
"""What a model gives a vertex: a row of its last hidden layer, a score per class, or the best class."""
MIB = 1 << 20
GIB = 1 << 30
MEMORY = ("auto", "copy", "map", "disk")
"""What ``memory`` says beside a size."""
SNAPSHOTS = 16
"""Number of snapshots of full tables that a daemon keeps on the disk, unless it is told how many bytes."""


@dataclass(frozen=True)
class DaemonConfig:
    """What a daemon serves, how much it may use, and how long it waits. Raises ConfigError: a value is outside the
    bounds of its option."""

    data: Annotated[str, Option("Partitioned dataset: a folder, or a URL such as s3://bucket/data.")]
    parts: Annotated[
        range,
        Option(
            "Partition, or consecutive ones: 0-2 or 0,1,2; auto: by Kubernetes, Slurm or the host's name.",
            name="part",
            unit="parts",
        ),
    ]
    listen: Annotated[str, Option("Address to listen on, host:port.")] = "127.0.0.1:7070"
    peers: Annotated[Mapping[int, Addresses], NoOption("comes from the cluster file that --peers names")] = field(
        default_factory=dict
    )
    """Addresses of all daemons, by partition; several: replicas."""
    peers_file: Annotated[str, NoOption("is --peers")] = ""
    """The cluster file that ``peers`` comes from, read again where a peer is away. Empty: it is not."""
    data_cache: Annotated[
        str, Option("Where a partition from object storage is kept.", path="folder", unset="~/.cache/atta/data")
    ] = ""
    threads: Annotated[int, Option("Worker threads.", at_least=1, at_most=1024, unset="number of cores")] = field(
        default_factory=usable_cores
    )
    """Number of threads for the tasks of this daemon's own DAGs. As many again serve other daemons."""
    requests: Annotated[int, Option("Tasks that wait for other daemons at a time.", at_least=1)] = (
        SchedulerConfig.net_in_flight
    )
    memory: Annotated[
        str,
        Option(
            "copy: load the partition (several always are); map: its files; disk: by page; auto: by the free memory; "
            "SIZE: take no more, read the rest from the disk.",
            metavar="[auto|copy|map|disk|SIZE]",
        ),
    ] = "auto"
    """Random reads of a loaded partition are faster: it lies in huge pages. Mapped files stay in the page cache. Within a
    size like 4GiB, rows and in-edges that do not fit are read past the page cache."""
    buffer_bytes: Annotated[
        int | None,
        Option(
            "Memory for batch buffers.",
            name="buffer",
            unit="bytes",
            at_least=64 * MIB,
            unset="4GiB, or 2GiB per thread, at most 1/4 of memory; 1/8 of --memory SIZE",
        ),
    ] = None
    queue_bytes: Annotated[
        int | None,
        Option(
            "Batches of a session in flight or finished.",
            name="queue",
            unit="bytes",
            at_least=MIB,
            unset="1GiB, or 512MiB per thread, at most 1/8 of memory; 1/2 of --buffer with --memory SIZE",
        ),
    ] = None
    cache_bytes: Annotated[
        int | None,
        Option("For hot rows and in-edges of others; 0: none.", name="cache", unit="bytes", unset="1GiB, or less"),
    ] = None
    cache_edges: Annotated[bool, Option("Keep in-edges of hot vertices, and expand them.")] = True
    cache_share: Annotated[
        float | None,
        Option(
            "Most rows in it, in percent of HALO vertices.",
            unit="percent",
            at_least=0,
            at_most=1,
            unset="as many as fit",
        ),
    ] = None
    cache_rank: Annotated[
        str,
        Option(
            "Whose rows: by degree, expected visits (access), or lately asked for (recent).",
            choices=("degree", "access", "recent"),
        ),
    ] = "degree"
    window: Annotated[
        int,
        Option(
            "With --cache-rank recent or --memory SIZE: fetch rows when so many later batches are sampled.",
            at_least=0,
            at_most=8,
        ),
    ] = 4
    """The cache then keeps the rows that these will ask for. They take memory of ``queue_bytes``."""
    cache_fanouts: Annotated[tuple[int, ...], Option("Fan-outs that access expects.")] = (15, 10, 5)
    cache_fill: Annotated[int, Option("Bytes a second that fill it beforehand; 0: none.", unit="bytes")] = 256 * MIB
    """It begins when the daemon serves."""
    share_pulls: Annotated[bool, Option("Pull a row that several batches want once.")] = True
    table_bytes: Annotated[int, Option("For mutable tables (embeddings, states).", name="tables", unit="bytes")] = (
        4 * GIB
    )
    """Most memory that mutable tables may take. A table that would need more is refused."""
    snapshots: Annotated[str, Option("Where snapshots of mutable tables are kept.", path="folder")] = ""
    """Empty: none are kept."""
    snapshot_bytes: Annotated[
        int | None,
        Option("Most disk for snapshots.", name="snapshots-size", unit="bytes", unset=f"{SNAPSHOTS} times --tables"),
    ] = None
    """A save that would need more is refused. The one at the daemon's end is not: it may hold the only copy."""
    durability: Annotated[
        str,
        Option(
            "When a push is acknowledged: none, applied; process, written; disk, on the disk; replica, at --backup.",
            choices=("none", "process", "disk", "replica"),
        ),
    ] = "none"
    """``none``: tables are lost when the daemon dies, unless they were saved."""
    backup: Annotated[str, Option("Daemon of the same partition that keeps a copy.", metavar="HOST:PORT")] = ""
    keep_backup: Annotated[bool, Option("Keep a copy of the tables of one that names this one.")] = False
    """The copy is in ``tables_dir``, and is used once 'atta tables promote' says so, or a majority."""
    promote_after_s: Annotated[
        float,
        Option(
            "With --keep-backup: take over after such a silence, if a majority of --peers agrees; 0: only atta tables promote.",
            name="promote-after",
            unit="s",
        ),
    ] = 0.0
    tables_dir: Annotated[str, Option("Where --durability writes.", path="folder", unset="DATA.tables")] = ""
    """Daemons of different partitions may share it."""
    log_bytes: Annotated[
        int, Option("Log of changes until tables are written.", name="log-size", unit="bytes", at_least=MIB)
    ] = 256 * MIB
    """The log takes at most four times as much of the disk."""
    lease_s: Annotated[
        float, Option("Life of a session without a sign of life.", name="lease", unit="s", at_least=0.5)
    ] = 60.0
    peer_deadline_s: Annotated[
        float, Option("How long to wait for another daemon.", name="peer-deadline", unit="s", at_least=0.1)
    ] = 60.0
    peer_delay_s: Annotated[
        float, Option("Delay of requests to daemons, for experiments.", name="peer-delay", unit="s")
    ] = 0.0
    links: Annotated[bool, Option("Exchange with daemons and consumers over own sockets.")] = True
    """Off: by gRPC messages alone, which cost several times the processor time."""
    link_port: Annotated[
        int, Option("TCP port of links to other daemons.", at_least=0, at_most=65_535, unset="any")
    ] = 0
    """0: any free one."""
    max_sessions: Annotated[int, Option("Sessions open at a time.", at_least=1)] = 256
    max_seeds: Annotated[int, Option("Seeds of a session.", at_least=1)] = 1 << 30
    max_connections: Annotated[int, Option("Connections open at a time.", at_least=1)] = 1024
    """Less where the process may not open as many files."""
    max_calls: Annotated[int, Option("Calls under way at a time.", at_least=64)] = 4096
    request_bytes: Annotated[
        int, Option("Memory for requests under way.", name="request-memory", unit="bytes", at_least=512 * MIB)
    ] = 1 * GIB
    """A message that is still arriving counts as the longest one, 5 MiB. A connection may have an eighth."""
    answer_bytes: Annotated[
        int, Option("Memory for answers that wait for readers.", name="answer-memory", unit="bytes", at_least=64 * MIB)
    ] = 1 * GIB
    """A connection may have an eighth."""
    max_batch_size: Annotated[int, NoOption("keeps one mistaken request from taking all memory")] = 1 << 20
    drain_s: Annotated[float, Option("How long sessions may go on after SIGTERM.", name="drain", unit="s")] = 10.0
    policy: Annotated[str, Option("Launch policy of the scheduler.", choices=tuple(POLICIES))] = SchedulerConfig.policy
    prefetch: Annotated[int, Option("Depth of the policy `prefetch`.", at_least=1)] = SchedulerConfig.prefetch
    trace_events: Annotated[int, Option("Events that atta trace can look back on.", at_least=0)] = 65_536
    """Number of entries that the daemon keeps of what it did."""
    model: Annotated[str, Option("Checkpoint that answers queries about vertices.", path="folder", metavar="DIR")] = ""
    """Empty: no queries are answered."""
    table: Annotated[str, Option("Of --model: where atta predict has written rows.", metavar="NAME")] = ""
    """Other kinds of rows than ``what`` are computed when they are asked for; empty: all are."""
    what: Annotated[str, Option("What --table has.", choices=WHAT)] = WHAT[0]
    fan_out: Annotated[
        tuple[int, ...] | None, Option("Of --model: in-neighbours per layer, or for all.", unset="all")
    ] = None
    query_wait_s: Annotated[
        float,
        Option("Of --model: how long a query waits for others.", name="query-wait", unit="s",
               at_least=0, at_most=1),
    ] = 0.002  # fmt: skip
    metrics: Annotated[str, Option("Metrics and queries over HTTP.", metavar="HOST:PORT")] = ""
    """Empty: none, unless ``metrics_port`` is given."""
    metrics_port: Annotated[int, Option("The same on every address.", at_least=0, at_most=65_535)] = 0
    """0: none."""
    tls_cert: Annotated[str, Option("Certificate of this daemon (PEM). Turns TLS on.", path="file")] = ""
    """Empty: callers are not asked who they are, and nothing is encrypted."""
    tls_key: Annotated[str, Option("Its private key (PEM, without a password).", path="file")] = ""
    tls_ca: Annotated[str, Option("Authority of callers' and peers' certificates.", path="file")] = ""
    tls_callers: Annotated[
        str,
        Option("What callers must show: certificate (a token adds roles) or token.", choices=("certificate", "token")),
    ] = "certificate"
    tokens: Annotated[str, Option("Hashes of good tokens, from atta token new.", path="file")] = ""
    """Read again when it changes."""
    peer_token: Annotated[str, Option("Token that this daemon brings to its peers.", path="file")] = ""
    insecure: Annotated[bool, Option("Listen beyond this machine without TLS.")] = False
    verify: Annotated[bool, Option("Check the checksums of all files at start.")] = True
    """Reads every byte of the partition once."""
    exit_with_parent: Annotated[bool, Option("Stop when standard input closes.")] = False
    """Embedded daemons never outlive their parent."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.memory not in MEMORY and not self.memory_bytes:
            raise UnknownNameError.of("memory", self.memory, (*MEMORY, "a size such as 4GiB"))
        if (self.durability == "replica") != bool(self.backup):
            raise ConfigError("--durability replica and --backup HOST:PORT belong together")
        if self.keep_backup and self.durability != "none":
            raise ConfigError("--keep-backup: a daemon that keeps a copy of tables has no --durability of its own")
        if self.promote_after_s and not self.keep_backup:
            raise ConfigError("--promote-after: only a daemon with --keep-backup takes over")
        if self.promote_after_s and (known := len({a for of in self.peers.values() for a in replicas_of(of)})) < LEAST:
            raise ConfigError(f"--promote-after: --peers names {known} daemons; a majority needs {LEAST} or more")
        if not self.model and (self.table or self.fan_out is not None):
            raise ConfigError(f"--{'table' if self.table else 'fan-out'}: goes with --model, which answers queries")
        if self.fan_out is not None and any(k < -1 or k == 0 for k in self.fan_out):
            text = ",".join(map(str, self.fan_out))
            raise ConfigError(f"--fan-out {text}: one number per layer, each -1 (all) or at least 1")
        if self.backup and self.backup == self.listen:
            raise ConfigError(f"--backup {self.backup}: that is this daemon's own address")

    @functools.cached_property
    def memory_bytes(self) -> int:
        """Bound of the daemon's memory; 0: there is none."""
        return memory_size(self.memory) or 0

    @functools.cached_property
    def most_buffer_bytes(self) -> int:
        """Most memory that the batches of all sessions may take."""
        if self.buffer_bytes is not None:
            return self.buffer_bytes
        if self.memory_bytes:
            return max(64 * MIB, self.memory_bytes // 8)
        return max(4 * GIB, min(self.threads * 2 * GIB, total_bytes() // 4))

    @functools.cached_property
    def most_queue_bytes(self) -> int:
        """Most bytes of batches in flight or finished, per session. Every worker needs a batch to work on."""
        if self.queue_bytes is not None:
            return self.queue_bytes
        if self.memory_bytes:
            return self.most_buffer_bytes // 2
        return max(SchedulerConfig.queue_bytes, min(self.threads * GIB // 2, total_bytes() // 8))

    @property
    def most_snapshot_bytes(self) -> int:
        """Most disk that snapshots take."""
        return SNAPSHOTS * self.table_bytes if self.snapshot_bytes is None else self.snapshot_bytes

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port for metrics; None: there are none. Raises ConfigError: it is given twice, or is not an address."""
        if not self.metrics:
            return ("0.0.0.0", self.metrics_port) if self.metrics_port else None
        if self.metrics_port:
            raise ConfigError("--metrics and --metrics-port: give one of them")
        return listening_at("--metrics", self.metrics)
