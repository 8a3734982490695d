"""Copies what one daemon needs from a partitioned dataset: the manifest, ``shared/``, its own parts, and the times of
all vertices. Verifies each file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import xxhash

from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.observe.progress import Progress, Silent
from atta.partition.dataset import MANIFEST, Dataset, part_folder
from atta.partition.disk.files import FileRecord, check_file
from atta.partition.disk.staging import Staging
from atta.partition.disk.store import path_here

_BLOCK = 16 << 20


def deploy(
    src: str | Path,
    dst: str | Path,
    parts: Sequence[int],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Copy what the daemons of ``parts`` need from the dataset ``src`` to the folder ``dst``; returns the bytes copied.
    ``dst`` appears when it is complete and has the checksums of the manifest. Raises DataError: a file of ``src`` is
    missing, truncated or altered, or its copy differs; ConfigError: no such partition, a place is a URL, or ``dst`` may
    not be written; QuotaExceededError: ``dst`` has not enough room."""
    if not parts:
        raise ConfigError("--part: name at least one partition")
    src, dst = path_here(src, "deploy"), path_here(dst, "deploy")
    dataset = Dataset.open(src, parts=parts, verify=False)
    if dst.resolve() == dataset.path.resolve():
        raise ConfigError(f"{dst}: is the dataset itself; choose another folder")
    wanted = needed(dataset, parts)
    total = sum(record.size for record in wanted.values())
    progress = progress or Silent()
    with Staging(dst, MANIFEST, overwrite=overwrite) as staging:
        free = shutil.disk_usage(staging.path).free
        if total > free:
            raise QuotaExceededError(f"{dst}: needs {total:,} bytes, {free:,} are free")
        progress.stage("copy", total)
        for name, record in wanted.items():
            _copy(dataset.path / name, staging.path / name, record, progress)
        shutil.copyfile(dataset.path / MANIFEST, staging.path / MANIFEST)
        progress.stage("verify", total)
        for name, record in wanted.items():
            check_file(staging.path / name, record, verify=True)
            progress.advance(record.size)
        Dataset.open(staging.path, parts=parts, verify=False)
    return total


def needed(dataset: Dataset, parts: Sequence[int]) -> dict[str, FileRecord]:
    """The files that daemons of ``parts`` need, besides the manifest, with their records."""
    folders = ("shared/", *(f"{part_folder(part)}/" for part in sorted(set(parts))))
    times = {name for node_type in dataset.schema.node_types for name in dataset.time_files(node_type)}
    return {name: record for name, record in dataset.files.items() if name.startswith(folders) or name in times}


def _copy(source: Path, target: Path, record: FileRecord, progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = xxhash.xxh3_64()
    try:
        with source.open("rb") as read, target.open("wb") as written:
            while block := read.read(_BLOCK):
                digest.update(block)
                written.write(block)
                progress.advance(len(block))
    except FileNotFoundError:
        raise DataError(source, "the file is missing") from None
    if digest.hexdigest() != record.xxh3:
        raise DataError(source, "altered: its checksum differs from the manifest's")
