"""Slow, late and dying workers, for benchmarks and tests: a worker does to itself what its environment asks for."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from dataclasses import dataclass

from atta.errors import ConfigError

__all__ = ["FAULTS_VARIABLE", "FaultyWorker", "WorkerFaults"]

FAULTS_VARIABLE = "ATTA_WORKER_FAULTS"
_EXAMPLE = "write it like link=20e6,delay=0.005:0.05,kill=0.1,late=0.1:2"
_MOST_S = 3600.0


@dataclass(frozen=True)
class WorkerFaults:
    """What happens to workers.

    Attributes:
        link: bits per second that a worker's own link carries each way; infinity: as fast as this machine.
        delay: seconds that a message takes besides, the least and the most; evenly drawn for each.
        kill: share of tasks in whose middle the worker kills itself (SIGKILL).
        late, late_s: share of tasks that take so many seconds longer.
        seed: of all draws.
    """

    link: float = math.inf
    delay: tuple[float, float] = (0.0, 0.0)
    kill: float = 0.0
    late: float = 0.0
    late_s: float = 0.0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> WorkerFaults:
        """Read ``link=BITS_PER_S,delay=LEAST:MOST,kill=SHARE,late=SHARE:SECONDS,seed=N``, each of them once or not at all.

        Raises:
            ConfigError: it cannot be read, or a number is out of range.
        """
        found: dict[str, float | tuple[float, float] | int] = {}
        try:
            for word in text.split(","):
                name, _, value = word.strip().partition("=")
                if name in found:
                    raise ValueError
                if name in ("link", "kill"):
                    found[name] = float(value)
                elif name == "seed":
                    found[name] = int(value)
                elif name == "delay":
                    least, most = map(float, value.split(":"))
                    found[name] = least, most
                elif name == "late":
                    found[name], found["late_s"] = map(float, value.split(":"))
                else:
                    raise ValueError
        except ValueError:
            raise ConfigError(f"worker faults {text!r}: cannot be read; {_EXAMPLE}") from None
        faults = cls(**found)  # type: ignore[arg-type]
        in_range = {
            "link": faults.link > 0,
            "delay": 0 <= faults.delay[0] <= faults.delay[1] <= _MOST_S,
            "kill": 0 <= faults.kill < 1,
            "late": 0 <= faults.late <= 1 and 0 <= faults.late_s <= _MOST_S,
        }
        for name, fits in in_range.items():
            if not fits:
                raise ConfigError(f"worker faults {text!r}: {name} is out of range")
        return faults

    def of_worker(self, rank: int, number: int) -> FaultyWorker:
        """The faults of the worker with this number, of the trainer with this rank."""
        return FaultyWorker(self, random.Random(f"{self.seed}/{rank}/{number}"))


class FaultyWorker:
    """The draws of one worker. A worker sleeps where a link would make it wait, so nobody computes meanwhile."""

    def __init__(self, faults: WorkerFaults, draw: random.Random) -> None:
        self._faults, self._draw = faults, draw

    def seconds(self, size: int) -> float:
        """How long a message of ``size`` bytes takes."""
        return 8 * size / self._faults.link + self._draw.uniform(*self._faults.delay)

    def task(self, size: int) -> None:
        """A task of ``size`` bytes has come: wait for it, be late with it, or die of it."""
        took = self.seconds(size)
        killed, late = self._draw.random() < self._faults.kill, self._draw.random() < self._faults.late
        time.sleep(took)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if late:
            time.sleep(self._faults.late_s)

    def result(self, size: int) -> None:
        """A result of ``size`` bytes is to be sent."""
        time.sleep(self.seconds(size))
