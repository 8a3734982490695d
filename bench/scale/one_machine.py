"""The daemons of a dataset on one machine with little memory: how soon they serve, how fast, and what they take.

    python -m bench.scale.one_machine DATASET [--against ../earlier] [--limits 24GiB,16GiB,8GiB] [--seconds 60] [--runs 1]

DATASET is a partitioned graph of one node type and one edge type, as ``atta generate powerlaw`` and ``atta partition``
make it. A consumer starts a daemon per partition by ``atta.local`` and loads its training vertices, in a control group with
each of the limits. Settings: the defaults of this checkout; ``--memory map --cache 0``; and, with ``--against``, what was
best by hand in an earlier one (``--by-hand``). Before each run the dataset leaves the page cache, unless ``--warm``.

Of each run: until the daemons serve and until the first batch; seeds per second afterwards, and the longest wait; the most
memory of the group that is not files, and its share of the limit; how many processes the kernel killed; the most private
memory of a daemon. Batches of all runs must be the same bits, and 200 seeds of each are compared with the files. In the last
run without a limit a daemon is killed: how soon the consumer reads it. Needs root, and control groups of version 1 or 2.
Writes one-machine.json and one-machine.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atta.errors import ConfigError
from atta.observe.machine.processor import words
from atta.observe.settings import SIZES, amount_of
from atta_bench.results import ROOT, commit_of, document, head, parser_of, rows_of, write
from atta_bench.results import command as typed_command

WORKER = Path(__file__).with_name("one_machine_worker.py")
LOOK_S = 0.1
PRIVATE_BYTES = 300 << 20
"""Most private memory of a daemon that maps its files and has no cache."""
MOST_SHARE, LEAST_SPEED, MOST_START = 0.9, 0.8, 0.3
"""Of the limit; of what was best by hand: seeds per second, and time until the first batch."""


@dataclass(frozen=True)
class Setting:
    """A checkout, and options of its daemons."""

    name: str
    checkout: Path
    options: str


class MemoryGroup(threading.Thread):
    """A control group with a limit (0: none). Samples the memory of its processes that is not files."""

    def __init__(self, limit: int) -> None:
        super().__init__(daemon=True)
        self.limit, self.peak, self.killed, self._end = limit, 0, 0, threading.Event()
        root = Path("/sys/fs/cgroup")
        self._old = (root / "memory").is_dir()
        self.folder = (root / "memory" if self._old else root) / f"atta-bench-{os.getpid()}"

    def __enter__(self) -> MemoryGroup:
        try:
            self.folder.mkdir()
            if self.limit:
                name = "memory.limit_in_bytes" if self._old else "memory.max"
                (self.folder / name).write_text(str(self.limit))
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be made: {error.strerror}; control groups need root") from None
        self.start()
        return self

    def command(self, words: list[str]) -> list[str]:
        """``words``, run by a process that belongs to the group, as all do that it starts."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh", *words]

    def end_all(self) -> None:
        """Kill the processes of the group."""
        while pids := words(self.folder / "cgroup.procs"):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(LOOK_S)

    def run(self) -> None:
        while not self._end.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        stat = words(self.folder / "memory.stat")
        found = dict(zip(stat[::2], stat[1::2], strict=False))
        names = ("total_rss", "total_shmem") if self._old else ("anon", "shmem")
        self.peak = max(self.peak, sum(int(found.get(name, 0)) for name in names))

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()
        events = words(self.folder / ("memory.oom_control" if self._old else "memory.events"))
        self.killed = int(dict(zip(events[::2], events[1::2], strict=False)).get("oom_kill", 0))
        for _attempt in range(50):
            try:
                self.folder.rmdir()
                return
            except OSError:  # processes are still ending
                time.sleep(0.2)


def run_once(given: Namespace, setting: Setting, limit: int, *, kill: bool = False) -> dict[str, Any]:
    """The figures of one run."""
    if not given.warm:
        leave_cache(given.dataset)
    command = [str(setting.checkout / ".venv/bin/python"), str(WORKER), "--data", str(given.dataset.absolute())]
    command += ["--options", setting.options, "--seconds", str(given.seconds), "--fan-outs", given.fan_outs]
    command += ["--batch-size", str(given.batch_size), *(["--kill"] if kill else [])]
    found: dict[str, Any] = {"setting": setting.name, "limit": limit}
    with MemoryGroup(limit) as group:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": setting.checkout}
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with subprocess.Popen(group.command(command), env=environment, **pipes) as worker:  # type: ignore[call-overload]
            try:
                said, errors = worker.communicate(timeout=given.timeout)
            except subprocess.TimeoutExpired:
                group.end_all()
                said, errors = worker.communicate()
                found["error"] = f"not done after {given.timeout:.0f} s"
        for line in said.splitlines():
            found |= json.loads(line)
        found["chose"] = next((line for line in errors.splitlines() if line.startswith("memory:")), "")
        if worker.returncode and "error" not in found:
            found["error"] = errors.strip().splitlines()[-1] if errors.strip() else f"exit code {worker.returncode}"
    found |= {"peak_bytes": group.peak, "killed": group.killed}
    return found


