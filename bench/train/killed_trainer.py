"""A trainer of `bench.train.killed`: the one that ships, which also notes how far it is and what it waited for.

    python -m bench.train.killed_trainer -m atta.train.launching.worker FOLDER

Rank 0 appends lines of JSON to the file that ``MARKS`` names. Each has ``t``, of a clock that all processes share, and
``imports``, the seconds that went into imports of other packages so far. Rank 0 also takes ``STEP_S`` longer for each
step, so that runs last until all kills have come.
"""

from __future__ import annotations

import time

BEGAN = time.monotonic()

import builtins  # noqa: E402 - the first line tells when the interpreter was ready
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

MARKS = "ATTA_BENCH_MARKS"
STEP_S = 0.02
OWN = ("atta", "atta_bench", "bench")


class ImportClock:
    """Stands for ``__import__``: counts the seconds of imports of packages other than Atta, with all that they import.

    Only those of the thread that made it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._import, self._thread, self._within = builtins.__import__, threading.get_ident(), False

    def __call__(self, name: str, *about: Any, **more: Any) -> Any:
        level = more.get("level", about[3] if len(about) > 3 else 0)
        own = level > 0 or name.partition(".")[0] in OWN  # what is relative to another package is within its import
        if own or self._within or threading.get_ident() != self._thread:
            return self._import(name, *about, **more)
        self._within, began = True, time.monotonic()
        try:
            return self._import(name, *about, **more)
        finally:
            self._within, self.seconds = False, self.seconds + time.monotonic() - began


class Marks:
    """The lines of this process."""

    def __init__(self, path: Path, clock: ImportClock) -> None:
        self._file, self._clock = path.open("ab", buffering=0), clock

    def write(self, mark: str, **about: Any) -> None:
        """Append a line."""
        line = {"mark": mark, "t": time.monotonic(), "imports": self._clock.seconds, **about}
        self._file.write(json.dumps(line).encode() + b"\n")


def spawned() -> float:
    """When this process was made, of the clock of ``t``; to 10 ms."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def noting(run: Callable[..., Any], marks: Marks) -> Callable[..., Any]:
    """``worker.run`` that writes marks."""

    def noted(*given: Any, **more: Any) -> Any:
        import torch.distributed as dist

        from atta.train import loop

        join, load, update = dist.init_process_group, vars(loop)["load_checkpoint"], loop.EpochLoop.update_weights

        def joining(*given: Any, **more: Any) -> None:
            marks.write("joins")
            join(*given, **more)
            marks.write("joined")

        def loading(*given: Any, **more: Any) -> Any:
            found = load(*given, **more)
            marks.write("loaded", epoch=found.place.epoch, step=found.place.step)
            return found

        def updating(self: Any) -> None:
            update(self)
            weights = hashlib.sha256()
            for tensor in self.model.state_dict().values():
                weights.update(tensor.numpy().tobytes())
            marks.write("stepped", digest=weights.hexdigest())
            time.sleep(STEP_S)

        dist.init_process_group = joining
        vars(loop)["load_checkpoint"] = loading
        loop.EpochLoop.update_weights = updating  # type: ignore[method-assign]
        return run(*given, **more)

    return noted


def main() -> None:
    """Train as ``atta.train.launching.worker`` does."""
    clock = ImportClock()
    builtins.__import__ = clock
    marks = Marks(Path(os.environ[MARKS]), clock) if os.environ["RANK"] == "0" else None
    if marks is not None:
        marks.write("begins", spawned=spawned(), began=BEGAN)
    from atta.train.launching import worker

    if marks is not None:
        worker.run = noting(worker.run, marks)
    code = worker.main(sys.argv[-1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as the worker itself does


if __name__ == "__main__":
    main()
