"""The report of ``atta bench cache``: hit rates by size and policy, beside what no policy can exceed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from atta.cli.figures import figure
from atta_bench.record import document, now

__all__ = ["CacheReport", "Point"]

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
