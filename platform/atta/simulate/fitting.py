"""Makes a profile from measured runs: fits fixed costs and costs per unit. Pure; ``measure`` makes the runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import nnls

from atta.client.cluster import Cluster
from atta.scheduler.fine import Line
from atta.simulate.profile import LOCAL_KINDS, REMOTE_KINDS, HopSize, Linear, LoopCosts, Profile, Remote, leaves_home
from atta.simulate.reach import Expanded, draws_of, together


def added(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> np.ndarray:
    """The sum of two rows of numbers. The shorter row is extended with zeros."""
    found = np.zeros(max(len(a), len(b)))
    found[: len(a)] += a
    found[: len(b)] += b
    return found


def summed_counters(counters: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of counters by their names."""
    total: dict[str, float] = {}
    for of_one in counters:
        for name, value in of_one.items():
            total[name] = total.get(name, 0.0) + value
    return total


ID_BYTES = 4.0
"""Bytes of a vertex in a request."""
MOST_REPEATS = 256
"""Largest number of batches per rank whose remote vertices are counted."""


@dataclass(frozen=True)
class BatchOptions:
    """What loaders and daemons were told that decides which rows are asked for; see ``Profile``. ``follows``: rows at hand
    depend on the order of batches."""

    aggregate: str = ""
    window: int = 0
    follows: bool = False


@dataclass
class Measurements:
    """Figures of one run: its batches as consumers saw them, and the counters of its daemons. ``home``, ``expanded``,
    ``owners`` and ``wanted`` are empty if owners are unknown."""

    batches: int = 0
    nbytes: float = 0.0
    fresh: list[float] = field(default_factory=list)  # number of new vertices by hop, seeds first
    home: list[float] = field(default_factory=list)  # number of these vertices at home
    expanded: list[Expanded] = field(default_factory=list)  # by hop: what the vertices sampled
    sizes: list[float] = field(default_factory=list)  # vertices of each full batch
    owners: np.ndarray = field(default_factory=lambda: np.zeros(0))  # vertices by owner
    wanted: dict[str, np.ndarray] = field(default_factory=dict)  # full batches that had a remote vertex, by node type
    by_rank: list[Measurements] = field(default_factory=list)  # the ranks' figures, if these are their sum
    totals: dict[str, float] = field(default_factory=dict)  # counters of all daemons: growth in the measured epochs
    cpu_s: float = 0.0  # CPU seconds of the consumers' process, without counting what is in batches

    def of(self, kind: str, lane: str, name: str) -> float:
        """A sum over all tasks of a kind, see ``TaskCosts``."""
        return self.totals.get(f"cost_{kind}_{lane}_{name}", 0.0)

    def unaccounted_s(self) -> float:
        """CPU time of all processes that belongs neither to a task nor to an event loop."""
        tasks = math.fsum(self.of(kind, "cpu", "y") for kind in LOCAL_KINDS)
        return max(0.0, self.totals["cpu_s"] + self.cpu_s - tasks - self.loop_s())

    def loop_s(self) -> float:
        """CPU time of the event loops."""
        return self.totals.get("loop_cpu_s", 0.0)

    def batch_cpu_s(self) -> float:
        """CPU time of all processes per batch."""
        return (self.totals.get("cpu_s", 0.0) + self.cpu_s) / max(1, self.batches)

    def sessions(self) -> float:
        """Number of sessions that were opened."""
        return self.totals.get("sessions_opened", 0.0)

    def tasks(self) -> float:
        """Number of tasks, at home and of other owners."""
        return self._asked("n") + math.fsum(self.of(kind, "cpu", "n") for kind in LOCAL_KINDS)

    def requests(self) -> float:
        """Number of requests to other daemons."""
        return self._asked("r")

    def rows(self) -> tuple[float, float, float]:
        """Remote rows that were asked for, that a cache had, and that another batch brought; a sum counts as a row."""
        rows, cached, shared = (self.totals.get(f"{name}_rows", 0.0) for name in ("remote", "cached", "shared"))
        return rows, cached, shared

    def at_hand(self, *, brought: bool, wanted: float = 0.0) -> float:
        """Share of the remote rows that a cache had, or (``brought``) another batch brought. ``wanted``: number of remote
        rows, if it is not the number of those that were asked for or at hand."""
        rows, cached, shared = self.rows()
        here = cached + shared * brought
        return min(1.0, here / (wanted or rows + cached + shared)) if here else 0.0

    def asked(self, how: BatchOptions, row_bytes: float) -> float:
        """Bytes of the rows and sums that batches have asked other daemons for. Another batch brought the others; rows
        that a cache had are work at home, but for ``late_rows``: those looked up when rows were fetched."""
        rows, _, shared = self.rows()
        if how.aggregate:
            return rows * row_bytes
        wanted = rows + shared + self.totals.get("late_rows", 0.0)
        return self.of("feature", "net", "x") * (rows / wanted if rows else 1.0)

    def messages(self) -> float:
        """Number of these requests that event loops send and serve; threads without the interpreter do the others."""
        return max(0.0, self.requests() - self.totals.get("link_requests_asked", 0.0))

    def moved(self) -> float:
        """Bytes of the answers to these requests."""
        return self._asked("y")

    def _asked(self, name: str) -> float:
        return math.fsum(self.of(kind, "net", name) for kind in REMOTE_KINDS)


