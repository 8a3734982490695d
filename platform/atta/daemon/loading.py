"""Opens what a daemon serves: its partitions, and who has the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from atta.daemon.config import DaemonConfig
from atta.errors import ConfigError
from atta.observe.machine.memory import available_bytes, claim, machine_room
from atta.partition.dataset import MANIFEST, Dataset, part_folder
from atta.partition.disk.files import read_page_by_page
from atta.partition.disk.watching import WatchedFiles
from atta.partition.graph.needs import MachineRoom, MemoryPlan, MemoryWish, Needs, needs_of, plan_memory
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
    """

    dataset: Dataset
    owner: int
    peers: Mapping[int, Addresses]
    resident: bool
    memory: MemoryPlan
    files: WatchedFiles

    @classmethod
    def of(cls, config: DaemonConfig) -> OpenedData:
        """Open the partitions of ``config``. With ``verify`` every byte of them is read, which may take minutes.

        Raises:
            DataError: a file is missing, truncated, altered or of another version.
            ConfigError: there is no such partition, the cluster file spreads the partitions in another way, or what is
                served does not fit into memory.
        """
        parts = [*config.parts]
        dataset = Dataset.open(config.data, parts=parts, verify=False)
        need = needs_of(dataset, [config.parts])[0]
        log.info("loading", data=config.data, part=parts[0], parts=len(parts), mbytes=need.partition // 1_000_000)
        groups = spread(config.parts, config.peers, dataset.num_parts)
        memory = _divided(config, need)
        resident = memory.copies and len(parts) == 1
        files = _watched(dataset, config.parts, copied=memory.copies)
        if config.verify:
            dataset = Dataset.open(config.data, parts=parts)
        if memory.pages:
            read_page_by_page()
        addresses = groups_of(config.peers)
        peers = {owner: addresses[group] for owner, group in enumerate(groups) if group in addresses}
        return cls(dataset.joined(groups), groups.index(config.parts), peers, resident, memory, files)


def _watched(dataset: Dataset, parts: range, *, copied: bool) -> WatchedFiles:
    """Files that a daemon goes on reading. Once loaded, node tables are not read again, but edges are in part."""
    own = tuple(f"{part_folder(part)}/" for part in parts)
    left_out = tuple(f"{folder}nodes/" for folder in own) if copied else ()
    names = [name for name in dataset.files if name.startswith(("shared/", *own)) and not name.startswith(left_out)]
    return WatchedFiles(dataset.path, MANIFEST, {name: dataset.files[name] for name in names})


def _divided(config: DaemonConfig, need: Needs) -> MemoryPlan:
    """What this daemon takes; others on this machine learn of it.

    Arrays of several partitions are in memory as soon as they are joined.
    """
    joined = len(config.parts) > 1
    if joined:
        _check_joinable(config, need.partition)
    memory = "copy" if joined else config.memory
    wish = MemoryWish(memory, config.cache_bytes, config.buffer_bytes)
    with machine_room() as (limit, free):
        plan = _planned(need, MachineRoom(limit, free), wish)
        claim(plan.total)
    return plan


def _planned(need: Needs, room: MachineRoom, wish: MemoryWish) -> MemoryPlan:
    """What one daemon takes. It is what was asked for, if nothing is left to decide; and as little as possible where others
    have been promised all memory that is free, as they may never take it.

    Raises:
        ConfigError: what is to be loaded does not fit.
    """
    if wish.memory != "auto" and wish.cache is not None:
        return plan_memory([need], MachineRoom(ALL, ALL), wish)
    try:
        return plan_memory([need], room, wish)
    except ConfigError:
        if wish.memory == "copy":
            raise
    return plan_memory([need], MachineRoom(ALL, ALL), replace(wish, memory="map", cache=wish.cache or 0))


def _check_joinable(config: DaemonConfig, nbytes: int) -> None:
    served = parts_text(config.parts)
    if config.memory in ("map", "disk"):
        raise ConfigError(
            f"--memory {config.memory}: partitions {served} of one daemon are loaded, because their files cannot be mapped "
            "one after another; use --memory copy, or one daemon per partition"
        )
    if nbytes > (free := available_bytes()):
        raise ConfigError(
            f"partitions {served} take {nbytes >> 20} MiB of memory, {free >> 20} MiB are available: start one daemon per "
            "partition, which can map its files"
        )
