"""Upgrades under load: `atta roll` of a cluster with replicas, from an earlier build to this one and back.

    python -m bench.upgrade BEFORE [--rolls 6] [--work data/upgrade]

BEFORE is the folder of an earlier checkout with its own .venv (``make setup``), or a commit, which is checked out and
set up under ``--work``. Daemons begin as those of BEFORE. A supervisor starts each one that ends again, as the build
that is rolled to. All the time two consumers of either build take batches; all are compared with the local sampler's.
The record has the longest pauses of consumers, and batches that were lost, came twice or were wrong. Bound: 5 s, and
none. Writes upgrade.json and upgrade.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from atta.client.control import Connection
from atta.observe.machine.addresses import HeldAddresses
from atta.samplers import LocalGraph, LocalSampler
from atta.wire.clusterfile import write_cluster
from atta_bench.chaos.graph import ChaosGraph
from atta_bench.chaos.invariants import ConsumerChecker, longest_gap
from atta_bench.record import ROOT, commit_of, document, head, parser_of, rows_of, write
from atta_bench.upgrade_consumer import EPOCHS, HOPS, SEED, digest

CONSUMER = Path(__file__).with_name("upgrade_consumer.py")
MOST_S = 5.0
PARTS, REPLICAS, CONSUMERS = 2, 2, 2
START_S, ROLL_S = 300.0, 900.0
CALM_S = 5.0
"""How long consumers work before and after each roll."""
Line = Mapping[str, Any]


def checkout(named: str, work: Path) -> Path:
    """The folder of an earlier build; a commit is set up under ``work`` unless it is there."""
    folder = Path(named)
    if not folder.is_dir():
        folder = work / named
        if not folder.exists():
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
            subprocess.run(["git", "checkout", "--quiet", named], cwd=folder, check=True)
    if not (folder / ".venv/bin/python").exists():
        subprocess.run(["make", "setup"], cwd=folder, check=True)
    return folder.resolve()


class SupervisedDaemon:
    """A daemon at an address. Whenever it ends it is started again, as the build that ``use`` named last."""

    def __init__(self, part: int, address: str, data: Path, folder: Path, build: Path) -> None:
        self.part, self.address, self._build, self._ending = part, address, build, False
        self._words = ["-m", "atta.cli.main", "serve", "--data", str(data), "--part", str(part), "--listen", address]
        self._words += ["--peers", str(folder / "cluster.toml"), "--threads", "1", "--drain", "10s"]
        self._words += ["--exit-with-parent", "--log-level", "warning"]
        self._log = folder / f"{address.replace(':', '-')}.log"
        self._child = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            program = str(self._build / ".venv/bin/python")
            return subprocess.Popen([program, *self._words], cwd=self._build, stdin=subprocess.PIPE, stderr=log)

    def _keep(self) -> None:
        while True:
            self._child.wait()
            if self._ending:
                return
            self._child = self._start()

    def use(self, build: Path) -> None:
        """Start it as this build from now on."""
        self._build = build

    def ready(self) -> None:
        """Return when it serves."""
        connection = Connection(self.address, START_S, part=self.part)
        try:
            connection.describe(wait=True, timeout=START_S)
        finally:
            connection.close()

    def close(self) -> None:
        """End it for good."""
        self._ending = True
        self._child.kill()
        self._thread.join()


@contextmanager
def consumer(build: Path, file: Path, lines: Path, rank: int) -> Iterator[None]:
    """A consumer within the block; what it takes is in ``lines``."""
    words = [str(build / ".venv/bin/python"), str(CONSUMER), str(file), str(lines), str(rank), str(CONSUMERS)]
    with lines.with_suffix(".log").open("wb") as log, subprocess.Popen(words, cwd=build, stderr=log) as child:
        try:
            yield
            if child.poll() is not None:
                raise RuntimeError(f"a consumer ended: {lines.with_suffix('.log').read_text()[-2000:]}")
        finally:
            child.kill()


def lines_of(path: Path) -> list[Line]:
    """The whole lines of a file."""
    content = path.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def expected(graph: ChaosGraph, taken: Sequence[Line]) -> list[list[str]]:
    """What the local sampler makes of the seeds of a consumer's first lap: digests by epoch and position."""
    local = LocalGraph.from_edges(graph.sources, graph.targets, len(graph.ids), keys=graph.ids, time=graph.times)
    sampler, found = LocalSampler(local), list[list[str]]([] for _ in range(EPOCHS))
    for line in taken:
        if line.get("lap") == 0:
            seeds = graph.positions(line["seeds"])
            batch = sampler.sample(seeds, list(HOPS), seed=SEED, epoch=line["epoch"], batch=line["batch_id"])
            x = graph.x[graph.positions(batch.n_id)]
            found[line["epoch"]].append(digest(batch.n_id, len(seeds), batch.row, batch.col, x))
    return found


def seeds_complete(graph: ChaosGraph, ranks: Sequence[Sequence[Line]]) -> bool:
    """Whether the first laps of all ranks together have each training vertex once in each epoch."""
    lines = [line for taken in ranks for line in taken if line.get("lap") == 0]
    return all(
        sorted(seed for line in lines if line["epoch"] == epoch for seed in line["seeds"]) == graph.seeds.tolist()
        for epoch in range(EPOCHS)
    )


def wrong_batches(graph: ChaosGraph, name: str, taken: Sequence[Line]) -> list[str]:
    """What is wrong with a consumer's batches: lost, twice, other than the local sampler's, and its errors."""
    checker = ConsumerChecker(name, expected(graph, taken))
    wrong = [f"{name}: {line['error']}" for line in taken if "error" in line]
    for line in taken:
        wrong += [] if "error" in line else checker.check(line)
    return wrong