@dataclass(frozen=True)
class Waits:
    """What a machine lets threads wait although nothing is in their way, in seconds; see
    ``atta.observe.machine.threads``."""

    wake_s: float = 0.0
    timer_s: float = 0.0


@dataclass(frozen=True)
class Overheads:
    """CPU seconds besides tasks: of all threads but event loops per batch, request, byte of answers and session, and the
    ``loop`` costs of these. Half of a request and a byte falls to either end."""

    batch_s: float
    request_s: float
    byte_s: float
    loop: LoopCosts
    session_s: float = 0.0


@dataclass(frozen=True)
class ServedDataset:
    """Facts that a cluster reports of its dataset."""

    dataset_id: str
    parts: int
    mean_degree: float
    epoch_seeds: int = 0
    nodes: int = 0

    @property
    def vertices(self) -> tuple[float, float]:
        """Number of vertices of a machine, and of all others."""
        own = self.nodes / self.parts
        return own, self.nodes - own

    @classmethod
    def of(cls, cluster: Cluster, split: str) -> ServedDataset:
        """Ask ``cluster``. ``split``: the split of the seeds."""
        schema = cluster.schema
        edges, nodes = sum(schema.edge_counts.values()), sum(schema.node_counts.values())
        seeds = next((schema.splits[t][split] for t in schema.node_types if split in schema.splits[t]), 0)
        return cls(cluster.dataset_id, cluster.num_parts, edges / max(1, nodes), seeds, nodes)


def merged(parts: Sequence[Measurements]) -> Measurements:
    """The sum over the ranks of one run."""
    whole = Measurements(by_rank=list(parts))
    for part in parts:
        whole.batches += part.batches
        whole.nbytes += part.nbytes
        whole.fresh = list(added(whole.fresh, part.fresh))
        whole.home = list(added(whole.home, part.home))
        whole.sizes += part.sizes
        whole.expanded = together(whole.expanded, part.expanded)
    return whole


