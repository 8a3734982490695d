"""Consumer processes, one per rank, which take batches as trainers do, and those who have them do so.

    python -m atta.simulate.consumers '{"target": "cluster.toml", "loader": {"rank": 0, ...}}'

is one of them. A question is a line of JSON on its standard input, its answer one on standard output:

    consumer                                 Consumers
                                      ←      {"epochs": 2, "most": null}
      {"batches": 18, "cpu_s": 0.12}  →
                                      ←      end of input

A failure is answered by {"error": "..."}, and the process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import atta
from atta.errors import AttaError

Process = subprocess.Popen[bytes]
Start = Callable[[int, Sequence[str]], Process]
"""Starts a rank's process by its command. Both its standard input and its output are pipes."""
END_S = 10.0
"""How long a process may take to end."""


def start_here(_rank: int, command: Sequence[str]) -> Process:
    """Start a process on this machine."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@dataclass(frozen=True)
class TakenBatches:
    """What the consumers of all ranks took, and the CPU seconds of their processes meanwhile."""

    batches: int
    cpu_s: float


class Consumers(contextlib.AbstractContextManager["Consumers"]):
    """A process per rank, until the block ends. They are processes, as trainers are. Threads of one process would wait
    for each other, and the daemons would have the processors' caches for themselves meanwhile."""

    def __init__(self, target: str, loaders: Sequence[Mapping[str, Any]], start: Start = start_here) -> None:
        """``target``: of ``atta.connect``. ``loaders``: arguments of ``NeighborLoader`` by rank."""
        self._processes: list[Process] = []
        try:
            for rank, loader in enumerate(loaders):
                about = json.dumps({"target": target, "loader": loader})
                self._processes.append(start(rank, [sys.executable, "-m", "atta.simulate.consumers", about]))
        except BaseException:
            self._end()
            raise

    def take(self, epochs: int, most: int | None = None, *, alone: bool = False) -> TakenBatches:
        """Have every rank take ``epochs``, of each at most ``most`` batches. ``alone``: one rank after another."""
        question = json.dumps({"epochs": epochs, "most": most})
        answers = []
        for turn in [[process] for process in self._processes] if alone else [self._processes]:
            for process in turn:
                _ask(process, question)
            answers += [_answer(process) for process in turn]
        return TakenBatches(sum(int(a["batches"]) for a in answers), sum(a["cpu_s"] for a in answers))

    def _end(self) -> None:
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):  # a question was left in it
                    pipe.close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:  # others may be in the midst of an epoch
            for process in self._processes:
                process.kill()
        self._end()


def _ask(process: Process, question: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        _answer(process)  # says why
        raise


def _answer(process: Process) -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AttaError(f"a consumer ended early, with exit code {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise AttaError(f"a consumer: {answer['error']}")
    return answer


def main() -> None:
    """Answer until the questions end."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    given = json.loads(sys.argv[1])
    try:
        with atta.connect(given["target"], wait=True) as cluster:
            loader = atta.NeighborLoader(cluster, **given["loader"], epochs=0)
            for line in iter(sys.stdin.readline, ""):
                out.write(json.dumps(_take(loader, **json.loads(line))) + "\n")
    except AttaError as error:
        out.write(json.dumps({"error": str(error)}) + "\n")
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # Ctrl-C reaches the process that asks, too


def _take(loader: atta.NeighborLoader, epochs: int, most: int | None) -> dict[str, float]:
    """Run so many epochs as trainers do: while one ends, the daemon begins the next."""
    batches, cpu_s = 0, time.process_time()
    loader.epochs = (loader.epochs or 0) + epochs
    for _ in range(epochs):
        batches += sum(1 for _ in islice(iter(loader), most))
    return {"batches": batches, "cpu_s": time.process_time() - cpu_s}  # with the threads of connections


if __name__ == "__main__":
    main()
