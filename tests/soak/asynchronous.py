"""Training without barriers for an hour, while workers, trainers and daemons are killed and stopped.

Two daemons serve a small graph. One job of ``dorylus`` after the other trains on it, with checkpoints. A seed decides who
is killed (SIGKILL) or stopped (SIGSTOP, then SIGCONT), and when. Workers are replaced. After the loss of a trainer all
begin again at the newest checkpoint. The loss of a daemon ends the job with the daemon's name; then the same job is
started again with ``--resume``. The oracle is a job without faults: the weights of each job must equal its weights bit
for bit, so no update was lost or made twice. Between these, jobs of ``digest-async`` run, whose trainers start again
alone: the daemon must count each update of theirs once.

In the last two thirds daemons are spared, and their memory is noted after each job.

    python -m tests.soak.asynchronous --minutes 60 --seed 7 --json soak.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

import atta
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.results import document
from tests.soak.outages import Daemons
from tests.system.cuts import trainers_of, weights

EPOCHS, UPDATES_EPOCHS = 250, 60
JOB_S = 900.0
"""A job must end within so many seconds, with all its restarts."""
SPARED_FROM = 1 / 3
"""From this share of the time on daemons are spared."""
MOST_GROWTH = 1.05
FAULTS = {"worker-kill": 8, "worker-stop": 4, "trainer-stop": 3, "trainer-kill": 1, "daemon-kill": 1}
"""How often each comes, relative to the others."""
COMMON = "--trainers 2 --trainers-per-server 1 --model gcn --layers 2 --hidden 16 --lr 0.02 --device cpu --threads 1"
DORYLUS = f"--strategy dorylus:mode=pipe,intervals=4,workers=2 --epochs {EPOCHS} --eval-every {EPOCHS} " + COMMON
DIGEST = f"--strategy digest-async:restarts=50 --epochs {UPDATES_EPOCHS} " + COMMON


@dataclass
class JobResult:
    """What became of a job.

    ``daemons_lost``: starts that ended because a daemon was lost; the job went on with ``--resume``. ``restarts``: of
    trainers within the job. ``wrong``: what did not hold.
    """

    strategy: str
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    daemons_lost: int = 0
    restarts: int = 0
    wrong: list[str] = field(default_factory=list)


class SoakDaemons(Daemons):
    def memory(self) -> list[int]:
        return [psutil.Process(child.pid).memory_full_info().uss for child in self.children]

    def gradients(self) -> float:
        with atta.connect(self.cluster_file, wait=True) as cluster:
            return sum(found["weights_gradients"] for found in cluster.stats())


class Troublemaker:
    def __init__(
        self, job: subprocess.Popen[str], daemons: SoakDaemons, draws: random.Random, kinds: list[str]
    ) -> None:
        self._job, self._daemons, self._draws, self._kinds = job, daemons, draws, kinds
        self.counts: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._draws.expovariate(1 / 4.0) + 0.5):
            (kind,) = self._draws.choices(self._kinds, [FAULTS[kind] for kind in self._kinds])
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                self._hit(kind)

    def _hit(self, kind: str) -> None:
        if kind == "daemon-kill":
            self.counts[kind] += 1
            self._daemons.kill(self._draws.randrange(2))
            return
        found = list(trainers_of(self._job).values()) if kind.startswith("trainer") else self._workers()
        if not found:
            return
        victim = self._draws.choice(found)
        self.counts[kind] += 1
        if kind.endswith("kill"):
            victim.kill()
            return
        victim.suspend()
        self._over.wait(self._draws.uniform(0.5, 4.0))
        victim.resume()

    def _workers(self) -> list[psutil.Process]:
        everybody = psutil.Process(self._job.pid).children(recursive=True)
        return [one for one in everybody if "worker" in one.cmdline()]


class Soak:
    def __init__(self, data: Path, folder: Path, seed: int) -> None:
        self._folder, self._draws = folder, random.Random(seed)
        self.daemons = SoakDaemons(data, folder)
        self._number = 0
        calm = self.dorylus([])
        if calm.wrong:
            raise SystemExit(f"the job without faults failed: {calm.wrong}")
        self._wanted = weights(folder / "job-1")

    def dorylus(self, kinds: list[str]) -> JobResult:
        """A job of ``dorylus`` under faults of these kinds, again and again from its checkpoint until it ends."""
        result, began, folder = JobResult("dorylus"), time.monotonic(), self._next()
        words = [*DORYLUS.split(), "--checkpoint", str(folder), "--checkpoint-every", "10", "--max-restarts", "50"]
        while True:
            code, said = self._train(words, kinds, result)
            if code == 0 or time.monotonic() - began > JOB_S:
                break
            words = words if "--resume" in words else [*words, "--resume"]
            lost = [address for address in self.daemons.addresses if address in said]
            if not lost or "daemon-kill" not in kinds:
                result.wrong.append(f"exit code {code}: {said[-500:]}")
                break
            result.daemons_lost += 1
        if code != 0 and not result.wrong:
            result.wrong.append(f"it has not ended after {JOB_S:g} s")
        if code == 0 and self._number > 1:
            found = weights(folder)
            result.wrong += [
                f"weights of {n} differ" for n in self._wanted if not torch.equal(found[n], self._wanted[n])
            ]
        result.seconds = time.monotonic() - began
        return result

    def digest_async(self, kinds: list[str]) -> JobResult:
        result, began = JobResult("digest-async"), time.monotonic()
        before = self.daemons.gradients()
        code, said = self._train(DIGEST.split(), kinds, result)
        made = self.daemons.gradients() - before
        if code != 0:
            result.wrong.append(f"exit code {code}: {said[-500:]}")
        elif made != 2 * UPDATES_EPOCHS:
            result.wrong.append(f"{made:g} updates were made, not {2 * UPDATES_EPOCHS}")
        result.seconds = time.monotonic() - began
        return result

    def _next(self) -> Path:
        self._number += 1
        return self._folder / f"job-{self._number}"

    def _train(self, words: list[str], kinds: list[str], result: JobResult) -> tuple[int, str]:
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "atta.cli.main", "train", "--cluster", str(self.daemons.cluster_file), *words]
        job = subprocess.Popen(
            [*command, "--json", str(report), "--quiet"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        trouble = Troublemaker(job, self.daemons, self._draws, kinds) if kinds else None
        try:
            _, said = job.communicate(timeout=JOB_S)
        except subprocess.TimeoutExpired:
            said = f"it has not ended after {JOB_S:g} s"
        finally:
            if trouble is not None:
                trouble.stop()
                for kind, count in trouble.counts.items():
                    result.faults[kind] = result.faults.get(kind, 0) + count
            if job.poll() is None:
                job.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(30)
                job.kill()
                job.wait()
        if report.exists():
            result.restarts += int(json.loads(report.read_text())["restarts"])
        return job.returncode, said


def make_dataset(folder: Path) -> Path:
    options = GenerateOptions(nodes=2_000, edges=40_000, features=32, classes=8, seed=1)
    generate("sbm", folder / "graph", options)
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=1)
    return folder / "parts"


@contextlib.contextmanager
def soaking(folder: Path, seed: int) -> Iterator[Soak]:
    soak = Soak(make_dataset(folder), folder, seed)
    try:
        yield soak
    finally:
        soak.daemons.close()


def growth(memory: list[tuple[float, list[int]]]) -> list[float]:
    """By daemon, the median memory of the last third of notes, as a multiple of that of the first third."""
    size = max(1, len(memory) // 3)

    def median(notes: list[tuple[float, list[int]]], part: int) -> int:
        return sorted(sizes[part] for _, sizes in notes)[len(notes) // 2]

    return [median(memory[-size:], part) / median(memory[:size], part) for part in (0, 1)] if memory else []


def main() -> int:
    """Run jobs until the time is up; the exit code is 1 if something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: list[JobResult] = []
    memory: list[tuple[float, list[int]]] = []
    with tempfile.TemporaryDirectory(prefix="atta-soak-") as folder, soaking(Path(folder), options.seed) as soak:
        began, length = time.monotonic(), 60 * options.minutes
        while (passed := time.monotonic() - began) < length:
            spared = passed > SPARED_FROM * length
            kinds = [kind for kind in FAULTS if not (spared and kind == "daemon-kill")]
            if len(results) % 3 == 2:
                results.append(soak.digest_async([kind for kind in kinds if kind.startswith("trainer")]))
            else:
                results.append(soak.dorylus(kinds))
            if spared:
                memory.append((round(time.monotonic() - began, 1), soak.daemons.memory()))
            told = results[-1]
            print(f"{passed / 60:5.1f} min  {told.strategy}  {told.seconds:.0f} s  {told.faults}", flush=True)
            print(
                f"           daemons lost {told.daemons_lost}, restarts {told.restarts}, wrong {told.wrong}", flush=True
            )
    grown = growth(memory)
    _report(options, results, memory, grown)
    return int(any(one.wrong for one in results) or any(factor > MOST_GROWTH for factor in grown))


def _report(options: Any, results: list[JobResult], memory: list[tuple[float, list[int]]], grown: list[float]) -> None:
    faults: Counter[str] = Counter()
    for one in results:
        faults.update(one.faults)
    about: dict[str, Any] = {
        **{"minutes": options.minutes, "seed": options.seed, "jobs": len(results)},
        **{"wrong": [one.wrong for one in results if one.wrong], "faults": dict(faults)},
        **{name: sum(getattr(one, name) for one in results) for name in ("daemons_lost", "restarts")},
        **{"growth": grown, "memory": memory, "results": [asdict(one) for one in results]},
    }
    if options.json:
        options.json.write_text(json.dumps(document("async-soak", **about), indent=1))
    told = ("jobs", "wrong", "faults", "daemons_lost", "restarts", "growth")
    print(", ".join(f"{name}: {about[name]}" for name in told))


if __name__ == "__main__":
    sys.exit(main())
