"""What the loss of a trainer costs `atta train --max-restarts`: SIGKILL of a random trainer at random moments.

    python -m bench.train.killed [--kills 12] [--epochs 60] [--seed 0] [--work data/killed]

Two daemons and two trainers, one thread each, on this machine; a checkpoint every 10 steps. The same training runs
undisturbed first. The record has the time from each kill to the next step that had not been done before, and how much
of it is spent by the interpreter, by imports of other packages and on torch's process group; the rest is Atta's. Losses
of all epochs, and weights after every step, are compared bit for bit. Bounds: 15 s, 5 s of it Atta's, at most the steps
since the last checkpoint again. Writes trainer-killed.json and .md.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import atta
from atta.partition.generate import GenerateOptions
from atta_bench.graphs import SPLITS, partitioned
from atta_bench.results import ROOT, arguments_of, document, head, rows_of, spread, write, yes_or_no
from atta_bench.train.killed_trainer import MARKS, STEP_S

MOST_S, MOST_OWN_S = 15.0, 5.0
CHECKPOINT_STEPS, TRAINERS = 10, 2
GIVEN_UP_S = 120.0
SAYS = "all trainers start again"
JOB = "import sys; sys.executable = sys.argv.pop(1); from atta.cli.main import main; main()"
"""`atta train` whose trainers are another program."""
Mark = Mapping[str, Any]


@dataclass(frozen=True)
class Kill:
    """A trainer that was killed, and how training went on; in seconds, but for ``rank`` and steps.

    Attributes:
        step: the last step before it, from 1; ``again``: how many steps were repeated.
        total: until the next new step.
        noticing: until all others had been stopped; starting: then until the first trainer was a process again.
        interpreter, imports, group: of that trainer: until its first line runs; other packages; the process group.
        preparing: the rest until its first step: Atta's imports, connecting, the checkpoint, the session, its batch.
        repeating: the steps that it repeats.
    """

    rank: int
    step: int
    again: int
    total: float
    noticing: float
    starting: float
    interpreter: float
    imports: float
    group: float
    preparing: float
    repeating: float

    @property
    def own(self) -> float:
        """Atta's part of ``total``."""
        return self.noticing + self.starting + self.preparing + self.repeating


@dataclass(frozen=True)
class Life:
    """What a process of the first trainer has noted; ``first``: the step that its first one was, from 1."""

    marks: Sequence[Mark]
    first: int

    @property
    def steps(self) -> list[Mark]:
        """Those of its steps."""
        return [mark for mark in self.marks if mark["mark"] == "stepped"]

    @property
    def last(self) -> int:
        """The number of its last step."""
        return self.first + len(self.steps) - 1

    def one(self, name: str) -> Mark:
        """The mark of this name."""
        return next(mark for mark in self.marks if mark["mark"] == name)


def lives(marks: Sequence[Mark], epoch_steps: int) -> list[Life]:
    """The processes of the first trainer, one after another."""
    begins = [at for at, mark in enumerate(marks) if mark["mark"] == "begins"]
    found = []
    for start, end in itertools.pairwise([*begins, len(marks)]):
        own = marks[start:end]
        places = [mark["epoch"] * epoch_steps + mark["step"] for mark in own if mark["mark"] == "loaded"]
        found.append(Life(own, 1 + sum(places)))
    return found


def account(rank: int, killed: float, said: float, before: Life, after: Life) -> Kill:
    """What a kill at ``killed`` has cost; ``said``: when the launcher told that the others had been stopped."""
    begins, joins, joined = after.one("begins"), after.one("joins"), after.one("joined")
    first, new = after.steps[0], after.steps[before.last + 1 - after.first]
    imports, group = first["imports"], joined["t"] - joins["t"] - (joined["imports"] - joins["imports"])
    return Kill(
        rank=rank,
        step=before.last,
        again=before.last + 1 - after.first,
        total=new["t"] - killed,
        noticing=said - killed,
        starting=begins["spawned"] - said,
        interpreter=begins["began"] - begins["spawned"],
        imports=imports,
        group=group,
        preparing=first["t"] - begins["began"] - imports - group,
        repeating=new["t"] - first["t"],
    )


def wrong_steps(found: Sequence[Life], expected: Sequence[str]) -> int:
    """Number of steps after which weights were not those of the undisturbed run."""
    pairs = [(step["digest"], life.first + at) for life in found for at, step in enumerate(life.steps)]
    return sum(digest != expected[number - 1] for digest, number in pairs)


