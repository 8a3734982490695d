"""The simulated cluster: a profile and a number of machines. ``BatchModel`` computes the sizes of every batch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from atta.errors import ConfigError
from atta.partition.schema import Schema, TableSpec
from atta.samplers.dag.check import check_spec
from atta.samplers.dag.instance import OwnedVertices
from atta.samplers.dag.plan import Plan
from atta.samplers.dag.spec import Hops, neighbor_spec
from atta.scheduler import SchedulerConfig, policy_named
from atta.simulate.profile import HopSize, Linear, Profile, Remote
from atta.simulate.reach import Overlap, Reach, edges_per_vertex

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, without their whole part, lie evenly in [0, 1)."""


@dataclass(frozen=True)
class Scenario:
    """A cluster of equal machines, each with a daemon, its partition and one trainer.

    Raises ConfigError for values that make no sense.
    """

    profile: Profile
    machines: int = 2
    cores: int = 2
    shared_cores: bool = False
    """Whether all machines run on one computer and share its cores, as network namespaces do."""
    link: float = math.inf
    """Rate of a machine's link in bytes per second, each way."""
    rtt_s: float = 0.0
    scheduler: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(log_events=0))
    serve_threads: int = 2
    """Number of threads of a daemon that answer others, and take in their answers."""
    neighbours: int | None = None
    """Largest number of other machines that hold a machine's remote vertices; None: all."""
    peers: int = 16
    """Most peers that a simulated machine asks one by one. Where a task would ask more, every request stands for
    several, with the fixed costs of all of them."""
    train_s: float = 0.0
    """Seconds of training on one batch."""
    train_threads: int = 0
    """Number of cores that training uses; 0 = training runs on a device."""
    lockstep: bool = True
    """Whether trainers wait for each other after every batch, as under DDP. Otherwise each goes on alone."""
    batch_size: int = 0
    """Number of seeds of a batch; 0 = the profile's."""
    fan_outs: tuple[int, ...] = ()
    """Fan-outs hop by hop; empty = the profile's."""
    cache_hit: float | None = None
    """Share of remote rows found in the cache; None = the profile's."""
    growth: float = 1.0
    """How many times as many vertices and seeds the graph has as the measured one, with degrees alike. Batches of a
    larger graph meet fewer vertices twice; batches in flight are taken to have none in common."""
    share_pulls: bool = True
    """Whether a batch shares the rows that another batch of the machine waits for. Needs a profile with ``repeats``."""
    batches: int = 50
    """Number of batches per machine."""
    epochs: int = 0
    """Number of epochs of a trainer, each in a session of its own, as a loader runs them. The last batch of an epoch has
    the seeds that are left. 0: one session of ``batches`` full batches. Needs a profile with ``epoch_seeds``."""
    seed: int = 0
    known_batch_bytes: bool = False
    """Whether the scheduler is told the size of a batch. Otherwise it samples one alone first."""

    def __post_init__(self) -> None:
        policy_named(self.scheduler.policy)
        for name in ("machines", "cores", "serve_threads", "neighbours", "peers", "batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, must be at least 1")
        if self.epochs and not self.epoch_seeds:
            raise ConfigError(f"epochs is {self.epochs}, but the profile does not tell how many seeds an epoch has")
        for name in ("rtt_s", "train_s", "train_threads", "batch_size", "epochs"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be finite and not negative")
        if not self.link > 0:
            raise ConfigError(f"link is {self.link} bytes per second, must be positive")
        if not 0 < self.growth < math.inf:
            raise ConfigError(f"growth is {self.growth}, must be positive")
        if self.cache_hit is not None and not 0 <= self.cache_hit <= 1:
            raise ConfigError(f"cache_hit is {self.cache_hit}, must lie in [0, 1]")
        if any(f < 1 and f != -1 for f in self.fan_outs):
            raise ConfigError(f"fan_outs are {list(self.fan_outs)}: must be positive, or -1 for all neighbours")

    @property
    def epoch_seeds(self) -> int:
        """Number of seeds of an epoch, all machines together; 0 = unknown."""
        return round(self.profile.epoch_seeds * self.growth)

    @property
    def epoch_batches(self) -> int | None:
        """Number of batches of a machine in an epoch; None if the profile does not tell the number of seeds."""
        seeds = self.epoch_seeds
        if not seeds:
            return None
        return math.ceil(seeds / (self.machines * (self.batch_size or self.profile.batch_size)))

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
        size = self.batch_size or self.profile.batch_size
        return self.epoch_seeds / self.machines - (self.session_batches - 1) * size if self.epochs else size


_ONE_TYPE = Schema(
    ("node",), ("node__to__node",), {"node": 1}, {"node__to__node": 1}, {"node": {"x": TableSpec("<f4")}}
)
"""One type of vertices with one table."""


class BatchModel:
    """A scenario's batches: their plan, the new vertices of each task, and the costs of tasks."""

    def __init__(self, scenario: Scenario) -> None:
        profile, schema = scenario.profile, _ONE_TYPE
        self.profile = profile
        self.uncrowded = 1.0 if scenario.shared_cores else profile.crowding
        """How many times as much CPU time as in the scenario everything has taken where it was measured."""
        self.batch_size = scenario.batch_size or profile.batch_size
        self.fan_outs = scenario.fan_outs or profile.fan_outs
        spec = neighbor_spec(schema, Hops(self.fan_outs), seed_type="node")
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
        self._around = _ring(min(self._owners, scenario.peers))
        self._placed = len(profile.placement) == scenario.machines > 1
        self._seed, self._machines = scenario.seed, scenario.machines
        self._measured_vertices = sum(hop.new for hop in profile.hops)
        self.shares_pulls = scenario.share_pulls and scenario.growth == 1 and len(profile.repeats) > 1
        self._overlap = Overlap(profile.repeats, self.cache_hit)
        self._away: dict[int, float] = {}  # bytes of a batch's remote rows, by machine

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
        """The vertices that a hop (0: the seeds) of one batch reaches first, by owner.

        A few remote vertices in a hundred batches cost some of these a round trip, and the others none. So fractions are
        rounded up in as many batches as they say.
        """
        size, last = self._sizes(batch)[hop], hop == len(self.hops) - 1
        total = round(size.new * (scale if hop else 1.0))
        draw = (GOLDEN * (batch * len(self.hops) + hop + 1) + machine * GOLDEN**2) % 1.0
        if self._placed:
            parts = [math.floor(total * (1 - size.home) * share + draw) for share in self.profile.placement[machine]]
            away = [(owner, rows) for owner, rows in enumerate(parts) if rows]
        else:
            away = self._evenly(machine, min(total, math.floor(total * (1 - size.home) + draw)), batch + hop)
        home = max(0, total - sum(rows for _, rows in away))
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

    def local(self, kind: str, hop: int = 0) -> Linear:
        """CPU time of a task whose data is at home."""
        cost = self.profile.local.get(kind, Linear())
        return _sampling(cost, self._edges_ratio["own"][hop]) if kind == "neighborhood" else cost

    def remote(self, kind: str, hop: int = 0) -> Remote:
        """Bytes and CPU time of a request to another daemon."""
        cost = self.profile.remote.get(kind, Remote())
        if kind != "neighborhood":
            return cost
        ratio = self._edges_ratio["other"][hop]
        return replace(
            cost,
            answer_bytes=cost.answer_bytes * ratio,
            serve=_sampling(cost.serve, ratio),
            receive=_sampling(cost.receive, ratio),
        )


def _sampling(cost: Linear, ratio: float) -> Linear:
    return Linear(cost.fixed_us, cost.us_per_unit * ratio)


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
    """New vertices per hop for other batch sizes and fan-outs, and ``growth`` times as many vertices.

    Without ``draws`` in the profile, the number of new vertices per sampled edge stays as measured.
    """
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
    """The share of a hop's vertices at home among ``machines``.

    The remote share keeps its ratio to that of a random placement, 1 - 1/machines. Of a profile of one partition,
    shares are taken as they are; a share of 1 beyond the seeds tells no cut, so such vertices lie at random. A single
    machine has everything.
    """
    if machines == 1:
        return 1.0
    if parts == 1 and hop and share == 1:
        return 1 / machines
    if parts in {1, machines}:
        return share
    return 1.0 - min(1.0, (1.0 - share) * (1 - 1 / machines) / (1 - 1 / parts))


def _ring(count: int) -> list[int]:
    """Distances to ``count`` other machines. They lie on both sides, so all machines serve equally much."""
    return [(i // 2 + 1) * (1 if i % 2 == 0 else -1) for i in range(count)]
