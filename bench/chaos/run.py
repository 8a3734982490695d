"""One chaos run: a local cluster with replicas, consumers and a trainer; faults by a plan; invariants all the while."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atta.errors import AttaError, ConfigError
from atta.wire.clusterfile import write_cluster
from atta_bench.chaos.invariants import ConsumerChecker, TrainerChecker, leaks, life, longest_gap, next_after
from atta_bench.chaos.plan import ChaosGraph, Fault, FaultKind, LoaderKind, plan_faults
from atta_bench.chaos.processes import ChaosProcess, daemon_process, sample_of, worker_process
from atta_bench.chaos.worker import WorkerSettings, expected_batches, expected_weights
from atta_bench.lab.netlab import Host, NetLab, addresses_on, loopback, no_namespaces
from atta_bench.results import document, now

TICK_S, SAMPLE_S, RESTART_S = 0.05, 2.0, 0.3
HANG_S = 60.0
"""A consumer that has had no batch for so long hangs."""
START_S = 120.0
NETWORK = {FaultKind.CUT, FaultKind.DISK}
"""Faults that need hosts of their own."""
PORT = 7070
DISK_BYTES = 1 << 20
FEWEST_SAMPLES = 8
"""A process with fewer samples has not lived for long enough to say what it gains."""
STEPS = 200_000
"""Steps of a trainer whose weights are known beforehand at most; 20 ms each are more than an hour."""


@dataclass(frozen=True)
class ChaosSettings:
    """What to run.

    Attributes:
        seed: of the faults.
        minutes: how long faults come.
        kinds: of faults.
        folder: for the log of faults and all that processes write.
        parts, replicas, consumers: how many there are.
        every_s: mean time between two faults.
        most: end after so many faults; 0: no limit.
        daemons_only: faults hit daemons alone.
        loaders: kinds of loaders, which consumers have in turn.
        cache_bytes: what each daemon may keep of other partitions; None: as much as by default.
        links: whether daemons exchange rows over links, else by gRPC messages.
        spare: processes that are not killed.
    """

    seed: int
    minutes: float
    kinds: tuple[FaultKind, ...]
    folder: Path
    parts: int = 2
    replicas: int = 2
    consumers: int = 2
    every_s: float = 4.0
    most: int = 0
    daemons_only: bool = False
    loaders: tuple[LoaderKind, ...] = tuple(LoaderKind)
    cache_bytes: int | None = None
    links: bool = True
    spare: tuple[str, ...] = ()

    def loader(self, rank: int) -> LoaderKind:
        """Of a rank; the last one is the trainer's."""
        return self.loaders[rank % len(self.loaders)] if rank < self.consumers else LoaderKind.NEIGHBOURS

    @property
    def daemon_options(self) -> list[str]:
        """Options of ``atta serve``."""
        cache = [] if self.cache_bytes is None else ["--cache", str(self.cache_bytes)]
        return [*cache, "--links" if self.links else "--no-links"]


def possible_kinds() -> tuple[FaultKind, ...]:
    """The kinds of faults that this machine and user allow."""
    return tuple(kind for kind in FaultKind if kind not in NETWORK or no_namespaces() is None)


