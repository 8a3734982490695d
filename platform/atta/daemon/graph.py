"""What a daemon reads: its partitions and their later versions, copies of other partitions, and the daemons of these."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from atta.daemon.caches import DaemonCaches
from atta.daemon.config import DaemonConfig
from atta.daemon.engine.recorder import Recorder
from atta.daemon.loading import OpenedData
from atta.daemon.peers.connection import PeerAddresses
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.peers import Peers, moved_at_once
from atta.daemon.services.control import UpdateService
from atta.daemon.services.data import GraphService, KvService
from atta.daemon.services.front import DaemonFront
from atta.daemon.services.string_ids import IdService
from atta.daemon.versions import LiveVersions
from atta.kvstore.store import Store
from atta.samplers.shard import Shard
from atta.wire.identity import Contract


class DaemonGraph:
    """The partitions of one daemon, and its way to the others. ``close`` comes after the engine's shutdown.

    Attributes:
        dataset, owner, files, memory: see ``OpenedData``.
        shard, store: edges and rows of this daemon.
        peers, links: the other daemons; links are None where there are none.
        caches: rows and in-edges of other partitions.
        versions: of the dataset.
    """

    def __init__(self, config: DaemonConfig, contract: Contract, front: DaemonFront) -> None:
        """Load and check the partitions. ``contract``: how this daemon draws. Raises as ``OpenedData.of``."""
        opened = OpenedData.of(config)
        self.dataset, self.owner, resident = opened.dataset, opened.owner, opened.resident
        self.files, self.memory = opened.files, opened.memory
        self.shard = Shard(self.dataset, self.owner, resident=resident)
        self.store = Store(self.dataset, self.owner, resident=resident)
        self.peers = Peers(
            opened.peers,
            self.dataset,
            config.peer_deadline_s,
            config.peer_delay_s,
            front.outgoing,
            contract=contract,
            own=config.listen,
            moved=PeerAddresses(config.peers, config.peers_file).now,
        )
        self.links: DaemonLinks | None = None
        if config.links and self.dataset.num_parts > 1:
            encrypted = front.outgoing is not None
            self.links = DaemonLinks(config, self.dataset, self.shard, self.store, self.peers, encrypted=encrypted)
        self.caches = DaemonCaches(config, opened, self.peers, self.links)
        rows, edges = self.caches.rows, self.caches.edges
        self.versions = LiveVersions(config.data, self.store, self.shard, rows, edges, resident=resident)
        at, answers = (front.pool, config.listen), front.answers
        self._graph = GraphService(self.shard, *at, answers=answers, versions=self.versions)
        at_once = moved_at_once(config.threads)
        dataset_id = self.dataset.dataset_id
        self._kv = KvService(
            self.store,
            dataset_id,
            front.pool,
            address=config.listen,
            at_once=at_once,
            answers=answers,
            versions=self.versions,
        )
        self._ids = IdService(self.dataset, self.owner, self.store, *at, answers=answers)

    def services(self) -> dict[str, object]:
        """By name."""
        found = {
            "GraphService": self._graph,
            "KvService": self._kv,
            "IdService": self._ids,
            "UpdateService": UpdateService(self.versions),
        }
        return found if self.links is None else {**found, "LinkService": self.links.service}

    def start(self, recorder: Recorder) -> None:
        """Listen for links, whose requests ``recorder`` tells. Raises ConfigError: the port is in use."""
        if self.links is not None:
            recorder.elsewhere = self.links.served
            self.links.listen()

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Its background tasks."""
        found = {**self.caches.chores(), "watch_versions": self.versions.watch()}
        return found if self.links is None else {**found, "accept_links": self.links.service.accept()}

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        links = {} if self.links is None else self.links.stats()
        return {**self.caches.stats(), **self.peers.stats(), **self.versions.stats(), **links}

    async def close(self) -> None:
        """End links and connections to peers."""
        if self.links is not None:
            await self.links.close()
        await self.peers.close()
