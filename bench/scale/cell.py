"""One system at one number of partitions: daemons and consumers, then for each size a warm-up and stretches of batches."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from atta.errors import ConfigError
from atta.observe.settings import Option
from atta.wire.clusterfile import write_cluster
from atta_bench.lab.netlab import Host, addresses_on
from atta_bench.lab.processes import SystemProcesses, sent
from atta_bench.lab.rounds import PORT, quiet_environment, serve_command
from atta_bench.lab.workload import FanOuts, Seed, Split, Threads
from atta_bench.scale import consumer
from atta_bench.scale.clocks import CODE, ProcessorTime, Samples, read_times, sampled, total

FIRST = (10, 50)
"""How many batches of fresh daemons are compared with the steady rate."""
_REMOTE_TASKS = re.compile(r"tasks_\w+_net_total")
_OTHERS = r"(?!Session|Control|Table|Link)\w+Service\.\w+"  # what daemons ask each other for batches
_REQUESTS = re.compile(rf"requests_{_OTHERS}|link_requests_served")
_SENT = re.compile(rf"sent_bytes_{_OTHERS}|link_sent_bytes")

Figures = dict[str, float]


@dataclass(frozen=True)
class Stretch:
    """One stretch of batches of all consumers.

    Attributes:
        taken: the answer of each consumer, see ``consumer``.
        daemons, consumers: processor time of the stretch.
        counters: what the daemons' counters have grown by, summed over the daemons.
        sent: bytes and packets that left the hosts by their interfaces; 0 on loopback.
        samples: of another stretch of the same kind; empty without ``perf``.
    """

    taken: Sequence[Mapping[str, Any]]
    daemons: ProcessorTime
    consumers: ProcessorTime
    counters: Mapping[str, float] = field(default_factory=dict)
    sent: tuple[int, int] = (0, 0)
    samples: Samples = field(default_factory=dict)

    def sum(self, name: str) -> float:
        """Sum of one figure over the consumers."""
        return float(sum(answer[name] for answer in self.taken))

    @property
    def batches(self) -> int:
        """Number of batches of all consumers."""
        return sum(len(answer["times"]) for answer in self.taken)


def seeds_per_s(taken: Sequence[Mapping[str, Any]]) -> float:
    """Seeds of all consumers by the time from the first start to the last batch."""
    end = max(answer["times"][-1] for answer in taken)
    return float(sum(answer["seeds"] for answer in taken) / (end - min(answer["start"] for answer in taken)))


def first_batches(taken: Sequence[Mapping[str, Any]], batch_size: int, steady: float) -> Figures:
    """Seeds per second of the first batches of fresh daemons, and the share of the steady rate that this is.

    Of each consumer the first 10, 50, ... batches count, from the moment at which all are let go. Batches are full.
    """
    found: Figures = {}
    start = min(answer["start"] for answer in taken)
    for count in FIRST:
        if all(len(answer["times"]) >= count for answer in taken):
            end = max(answer["times"][count - 1] for answer in taken)
            rate = len(taken) * count * batch_size / (end - start)
            found |= {f"first_{count}_seeds_per_s": rate, f"first_{count}_share": rate / steady}
    return found


def counted(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> Figures:
    """What the counters of all daemons have grown by together. A counter that is new began at 0."""
    found: Figures = {}
    for then, now in zip(before, after, strict=True):
        for name, value in now.items():
            found[name] = found.get(name, 0.0) + value - then.get(name, 0.0)
    return found


def per_seed(seconds: Mapping[str, float], seeds: float) -> Figures:
    """Microseconds per seed, the largest first."""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {f"{name}_us_per_seed": 1e6 * s / seeds for name, s in ordered}


def split_by_code(samples: Samples, seconds: Mapping[str, float]) -> dict[str, float]:
    """Divide the ``seconds`` of each group of processes among the kinds of code by its samples: names "GROUP_KIND"."""
    found: dict[str, float] = {}
    for group, kinds in samples.items():
        if count := kinds.total():
            found |= {f"{group}_{kind}": seconds[group] * kinds[kind] / count for kind in CODE}
    return found


def figures_of(stretch: Stretch) -> Figures:
    """The figures of one stretch. Those of a section have its name before a slash.

    ``processes`` divides the processor time by kind of process and by user and system time, ``threads`` that of the
    daemons by thread, ``code`` all of it by kind of code. Each division adds up to what it divides.
    """
    seeds, batches = stretch.sum("seeds"), stretch.batches
    whole = total((stretch.daemons, stretch.consumers))
    found = {
        "seeds_per_s": seeds_per_s(stretch.taken),
        "cpu_us_per_seed": 1e6 * whole.seconds / seeds,
        "cpu_ms_per_batch": 1e3 * whole.seconds / batches,
        "make_ms": stretch.sum("make_ms") / batches,
        "vertices_per_seed": stretch.sum("nodes") / seeds,
        "edges_per_seed": stretch.sum("edges") / seeds,
        "remote_rows_per_seed": stretch.sum("remote_rows") / seeds,
        **_messages(stretch, batches),
        "batches": float(batches),
    }
    groups = {"daemon": stretch.daemons, "consumer": stretch.consumers}
    processes = {f"{g}_{kind}": getattr(time, f"{kind}_s") for g, time in groups.items() for kind in ("user", "system")}
    code = split_by_code(stretch.samples, {group: time.seconds for group, time in groups.items()})
    for section, seconds in (("processes", processes), ("threads", stretch.daemons.roles()), ("code", code)):
        found |= {f"{section}/{name}": value for name, value in per_seed(seconds, seeds).items()}
    return found


def _messages(stretch: Stretch, batches: int) -> Figures:
    """What crosses between daemons for a batch, as far as it is counted."""
    named = {"remote_tasks": _REMOTE_TASKS, "remote_requests": _REQUESTS, "answer_bytes": _SENT}
    found = {
        f"{figure}_per_batch": sum(v for name, v in stretch.counters.items() if pattern.fullmatch(name)) / batches
        for figure, pattern in named.items()
    }
    if any(stretch.sent):
        found |= {f"link_{n}_per_batch": v / batches for n, v in zip(("bytes", "packets"), stretch.sent, strict=True)}
    return found


UNCACHED = ("--cache", "0", "--no-share-pulls")
"""Options of daemons that keep nothing of other partitions: every batch asks for itself, as with the peers."""
_CONNECT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Batches:
    """What consumers take; the sizes of batches are measured one after the other, each after a warm-up."""

    num_neighbors: FanOuts = (15, 10, 5)
    split: Split = "train"
    frontier: Annotated[str, Option("What a hop expands.", choices=("new", "all"))] = "all"
    deliver: Annotated[
        str | None,
        Option(
            "Form in which consumers take batches.",
            choices=("arrays", "pyg", "dgl"),
            unset="dgl beside dgl, else arrays",
        ),
    ] = None
    seeds: Annotated[
        str,
        Option(
            "global: consumers share every epoch's batches, which are the same at all numbers of partitions.",
            choices=("global", "local"),
        ),
    ] = "global"
    seed: Seed = 0
    batch_sizes: Annotated[tuple[int, ...], Option("Seeds per batch, one by one.", at_least=1)] = (1024, 128)
    warm_up: Annotated[int, Option("Batches per consumer before.", also="warmup", at_least=1)] = 100
    measured: Annotated[int, Option("Measured per consumer, in whole epochs.", name="batches", at_least=1)] = 50
    profiled: Annotated[int, Option("Batches per consumer sampled by perf; 0: none.", at_least=0)] = 20
    threads: Threads = 1
    filled: Annotated[bool, Option("The first batches begin when the caches are filled.", also="not-filled")] = True
    timeout_s: Annotated[float, Option("Per stretch of batches.", name="timeout", unit="s", at_least=1e-3)] = 1200.0


@dataclass(frozen=True)
class Cell:
    """A system at one number of partitions.

    Attributes:
        name: of the system.
        data: partitioned dataset, one partition per host.
        serve: further options of ``atta serve``.
        python: interpreter of the checkout that is measured.
        profiled: whether ``perf`` may take samples.
    """

    name: str
    data: Path
    serve: tuple[str, ...] = ()
    python: str = sys.executable
    profiled: bool = False


def epochs_for(batches: int, per_epoch: int) -> int:
    """Whole epochs with at least ``batches`` batches, at least one."""
    return max(1, math.ceil(batches / per_epoch))


def run_cell(
    cell: Cell, batches: Batches, hosts: Sequence[Host], folder: Path, say: Callable[[str], None]
) -> dict[int | None, Figures]:
    """Start all processes, warm up, measure, and end them. Partition i and rank i are on ``hosts[i]``.

    Returns figures by batch size, and by None those of the first batches. Raises AttaError: a process failed or hangs.
    """
    places = [(host, PORT) for host in hosts]
    with addresses_on(places) as addresses, SystemProcesses(cell.name, folder) as processes:
        _start(processes, cell, batches, [*zip(hosts, addresses, strict=True)], folder)
        ready = processes.ask(None, timeout_s=batches.timeout_s)
        session = _Questions(processes, hosts, batches, {int(s): n for s, n in ready[0]["batches"].items()})
        found: dict[int | None, Figures] = {}
        for place, size in enumerate(batches.batch_sizes):
            say(f"{size:,} seeds per batch: warming up")
            taken = session.take(size, batches.warm_up)  # each size has buffers of its own
            say(f"{size:,} seeds per batch: measuring")
            stretch = session.measure(size, batches.measured)
            if cell.profiled and batches.profiled:
                stretch = replace(stretch, samples=session.sample(size, batches.profiled))
            found[size] = figures_of(stretch)
            if place == 0:
                found[None] = first_batches(taken, size, found[size]["seeds_per_s"])
                if found[None]:
                    found[None]["filled_s"] = max(answer["filled_s"] for answer in ready)
    return found


def _start(
    processes: SystemProcesses, cell: Cell, batches: Batches, places: Sequence[tuple[Host, str]], folder: Path
) -> None:
    cluster, addresses = folder / "cluster.toml", [address for _, address in places]
    write_cluster(cluster, addresses)
    for part, (host, address) in enumerate(places):
        options = ("--threads", str(batches.threads), *cell.serve)
        serve = serve_command(cell.data, part, address, cluster, *options, python=cell.python)
        processes.start_support(f"daemon{part}", host, serve)
    given = {
        **{name: getattr(batches, name) for name in consumer.SETTINGS},
        "deliver": batches.deliver or "arrays",
        "addresses": addresses,
        "world_size": len(places),
        "deadline_s": _CONNECT_S,
    }
    for rank, (host, _) in enumerate(places):
        command = [cell.python, "-P", consumer.__file__, json.dumps({**given, "rank": rank})]
        processes.start_rank(host, command, quiet_environment(host, batches.threads))


class _Questions:
    """Asks all consumers for the same, and reads clocks and counters around it."""

    def __init__(
        self, processes: SystemProcesses, hosts: Sequence[Host], batches: Batches, per_epoch: Mapping[int, int]
    ) -> None:
        """``per_epoch``: batches of an epoch of each consumer, by size."""
        self._processes, self._hosts, self._batches, self._per_epoch = processes, hosts, batches, per_epoch

    def take(self, size: int, batches: int) -> list[dict[str, Any]]:
        """Let every consumer take at least so many batches of ``size`` seeds."""
        return self._ask(do="take", batch_size=size, epochs=epochs_for(batches, self._per_epoch[size]))

    def measure(self, size: int, batches: int) -> Stretch:
        """The same, measured."""
        counters = self._counters()
        sent_before, before = self._sent(), self._times()
        taken = self.take(size, batches)
        after, sent_after = self._times(), self._sent()
        grown = counted(counters, self._counters())
        daemons, consumers = (now.since(then) for now, then in zip(after, before, strict=True))
        count, packets = (now - then for now, then in zip(sent_after, sent_before, strict=True))
        return Stretch(taken, daemons, consumers, grown, (count, packets))

    def sample(self, size: int, batches: int) -> Samples:
        """The same, while ``perf`` samples the processes."""
        groups = {"daemon": self._processes.supports, "consumer": self._processes.ranks}
        with sampled(groups) as samples:
            self.take(size, batches)
        return samples

    def _ask(self, **question: Any) -> list[dict[str, Any]]:
        return self._processes.ask(json.dumps(question), timeout_s=self._batches.timeout_s)

    def _counters(self) -> list[Mapping[str, float]]:
        return [answer["figures"] for answer in self._ask(do="count")]

    def _times(self) -> tuple[Any, Any]:
        return read_times(self._processes.supports), read_times(self._processes.ranks)

    def _sent(self) -> tuple[int, int]:
        readings = [(0, 0)]
        for pid, host in zip(self._processes.ranks, self._hosts, strict=True):
            with contextlib.suppress(OSError):
                readings.append(sent(pid, host.interface))
        return sum(count for count, _ in readings), sum(packets for _, packets in readings)


def check_seeds(seeds: int, parts: int, batch_sizes: Sequence[int], split: str) -> None:
    """Raise ConfigError if a split of ``seeds`` vertices is too small for one full batch per consumer."""
    if (needed := parts * max(batch_sizes)) > seeds:
        raise ConfigError(
            f"the split {split!r} has {seeds:,} vertices: one batch of {max(batch_sizes):,} for each of {parts} "
            f"consumers needs {needed:,}"
        )
