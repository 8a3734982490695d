"""Brings datasets and graph folders to where they are needed: copies what a daemon needs, fetches it from object
storage into a cache on this machine, and sends folders there."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from atta.errors import ConfigError, DataError, QuotaExceededError, blaming
from atta.observe.progress import Progress, shown
from atta.partition.dataset import MANIFEST, Dataset, part_folder
from atta.partition.disk.files import FileRecord, check_file, read_sealed
from atta.partition.disk.mirror import cache_folder, fetch_files, send_files
from atta.partition.disk.staging import Staging
from atta.partition.disk.store import RemoteFolder, is_url, path_here
from atta.partition.graph import MANIFEST as GRAPH_MANIFEST
from atta.partition.graph import GraphWriter, read_records
from atta.partition.graph.reading import FORMAT, VERSION

_BLOCK = 16 << 20


def deploy(
    src: str | Path, dst: str | Path, parts: Sequence[int], *, overwrite: bool = False, progress: Progress | None = None
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
    progress = shown(progress)
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


def local_dataset(
    data: str | Path, parts: Sequence[int] | None, *, cache: str | Path = "", progress: Progress | None = None
) -> Path:
    """The folder of a partitioned dataset on this machine. One on object storage is fetched into ``cache`` (default:
    ``~/.cache/atta/data``) as far as ``parts`` need it (None: all; []: only the manifest), and what is there is not
    fetched again. Each version has a folder of its own, and one process fetches at a time. Raises DataError: an object
    is missing, truncated or altered, or storage breaks off again and again; ConfigError: no such partition, or what the
    kind of storage needs is not installed; QuotaExceededError: the cache has not enough room."""
    if not is_url(data):
        return Path(data)

    def described(folder: Path, _: bytes) -> tuple[str, dict[str, FileRecord]]:
        dataset = Dataset.described(folder)
        wanted = range(dataset.num_parts) if parts is None else parts
        for part in wanted:
            if not 0 <= part < dataset.num_parts:
                raise ConfigError(f"{data}: partition {part} does not exist: there are {dataset.num_parts}")
        return dataset.dataset_id, needed(dataset, wanted) if wanted else {}

    return _fetched(str(data), cache, MANIFEST, described, progress)


def described_dataset(data: str | Path) -> Dataset:
    """A dataset as its manifest describes it, which alone is fetched. Raises the errors of ``local_dataset``."""
    return Dataset.described(local_dataset(data, []))


def local_graph(src: str | Path, *, cache: str | Path = "", progress: Progress | None = None) -> Path:
    """The same for a graph folder, as a whole."""
    if not is_url(src):
        return Path(src)

    def described(folder: Path, content: bytes) -> tuple[str, dict[str, FileRecord]]:
        path = folder / GRAPH_MANIFEST
        records = read_records(path, read_sealed(path, "a graph folder", FORMAT, VERSION).get("files"))
        return f"graph-{hashlib.blake2b(content, digest_size=8).hexdigest()}", records

    return _fetched(str(src), cache, GRAPH_MANIFEST, described, progress)


@contextlib.contextmanager
def sent(dst: str, marker: str, *, overwrite: bool = False, progress: Progress | None = None) -> Iterator[Path]:
    """A path to write a folder to, which then goes to ``dst`` on object storage; ``marker`` goes last. Raises
    ConfigError: something is there already, and ``overwrite`` does not allow that; DataError: storage does not take
    it."""
    store = RemoteFolder(dst)
    there = store.names()
    if marker in there and not overwrite:
        raise ConfigError(f"{dst} exists already; --overwrite replaces it")
    if marker not in there and not all(name.endswith(".npy") for name in there):  # those are of a broken attempt
        raise ConfigError(f"{dst}: holds other objects; choose another place")
    with tempfile.TemporaryDirectory(prefix="send-", dir=_made("")) as folder:
        made = Path(folder) / "whole"
        yield made
        store.remove(marker)  # nobody begins to read what is half replaced
        send_files(store, made, marker, shown(progress))
        for name in there:
            if name != marker and not (made / name).exists():
                store.remove(name)


@contextlib.contextmanager
def written_graph(
    dst: str | Path,
    *,
    overwrite: bool = False,
    provenance: dict[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Iterator[GraphWriter]:
    """A writer of the graph folder ``dst``, which may be a URL of object storage: it is then sent when it is complete.
    Raises ConfigError: ``dst`` may not be written. DataError: storage does not take it."""
    if not is_url(dst):
        with GraphWriter(dst, overwrite=overwrite, provenance=provenance, rename=rename) as out:
            yield out
        return
    with (
        sent(str(dst), GRAPH_MANIFEST, overwrite=overwrite, progress=progress) as made,
        GraphWriter(made, provenance=provenance, rename=rename) as out,
    ):
        yield out


def _made(cache: str | Path) -> Path:
    base = Path(cache) if cache else cache_folder("data")
    with blaming(ConfigError, f"{base}: cannot be made"):
        base.mkdir(parents=True, exist_ok=True)
    return base


def _fetched(
    url: str,
    cache: str | Path,
    marker: str,
    described: Callable[[Path, bytes], tuple[str, dict[str, FileRecord]]],
    progress: Progress | None,
) -> Path:
    """The folder in ``cache`` with what is wanted of ``url``. ``described``: its name and the files, from a folder that
    has only the ``marker``, with this content."""
    store, base = RemoteFolder(url), _made(cache)
    content = store.read(marker)
    with tempfile.TemporaryDirectory(prefix="manifest-", dir=base) as manifest:
        Path(manifest, marker).write_bytes(content)
        name, records = described(Path(manifest), content)
    folder = base / name
    folder.mkdir(exist_ok=True)
    with folder.with_name(f"{name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetch_files(store, records, folder, shown(progress))
        if not (folder / marker).exists():
            partial = folder / f"{marker}.partial"
            partial.write_bytes(content)
            partial.rename(folder / marker)
    return folder
