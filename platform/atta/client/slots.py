"""The consumer's side of shared-memory slots: map once, hand out leases that end with the last view."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from atta.errors import RemoteError, UnavailableError

__all__ = ["SlotMaps"]


class _Lease:
    """Memory of one delivered batch. Arrays made from it keep it alive; when the last one dies, so does the lease."""

    def __init__(self, mapping: np.ndarray) -> None:
        self._mapping = mapping
        self.__array_interface__ = mapping.__array_interface__


class SlotMaps:
    """Mapped slots of the daemons on this machine, by path and nonce."""

    def __init__(self) -> None:
        self._maps: dict[tuple[str, int], np.ndarray] = {}
        self._files: dict[tuple[str, int], tuple[int, int]] = {}  # device and inode

    def lease(self, path: str, capacity: int, nonce: int) -> Any:
        """An object that numpy can view (uint8 [capacity]); watch it with ``weakref.finalize``.

        Raises:
            UnavailableError: the daemon ended between its answer and now.
            RemoteError: the slot cannot be mapped, or is not the one that the daemon meant.
        """
        mapping = self._maps.get((path, nonce))
        if mapping is None:
            self._forget_closed()
            mapping = self._maps[path, nonce] = self._map(path, capacity, nonce)
        return _Lease(mapping)

    def _map(self, path: str, capacity: int, nonce: int) -> np.ndarray:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # Writable and private to nobody: torch wants writable memory, and the slot is ours until we let go.
                self._files[path, nonce] = _identity(os.fstat(fd))
                mapping = np.frombuffer(mmap.mmap(fd, capacity, flags=mmap.MAP_SHARED), dtype=np.uint8)
            finally:
                os.close(fd)
        except FileNotFoundError as error:
            raise UnavailableError(path, "no daemon answers: it has gone, and the memory of a batch with it") from error
        except (OSError, ValueError) as error:
            raise RemoteError(path, f"shared-memory slot cannot be mapped: {error}") from error
        if int(mapping[:8].view(np.uint64)[0]) != nonce:
            raise RemoteError(path, "shared-memory slot is not the daemon's (its nonce differs)")
        return mapping

    def forget(self, path: str, nonce: int) -> None:
        """Drop the mapping of a slot that the daemon has given up; views that exist keep it alive."""
        self._maps.pop((path, nonce), None)
        self._files.pop((path, nonce), None)

    def _forget_closed(self) -> None:
        """Drop the mappings of slots that their daemon has closed, or that has died: else their pages would stay in memory."""
        for (path, nonce), file in list(self._files.items()):
            try:
                closed = _identity(os.stat(path)) != file
            except OSError:
                closed = True
            if closed:
                self.forget(path, nonce)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