def profile_of(
    runs: Sequence[Measurements],
    described: ServedDataset,
    batch_size: int,
    fan_outs: tuple[int, ...],
    *,
    measured: Mapping[str, Any],
    alone: Measurements | None = None,
    waits: Waits = Waits(),
    overheads: Overheads | None = None,
    cores: int | None = None,
    how: BatchOptions = BatchOptions(),
) -> Profile:
    """The profile that explains all ``runs``. The first run's batches are those of the profile; ``measured``: notes for
    people. ``alone``: the first run again with one consumer at a time. ``overheads``: if they are known; else those
    that explain the runs. ``cores``: of the machine that was measured; None: this one. ``how``: of all runs."""
    # Different sizes of tasks tell fixed costs from costs per unit.
    main, all_runs = runs[0], Measurements(totals=summed_counters(run.totals for run in runs))
    batches = max(1, main.batches)
    local_costs = {kind: _cost(all_runs, kind, main) for kind in LOCAL_KINDS}
    per_unit = {kind: local_costs[kind].us_per_unit for kind in REMOTE_KINDS}
    fetched = main.of("feature", "cpu", "x") + main.of("feature", "net", "x")
    left = main.home[-1] if leaves_home(how.aggregate) else 0.0
    row_bytes = fetched / max(1.0, sum(main.fresh) - left)
    besides = overheads or _overheads(runs, per_unit, described.parts, how, row_bytes)
    early = main.rows()[1] - main.totals.get("late_rows", 0.0)
    hops = _hops(main, fan_outs, batches, fetched, early * row_bytes)
    expanded = batches * sum(hop.new * hop.home for hop in hops[:-1])  # at home
    repeats = () if how.follows else _repeats(main.by_rank)
    hit, summed = _shares(main, how, [batches * hop.new * (1 - hop.home) for hop in hops], brought=not repeats)
    asked = {
        "neighborhood": (main.of("neighborhood", "net", "x"), ID_BYTES / max(1.0, described.mean_degree)),
        "feature": (main.asked(how, row_bytes), ID_BYTES / max(1.0, row_bytes)),
    }
    remote = {}
    for kind, (units, request_bytes) in asked.items():
        answer = main.of(kind, "net", "y") / units if units else 0.0
        each = Linear(1e6 * besides.request_s / 2, 1e6 * besides.byte_s * answer / 2)
        serve = Linear(each.fixed_us, each.us_per_unit + per_unit[kind])
        remote[kind] = Remote(request_bytes, answer, serve, each)
    return Profile(
        batch_size=batch_size,
        fan_outs=fan_outs,
        hops=hops,
        local=local_costs,
        remote=remote if described.parts > 1 else {},
        loop=besides.loop,
        parts=described.parts,
        placement=_placement(main.by_rank),
        spread=float(np.std(np.log(main.sizes))) if len(main.sizes) > 1 else 0.0,
        degree=main.of("neighborhood", "cpu", "x") / expanded if expanded else described.mean_degree,
        mean_degree=described.mean_degree,
        row_bytes=row_bytes,
        batch_bytes=main.nbytes / batches,
        batch_us=1e6 * besides.batch_s,
        session_us=1e6 * besides.session_s,
        wake_us=1e6 * waits.wake_s,
        timer_us=1e6 * waits.timer_s,
        crowding=max(1.0, main.batch_cpu_s() / alone.batch_cpu_s()) if alone is not None else 1.0,
        cache_hit=hit,
        repeats=repeats,
        aggregate=how.aggregate,
        summed=summed,
        window=how.window,
        draws=draws_of(main.expanded, fan_outs),
        vertices=described.vertices if main.expanded else (),
        disk_reads=main.totals.get("disk_reads", 0.0) / max(1.0, main.of("feature", "cpu", "x")),
        disk_rate=main.totals.get("disk_reads", 0.0) / max(1e-6, main.totals.get("disk_wait_seconds", 0.0)),
        epoch_seeds=described.epoch_seeds,
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
        measured=measured,
    )


def _shares(main: Measurements, how: BatchOptions, remote: Sequence[float], *, brought: bool) -> tuple[float, float]:
    """``cache_hit`` and ``summed`` of a profile. ``remote``: number of remote vertices by hop."""
    if not how.aggregate:
        return main.at_hand(brought=brought), 1.0
    hit = main.at_hand(brought=brought, wanted=sum(remote))
    last = main.rows()[0] - (1 - hit) * sum(remote[:-1])
    return hit, max(0.0, last / max(1.0, (1 - hit) * remote[-1]))


def _placement(ranks: Sequence[Measurements]) -> tuple[tuple[float, ...], ...]:
    """See ``Profile.placement``; empty if owners are unknown."""
    if len(ranks) < 2 or any(not len(seen.owners) for seen in ranks):
        return ()
    rows = np.array([seen.owners / max(1, seen.batches) for seen in ranks])
    np.fill_diagonal(rows, 0.0)
    mean = rows.sum() / len(rows)
    return tuple(tuple(map(float, row / mean)) for row in rows) if mean else ()


