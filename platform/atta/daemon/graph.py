"""What a daemon reads: its partitions and their later versions, copies of other partitions, and the daemons of these."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.engine.recorder import Recorder
from atta.daemon.filling import DaemonCaches
from atta.daemon.peers.connection import Alike, PeerAddresses, PeerSettings
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.peers import Peers, moved_at_once
from atta.daemon.services.data import AnswerMaker, GraphService, IdService, KvService
from atta.daemon.services.front import DaemonFront
from atta.daemon.versions import LiveVersions, UpdateService
from atta.errors import ConfigError
from atta.kvstore.disk import DiskData
from atta.kvstore.store import Store
from atta.observe.machine.memory import available_bytes, claim, machine_room
from atta.partition.dataset import MANIFEST, Dataset, part_folder
from atta.partition.disk.files import read_page_by_page
from atta.partition.disk.watching import WatchedFiles
from atta.partition.graph import needs
from atta.samplers.shard import Shard
from atta.wire.parts import Addresses, groups_of, parts_text, spread

log = structlog.get_logger("atta.daemon")
ALL = 1 << 62
"""More memory than any machine has."""


@dataclass(frozen=True)
class OpenedData:
    """A dataset as one daemon of a cluster sees it. Daemons own its vertices, each those of its partitions.

    Attributes:
        dataset: its parts are the partitions of one daemon each.
        owner: the number of this daemon among them.
        peers: addresses of the known daemons, by their numbers; several: replicas.
        resident: whether to load what this daemon serves into memory; several partitions are there anyway.
        memory: how memory was divided: also whether what is served is loaded, and the memory for hot rows and in-edges of
            other partitions.
        files: those that the daemon reads while it serves.
        disk: how a bounded memory is spent; None: it has no bound.
    """

    dataset: Dataset
    owner: int
    peers: Mapping[int, Addresses]
    resident: bool
    memory: needs.MemoryPlan
    files: WatchedFiles
    disk: needs.DiskPlan | None = None

    @classmethod
    def of(cls, config: DaemonConfig) -> OpenedData:
        """Open the partitions of ``config``. With ``verify`` every byte of them is read, which may take minutes. Raises
        DataError: a file is missing, truncated, altered or of another version. ConfigError: there is no such partition,
        the cluster file spreads the partitions in another way, or what is served does not fit into memory."""
        parts = [*config.parts]
        dataset = Dataset.open(config.data, parts=parts, verify=False)
        need = needs.needs_of(dataset, [config.parts])[0]
        served = f"{parts_text(config.parts)} of {dataset.num_parts}"
        log.info("loading", data=config.data, part=served, mbytes=round(need.partition / 1e6, 3))
        groups = spread(config.parts, config.peers, dataset.num_parts)
        memory, disk = _divided(config, need), None
        if memory.bound:
            buffer = config.most_buffer_bytes
            disk = needs.plan_disk(dataset, parts[0], memory.bound, cache=config.cache_bytes, buffer=buffer)
            memory = replace(memory, cache=disk.cache)
        resident = memory.copies and len(parts) == 1
        own = tuple(f"{part_folder(part)}/" for part in parts)
        # Once loaded, node tables are not read again, but edges are in part.
        left_out = tuple(f"{folder}nodes/" for folder in own) if memory.copies else ()
        names = [name for name in dataset.files if name.startswith(("shared/", *own)) and not name.startswith(left_out)]
        files = WatchedFiles(dataset.path, MANIFEST, {name: dataset.files[name] for name in names})
        if config.verify:
            dataset = Dataset.open(config.data, parts=parts)
        if memory.pages and disk is None:
            read_page_by_page()
        addresses = groups_of(config.peers)
        peers = {owner: addresses[group] for owner, group in enumerate(groups) if group in addresses}
        return cls(dataset.joined(groups), groups.index(config.parts), peers, resident, memory, files, disk)


def _divided(config: DaemonConfig, need: needs.Needs) -> needs.MemoryPlan:
    """What this daemon takes; others on this machine learn of it. Arrays of several partitions are in memory as soon as
    they are joined."""
    joined = len(config.parts) > 1
    if joined:
        _check_joinable(config, need.partition)
    wish = needs.MemoryWish("copy" if joined else config.memory, config.cache_bytes, config.buffer_bytes)
    with machine_room() as (limit, free):
        plan = _planned(need, needs.MachineRoom(limit, free), wish)
        claim(plan.total)
    return plan


def _planned(need: needs.Needs, room: needs.MachineRoom, wish: needs.MemoryWish) -> needs.MemoryPlan:
    """What one daemon takes: what was asked for, or as little as possible where others have been promised all free
    memory. Raises ConfigError: what is to be loaded does not fit."""
    if wish.memory != "auto" and wish.cache is not None:
        return needs.plan_memory([need], needs.MachineRoom(ALL, ALL), wish)
    try:
        return needs.plan_memory([need], room, wish)
    except ConfigError:
        if wish.memory == "copy":
            raise
    return needs.plan_memory([need], needs.MachineRoom(ALL, ALL), replace(wish, memory="map", cache=wish.cache or 0))


def _check_joinable(config: DaemonConfig, nbytes: int) -> None:
    served = parts_text(config.parts)
    if config.memory in ("map", "disk") or config.memory_bytes:
        raise ConfigError(
            f"--memory {config.memory}: partitions {served} of one daemon are loaded, because their files cannot be mapped "
            "one after another; use --memory copy, or one daemon per partition"
        )
    if nbytes > (free := available_bytes()):
        raise ConfigError(
            f"partitions {served} take {nbytes >> 20} MiB of memory, {free >> 20} MiB are available: start one daemon per "
            "partition, which can map its files"
        )


class DaemonGraph:
    """The partitions of one daemon (``OpenedData``), its copies of others, and its way to their daemons; links are None where
    there are none. ``close`` comes after the engine's shutdown."""

    def __init__(self, config: DaemonConfig, contract: Mapping[str, str], front: DaemonFront) -> None:
        """Load and check the partitions. ``contract``: how this daemon draws. Raises as ``OpenedData.of``."""
        opened = OpenedData.of(config)
        self.dataset, self.owner, resident = opened.dataset, opened.owner, opened.resident
        self.files, self.memory = opened.files, opened.memory
        self.disk = None if opened.disk is None else DiskData(self.dataset, self.owner, opened.disk)
        reads, tables = ({}, {}) if self.disk is None else (self.disk.edges, self.disk.tables)
        loads = resident or self.disk is not None
        self.shard = Shard(self.dataset, self.owner, resident=loads, disk=reads)
        self.store = Store(self.dataset, self.owner, resident=loads, disk=tables)
        if self.disk is not None:
            read_page_by_page(forget=True)
        settings = PeerSettings(
            config.peer_deadline_s,
            config.peer_delay_s,
            credentials=front.outgoing,
            alike=Alike(contract, config.listen),
            moved=PeerAddresses(config.peers, config.peers_file).now,
        )
        self.peers = Peers(opened.peers, self.dataset, settings, self.owner)
        self.links: DaemonLinks | None = None
        if config.links and self.dataset.num_parts > 1:
            encrypted = front.outgoing is not None
            of = config, self.dataset, self.shard, self.store, self.peers
            self.links = DaemonLinks(*of, encrypted=encrypted, edges=reads)
        self.caches = DaemonCaches(
            config, self.shard, self.peers, self.links, known=opened.peers.keys(), limit_bytes=opened.memory.cache
        )
        rows, edges = self.caches.rows, self.caches.edges
        self.versions = LiveVersions(config.data, self.store, self.shard, rows, edges, resident=resident)
        make = AnswerMaker(self.dataset.dataset_id, config.listen, front.pool, front.answers)
        at_once = moved_at_once(config.threads)
        if self.disk is not None:  # the event loop waits for no disk
            make, at_once = replace(make, at_once=-1), -1
        self.make: AnswerMaker = make
        self.services: dict[str, object] = {
            "GraphService": GraphService(self.shard, make, self.versions),
            "KvService": KvService(self.store, replace(make, at_once=at_once), self.versions),
            "IdService": IdService(self.dataset, self.owner, self.versions, make),
            "UpdateService": UpdateService(self.versions),
            **({} if self.links is None else {"LinkService": self.links.service}),
        }

    def start(self, recorder: Recorder) -> None:
        """Listen for links, whose requests ``recorder`` tells. Raises ConfigError: the port is in use."""
        if self.links is not None:
            recorder.elsewhere = self.links.served
            self.links.listen()

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        found = {**self.caches.chores(), "watch_versions": self.versions.watch(), "meet_peers": self.peers.meet()}
        return found if self.links is None else {**found, "accept_links": self.links.service.accept()}

    def stats(self) -> dict[str, float]:
        links = {} if self.links is None else self.links.stats()
        if self.disk is not None:
            links |= self.disk.stats()
        return {**self.caches.stats(), **self.peers.stats(), **self.versions.stats(), **links}

    async def close(self) -> None:
        """End links and connections to peers."""
        if self.links is not None:
            await self.links.close()
        await self.peers.close()
