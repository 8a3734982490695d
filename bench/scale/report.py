"""The report of ``atta bench scale``: quotients between systems, increase over the numbers of partitions, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from atta.cli.figures import figure
from atta_bench.results import BenchReport, summary
from atta_bench.scale.cell import Figures
from atta_bench.scale.clocks import CODE

FIRST_BATCHES = "first batches"
_PROCESSES = ("daemon_user", "daemon_system", "consumer_user", "consumer_system")
_COSTS = ("_us_per_seed", "_ms_per_batch", "make_ms")
_SHOWN = ("cpu_us_per_seed", "cpu_ms_per_batch", "seeds_per_s", "seeds_per_s_over_dgl", "cpu_share_of_before")

SystemRound = dict[tuple[int, int | None], Figures]
"""What one system found in one round: (parts, batch size) -> figures; the size None stands for the first batches."""


def key_of(name: str, parts: int, size: int | None) -> str:
    """The name in the report of a figure at one number of partitions and one size of batches.

    A main figure has a section of its own with a row for every number of partitions. The figures of a section stay
    together.

    >>> key_of("cpu_us_per_seed", 8, 1024), key_of("code/kernel_us_per_seed", 8, 1024)
    ('cpu_us_per_seed, 1024 seeds/8 parts', '8 parts, 1024 seeds/code/kernel_us_per_seed')
    """
    place, batches = f"{parts} part{'s' * (parts > 1)}", FIRST_BATCHES if size is None else f"{size} seeds"
    return f"{place}, {batches}/{name}" if "/" in name else f"{name}, {batches}/{place}"


def is_cost(key: str) -> bool:
    """Whether less is better, by the figure's name in the report."""
    return key.partition(",")[0].endswith(_COSTS) or key.endswith(_COSTS)


def quotients(found: Mapping[str, SystemRound]) -> None:
    """Add to the figures of a round what one system is beside another one in the same round.

    ``seeds_per_s_over_dgl`` is how many times the rate of DistDGL a system reaches. ``cpu_share_of_before`` is which
    share of the processor time of the other checkout, with the same cache, this one needs.
    """
    for system, cells in found.items():
        other = found.get(system.replace("atta", "before", 1), {})
        dgl = found.get("dgl", {})
        for key, figures in cells.items():
            if system != "dgl" and "seeds_per_s" in dgl.get(key, {}):
                figures["seeds_per_s_over_dgl"] = figures["seeds_per_s"] / dgl[key]["seeds_per_s"]
            if other is not cells and "cpu_us_per_seed" in other.get(key, {}):
                figures["cpu_share_of_before"] = figures["cpu_us_per_seed"] / other[key]["cpu_us_per_seed"]


def increase(cells: SystemRound) -> Figures:
    """How much more processor time a seed takes with more partitions than with two (or the fewest), by size."""
    found: Figures = {}
    costs = {key: figures["cpu_us_per_seed"] for key, figures in cells.items() if "cpu_us_per_seed" in figures}
    everything = sorted({parts for parts, _ in costs})
    if not everything:
        return found
    base = 2 if 2 in everything else everything[0]
    for (parts, size), cost in sorted(costs.items(), key=lambda item: (-(item[0][1] or 0), item[0][0])):
        if parts != base and (base, size) in costs:
            found[f"{size} seeds, {parts} over {base} parts"] = cost / costs[base, size]
    return found


def flat(cells: SystemRound) -> Figures:
    """All figures of a system in a round by ``key_of``, main figures and increase first."""
    found = {key_of(name, *key): value for key, figures in cells.items() for name, value in figures.items()}
    main = {name: value for name, value in found.items() if name.count("/") == 1}
    return main | {f"increase/{name}": value for name, value in increase(cells).items()} | found


