"""``atta bench cache``: hit rates of a cache of remote rows by size and policy, from replayed batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from rich.table import Table

from atta.cli.figures import figure
from atta.errors import ConfigError
from atta.kvstore.cache import RANKS, RowCache
from atta.observe.settings import Option, check_bounds
from atta.partition import Dataset
from atta.partition.schema import TableSpec
from atta.samplers import kernels
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.shard import Shard
from atta_bench.command import measured
from atta_bench.lab.workload import BatchSize, FanOuts, Seed, Split, check_fan_outs
from atta_bench.results import document, now

LIMITS = ("optimum", "bound")


@dataclass
class Point:
    """Counts at one size, for one partition or summed over several.

    Attributes:
        rows, nbytes: of the cache, when full.
        asked: remote rows that the measured batches ask for.
        optimum: hits if the cache held, from the start, the rows that these batches ask for most often.
        bound: hits if every batch hit every row of the cache. More is impossible: a batch asks for each row once.
        batches: number of measured batches.
        hits: by policy, of the measured batches.
        first_epoch: hit rate of the first epoch by policy. This epoch starts with an empty cache and is not measured.
    """

    rows: int
    nbytes: int
    asked: int
    optimum: int
    bound: int
    batches: int
    hits: dict[str, int] = field(default_factory=dict)
    first_epoch: dict[str, float] = field(default_factory=dict)


@dataclass
class CacheReport:
    """Collects the points of all partitions. Sizes are means over partitions; rates count the rows of all."""

    config: dict[str, Any]
    ranks: Sequence[str]
    points: dict[float, list[Point]] = field(default_factory=dict)
    started: str = field(default_factory=now)

    def add(self, share: float, point: Point) -> None:
        """Add the counts of one partition for a cache of ``share`` percent of its HALO vertices."""
        self.points.setdefault(share, []).append(point)

    def figures(self) -> list[dict[str, Any]]:
        """Per size: share in percent, rows, bytes, hit rates (0 to 1) by policy, optimum and bound; smallest first."""
        return [_figures(share, points) for share, points in sorted(self.points.items())]

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""
        points = next(iter(self.points.values()))
        return document(
            "cache",
            started=self.started,
            config=self.config,
            partitions=len(points),
            remote_rows_per_batch=sum(p.asked for p in points) / sum(p.batches for p in points),
            results=self.figures(),
        )

    def show(self) -> Table:
        """The same figures for people, in percent."""
        asked = self.to_json()["remote_rows_per_batch"]
        table = Table(title=f"cache: hit rates after the first epoch; a batch asks for {asked:,.0f} remote rows")
        for name in ("of HALO", "rows", "MiB", *self.ranks, *LIMITS):
            table.add_column(name, justify="right")
        for row in self.figures():
            size = f"{row['share']:g} %", f"{row['rows']:,.0f}", f"{row['bytes'] / 2**20:,.1f}"
            rates = [*(row["hit_rate"][rank] for rank in self.ranks), *(row[name] for name in LIMITS)]
            table.add_row(*size, *(f"{100 * rate:.1f} %" for rate in rates))
        return table

    def plot(self, path: str) -> None:
        """Draw hit rates against size."""
        rows = self.figures()
        sizes = [row["rows"] for row in rows]
        with figure(path, (5.5, 3.6)) as axes:
            for rank in self.ranks:
                axes.plot(sizes, [100 * row["hit_rate"][rank] for row in rows], marker="o", label=rank)
            for name, style in zip(LIMITS, ("--", ":"), strict=True):
                axes.plot(sizes, [100 * row[name] for row in rows], color="black", linestyle=style, label=name)
            axes.set_xscale("log")
            axes.set_xlabel("rows kept per partition")
            axes.set_ylabel("hit rate, % of remote rows")
            axes.legend()


def _figures(share: float, points: Sequence[Point]) -> dict[str, Any]:
    asked = sum(p.asked for p in points)
    ranks = points[0].hits
    return {
        "share": share,
        "rows": sum(p.rows for p in points) / len(points),
        "bytes": sum(p.nbytes for p in points) / len(points),
        "hit_rate": {rank: sum(p.hits[rank] for p in points) / asked for rank in ranks},
        "optimum": sum(p.optimum for p in points) / asked,
        "bound": sum(p.bound for p in points) / asked,
        "first_epoch_hit_rate": {rank: sum(p.first_epoch[rank] for p in points) / len(points) for rank in ranks},
    }


Batch = Mapping[str, np.ndarray]
"""Remote rows that a batch asks for: by node type, int64 internal ids, each once, in the order of the batch."""


@dataclass(frozen=True)
class CacheBench:
    """Settings of the benchmark. The policy ``access`` also ranks by the fan-outs."""

    data: Annotated[str, Option("Partitioned dataset, all of it on this machine.")]
    num_neighbors: FanOuts = (15, 10, 5)
    batch_size: BatchSize = 1024
    split: Split = "train"
    shares: Annotated[
        tuple[float, ...], Option("Sizes of the cache in percent of the HALO vertices.", at_least=1e-6, at_most=100)
    ] = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    ranks: Annotated[tuple[str, ...], Option("Policies of the cache.", choices=RANKS)] = RANKS
    epochs: Annotated[int, Option("The first epoch fills the caches, the others count.", at_least=2)] = 2
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self)
        check_fan_outs(self.num_neighbors)
        if not self.shares:
            raise ConfigError("--shares: name at least one")


def run(bench: CacheBench, say: Callable[[str], None] = lambda _: None) -> CacheReport:
    """Sample the batches of every partition and replay them; ``say`` is told what happens.

    Raises DataError: the dataset is damaged; ConfigError: it has one partition only, or no partition's batches ask
    others for rows.
    """
    dataset = Dataset.open(bench.data)
    if dataset.num_parts < 2:
        raise ConfigError(f"{bench.data}: there are no remote rows in one partition; there must be two")
    report = CacheReport(asdict(bench), bench.ranks)
    shards = [Shard(dataset, part) for part in range(dataset.num_parts)]
    for part in range(dataset.num_parts):
        say(f"part {part}: sampling {bench.epochs} epochs")
        epochs = [list(epoch) for epoch in _epochs(bench, dataset, shards, part)]
        if any(len(batch) for batch in epochs[0]):
            _replay(bench, dataset, part, epochs=epochs, report=report, say=say)
    if not report.points:
        raise ConfigError(f"{bench.data}: the batches ask no other partition for rows")
    return report


# ---- batches ---------------------------------------------------------------------------------------------------------


def _epochs(bench: CacheBench, dataset: Dataset, shards: Sequence[Shard], part: int) -> Iterator[Iterator[Batch]]:
    """By epoch, the shuffled batches of the seeds that a loader gives to the trainer beside ``part``."""
    schema, split = dataset.schema, bench.split
    seed_type = next((t for t in schema.node_types if split in schema.splits[t]), schema.node_types[0])
    seeds = np.arange(schema.node_counts[seed_type])
    if split in schema.splits[seed_type]:
        seeds = np.asarray(dataset.split(seed_type, split))
    mine = np.array_split(seeds, dataset.num_parts)[part]
    rng = np.random.default_rng((bench.seed, part))
    for epoch in range(bench.epochs):
        order = rng.permutation(mine)
        takes = [order[at : at + bench.batch_size] for at in range(0, len(order), bench.batch_size)]
        yield (
            _remote(dataset, part, _batch(bench, dataset, shards, {seed_type: take}, key=(epoch, number)))
            for number, take in enumerate(takes)
        )


def _batch(
    bench: CacheBench, dataset: Dataset, shards: Sequence[Shard], seeds: Batch, *, key: tuple[int, int]
) -> dict[str, kernels.Compactor]:
    """The vertices of one batch by node type: every hop expands the new vertices of the hop before."""
    schema, book = dataset.schema, dataset.book
    known = {t: kernels.Compactor(schema.node_counts[t]) for t in schema.node_types}
    for t, ids in seeds.items():
        known[t].insert(ids)
    starts = dict.fromkeys(known, 0)
    for hop, fan_out in enumerate(bench.num_neighbors, start=1):
        stops = {t: c.size for t, c in known.items()}
        for edge_type in sorted(schema.edge_types):
            source, target = schema.endpoints(edge_type)
            rows, _ = kernels.split_by_owner(known[target].ids(starts[target], stops[target]), book.offsets[target])
            stream = stream_key(bench.seed, *key, hop, hash_string(edge_type))
            for shard, mine in zip(shards, rows, strict=True):
                if len(mine):
                    answer = shard.sample(edge_type, mine, fan_out=fan_out, replace=False, stream_key=stream)
                    known[source].insert(answer.neighbors)
        starts = stops
    return known


def _remote(dataset: Dataset, part: int, known: Mapping[str, kernels.Compactor]) -> dict[str, np.ndarray]:
    found = {}
    for t, compactor in known.items():
        lo, hi = dataset.book.range(t, part)
        ids = compactor.ids(0, compactor.size)
        remote = ids[(ids < lo) | (ids >= hi)]
        if len(remote) and _row_bytes(dataset, t):
            found[t] = remote
    return found


# ---- replay ----------------------------------------------------------------------------------------------------------


def _replay(
    bench: CacheBench,
    dataset: Dataset,
    part: int,
    *,
    epochs: Sequence[Sequence[Batch]],
    report: CacheReport,
    say: Callable[[str], None],
) -> None:
    small = with_small_rows(dataset)
    measured = [batch for epoch in epochs[1:] for batch in epoch]
    counts = _times_asked(dataset, measured)
    for share in bench.shares:
        say(f"part {part}: {share:g} % of the HALO vertices")
        room = {t: int(share / 100 * len(dataset.part(part).halo(t))) for t in counts}
        point = Point(
            rows=sum(room.values()),
            nbytes=sum(room[t] * _row_bytes(dataset, t) for t in room),
            asked=sum(int(c.sum()) for c in counts.values()),
            optimum=sum(int(c[: room[t]].sum()) for t, c in counts.items()),
            bound=sum(min(room[t], len(ids)) for batch in measured for t, ids in batch.items()),
            batches=len(measured),
        )
        for rank in bench.ranks:
            cache = RowCache.of(
                small, part, share=share / 100, limit_bytes=1 << 62, rank=rank, fan_outs=bench.num_neighbors
            )
            for batch in epochs[0]:
                pull(small, part, cache, batch)
            first_asked, first_hit = cache.rows_asked, cache.rows_hit
            for batch in measured:
                pull(small, part, cache, batch)
            point.hits[rank] = cache.rows_hit - first_hit
            point.first_epoch[rank] = first_hit / first_asked
        report.add(share, point)


def _times_asked(dataset: Dataset, batches: Sequence[Batch]) -> dict[str, np.ndarray]:
    """How many batches ask for each row, by node type, in descending order: int64 [vertices of the type]."""
    counts = {t: np.zeros(n, np.int64) for t, n in dataset.schema.node_counts.items() if _row_bytes(dataset, t)}
    for batch in batches:
        for t, ids in batch.items():
            counts[t][ids] += 1
    return {t: -np.sort(-c) for t, c in counts.items()}


def pull(dataset: Dataset, part: int, cache: RowCache, batch: Batch) -> None:
    """Pull the remote rows of a batch as the daemon of ``part`` does."""
    for node_type, ids in batch.items():
        grouped, positions, starts = kernels.group_by_owner(ids, dataset.book.offsets[node_type], part)
        tables = list(dataset.schema.node_tables[node_type])
        outs = [np.zeros((len(ids), 1), np.uint8) for _ in tables]
        found = cache.look_up(node_type, tables, grouped, positions, starts)
        if found is not None:
            cache.fill(node_type, tables, found.slots, found.positions, outs)
            cache.keep(node_type, tables, found.missing_slots, found.missing_positions, outs)


def with_small_rows(dataset: Dataset) -> Dataset:
    """The same dataset with one byte per row in place of its tables, because only hits count."""
    one = {"row": TableSpec("|u1")}
    tables = {t: one if _row_bytes(dataset, t) else {} for t in dataset.schema.node_types}
    small = copy.copy(dataset)
    small.schema = replace(dataset.schema, node_tables=tables, classes={})
    return small


def _row_bytes(dataset: Dataset, node_type: str) -> int:
    return sum(spec.row_bytes for spec in dataset.schema.node_tables[node_type].values())


@measured(CacheBench, run, "Draw hit rates against size.")
def cache_() -> None:
    """Hit rate of the cache of remote rows by size and policy, without daemons.

    Example: atta bench cache --data data/pl-2p --shares 1,5,20,100 --json cache.json --plot cache.png
    """