class Job:
    """`atta train` at work."""

    def __init__(self, cluster: Path, folder: Path, epochs: int, *options: str) -> None:
        folder.mkdir()
        self.marks_file, self.report, trainer = folder / "marks", folder / "report.json", folder / "trainer"
        trainer.write_text(f'#!/bin/sh\nexec {sys.executable} -m bench.train.killed_trainer "$@"\n')
        trainer.chmod(0o755)
        words = ["train", "--cluster", str(cluster), "--trainers", str(TRAINERS), "--epochs", str(epochs)]
        words += ["--num-neighbors", "5,5", "--batch-size", "32", "--hidden", "32", "--eval-every", str(epochs)]
        words += ["--device", "cpu", "--checkpoint", str(folder / "runs"), "--json", str(self.report), *options]
        environment = {**os.environ, MARKS: str(self.marks_file), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(trainer), *words],
            cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.said: list[tuple[float, str]] = []
        self._marks, self._read_bytes = list[Mark](), 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append((time.monotonic(), line.strip()))

    def marks(self) -> list[Mark]:
        """What the first trainer has noted so far."""
        if self.marks_file.exists():
            with self.marks_file.open("rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            self._marks += map(json.loads, whole.splitlines())
        return self._marks

    def kill(self, rank: int) -> float:
        """SIGKILL a trainer; returns when."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "bench.train.killed_trainer" in child.cmdline() and child.environ()["RANK"] == str(rank):
                    child.send_signal(signal.SIGKILL)
                    return time.monotonic()
        raise RuntimeError(f"trainer {rank} is not there: {self.said[-3:]}")

    def end(self) -> Mapping[str, Any]:
        """Wait for the end; returns the report."""
        code = self.process.wait()
        self._reader.join()
        if code:
            raise RuntimeError(f"atta train ended with {code}: {[line for _, line in self.said[-5:]]}")
        found: Mapping[str, Any] = json.loads(self.report.read_text())
        return found


def disturbed(job: Job, plan: Sequence[tuple[int, int]], epoch_steps: int, rng: random.Random) -> list[float]:
    """Kill a trainer of each rank of ``plan`` once its step is done; returns when."""
    killed, until = list[float](), time.monotonic() + GIVEN_UP_S
    for step, rank in plan:
        while not (found := lives(job.marks(), epoch_steps)) or found[-1].last < step or len(found) <= len(killed):
            if job.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the run does not come to step {step}: {job.said[-3:]}")
            time.sleep(STEP_S / 2)
        time.sleep(rng.uniform(0, 2 * STEP_S))
        killed.append(job.kill(rank))
        until = time.monotonic() + GIVEN_UP_S
    return killed


def main() -> None:
    """Measure and write the record."""
    given = arguments_of(
        __file__,
        __doc__,
        kills=12,
        epochs=(60, "of some 19 steps each"),
        seed=(0, "decides whom each kill hits, and when"),
        work=(ROOT / "data/killed", "where the graph is kept"),
    )
    sizes: dict[str, Any] = {"nodes": 4000, "edges": 60_000, "features": 32, "classes": 8}
    parts = partitioned("sbm", GenerateOptions(**sizes, inter=0.3, seed=0, **SPLITS), None, given.work, TRAINERS)
    with atta.local(parts, threads=1) as running, tempfile.TemporaryDirectory() as folder:
        plain = Job(running.cluster_file, Path(folder) / "plain", given.epochs)
        expected = plain.end()
        (whole,) = lives(plain.marks(), 0)
        epoch_steps, rng = len(whole.steps) // given.epochs, random.Random(given.seed)
        print(f"undisturbed: {len(whole.steps)} steps", flush=True)
        segment = len(whole.steps) // (given.kills + 1)
        plan = [
            (at * segment + rng.randrange(segment // 2), rng.randrange(TRAINERS)) for at in range(1, given.kills + 1)
        ]
        options = ("--max-restarts", str(given.kills), "--checkpoint-steps", str(CHECKPOINT_STEPS))
        job = Job(running.cluster_file, Path(folder) / "killed", given.epochs, *options)
        try:
            killed = disturbed(job, plan, epoch_steps, rng)
            report, found = job.end(), lives(job.marks(), epoch_steps)
        finally:
            job.process.kill()
    said = [at for at, line in job.said if SAYS in line]
    kills = [
        account(rank, when, told, before, after)
        for (_, rank), when, told, (before, after) in zip(plan, killed, said, itertools.pairwise(found), strict=True)
    ]
    losses = [[epoch["loss"] for epoch in each["epochs"]] for each in (expected, report)]
    wrong = {
        "losses": sum(a != b for a, b in zip(*losses, strict=True)),
        "weights": wrong_steps(found, [step["digest"] for step in whole.steps]),
        "restarts": abs(report["restarts"] - len(kills)),
    }
    record(kills, wrong, {"epochs": given.epochs, "steps": len(whole.steps)}, given.typed, given)


def record(
    kills: Sequence[Kill], wrong: Mapping[str, int], sizes: Mapping[str, int], typed: str, given: Namespace
) -> None:
    """Write the figures of all kills."""
    told = [{**asdict(kill), "own": kill.own} for kill in kills]
    about = document("trainer-killed", command=typed, kills=told, wrong=wrong, sizes=sizes)

    def row(name: str, values: Sequence[float], most: float | None = None) -> list[str]:
        return [name, spread(values, ".2f"), "" if most is None else f"{most:g}: {yes_or_no(max(values) <= most)}"]

    parts = {
        "Atta: noticing it, and stopping the others": [kill.noticing for kill in kills],
        "Atta: starting trainers again": [kill.starting for kill in kills],
        "Atta: its imports, connecting, checkpoint, session, first step": [kill.preparing for kill in kills],
        "Atta: repeated steps": [kill.repeating for kill in kills],
        "the interpreter's start": [kill.interpreter for kill in kills],
        "imports of torch, PyG, numpy and others": [kill.imports for kill in kills],
        "torch's process group": [kill.group for kill in kills],
    }
    rows = [
        row("from the kill to the next new step, s", [kill.total for kill in kills], MOST_S),
        row("Atta's part of it, s", [kill.own for kill in kills], MOST_OWN_S),
        *(row(name, values) for name, values in parts.items()),
        row(f"steps repeated (a checkpoint every {CHECKPOINT_STEPS})", [k.again for k in kills], CHECKPOINT_STEPS),
    ]
    lines = [
        *head("Trainers killed under atta train --max-restarts", about, f"Kills: {len(kills)}, seed {given.seed}"),
        *rows_of(("figure", "median (minimum to maximum)", "asked: kept"), *rows),
        "",
        f"Beside an undisturbed run of {sizes['steps']} steps: {wrong['losses']} of {sizes['epochs']} losses of epochs "
        f"differ in a bit, and weights after {wrong['weights']} steps, repeated ones included.",
    ]
    write(given.out / "trainer-killed.json", about, lines)


if __name__ == "__main__":
    main()
