"""Opens what a daemon serves: its partitions, and who has the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from atta.daemon.config import DaemonConfig
from atta.errors import ConfigError
from atta.observe.machine.memory import available_bytes
from atta.partition.dataset import MANIFEST, Dataset, part_folder
from atta.partition.disk.watching import WatchedFiles
from atta.wire.parts import Addresses, groups_of, parts_text, spread

__all__ = ["OpenedData"]

log = structlog.get_logger("atta.daemon")


@dataclass(frozen=True)
class OpenedData:
    """A dataset as one daemon of a cluster sees it. Daemons own its vertices, each those of its partitions.

    Attributes:
        dataset: its parts are the partitions of one daemon each.
        owner: the number of this daemon among them.
        peers: addresses of the known daemons, by their numbers; several: replicas.
        resident: whether to load what this daemon serves into memory (see ``DaemonConfig.memory``).
        files: those that the daemon reads while it serves.
    """

    dataset: Dataset
    owner: int
    peers: Mapping[int, Addresses]
    resident: bool
    files: WatchedFiles

    @classmethod
    def of(cls, config: DaemonConfig) -> OpenedData:
        """Open the partitions of ``config``. With ``verify`` every byte of them is read, which may take minutes.

        Raises:
            DataError: a file is missing, truncated, altered or of another version.
            ConfigError: there is no such partition, the cluster file spreads the partitions in another way, or several
                partitions do not fit into memory.
        """
        parts = [*config.parts]
        dataset = Dataset.open(config.data, parts=parts, verify=False)
        nbytes = _bytes_of(dataset, config.parts)
        log.info("loading", data=config.data, part=parts[0], parts=len(parts), mbytes=nbytes // 1_000_000)
        groups = spread(config.parts, config.peers, dataset.num_parts)
        resident = _resident(config, nbytes)
        files = _watched(dataset, config.parts, copied=resident or len(parts) > 1)
        if config.verify:
            dataset = Dataset.open(config.data, parts=parts)
        addresses = groups_of(config.peers)
        peers = {owner: addresses[group] for owner, group in enumerate(groups) if group in addresses}
        return cls(dataset.joined(groups), groups.index(config.parts), peers, resident, files)


def _watched(dataset: Dataset, parts: range, *, copied: bool) -> WatchedFiles:
    """Files that a daemon goes on reading. Once loaded, node tables are not read again, but edges are in part."""
    own = tuple(f"{part_folder(part)}/" for part in parts)
    left_out = tuple(f"{folder}nodes/" for folder in own) if copied else ()
    names = [name for name in dataset.files if name.startswith(("shared/", *own)) and not name.startswith(left_out)]
    return WatchedFiles(dataset.path, MANIFEST, {name: dataset.files[name] for name in names})


def _bytes_of(dataset: Dataset, parts: range) -> int:
    folders = tuple(f"{part_folder(part)}/" for part in parts)
    return sum(record.size for name, record in dataset.files.items() if name.startswith(folders))


def _resident(config: DaemonConfig, nbytes: int) -> bool:
    """Whether to load the arrays of the files. Those of several partitions are in memory as soon as they are joined."""
    if len(config.parts) > 1:
        _check_joinable(config, nbytes)
        return False
    if config.memory != "auto":
        return config.memory == "copy"
    return 4 * nbytes <= available_bytes()


def _check_joinable(config: DaemonConfig, nbytes: int) -> None:
    served = parts_text(config.parts)
    if config.memory == "map":
        raise ConfigError(
            f"--memory map: partitions {served} of one daemon are loaded, because their files cannot be mapped one after "
            "another; use --memory copy, or one daemon per partition"
        )
    if nbytes > (free := available_bytes()):
        raise ConfigError(
            f"partitions {served} take {nbytes >> 20} MiB of memory, {free >> 20} MiB are available: start one daemon per "
            "partition, which can map its files"
        )
