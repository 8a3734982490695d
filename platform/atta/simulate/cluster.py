"""All machines of a scenario on one clock, and the figures that come out."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from atta.samplers.dag.instance import Lane
from atta.simulate.machine import Machine
from atta.simulate.resources import Clock, Cores, Switch
from atta.simulate.scenario import BatchModel, Scenario

PAYLOAD = 0.956
"""Share of the bytes on a link that are payload; the rest are headers of Ethernet, IP and TCP in full packets."""


@dataclass(frozen=True)
class Outcome:
    """Figures of one simulation; means are over machines, shares lie in [0, 1]."""

    seeds_per_s: float
    """Rate of all machines together, from the first batch's launch to the last batch's training."""
    batches_per_s: float
    """Rate per machine."""
    duration_s: float
    """Simulated time until every trainer has computed on its last batch."""
    epoch_s: float | None
    """How long an epoch takes at this rate. None if the profile does not tell its number of seeds."""
    completion_ms_mean: float
    """Time from launch to end of a DAG."""
    completion_ms_p95: float
    cores_busy: float
    loop_busy: float
    """Of the event loop: its CPU time, without waiting for a core."""
    trainer_busy: float
    uplinks_busy: float
    downlinks_busy: float
    disk_busy: float
    requests_busy: float
    """Mean number of tasks that wait for other machines, of those that may do so at once."""
    limit: str
    """What limits the rate: "cores", "event loop", "link", "disk", "trainer", "worker threads", "serving threads", "requests"
    (of other machines at once) or "batches in flight", see ``limit_of``."""
    limit_busy: float
    """How busy that is, on the busiest machine."""
    link_bytes_per_batch: float
    """Bytes that a machine sends per batch."""
    rows_per_batch: float
    """Rows that a machine asks others for; a sum of rows counts as one."""
    requests_per_batch: float
    """Requests to other machines."""
    cpu_ms_per_batch: float
    """CPU time on all cores, including answers to other machines, without training."""
    most_held: int
    """Largest number of batches in flight or waiting for the trainer, on the worst machine."""
    most_bytes: int
    """Largest number of bytes of finished batches that wait for the trainer, on the worst machine."""
    events: int
    """Number of calls that the simulator made."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


FULL = 0.75
"""Share of its capacity from which something counts as a limit. Less than 1, for a run begins and ends with idle
machines."""
_LIMITS = (("cores", "event loop", "link", "disk", "trainer"), ("worker threads", "serving threads"), ("requests",))
"""What may limit a run. A thread or a request also counts as busy while it waits for something above it, so a lower
line tells only if nothing above is full."""


def limit_of(busy: Mapping[str, float]) -> tuple[str, float]:
    """What limits a run, and how busy that is. ``busy``: shares of the capacities of all ``_LIMITS``. Where nothing is
    full, batches wait for round trips and for each other: more "batches in flight" would help."""
    for candidates in _LIMITS:
        fullest = max(candidates, key=busy.__getitem__)
        if busy[fullest] >= FULL:
            return fullest, busy[fullest]
    return "batches in flight", max(busy[name] for name in _LIMITS[0])