def leave_cache(dataset: Path) -> None:
    """Drop the files of a dataset from the page cache."""
    for path in dataset.rglob("*.npy"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def runs(given: Namespace) -> Iterator[dict[str, Any]]:
    """Every setting with every limit in turn."""
    settings = [Setting("defaults", ROOT, ""), Setting("mapped, no cache", ROOT, "--memory map --cache 0")]
    if given.against is not None:
        settings.insert(0, Setting("before, by hand", given.against.resolve(), given.by_hand))
    for number in range(given.runs):
        for limit in limits(given.limits):
            for setting in settings:
                last = number == given.runs - 1 and not limit and setting.name == "defaults"
                yield run_once(given, setting, limit, kill=last)


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--against", type=Path, help="another checkout with its own .venv")
    parser.add_argument("--by-hand", default="--memory map --cache 256MiB", help="options of atta serve there")
    parser.add_argument("--limits", default="none,24GiB,16GiB,8GiB", help="of control groups")
    parser.add_argument("--seconds", type=float, default=60.0, help="of loading")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fan-outs", default="15,10,5")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of a run")
    parser.add_argument("--warm", action="store_true", help="leave the dataset in the page cache")
    given = parser.parse_args()
    against = given.against and Path("../earlier")
    typed = typed_command(parser, Namespace(**{**vars(given), "dataset": None, "against": against}))
    found = []
    for run in runs(given):
        print({name: value for name, value in run.items() if name != "hashes"}, file=sys.stderr, flush=True)
        found.append(run)
        record(found, given, typed.replace(parser.prog, f"{parser.prog} DATASET"))  # a run may be the last one


def limits(text: str) -> list[int]:
    """Bytes of limits such as ``none,24GiB``; 0: none."""
    return [0 if word == "none" else int(amount_of(word, SIZES) or 0) for word in text.split(",")]


def record(found: list[dict[str, Any]], given: Namespace, typed: str) -> None:
    """Write the figures of all runs, and whether the bounds hold."""
    about = document("one-machine", command=typed, dataset=given.dataset.name, runs=found, checks=checks(found))
    if given.against is not None:
        about["against"] = commit_of(given.against)
    lines = head(f"One machine, one budget: {given.dataset.name}", about, *told(found))
    columns = [
        "limit",
        "setting",
        "serving, s",
        "first batch, s",
        "seeds/s",
        "longest wait, s",
        "peak, GiB",
        "of limit",
    ]
    lines += rows_of([*columns, "killed", "private of a daemon, MiB"], *(row_of(run) for run in found))
    lines += ["", *(f"- {name}: {'yes' if held else 'NO'}" for name, held in about["checks"].items())]
    write(given.out / "one-machine.json", about, lines)


def row_of(run: dict[str, Any]) -> list[Any]:
    """A line of the table."""
    limit, private = run["limit"], max(run.get("private_bytes", [0]))
    figures = [f"{run[name]:,.{digits}f}" if name in run else "-" for name, digits in FIGURES.items()]
    share = f"{run['peak_bytes'] / limit:.2f}" if limit else "-"
    row = [f"{limit / 2**30:g} GiB" if limit else "none", run["setting"], *figures, f"{run['peak_bytes'] / 2**30:.1f}"]
    return [*row, share, run["killed"], f"{private / 2**20:,.0f}"]


FIGURES = {"serving_s": 1, "first_s": 1, "seeds_per_s": 0, "longest_s": 1}


def told(found: list[dict[str, Any]]) -> list[str]:
    """What a consumer read after a kill, and errors of runs."""
    kills = [f"After a kill: {run['told']!r}, {run['told_s']:.1f} s later" for run in found if run.get("told_s")]
    errors = [f"{run['setting']}, {run['limit'] >> 30} GiB: {run['error']}" for run in found if "error" in run]
    return kills + errors


def checks(found: list[dict[str, Any]]) -> dict[str, bool]:
    """What must hold, by name."""
    ours = [run for run in found if run["setting"] != "before, by hand"]
    hashes = {tuple(run["hashes"]) for run in found if "hashes" in run}
    mapped = [run for run in ours if run["setting"] == "mapped, no cache" and "private_bytes" in run]
    held = {
        "no process was killed": not any(run["killed"] for run in ours),
        "every run went through": not any("error" in run for run in ours),
        "never more than 0.9 of a limit": all(
            run["peak_bytes"] <= MOST_SHARE * run["limit"] for run in ours if run["limit"]
        ),
        "batches are the same bits": len(hashes) == 1,
        "batches are what the files say": not any(run.get("wrong") for run in found),
        "mapped and without cache, a daemon has at most 300 MiB of its own": all(
            max(run["private_bytes"]) <= PRIVATE_BYTES for run in mapped
        ),
    }
    for limit in dict.fromkeys(run["limit"] for run in found):
        before, now = (
            [run for run in found if (run["setting"], run["limit"]) == (name, limit) and "seeds_per_s" in run]
            for name in ("before, by hand", "defaults")
        )
        if before and now:
            of = f"{limit >> 30} GiB" if limit else "no limit"
            start, speed = (mean(now, name) / mean(before, name) for name in ("first_s", "seeds_per_s"))
            held[f"{of}: first batch after {start:.2f} of the time by hand"] = start <= MOST_START
            held[f"{of}: {speed:.2f} of the seeds per second by hand"] = speed >= LEAST_SPEED
    return held


def mean(found: list[dict[str, Any]], name: str) -> float:
    return float(sum(run[name] for run in found) / len(found))


if __name__ == "__main__":
    main()
