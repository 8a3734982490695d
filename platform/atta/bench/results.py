"""What every benchmark writes: results by system, limits measured in the same run, ratios of figures paired within the run."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from atta.bench.partition.compare import save_figure
from atta.observe.versions import machine, versions

__all__ = ["BenchReport", "section_of", "summary"]

Figures = Mapping[str, float]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def section_of(figure: str) -> str:
    """What stands before the slash of ``"gather/bytes_per_s"``: figures of a section share a table; "" without one."""
    return figure.rpartition("/")[0]


def _always(rounds: Sequence[Figures]) -> set[str]:
    """Figures of every round: a time to a target, say, is none when a round has not reached it."""
    return set.intersection(*(set(r) for r in rounds)) if rounds else set()


@dataclass
class BenchReport:
    """Collects the rounds of one benchmark; ``ours`` is the system that ratios are about.

    Not every system needs to have every figure. Figures of different sections (see ``section_of``) are shown apart.

    Attributes:
        costs: times, whose ratio is theirs / ours: how many times faster ours is.
    """

    bench: str
    config: dict[str, Any]
    ours: str = "atta"
    costs: frozenset[str] = frozenset()
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    limit_rounds: list[Figures] = field(default_factory=list)
    limit_of: dict[str, str] = field(default_factory=dict)
    """Which limit bounds which figure: figure -> name of the limit."""
    started: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    def add(self, system: str, figures: Figures) -> None:
        """One system's figures of one round; round n of one system pairs with round n of another."""
        self.rounds.setdefault(system, []).append(figures)

    def add_limits(self, limits: Figures) -> None:
        """The machine's limits, measured in one round."""
        self.limit_rounds.append(limits)

    @property
    def limits(self) -> dict[str, float]:
        """Medians of the limits over the rounds."""
        names = self.limit_rounds[0] if self.limit_rounds else {}
        return {name: statistics.median(r[name] for r in self.limit_rounds) for name in names}

    def fail(self, system: str, why: str) -> None:
        """A system that could not be run: named with its cause, never silently missing (and never with half its rounds)."""
        self.errors[system] = why
        self.rounds.pop(system, None)

    def ratios(self) -> dict[str, dict[str, float]]:
        """Figure -> other system (or "limit") -> median over rounds of ours / theirs, of costs theirs / ours."""
        ours = self.rounds.get(self.ours, [])
        found: dict[str, dict[str, float]] = {}
        for system, rounds in self.rounds.items():
            if system == self.ours or not ours:
                continue
            for name in _always(ours) & _always(rounds):
                both = zip(ours, rounds, strict=False) if name not in self.costs else zip(rounds, ours, strict=False)
                pairs = [a[name] / b[name] for a, b in both if b[name]]
                if pairs:
                    found.setdefault(name, {})[system] = statistics.median(pairs)
        for name, limit in self.limit_of.items():
            pairs = [a[name] / b[limit] for a, b in zip(ours, self.limit_rounds, strict=False) if b.get(limit)]
            if pairs:
                found.setdefault(name, {})["limit"] = statistics.median(pairs)
        return found

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""
        results: dict[str, Any] = {
            system: {name: summary([r[name] for r in rounds]) for name in rounds[0] if name in _always(rounds)}
            for system, rounds in self.rounds.items()
        }
        results |= {system: {"error": why} for system, why in self.errors.items()}
        return {
            "schema": 1,
            "bench": self.bench,
            "ours": self.ours,
            "costs": sorted(self.costs),
            "started": self.started,
            "machine": machine(),
            "versions": versions(),
            "config": self.config,
            "runs": max((len(r) for r in self.rounds.values()), default=0),
            "results": results,
            "limits": self.limits,
            "ratios": self.ratios(),
        }

    def show(self) -> Group:
        """The same figures for people: medians, how many times ours is the others', failures and limits."""
        failures = [Text(f"{system} could not run: {why}") for system, why in self.errors.items()]
        limits = ", ".join(f"{name} {value:,.4g}" for name, value in self.limits.items())
        sections = dict.fromkeys(section_of(n) for rounds in self.rounds.values() for n in rounds[0])
        return Group(*map(self._table, sections), *failures, Text(f"limits: {limits}" if limits else ""))

    def _table(self, section: str) -> Table:
        """The figures of a section, and the systems that have any of them."""
        count = max((len(r) for r in self.rounds.values()), default=0)
        title = " ".join(filter(None, (self.bench, section)))
        table = Table(title=f"{title}: medians of {count} rounds")
        names = dict.fromkeys(n for rounds in self.rounds.values() for n in rounds[0] if section_of(n) == section)
        systems = [s for s, rounds in self.rounds.items() if names.keys() & rounds[0].keys()]
        systems += [] if section else [*self.errors]
        table.add_column("")
        for system in systems:
            table.add_column(system, justify="right")
        ratios = self.ratios()
        for name in names:
            cells = []
            for system in systems:
                rounds = self.rounds.get(system, [])
                value = statistics.median(r[name] for r in rounds) if name in _always(rounds) else None
                ratio = ratios.get(name, {}).get(system)
                cells.append("" if value is None else f"{value:,.4g}" + (f"  ({ratio:.2f}x)" if ratio else ""))
            table.add_row(name.rpartition("/")[2], *cells)
        return table

    def plot(self, path: str, figure: str) -> None:
        """Draw one figure as bars, systems side by side, with the spread of the rounds."""
        from atta.errors import ConfigError

        try:
            import matplotlib as mpl

            mpl.use("Agg")
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ConfigError("--plot needs matplotlib: install atta[bench]") from error
        shown = {s: [r[figure] for r in rounds] for s, rounds in self.rounds.items() if figure in rounds[0]}
        medians = [statistics.median(v) for v in shown.values()]
        spread = [
            [m - min(v) for m, v in zip(medians, shown.values(), strict=True)],
            [max(v) - m for m, v in zip(medians, shown.values(), strict=True)],
        ]
        canvas, axes = plt.subplots(figsize=(1.5 + 1.2 * len(shown), 3.2), layout="constrained")
        axes.bar(list(shown), medians, yerr=spread, capsize=4, color="#4c78a8")
        axes.set_ylabel(figure.replace("_", " "))
        axes.set_title(f"{self.bench} (median, min to max)")
        save_figure(canvas, path)
        plt.close(canvas)
