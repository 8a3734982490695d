"""Files of checkpoints: zip archives as ``torch.save`` writes them, whose comment is a checksum of all bytes before it."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from atta.errors import ConfigError, DataError
from atta.partition.disk.files import open_regular
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import StagedFile, disk_full, remove_partial_file

LAST = "checkpoint.pt"
BEST = "best.pt"
BEST_WEIGHTS = "best.safetensors"
VERSION = 2
_MARK = b"atta-xxh3:"  # then 16 hex digits, which end the file
_DIGITS = 16


@dataclass(frozen=True)
class RunPlace:
    """The next batch of a run, after ``epoch`` complete epochs.

    Attributes:
        batch: batches of the epoch under way that each trainer has done; 0: the epoch has not begun.
        step: optimiser steps of the epoch under way.
    """

    epoch: int
    batch: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch}, step {self.step}"


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that checkpoints cannot be written to, before training begins. It leaves nothing behind, and removes the
    partial file of an earlier run that was killed. Raises ConfigError, and DiskFullError: there is no space left.
    """
    mirror = Mirror(folder)
    mirror.check_writable()
    folder = mirror.path
    for path in (folder / LAST, folder / BEST, folder / BEST_WEIGHTS):
        if path.exists() and not path.is_file():
            raise ConfigError(f"--checkpoint {folder}: {path.name} in it is not a regular file")
        remove_partial_file(path)
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        full = disk_full(folder, error)
        raise full or ConfigError(f"--checkpoint {folder}: cannot be written: {error.strerror}") from None


def read_file(path: Path, device: torch.device) -> dict[str, Any]:
    """What a file holds, with tensors on ``device``; raises DataError if it is no checkpoint, damaged, or of
    another version."""
    try:
        with open_regular(path) as file:
            content = file.read()
        _check_seal(path, content)
    except OSError as error:
        raise DataError(path, f"cannot be read as a checkpoint: {error.strerror or error}") from error
    try:
        saved = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception as error:  # torch calls what a file names with what it holds, so any error may come of it
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(path, f"cannot be read as a checkpoint: {cause}") from error
    if not isinstance(saved, dict):
        raise DataError(path, "is no checkpoint")
    if saved.get("version") != VERSION:
        raise DataError(path, f"checkpoint version {saved.get('version')!r}; this release reads version {VERSION}")
    return saved


def write_file(folder: str | Path, name: str, state: dict[str, Any]) -> Mirror:
    """Write and seal a file of the folder. A crash leaves the old file or the new one.
    Raises the errors of ``StagedFile``.
    """
    content, place = io.BytesIO(), Mirror(folder)  # torch.save hides errors of files
    torch.save({"version": VERSION, **state}, content)
    with StagedFile(place.path / name, overwrite=True) as partial:
        partial.write_bytes(seal(content.getvalue()))
    place.push(name)
    return place


def seal(archive: bytes) -> bytes:
    """Append the checksum of an archive as its comment."""
    size = len(_MARK) + _DIGITS
    sealed = archive[:-2] + size.to_bytes(2, "little") + _MARK
    return sealed + _digest(sealed)


def _check_seal(path: Path, content: bytes) -> None:
    # A damaged mark looks like a file without a checksum, so a file without one is refused too.
    if content[-_DIGITS - len(_MARK) : -_DIGITS] != _MARK:
        raise DataError(path, "does not end with its checksum: cut short, altered, or not written by atta train")
    if content[-_DIGITS:] != _digest(content[:-_DIGITS]):
        raise DataError(path, "altered: its checksum differs from its content")


def _digest(content: bytes) -> bytes:
    return xxhash.xxh3_64(content).hexdigest().encode()
