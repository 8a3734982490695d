"""Memory files that hold many slots each, so that many batches need few descriptors. Only touched pages take memory."""

from __future__ import annotations

import mmap
import os
import resource

import numpy as np

from atta.errors import QuotaExceededError
from atta.wire import memfiles
from atta.wire.memfiles import Gaps

FIRST_BYTES = 1 << 30
"""Size of the first arena; later ones double."""
LARGEST_BYTES = 1 << 40
"""Size at which arenas stop doubling."""
SPARE_DESCRIPTORS = 8
"""Number of descriptors left for connections. Without any, a daemon could not even report what it lacks."""


def arena_bytes(open_arenas: int, wanted: int) -> int:
    """Size of one more arena with room for ``wanted`` bytes. Sizes double, so a few dozen arenas are always enough."""
    return max(wanted, min(FIRST_BYTES << min(open_arenas, 20), LARGEST_BYTES))


class Arena:
    """A sealed memory file of ``nbytes`` (a multiple of the page size), mapped as ``buffer`` uint8 [nbytes]."""

    def __init__(self, nbytes: int) -> None:
        """Raises QuotaExceededError when there is no descriptor, or no address space, for it."""
        self.gaps = Gaps(nbytes)
        try:
            self.fd = memfiles.create("atta-slots", nbytes)
        except OSError as error:
            raise _refused(error) from error
        try:
            # The mapping takes another descriptor. Both have the lowest free numbers, so these tell how many are left.
            if 0 <= _most_files() <= self.fd + 1 + SPARE_DESCRIPTORS:
                raise _refused("the rest is kept for connections")
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0)
            self.buffer = np.frombuffer(mmap.mmap(self.fd, nbytes, flags=flags), dtype=np.uint8)
        except OSError as error:
            os.close(self.fd)
            raise _refused(error) from error
        except BaseException:
            os.close(self.fd)
            raise
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        self.inode = os.fstat(self.fd).st_ino

    @property
    def resident_bytes(self) -> int:
        """Memory of its pages, as the kernel counts it."""
        return 512 * os.fstat(self.fd).st_blocks if self.fd >= 0 else 0

    def touched(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """Where in a range there are pages: (start, stop), ascending, counted from the begin of the range."""
        found, at, stop = [], start, start + nbytes
        while at < stop:
            try:
                data = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:  # nothing from here to the end
                break
            at = min(os.lseek(self.fd, data, os.SEEK_HOLE), stop)
            if data < at:
                found.append((data - start, at - start))
        return found

    def close(self) -> None:
        """Drop this side's file and mapping; a consumer that still maps it keeps the pages."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.buffer = np.empty(0, dtype=np.uint8)


def _most_files() -> int:
    """How many files this process may have open; -1: any number."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _refused(cause: object) -> QuotaExceededError:
    return QuotaExceededError(
        f"no memory file for another batch buffer: {cause}; the daemon may have {_most_files()} files open (ulimit -n)"
    )
