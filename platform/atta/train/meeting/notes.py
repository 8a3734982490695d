"""What outlives a trainer's process: the name of its run, and notes, named bytes in a store of torch, which never change."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from atta.errors import AttaError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

PATIENCE_S = 1800.0
"""How long a note is waited for: as long as torch's process groups wait."""
_PIECE = 4 << 20
"""Bytes per entry; torch's store refuses entries above 8 MiB."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.001, 0.1
_RUN, _ATTEMPT = "ATTA_RUN", "ATTA_ATTEMPT"


class Notes:
    """Notes below a prefix of a ``store``. They stay until the store ends, so they must be few or small."""

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store, self._prefix = store, prefix

    def below(self, name: str) -> Notes:
        """The notes whose names begin with ``name/``."""
        return Notes(self._store, f"{self._prefix}{name}/")

    def has(self, *names: str) -> bool:
        """Whether all these notes are there."""
        return bool(self._store.check([self._prefix + name for name in names]))

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Leave a note, unless there is one. Only one process at a time may write a name."""
        if self.has(name):
            return
        packed = zlib.compress(data, 1)
        pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
        for number, piece in enumerate(pieces):
            self._store.set(f"{self._prefix}{name}#{number}", piece)  # type: ignore[arg-type]
        self._store.set(self._prefix + name, str(len(pieces)))

    def get(self, name: str, *, most: int, within_s: float = PATIENCE_S) -> bytes:
        """A note of at most ``most`` bytes, when it is there. Raises AttaError after ``within_s``, or if it is larger."""
        self.wait([name], within_s)
        pieces = int(self._store.get(self._prefix + name))
        unpacking = zlib.decompressobj()
        found = bytearray()
        for number in range(pieces):
            found += unpacking.decompress(self._store.get(f"{self._prefix}{name}#{number}"), most + 1 - len(found))
            if len(found) > most:
                raise AttaError(f"a note of trainers, {self._prefix}{name}, has more than {most} bytes")
        return bytes(found)

    def wait(self, names: Sequence[str], within_s: float = PATIENCE_S) -> None:
        """Until all these notes are there. Raises AttaError after ``within_s`` seconds, naming those that are missing."""
        until, pause = time.monotonic() + within_s, _FIRST_LOOK_S
        while not self.has(*names):
            if time.monotonic() >= until:
                missing = [name for name in names if not self.has(name)]
                raise AttaError(f"trainers did not meet within {within_s:g} s: {self._prefix}{missing[0]} is missing")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_S)

    def store(self, name: str, within_s: float) -> Store:
        """The torch store below ``name``, for a process group of one attempt, with its own timeout."""
        import torch.distributed as dist

        below = dist.PrefixStore(self._prefix + name, self._store)  # type: ignore[attr-defined]
        below.set_timeout(timedelta(seconds=within_s))
        return below


def announce_run(task: Mapping[str, Any]) -> None:
    """Note in this process which run and attempt the task of a trainer belongs to."""
    os.environ[_RUN], os.environ[_ATTEMPT] = task.get("run", ""), str(task.get("attempt", 0))


def run_here() -> str:
    """The name of the run, the same in all attempts of ``--max-restarts``; empty: no launcher has given one."""
    return os.environ.get(_RUN, "")


def attempt_here() -> int:
    """The number of the attempt, from 0."""
    return int(os.environ.get(_ATTEMPT, "0"))


def tables_of(run: str) -> str:
    """How the names of tables begin that the run uses in all attempts."""
    return f"train-{run}-"


def weights_of(run: str, attempt: int) -> str:
    """The job of the parameter service that one attempt uses: what an attempt before still sends goes to another."""
    return f"weights-{run}-{attempt}"
