"""The simulated cluster: a profile and a number of machines. ``BatchModel`` computes the sizes of every batch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from atta.errors import ConfigError
from atta.observe.settings import NoOption, Option, check_bounds
from atta.partition.schema import Schema, TableSpec
from atta.samplers.dag.check import check_spec
from atta.samplers.dag.instance import Kind, OwnedVertices, Task
from atta.samplers.dag.plan import Plan, Reduce
from atta.samplers.dag.spec import Hops, neighbor_spec
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.policies import policy_named
from atta.simulate.profile import HopSize, Linear, Profile, Remote, leaves_home
from atta.simulate.reach import Overlap, Reach, edges_per_vertex

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, without their whole part, lie evenly in [0, 1)."""


@dataclass(frozen=True)
class Scenario:
    """A cluster of equal machines, each with a daemon, its partition and one trainer. Raises ConfigError for values
    that make no sense."""

    profile: Annotated[Profile, NoOption("a file")]
    machines: Annotated[int, Option("Each has a daemon and a trainer.", at_least=1, unset="as measured")] = field(
        default_factory=lambda: 2
    )
    cores: Annotated[int, Option("Cores per machine.", at_least=1, unset="as measured")] = field(
        default_factory=lambda: 2
    )
    shared_cores: Annotated[bool, Option("All machines share the cores of one computer, as network namespaces do.")] = (
        False
    )
    link: Annotated[
        float, Option("Rate of each machine's link, each way, e.g. 1gbit.", unit="rate", unset="infinitely fast")
    ] = field(default_factory=lambda: math.inf)
    """Bytes per second."""
    rtt_s: Annotated[float, Option("Round trip between two machines.", name="rtt", unit="s", at_least=0)] = 0.0
    scheduler: Annotated[SchedulerConfig, NoOption("options of the command")] = field(
        default_factory=lambda: SchedulerConfig(log_events=0)
    )
    serve_threads: Annotated[
        int,
        Option(
            "Threads that exchange with other daemons.",
            at_least=1,
            unset="as `atta serve`: half of --threads, at most 8",
        ),
    ] = field(default_factory=lambda: 2)
    neighbours: Annotated[
        int | None, Option("Most other machines that hold a machine's remote vertices.", at_least=1, unset="all")
    ] = None
    peers: Annotated[
        int, Option("Most machines that each asks one by one; beyond, a request stands for several.", at_least=1)
    ] = 16
    """A request that stands for several has the fixed costs of all of them."""
    train_s: Annotated[float, NoOption("--train-ms says it")] = 0.0
    """Seconds of training on one batch."""
    train_threads: Annotated[int, Option("Cores that training uses; 0: it runs on a device.", at_least=0)] = 0
    lockstep: Annotated[
        bool, Option("Trainers wait for each other after every batch, as under DDP.", also="independent")
    ] = True
    batch_size: Annotated[int, Option("Seeds per batch.", at_least=0, unset="as measured")] = 0
    """0 = the profile's."""
    fan_outs: Annotated[
        tuple[int, ...], Option("In-neighbours by hop.", name="num-neighbors", also="fan-out", unset="as measured")
    ] = ()
    """Empty = the profile's."""
    cache_hit: Annotated[
        float | None, Option("Share of remote rows cached.", at_least=0, at_most=1, unset="as measured")
    ] = None
    window: Annotated[
        int | None,
        Option("Batches sampled ahead of fetching, as in `atta serve`.", at_least=0, at_most=8, unset="as measured"),
    ] = None
    disk: Annotated[
        float | None,
        Option("Reads a second of each machine's disk, with --memory SIZE.", at_least=1, unset="as measured"),
    ] = None
    growth: Annotated[float, NoOption("--vertices says it")] = 1.0
    """How many times as many vertices and seeds the graph has as the measured one, with degrees alike. Batches of a
    larger graph meet fewer vertices twice; batches in flight are taken to have none in common."""
    share_pulls: Annotated[bool, Option("As in `atta serve`; needs a profile with `repeats`.")] = True
    """Whether a batch shares the rows that another batch of the machine waits for."""
    batches: Annotated[int, Option("Batches per machine.", at_least=1)] = 50
    epochs: Annotated[int, NoOption("for comparisons with loaders")] = 0
    """Number of epochs of a trainer, each in a session of its own, as a loader runs them. The last batch of an epoch has
    the seeds that are left. 0: one session of ``batches`` full batches. Needs a profile with ``epoch_seeds``."""
    seed: Annotated[int, Option("Of the batches' sizes.")] = 0
    known_batch_bytes: Annotated[bool, NoOption("loaders tell it or not")] = False
    """Whether the scheduler is told the size of a batch. Otherwise it samples one alone first."""

    def __post_init__(self) -> None:
        check_bounds(self)
        policy_named(self.scheduler.policy)
        if self.epochs and not self.epoch_seeds:
            raise ConfigError(f"epochs is {self.epochs}, but the profile does not tell how many seeds an epoch has")
        for name in ("rtt_s", "train_s", "epochs"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: must be finite and not negative")
        for name, finite in (("link", False), ("growth", True)):
            if not getattr(self, name) > 0 or (finite and math.isinf(self.growth)):
                raise ConfigError(f"{name} is {getattr(self, name)}: must be above 0")
        if any(f < 1 and f != -1 for f in self.fan_outs):
            raise ConfigError(f"--num-neighbors {list(self.fan_outs)}: must be above 0, or -1 for all neighbours")

    @property
    def rows_window(self) -> int:
        """Batches that daemons sample ahead of fetching."""
        return self.profile.window if self.window is None else self.window

    @property
    def unknown(self) -> str:
        """What the profile does not tell of this cluster, in a sentence; empty: nothing."""
        profile, shares = self.profile, []
        if profile.cache_hit and self.cache_hit is None:
            shares.append(f"{profile.cache_hit:.0%} of the remote rows are at hand")
        if profile.aggregate:
            shares.append(f"{profile.summed:.2f} rows and sums are asked for per row of the last hop")
        as_measured = (
            ("partitions", self.machines, profile.parts),
            ("--batch-size", self.seeds, profile.batch_size),
            ("--num-neighbors", self.fan_outs or profile.fan_outs, profile.fan_outs),
            ("--window", self.rows_window, profile.window),
            ("--vertices", self.growth, 1.0),
        )
        other = [name for name, value, measured in as_measured if value != measured]
        if not shares or not other:
            return ""
        return f"{' and '.join(shares)}, as measured; how that changes with other {', '.join(other)} is not known"

    @property
    def seeds(self) -> int:
        """Number of seeds of a full batch."""
        return self.batch_size or self.profile.batch_size

    @property
    def epoch_seeds(self) -> int:
        """Number of seeds of an epoch, all machines together; 0 = unknown."""
        return round(self.profile.epoch_seeds * self.growth)

    @property
    def epoch_batches(self) -> int | None:
        """Number of batches of a machine in an epoch; None if the profile does not tell the number of seeds."""
        seeds = self.epoch_seeds
        return math.ceil(seeds / (self.machines * self.seeds)) if seeds else None

    @property
    def session_batches(self) -> int:
        """Number of batches of a session."""
        return (self.epoch_batches or 0) if self.epochs else self.batches

    @property
    def trainer_batches(self) -> int:
        """Number of batches of a trainer, in all of its sessions."""
        return max(1, self.epochs) * self.session_batches

    @property
    def last_seeds(self) -> float:
        """Mean number of seeds of a session's last batch."""
        left = self.epoch_seeds / self.machines - (self.session_batches - 1) * self.seeds
        return left if self.epochs else self.seeds


_ONE_TYPE = Schema(
    ("node",), ("node__to__node",), {"node": 1}, {"node__to__node": 1}, {"node": {"x": TableSpec("<f4")}}
)
"""One type of vertices with one table."""


class BatchModel:
    """A scenario's batches: their plan, the new vertices of each task, and the costs of tasks."""

    def __init__(self, scenario: Scenario) -> None:
        profile, schema = scenario.profile, _ONE_TYPE
        self.scenario, self.profile = scenario, profile
        self.batch_size = scenario.seeds
        self.fan_outs = scenario.fan_outs or profile.fan_outs
        reduce = Reduce[profile.aggregate.upper() or "NONE"]
        spec = neighbor_spec(schema, Hops(self.fan_outs, reduce=reduce), seed_type="node")
        self.plan: Plan = check_spec(spec, schema)
        self.cache_hit = profile.cache_hit if scenario.cache_hit is None else scenario.cache_hit
        self._session_batches, self._last_seeds = scenario.session_batches, scenario.last_seeds
        self.hops, self._last_hops = (
            _scaled_hops(profile, size, self.fan_outs, scenario.machines, scenario.growth)
            for size in (self.batch_size, self._last_seeds)
        )
        measured = profile.batch_size, profile.fan_outs, profile.parts, 1.0
        if scenario.epochs and (self.batch_size, self.fan_outs, scenario.machines, scenario.growth) == measured:
            self._keep_means()
        self._edges_ratio = {side: _fan_out_ratios(profile, self.fan_outs, side) for side in ("own", "other")}
        self._owners = min(scenario.machines - 1, scenario.neighbours or scenario.machines)
        # Distances to other machines, which lie on both sides, so that all machines serve equally much.
        self._around = [(i // 2 + 1) * (1 if i % 2 == 0 else -1) for i in range(min(self._owners, scenario.peers))]
        self._placed = len(profile.placement) == scenario.machines > 1
        self._seed, self._machines = scenario.seed, scenario.machines
        self._measured_vertices = sum(hop.new for hop in profile.hops)
        self.shares_pulls = scenario.share_pulls and scenario.growth == 1 and len(profile.repeats) > 1
        self._overlap = Overlap(profile.repeats, self.cache_hit)
        self._away: dict[int, float] = {}  # bytes of a batch's remote rows, by machine
        self.second = 1e-6 / (1.0 if scenario.shared_cores else profile.crowding)
        """Seconds of a microsecond of the profile. Where it was measured, everything may have taken longer."""
        self.hop = {op.id: op.hop for op in self.plan.ops} | {"": 0}
        hops = [(kind, hop) for hop in range(len(self.hops)) for kind in Kind]
        self._local = {(kind, hop): self._at_home(kind, hop) for kind, hop in hops}
        self._remote = {(kind, hop): self._elsewhere(kind, hop) for kind, hop in hops}

    def scales(self, machine: int, batches: int) -> list[float]:
        """Size of each batch of a machine relative to the mean: log-normal with mean 1, independent of timing."""
        spread, draw = self.profile.spread, random.Random(f"{self._seed}/{machine}")
        return [draw.lognormvariate(-spread * spread / 2, spread) if spread else 1.0 for _ in range(batches)]

    def _keep_means(self) -> None:
        """Scale all hops so that an epoch's batches have the measured mean: the profile's counts its last batch, too."""
        count = self._session_batches
        for hop, measured in enumerate(self.profile.hops):
            sizes = self.hops[hop], self._last_hops[hop]
            mean = ((count - 1) * sizes[0].new + sizes[1].new) / count
            self.hops[hop], self._last_hops[hop] = (
                replace(size, new=size.new * measured.new / mean if mean else 0.0) for size in sizes
            )

    def seeds(self, batch: int) -> float:
        """Number of seeds of a batch."""
        return self._last_seeds if self._is_last(batch) else float(self.batch_size)

    def vertices(self, batch: int) -> float:
        """Mean number of vertices of a batch."""
        return sum(hop.new for hop in self._sizes(batch))

    def _is_last(self, batch: int) -> bool:
        return (batch + 1) % self._session_batches == 0

    def _sizes(self, batch: int) -> list[HopSize]:
        return self._last_hops if self._is_last(batch) else self.hops

    def growth(self, machine: int, batch: int, hop: int, scale: float) -> list[OwnedVertices]:
        """The vertices that a hop (0: the seeds) of one batch reaches first, by owner. A few remote vertices in a
        hundred batches cost some of these a round trip, and the others none. So fractions are rounded up in as many
        batches as they say."""
        size, last = self._sizes(batch)[hop], hop == len(self.hops) - 1
        total = round(size.new * (scale if hop else 1.0))
        draw = (GOLDEN * (batch * len(self.hops) + hop + 1) + machine * GOLDEN**2) % 1.0
        if self._placed:
            parts = [math.floor(total * (1 - size.home) * share + draw) for share in self.profile.placement[machine]]
            away = [(owner, rows) for owner, rows in enumerate(parts) if rows]
        else:
            away = self._evenly(machine, min(total, math.floor(total * (1 - size.home) + draw)), batch + hop)
        home = max(0, total - sum(rows for _, rows in away))
        home = 0 if last and leaves_home(self.profile.aggregate) else home
        degree = 0.0 if last else self.profile.degree
        mean_degree = 0.0 if last else self.profile.mean_degree
        row_bytes = self.profile.row_bytes
        shares = [OwnedVertices(machine, home, home * degree, home * row_bytes)] if home else []
        return shares + [OwnedVertices(owner, rows, rows * mean_degree, rows * row_bytes) for owner, rows in away]

    def _evenly(self, machine: int, away: int, turn: int) -> list[tuple[int, int]]:
        """``away`` remote vertices by owner: (machine, vertices)."""
        count = len(self._around)
        if not away or not count:
            return []
        asked = min(count, round(self._touched(away)))
        each, more = divmod(away, asked)
        # Other owners are asked, and get the remainder, in every batch, so that no owner is asked for more than others.
        return [
            ((machine + self._around[(place + turn) % count]) % self._machines, each + (place < more))
            for place in range(asked)
        ]

    def _touched(self, vertices: int) -> float:
        """Mean number of owners that hold at least one of so many remote vertices, which lie at random."""
        return self._owners * -math.expm1(vertices * math.log1p(-1 / self._owners)) if self._owners > 1 else 1.0

    def requests(self, owners: Sequence[OwnedVertices]) -> float:
        """Number of requests that each request to ``owners`` stands for, at least 1."""
        if self._owners == len(self._around) or self._placed:
            return 1.0
        return max(1.0, self._touched(sum(share.rows for share in owners)) / len(owners))

    def under_way(self, machine: int, nbytes: float) -> float:
        """Share of a batch's remote rows that need no request while other batches of the machine wait for ``nbytes`` of
        such rows."""
        if not nbytes:
            return 0.0
        usual = self._away.get(machine)
        if usual is None:
            shares = [share for hop in range(len(self.hops)) for share in self.growth(machine, 0, hop, 1.0)]
            usual = self._away[machine] = sum(s.feature_bytes for s in shares if s.owner != machine)
        # A batch with more vertices than the measured ones stands for several of them.
        batches = nbytes / max(1.0, usual) * self.vertices(0) / max(1.0, self._measured_vertices)
        return self._overlap.share(batches)

    def batch_bytes(self, scale: float, batch: int = 0) -> int:
        """Size of a finished batch, in proportion to its vertices."""
        return round(self.profile.batch_bytes * scale * self.vertices(batch) / max(1.0, self._measured_vertices))

    def local(self, task: Task) -> float:
        """CPU seconds of a task at home."""
        return self.second * self._local[task.kind, self.hop[task.op]].at(task.cost)

    def on_disk(self, task: Task) -> float:
        """Seconds of the disk that a task at home takes."""
        if task.kind is not Kind.FEATURE or not self.profile.disk_reads:
            return 0.0
        return task.cost * self.profile.disk_reads / (self.scenario.disk or self.profile.disk_rate)

    def remote(self, task: Task) -> Remote:
        """Bytes and CPU microseconds of each request of a task of other owners."""
        return self._remote[task.kind, self.hop[task.op]]

    def sums(self, task: Task) -> bool:
        """Whether a FEATURE task asks for sums."""
        return bool(self.plan.op(task.op).reduce)

    def asked(self, task: Task) -> float:
        """Rows and sums that a FEATURE task of other owners asks for, per row; without what is under way."""
        return (1.0 - self.cache_hit) * (self.profile.summed if self.sums(task) else 1.0)

    def copied(self, task: Task, share: float) -> float:
        """CPU seconds to copy the ``share`` of rows that is at hand. Where rows are summed, END reads them."""
        if self.sums(task):
            return 0.0
        return self.second * self._local[Kind.FEATURE, 0].us_per_unit * task.cost * share

    def _at_home(self, kind: Kind, hop: int) -> Linear:
        cost = self.profile.local.get(kind.value, Linear())
        if kind is Kind.END and self.plan.summed is not None:  # it reads the rows of all edges
            size = sum(hop.new for hop in self.hops) / max(1.0, self._measured_vertices)
            return Linear(cost.fixed_us * size, cost.us_per_unit)
        return cost.times(self._edges_ratio["own"][hop]) if kind is Kind.NEIGHBORHOOD else cost

    def _elsewhere(self, kind: Kind, hop: int) -> Remote:
        cost = self.profile.remote.get(kind.value, Remote())
        ratio = self._edges_ratio["other"][hop] if kind is Kind.NEIGHBORHOOD else 1.0
        return Remote(cost.request_bytes, cost.answer_bytes * ratio, cost.serve.times(ratio), cost.receive.times(ratio))


def _fan_out_ratios(profile: Profile, fan_outs: tuple[int, ...], side: str) -> list[float]:
    """Sampled edges per vertex relative to the profile, by hop (entry 0 is not used). ``side``: whose vertices are
    expanded."""
    if not profile.fan_outs:
        return [1.0] * (len(fan_outs) + 1)

    def edges(hop: int, fan_out: int) -> float:
        if profile.draws:
            return edges_per_vertex(getattr(profile.draws[hop], side), fan_out, profile.fan_outs[hop], profile.degree)
        return profile.degree if fan_out < 0 else min(fan_out, profile.degree)

    ratios = [1.0]
    for number, fan_out in enumerate(fan_outs):
        hop = min(number, len(profile.fan_outs) - 1)
        old = edges(hop, profile.fan_outs[hop])
        ratios.append(edges(hop, fan_out) / old if old else 1.0)
    return ratios


def _scaled_hops(
    profile: Profile, batch_size: float, fan_outs: tuple[int, ...], machines: int, growth: float
) -> list[HopSize]:
    """New vertices per hop for other batch sizes and fan-outs, and ``growth`` times as many vertices. Without ``draws``
    in the profile, the number of new vertices per sampled edge stays as measured."""
    if fan_outs and not profile.fan_outs:
        raise ConfigError("the profile has no hop: it says nothing about fan-outs")
    if profile.draws:
        sizes = Reach(profile, growth).sizes(batch_size, fan_outs)
        shares = [own / (own + other) if own + other else 1.0 for own, other in sizes]
        new = [own + other for own, other in sizes]
    else:
        at = [min(hop, len(profile.hops) - 1) for hop in range(len(fan_outs) + 1)]
        shares, new = [profile.hops[hop].home for hop in at], [float(batch_size)]
        for hop, ratio in zip(at[1:], _fan_out_ratios(profile, fan_outs, "own")[1:], strict=True):
            new.append(new[-1] * profile.hops[hop].new / max(1.0, profile.hops[hop - 1].new) * ratio)
    return [
        HopSize(n, _home(at, hop, profile.parts, machines)) for hop, (n, at) in enumerate(zip(new, shares, strict=True))
    ]


def _home(share: float, hop: int, parts: int, machines: int) -> float:
    """The share of a hop's vertices at home among ``machines``. The remote share keeps its ratio to that of a random
    placement, 1 - 1/machines. Of a profile of one partition, shares are taken as they are; a share of 1 beyond the
    seeds tells no cut, so such vertices lie at random. A single machine has everything."""
    if machines == 1:
        return 1.0
    if parts == 1 and hop and share == 1:
        return 1 / machines
    if parts in {1, machines}:
        return share
    return 1.0 - min(1.0, (1.0 - share) * (1 - 1 / machines) / (1 - 1 / parts))