@dataclass
class ChaosRun:
    """A run and what has come of it.

    Attributes:
        faults: what was done when, with ``pause_s``: the longest time that a consumer, or a trainer that it did not
            hit, had no batch after it, and ``in_use``: whether it hit the daemon that made the batches of a consumer or
            trainer, or one of these. A killed daemon also has ``serves_s``: when it served again, and
            ``after_serving_s``: how long after that the last of those that it did not hit had its next batch.
        lives: what processes had, see ``life``.
        violations: what must not be.
        errors: how often workers had which error, and began again.
    """

    settings: ChaosSettings
    tell: Callable[[str], None] = lambda line: None
    faults: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    lives: list[dict[str, Any]] = field(default_factory=list)
    _times: dict[str, list[float]] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)
    _checkers: dict[str, ConsumerChecker | TrainerChecker] = field(default_factory=dict)
    _processes: dict[str, ChaosProcess] = field(default_factory=dict)
    _died: dict[str, float] = field(default_factory=dict)
    _homes: dict[str, str] = field(default_factory=dict)
    _deaths: dict[str, list[float]] = field(default_factory=dict)
    _away: dict[str, dict[str, Any]] = field(default_factory=dict)
    _looked: float = 0.0
    _began: float = 0.0
    _started: str = field(default_factory=now)

    def run(self) -> None:
        """Run it to the end, or to the first violation. All processes end with it, however it ends.

        Raises ConfigError: a kind of fault is not possible here; AttaError: the processes do not come up.
        """
        if impossible := [kind.value for kind in self.settings.kinds if kind not in possible_kinds()]:
            raise ConfigError(f"--faults {','.join(impossible)}: {no_namespaces()}")
        with ExitStack() as stack:
            hosts = self._hosts(stack)
            daemons = hosts[: self.settings.parts * self.settings.replicas]
            addresses = stack.enter_context(addresses_on([(host, PORT) for host in daemons]))
            stack.callback(self._end_all)
            self._set_up(hosts, addresses)
            try:
                self._disturb()
            finally:
                self._finish()

    def _hosts(self, stack: ExitStack) -> list[Host]:
        """One for each daemon, and one for consumers and trainer."""
        count = self.settings.parts * self.settings.replicas + 1
        if NETWORK & {*self.settings.kinds}:
            return stack.enter_context(NetLab(count, shm_bytes=DISK_BYTES)).hosts
        return loopback(count)

    def _set_up(self, hosts: Sequence[Host], addresses: Sequence[str]) -> None:
        s, graph = self.settings, ChaosGraph.drawn()
        data = graph.write(s.folder, s.parts)
        own = hosts[0].interface is not None
        by_part = [tuple(addresses[part * s.replicas : (part + 1) * s.replicas]) for part in range(s.parts)]
        write_cluster(s.folder / "cluster.toml", [one if len(one) > 1 else one[0] for one in by_part])
        for number, (host, address) in enumerate(zip(hosts, addresses, strict=False)):
            place = (number // s.replicas, address)
            self._add(daemon_process(f"daemon-{number}", host, place, data, s.folder, options=s.daemon_options))
        self._await(lambda: all(p.serving for p in self._processes.values()), "the daemons")
        world = s.consumers + 1
        batch_size = max(1, len(graph.train) // world // 12)
        learnt = self._learnt(hosts[-1], world, batch_size)
        checkpoints = "/dev/shm" if own else str(s.folder)
        names = [*(f"consumer-{rank}" for rank in range(s.consumers)), f"trainer-{s.consumers}"]
        for rank, name in enumerate(names):
            kind = s.loader(rank)
            if name.startswith("trainer"):
                steps = min(STEPS, int(s.minutes * 6000) + 1000)
                self._checkers[name] = TrainerChecker(name, expected_weights(graph, learnt, rank, steps))
            else:
                origin = "the local sampler" if kind.local else "an undisturbed run"
                self._checkers[name] = ConsumerChecker(name, expected_batches(graph, learnt, kind, rank), origin)
            self._times[name], self._read[name] = [], 0
            settings = self._worker(rank, world, batch_size, name=name, loader=kind.value, checkpoints=checkpoints)
            self._add(worker_process(name, hosts[-1], settings, s.folder))
        self._await(self._all_have_begun, "the first batches")

    def _learnt(self, host: Host, world: int, batch_size: int) -> list[dict[str, Any]]:
        """What the learner writes about the batches of undisturbed epochs."""
        kinds = ",".join(kind.value for kind in dict.fromkeys([*self.settings.loaders, LoaderKind.NEIGHBOURS]))
        folder, name = self.settings.folder, "learner-0"
        learner = worker_process(name, host, self._worker(0, world, batch_size, name=name, loader=kinds), folder)
        learner.start()
        self._processes[name] = learner
        self._await(lambda: not learner.alive, "the first epochs")
        del self._processes[name]
        learnt = [json.loads(line) for line in (folder / f"{name}.lines").read_text().splitlines()]
        learnt = [line for line in learnt if "inputs" in line]
        if not learnt or learner.child is None or learner.child.returncode:
            raise AttaError(f"the undisturbed epochs failed; see {learner.log}")
        return learnt

    def _worker(
        self, rank: int, world: int, batch_size: int, *, name: str, loader: str, checkpoints: str = ""
    ) -> WorkerSettings:
        folder = self.settings.folder
        cluster, lines = str(folder / "cluster.toml"), str(folder / f"{name}.lines")
        return WorkerSettings(cluster, rank, world, lines, checkpoints, batch_size, loader)

    def _all_have_begun(self) -> bool:
        self._look()
        return all(self._times.values())

    def _add(self, process: ChaosProcess) -> None:
        self._processes[process.name] = process
        process.start()

    def _await(self, condition: Callable[[], Any], what: str) -> None:
        until = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > until:
                raise AttaError(f"{what} did not come within {START_S:g} s; see {self.settings.folder}")
            time.sleep(TICK_S)

    def _disturb(self) -> None:
        s = self.settings
        names = [name for name in self._processes if not s.daemons_only or name.startswith("daemon")]
        plan = plan_faults(s.seed, 60 * s.minutes, s.kinds, names, s.every_s, spared=s.spare)
        plan = plan[: s.most] if s.most else plan
        (s.folder / "plan.json").write_text(json.dumps([fault.to_dict() for fault in plan], indent=1))
        self._began = time.monotonic()
        delay = 0.0
        for fault in plan:
            waited = self._until(self._began + fault.at_s + delay)
            held = time.monotonic()
            while not self.violations and not self._may_hit(fault.target):
                self._tick()
            delay += time.monotonic() - held
            if self.violations or not waited:
                return
            self._do(fault)
        self._until(time.monotonic() + 2 * s.every_s)

    def _may_hit(self, name: str) -> bool:
        """Whether it works again after the last fault, and another daemon of its partition is left."""
        if not name.startswith("daemon"):
            deaths, times = self._deaths.get(name), self._times[name]
            return self._processes[name].alive and (not deaths or times[-1] > deaths[-1])
        count = self.settings.replicas
        part = int(name.rpartition("-")[2]) // count
        mates = [f"daemon-{number}" for number in range(part * count, (part + 1) * count)]
        if count > 1:
            return all(self._processes[mate].serving for mate in mates)
        # Nobody serves in its place. So one is away at a time, and all have had a batch since the last one came back.
        back = max((note.get("served", 0.0) for note in self.faults), default=0.0)
        return not self._away and all(times[-1] > back for times in self._times.values())

    def _do(self, fault: Fault) -> None:
        began = time.monotonic()
        note = {**fault.to_dict(), "at_s": round(began - self._began, 3), "began": began, "pause_s": None}
        target = self._processes[fault.target]
        note["in_use"] = any(home in target.command for home in self._homes.values()) or fault.target in self._homes
        self.faults.append(note)
        if fault.kind is FaultKind.KILL:
            self._deaths.setdefault(fault.target, []).append(began)
            self._away.update({fault.target: note} if fault.target.startswith("daemon") else {})
        self._log(note)
        self.tell(f"{note['at_s']:8.1f} s  {fault.kind.value:6} {fault.target:12} {fault.lasts_s:.1f} s")
        end = target.begin(fault)
        try:
            self._until(began + fault.lasts_s)
        finally:
            end()

    def _log(self, note: dict[str, Any]) -> None:
        with (self.settings.folder / "faults.jsonl").open("a") as log:
            log.write(json.dumps(note) + "\n")

    def _until(self, when: float) -> bool:
        """Go on until then; False: a violation came before."""
        while time.monotonic() < when and not self.violations:
            self._tick()
        return not self.violations

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self._look()
        now = time.monotonic()
        for name, process in self._processes.items():
            if not process.alive and now - self._died.setdefault(name, now) >= RESTART_S:
                self._judge(process)
                del self._died[name]
                process.start()
            elif process.alive and (not process.samples or now - process.samples[-1].at_s > SAMPLE_S):
                sample = sample_of(process, now)
                process.samples += [sample] if sample is not None else []
        self._see_served(now)
        for name, times in self._times.items():
            if times and now - times[-1] > HANG_S:
                self.violations.append(f"{name}: no batch for {HANG_S:g} s")

    def _see_served(self, now: float) -> None:
        """Note which daemons serve again that were killed: since the look before at the earliest."""
        for name, note in [*self._away.items()]:
            if name not in self._died and now - note["began"] > RESTART_S and self._processes[name].serving:
                note["served"] = self._looked
                del self._away[name]
        self._looked = now

    def _judge(self, process: ChaosProcess) -> None:
        """Look back on the life of a process."""
        if len(process.samples) >= FEWEST_SAMPLES:
            found = life(f"{process.name} (start {process.starts})", process.samples)
            self.lives.append(found)
            self.violations += leaks(found)

    def _look(self) -> None:
        """Check what workers have written since the last look."""
        for name, checker in self._checkers.items():
            path = self.settings.folder / f"{name}.lines"
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read[name])
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read[name] += len(whole)
            for line in map(json.loads, whole.splitlines()):
                if "error" in line:
                    self.errors[line["error"]] += 1
                    continue
                self._times[name] += [] if "saved" in line else [line["t"]]
                self._homes.update({name: line["daemon"]} if "daemon" in line else {})
                self.violations += checker.check(line)

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.end()

    def _finish(self) -> None:
        for process in self._processes.values():
            self._judge(process)
        ends = [*(note["began"] for note in self.faults[1:]), time.monotonic()][: len(self.faults)]
        for note, end in zip(self.faults, ends, strict=True):
            others = [name for name in self._times if name.startswith("consumer") or name != note["target"]]
            gaps = []
            for name in others:
                deaths = [at for at in self._deaths.get(name, ()) if at != note["began"]]
                gaps.append(longest_gap(self._times[name], note["began"], end, deaths))
            note["pause_s"] = round(max(gaps, default=0.0), 3)
            served = note.pop("served", None)
            waits = [next_after(self._times[name], served) for name in others] if served is not None else []
            if waits and None not in waits:
                note["serves_s"] = round(served - note["began"], 3)
                note["after_serving_s"] = round(max(wait for wait in waits if wait is not None), 3)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        s = {
            **asdict(self.settings),
            "kinds": [kind.value for kind in self.settings.kinds],
            "loaders": [kind.value for kind in self.settings.loaders],
            "folder": str(self.settings.folder),
        }
        checkers = self._checkers.values()
        return document(
            "chaos",
            started=self._started,
            settings=s,
            load_average=[round(value, 1) for value in os.getloadavg()],
            batches=sum(c.taken for c in checkers if isinstance(c, ConsumerChecker)),
            steps=sum(c.steps for c in checkers if isinstance(c, TrainerChecker)),
            repeated_steps=sum(c.repeated for c in checkers if isinstance(c, TrainerChecker)),
            starts={name: process.starts for name, process in self._processes.items()},
            errors=dict(self.errors),
            lives=self.lives,
            faults=[{k: v for k, v in note.items() if k != "began"} for note in self.faults],
            violations=self.violations,
        )