def rolled(file: Path) -> list[Mapping[str, Any]]:
    """Roll the cluster with this build's `atta roll`; what it says of each daemon."""
    words = [sys.executable, "-m", "atta.cli.main", "roll", str(file), "--quiet", "--json", "-"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=ROLL_S)
    found: list[Mapping[str, Any]] = json.loads(done.stdout)["daemons"]
    return found


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("before", help="an earlier checkout with its own .venv, or a commit")
    parser.add_argument("--rolls", type=int, default=6, help="to this build and back in turn [6]")
    parser.add_argument("--work", type=Path, default=ROOT / "data/upgrade", help="where commits are set up")
    given = parser.parse_args()
    builds = {"before": checkout(given.before, given.work), "this": ROOT}
    with tempfile.TemporaryDirectory(prefix="atta-upgrade-") as name, ExitStack() as running:
        folder, addresses = Path(name), running.enter_context(HeldAddresses(PARTS * REPLICAS)).addresses
        data, file = ChaosGraph.drawn().write(folder, PARTS), folder / "cluster.toml"
        groups = [tuple(addresses[part * REPLICAS : (part + 1) * REPLICAS]) for part in range(PARTS)]
        write_cluster(file, groups)
        daemons = []
        for part, group in enumerate(groups):
            for address in group:
                daemons.append(SupervisedDaemon(part, address, data, folder, builds["before"]))
                running.callback(daemons[-1].close)
        for daemon in daemons:
            daemon.ready()
        files = {(build, rank): folder / f"{build}-{rank}.lines" for build in builds for rank in range(CONSUMERS)}
        for (build, rank), path in files.items():
            running.enter_context(consumer(builds[build], file, path, rank))
        until = time.monotonic() + START_S
        while not all(path.exists() and any(line.get("lap") for line in lines_of(path)) for path in files.values()):
            if time.monotonic() > until:
                raise RuntimeError(f"consumers do not take their first batches within {START_S:g} s")
            time.sleep(CALM_S / 10)
        rolls = list[dict[str, Any]]()
        for number in range(given.rolls):
            goal = "before" if number % 2 else "this"
            calm = time.monotonic()
            time.sleep(CALM_S)
            for daemon in daemons:
                daemon.use(builds[goal])
            began = time.monotonic()
            steps = rolled(file)
            rolls.append({"to": goal, "calm": calm, "began": began, "ended": time.monotonic(), "daemons": steps})
            print(f"roll {number + 1} of {given.rolls}, to {goal}: {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(CALM_S)
        taken = {key: lines_of(path) for key, path in files.items()}
    record(taken, rolls, builds, f"{parser.prog} BEFORE --rolls {given.rolls}", given.out)


def record(
    taken: Mapping[tuple[str, int], Sequence[Line]],
    rolls: Sequence[dict[str, Any]],
    builds: Mapping[str, Path],
    typed: str,
    out: Path,
) -> None:
    """Check all batches, and write the figures."""
    graph = ChaosGraph.drawn()
    wrong = [text for (build, rank), lines in taken.items() for text in wrong_batches(graph, f"{build}-{rank}", lines)]
    wrong += [
        f"consumers of {build}: the first lap has not each seed once"
        for build in builds
        if not seeds_complete(graph, [taken[build, rank] for rank in range(CONSUMERS)])
    ]
    times = {key: [line["t"] for line in lines if "error" not in line] for key, lines in taken.items()}
    for roll in rolls:
        for name, (start, end) in {"pause": ("began", "ended"), "calm": ("calm", "began")}.items():
            roll[f"{name}_s"] = {
                build: max(longest_gap(times[key], roll[start], roll[end]) for key in times if key[0] == build)
                for build in builds
            }
    kept = [{key: roll[key] for key in ("to", "daemons", "pause_s", "calm_s")} for roll in rolls]
    for roll, own in zip(rolls, kept, strict=True):
        own["s"] = roll["ended"] - roll["began"]
    batches = sum(map(len, times.values()))
    commits = {name: commit_of(path) for name, path in builds.items()}
    about = document("upgrade", command=typed, commits=commits, batches=batches, wrong=wrong, rolls=kept)
    rows = []
    for goal in ("this", "before"):
        some = [own for own in kept if own["to"] == goal]
        for build in builds if some else ():
            pauses, calm = ([own[name][build] for own in some] for name in ("pause_s", "calm_s"))
            longest = max(pauses)
            rows.append(
                (
                    f"to {goal}",
                    build,
                    sum(len(own["daemons"]) for own in some),
                    f"{max(calm):.2f}",
                    f"{longest:.2f}",
                    "yes" if longest <= MOST_S else "**no**",
                )
            )
    told = f"Commits: this {commits['this']}, before {commits['before']}"
    lines = [
        *head("A cluster rolled from an earlier build to this one and back", about, told),
        f"{PARTS} partitions with {REPLICAS} daemons each, {len(rolls)} rolls; {CONSUMERS} consumers of either build. "
        f"Batches: {batches:,}, compared with the local sampler's. Lost, twice, wrong, or errors: {len(wrong)}.",
        "",
        *rows_of(
            ("roll", "consumers of", "daemons restarted", "longest pause between rolls, s", "in rolls, s", "≤ 5 s"),
            *rows,
        ),
    ]
    write(out / "upgrade.json", about, lines)
    for text in wrong[:20]:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