@dataclass
class ScaleReport(BenchReport):
    """The report, with tables and pictures over the numbers of partitions.

    Attributes:
        parts: numbers of partitions.
        batch_sizes: seeds per batch.
        notes: what people should know about this run.
    """

    parts: Sequence[int] = ()
    batch_sizes: Sequence[int] = ()
    notes: Sequence[str] = ()

    def add_round(self, found: Mapping[str, SystemRound]) -> None:
        """Add the figures of all systems in one round."""
        quotients(found)
        for system, cells in found.items():
            if system not in self.errors:
                self.add(system, flat(cells))
        names = (name for rounds in self.rounds.values() for figures in rounds for name in figures)
        self.costs = frozenset(name for name in names if is_cost(name))

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""
        return {**super().to_json(), **({"about": "  \n".join(self.notes)} if self.notes else {})}

    def series(self, name: str, size: int | None) -> dict[str, dict[int, dict[str, float]]]:
        """System -> number of partitions -> median, minimum and maximum over the rounds of the figure ``name``."""
        found: dict[str, dict[int, dict[str, float]]] = {}
        for system, rounds in self.rounds.items():
            for parts in self.parts:
                values = [r[key] for r in rounds if (key := key_of(name, parts, size)) in r]
                if values:
                    found.setdefault(system, {})[parts] = summary(values)
        return found

    def show(self) -> Group:
        """The main figures for people; the document has all of them."""
        shown = [
            *(self._by_parts(f"{name}, {size} seeds", name, size) for size in self.batch_sizes for name in _SHOWN),
            *(self._by_parts(f"{FIRST_BATCHES}: {name}", name, None) for name in ("first_10_share", "first_50_share")),
        ]
        failures = [Text(f"{system} could not run: {why}") for system, why in self.errors.items()]
        return Group(*(table for table in shown if table.row_count), *failures, *map(Text, self.notes))

    def _by_parts(self, title: str, name: str, size: int | None) -> Table:
        table = Table()
        table.add_column(title)
        for parts in self.parts:
            table.add_column(f"{parts} parts", justify="right")
        for system, found in self.series(name, size).items():
            cells = [f"{found[p]['median']:,.4g}" if p in found else "" for p in self.parts]
            table.add_row(system, *cells)
        return table

    def layers(self, system: str, size: int) -> tuple[tuple[str, list[float]], ...]:
        """Medians of µs per seed by number of partitions, divided by kind of code, or without samples by process."""
        by_code = [(kind, [f"code/{group}_{kind}" for group in ("daemon", "consumer")]) for kind in CODE]
        by_process = [(name, [f"processes/{name}"]) for name in _PROCESSES]
        for division in (by_code, by_process):
            layers = []
            for label, names in division:
                found = [self.series(f"{name}_us_per_seed", size).get(system, {}) for name in names]
                layers.append((label, [sum(f[p]["median"] for f in found if p in f) for p in self.parts]))
            if any(any(heights) for _, heights in layers):
                return tuple(layers)
        return ()

    def plot(self, path: str) -> None:
        """Draw µs of processor time per seed over the number of partitions, and what the time without cache is for."""
        count = len(self.batch_sizes)
        with figure(path, (4.2 * 2 * count, 3.6), 2 * count) as axes:
            for number, size in enumerate(self.batch_sizes):
                self._draw_costs(axes[2 * number], size)
                self._draw_layers(axes[2 * number + 1], size)

    def _draw_costs(self, axes: Any, size: int) -> None:
        for system, found in self.series("cpu_us_per_seed", size).items():
            medians = [s["median"] for s in found.values()]
            below = [s["median"] - s["min"] for s in found.values()]
            above = [s["max"] - s["median"] for s in found.values()]
            axes.errorbar(list(found), medians, yerr=[below, above], capsize=3, marker="o", label=system)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(self.parts), [str(p) for p in self.parts])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("partitions")
        axes.set_ylabel("processor time per seed, µs")
        axes.set_title(f"batches of {size:,} seeds")
        axes.legend(fontsize="small")

    def _draw_layers(self, axes: Any, size: int) -> None:
        system = next((s for s in ("atta-uncached", "atta") if self.layers(s, size)), "")
        places, bottom = range(len(self.parts)), [0.0] * len(self.parts)
        for label, heights in self.layers(system, size):
            axes.bar(places, heights, bottom=bottom, label=label)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        axes.set_xticks(list(places), [str(p) for p in self.parts])
        axes.set_xlabel("partitions")
        axes.set_title(f"{system}, {size:,} seeds")
        if system:
            axes.legend(fontsize="small")