def _repeats(ranks: Sequence[Measurements]) -> tuple[float, ...]:
    """See ``Profile.repeats``: the mean over the ranks; empty if owners are unknown."""
    batches = min((min(MOST_REPEATS, len(seen.sizes)) for seen in ranks if seen.wanted), default=0)
    if batches < 2 or any(not seen.wanted for seen in ranks):
        return ()
    found = np.zeros(batches)
    for counts in (counts for seen in ranks for counts in seen.wanted.values()):
        found += np.bincount(np.minimum(counts[counts > 0], batches) - 1, minlength=batches)
    return tuple(map(float, found / len(ranks)))


def _cost(seen: Measurements, kind: str, main: Measurements) -> Linear:
    """The line through all tasks of a kind, scaled so that those of the ``main`` run cost in sum what they did."""
    fixed, slope = Line(*(seen.of(kind, "cpu", name) for name in ("n", "x", "xx", "y", "xy"))).fit()
    told = fixed * main.of(kind, "cpu", "n") + slope * main.of(kind, "cpu", "x")
    microsecond = 1e6 * (main.of(kind, "cpu", "y") / told if told else 1.0)
    return Linear(microsecond * fixed, microsecond * slope)


def _loop_costs(runs: Sequence[Measurements], parts: int) -> LoopCosts:
    """CPU time of the event loops per batch, task, request that goes as a message, byte of answers, and session. Half
    of a request's share falls to either end. With two partitions a task of other owners is one request, so requests
    cannot be told from tasks."""
    rows = [
        (float(run.batches), run.tasks(), run.messages() if parts > 2 else 0.0, run.moved(), run.sessions())
        for run in runs
    ]
    batch_s, task_s, request_s, byte_s, session_s = _explained(rows, [run.loop_s() for run in runs])
    half = 1e6 * request_s / 2
    return LoopCosts(1e6 * batch_s, 1e6 * task_s, half, half, 1e6 * byte_s, 1e6 * session_s)


def _overheads(
    runs: Sequence[Measurements], per_unit: Mapping[str, float], parts: int, how: BatchOptions, row_bytes: float
) -> Overheads:
    """What the runs have cost besides tasks and work in answers. A unit of cost takes as long for another daemon as at
    home (``per_unit``: microseconds)."""
    rows, rest = [], []
    for run in runs:
        served = 0.0
        for kind, unit_us in per_unit.items():
            units = run.asked(how, row_bytes) if kind == "feature" else run.of(kind, "net", "x")
            served += 1e-6 * unit_us * units
        rows.append((float(run.batches), run.requests(), run.moved(), run.sessions()))
        rest.append(max(0.0, run.unaccounted_s() - served))
    batch_s, request_s, byte_s, session_s = _explained(rows, rest)
    return Overheads(batch_s, request_s, byte_s, _loop_costs(runs, parts), session_s)


def _explained(counts: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Seconds per count of each column, none negative, that explain the seconds of each row best, relative to these. All
    are scaled to explain the first row exactly: it is what the profile is about."""
    known = np.array(seconds)
    weight = np.where(known > 0, 1.0 / np.maximum(known, 1e-9), 1.0)
    table = np.array(counts) * weight[:, None]
    largest = table.max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)  # columns of like size: bytes outnumber batches by millions
    found, _ = nnls(table / scale, known * weight)
    told = float(table[0] / scale @ found)
    exact = float(known[0] * weight[0]) / told if told and known[0] else 1.0
    return [exact * float(value) for value in found / scale]


def _hops(
    main: Measurements, fan_outs: Sequence[int], batches: int, fetched: float, cached: float
) -> tuple[HopSize, ...]:
    """``fetched``: bytes of all rows; ``cached``: of those of others that tasks at home copied."""
    everywhere = max(0.0, main.of("feature", "cpu", "x") - cached) / fetched if fetched else 1.0
    found = []
    for hop in range(len(fan_outs) + 1):
        fresh = main.fresh[hop] if hop < len(main.fresh) else 0.0
        at_home = main.home[hop] / fresh if hop < len(main.home) and fresh else (1.0 if hop == 0 else everywhere)
        found.append(HopSize(fresh / batches, min(1.0, at_home)))
    return tuple(found)