class SimulatedCluster:
    """Builds the machines; ``run`` simulates them once."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.model = BatchModel(scenario)
        self.clock = Clock()
        switch = Switch(self.clock, PAYLOAD * scenario.link, scenario.rtt_s)
        apart = range(1 if scenario.shared_cores else scenario.machines)
        self._cores = [Cores(self.clock, scenario.cores) for _ in apart]
        self.machines = [
            Machine(i, self.model, clock=self.clock, switch=switch, cores=self._cores[i % len(self._cores)])
            for i in range(scenario.machines)
        ]
        self._finished = 0
        self._arrived: list[Machine] = []  # machines whose trainers wait for the others
        for machine in self.machines:
            machine.peers = self.machines
            machine.stepped = self._stepped

    def _stepped(self, machine: Machine) -> None:
        """A trainer has computed on a batch. It goes on at once; in lockstep, when all others have done so, too."""
        self._finished += machine.finished
        if self._finished == len(self.machines):
            self.clock.stop()
        self._arrived.append(machine)
        if not self.scenario.lockstep or len(self._arrived) == len(self.machines):
            ready, self._arrived = self._arrived, []
            for other in ready:
                other.proceed()

    def run(self) -> Outcome:
        """Simulate until every trainer has had its batches."""
        collecting = gc.isenabled()
        gc.disable()  # no objects here form cycles, and the search for cycles takes a tenth of the time
        try:
            for machine in self.machines:
                machine.start()
            self.clock.run()
        finally:
            if collecting:
                gc.enable()
        return self._outcome()

    def _outcome(self) -> Outcome:
        scenario, machines, seconds = self.scenario, self.machines, self.clock.now
        count, batches = len(machines), len(machines) * scenario.trainer_batches
        used = sum(cores.used() for cores in self._cores)
        training = batches * scenario.train_s * scenario.train_threads
        completions = sorted(s for m in machines for s in m.completions_s)
        made = count * sum(map(self.model.seeds, range(scenario.trainer_batches)))
        seeds_per_s = made / seconds if seconds else 0.0
        seeds = scenario.epoch_seeds

        def share(part: float, whole: float) -> float:
            return part / (count * seconds * whole) if seconds else 0.0

        sent, received = sum(m.port.sent for m in machines), sum(m.port.received for m in machines)
        each = [self._busy(machine) for machine in machines]
        limit, limit_busy = limit_of({name: max(busy[name] for busy in each) for name in each[0]})
        return Outcome(
            seeds_per_s=seeds_per_s,
            batches_per_s=batches / count / seconds if seconds else 0.0,
            duration_s=seconds,
            epoch_s=seeds / seeds_per_s if seeds and seeds_per_s else None,
            completion_ms_mean=1e3 * math.fsum(completions) / len(completions),
            completion_ms_p95=1e3 * completions[math.ceil(0.95 * len(completions)) - 1],
            cores_busy=share(used, scenario.cores * len(self._cores) / count),
            loop_busy=share(sum(m.loop.asked_s for m in machines), 1.0),
            trainer_busy=share(sum(m.trained_s for m in machines), 1.0),
            uplinks_busy=share(sent, PAYLOAD * scenario.link),
            downlinks_busy=share(received, PAYLOAD * scenario.link),
            disk_busy=share(sum(m.disk_s for m in machines), 1.0),
            requests_busy=share(sum(m.lane_s[Lane.NET] for m in machines), scenario.scheduler.net_in_flight),
            limit=limit,
            limit_busy=limit_busy,
            link_bytes_per_batch=sent / batches,
            rows_per_batch=sum(m.rows for m in machines) / batches,
            requests_per_batch=sum(m.requests for m in machines) / batches,
            cpu_ms_per_batch=1e3 * (used - training) / batches,
            most_held=max(m.most_held for m in machines),
            most_bytes=max(m.most_bytes for m in machines),
            events=self.clock.events,
        )

    def _busy(self, machine: Machine) -> dict[str, float]:
        scenario, seconds = self.scenario, self.clock.now
        used = {
            "cores": machine.cores.used() / machine.cores.count,
            "event loop": machine.loop.asked_s,
            "link": max(machine.port.sent, machine.port.received) / (PAYLOAD * scenario.link),
            "disk": machine.disk_s,
            "trainer": scenario.trainer_batches * scenario.train_s,  # without waiting for cores
            "worker threads": machine.lane_s[Lane.CPU] / scenario.scheduler.workers,
            "serving threads": machine.serving.asked_s / machine.serving.threads,
            "requests": machine.lane_s[Lane.NET] / scenario.scheduler.net_in_flight,
        }
        return {name: value / seconds if seconds else 0.0 for name, value in used.items()}


def simulate(scenario: Scenario) -> Outcome:
    """Run a scenario. The same scenario always gives the same outcome."""
    return SimulatedCluster(scenario).run()


_ROWS: tuple[tuple[str, str, float, str], ...] = (
    ("seeds/s, all machines", "seeds_per_s", 1, ",.4g"),
    ("batches/s per machine", "batches_per_s", 1, ",.4g"),
    ("epoch, s", "epoch_s", 1, ",.4g"),
    ("simulated, s", "duration_s", 1, ",.4g"),
    ("DAG completion, mean ms", "completion_ms_mean", 1, ",.4g"),
    ("DAG completion, p95 ms", "completion_ms_p95", 1, ",.4g"),
    ("cores busy, %", "cores_busy", 100, ".1f"),
    ("event loop busy, %", "loop_busy", 100, ".1f"),
    ("trainer busy, %", "trainer_busy", 100, ".1f"),
    ("uplinks busy, %", "uplinks_busy", 100, ".1f"),
    ("downlinks busy, %", "downlinks_busy", 100, ".1f"),
    ("disk busy, %", "disk_busy", 100, ".1f"),
    ("requests in flight, %", "requests_busy", 100, ".1f"),
    ("rows asked per batch", "rows_per_batch", 1, ",.4g"),
    ("requests per batch", "requests_per_batch", 1, ",.4g"),
    ("MB sent per batch", "link_bytes_per_batch", 1e-6, ",.4g"),
    ("CPU ms per batch", "cpu_ms_per_batch", 1, ",.4g"),
    ("most batches held", "most_held", 1, ",d"),
    ("most MB waiting", "most_bytes", 1e-6, ",.4g"),
)


@dataclass(frozen=True)
class SimulatedRun:
    """One simulation. ``label`` is the value of the swept option."""

    label: str
    scenario: Scenario
    outcome: Outcome


def table(runs: Sequence[SimulatedRun], option: str = "") -> Table:
    """One column per run; ``option``: the swept option, empty for none."""
    scenario = runs[0].scenario
    size = f"{scenario.machines} machine" + ("s" if scenario.machines > 1 else "")
    shown = Table(title="simulated" if option else f"{size}, simulated")
    shown.add_column("")
    for run in runs:
        shown.add_column(f"{option} {run.label}" if option else run.label, justify="right")
    for name, attribute, scale, style in _ROWS:
        values = [getattr(run.outcome, attribute) for run in runs]
        shown.add_row(name, *("unknown" if v is None else format(v * scale, style) for v in values))
    shown.add_row("limited by", *(f"{run.outcome.limit}, {run.outcome.limit_busy:.0%}" for run in runs))
    return shown


def document(runs: Sequence[SimulatedRun], option: str, profile: str) -> dict[str, Any]:
    """Output of ``--json``. It has no date and no host name, so equal scenarios give equal files."""
    return {
        "schema": 1,
        "simulate": option or None,
        "profile": profile,
        "runs": [{"value": r.label, "config": _config(r.scenario), "results": r.outcome.to_dict()} for r in runs],
    }


def _config(scenario: Scenario) -> dict[str, Any]:
    config = asdict(scenario)
    del config["profile"]
    if math.isinf(config["link"]):
        config["link"] = None  # JSON has no infinity
    config["batch_size"] = scenario.seeds
    config["fan_outs"] = list(scenario.fan_outs or scenario.profile.fan_outs)
    config["epoch_batches"] = scenario.epoch_batches
    return config
