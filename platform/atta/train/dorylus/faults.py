"""Slow, late and dying workers, for benchmarks and tests: a worker does to itself what its environment asks for."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError

FAULTS_VARIABLE = "ATTA_WORKER_FAULTS"
_EXAMPLE = "write it like link=20e6,delay=0.005:0.05,kill=0.1,late=0.1:2"
_NUMBERS = {"link": 1, "delay": 2, "kill": 1, "late": 2, "seed": 1}
_MOST_S = 3600.0


@dataclass(frozen=True)
class WorkerFaults:
    """What happens to workers.

    Attributes:
        link: bits per second that a worker's own link carries each way; infinity: as fast as this machine.
        delay: seconds that a message takes besides, the least and the most; evenly drawn for each.
        kill: share of tasks in whose middle the worker kills itself (SIGKILL).
        late: share of tasks that take longer, and by how many seconds.
        seed: of all draws.
    """

    link: float = math.inf
    delay: tuple[float, float] = (0.0, 0.0)
    kill: float = 0.0
    late: tuple[float, float] = (0.0, 0.0)
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> WorkerFaults:
        """Read ``link=BITS_PER_S,delay=LEAST:MOST,kill=SHARE,late=SHARE:SECONDS,seed=N``, each of them once or not at
        all. Raises ConfigError: it cannot be read, or a number is out of range."""
        found: dict[str, Any] = {}
        try:
            for word in text.split(","):
                name, _, value = word.strip().partition("=")
                numbers = tuple((int if name == "seed" else float)(number) for number in value.split(":"))
                if name in found or len(numbers) != _NUMBERS[name]:
                    raise ValueError
                found[name] = numbers if len(numbers) > 1 else numbers[0]
        except (KeyError, ValueError):
            raise ConfigError(f"worker faults {text!r}: cannot be read; {_EXAMPLE}") from None
        faults = cls(**found)
        in_range = {
            "link": faults.link > 0,
            "delay": 0 <= faults.delay[0] <= faults.delay[1] <= _MOST_S,
            "kill": 0 <= faults.kill < 1,
            "late": 0 <= faults.late[0] <= 1 and 0 <= faults.late[1] <= _MOST_S,
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
        took, (share, late_s) = self.seconds(size), self._faults.late
        killed, late = self._draw.random() < self._faults.kill, self._draw.random() < share
        time.sleep(took)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if late:
            time.sleep(late_s)

    def result(self, size: int) -> None:
        """A result of ``size`` bytes is to be sent."""
        time.sleep(self.seconds(size))
