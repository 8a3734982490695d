"""The report of benchmarks that run several systems: figures, limits of the machine, ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from atta.cli.figures import BAR_COLOUR, figure
from atta_bench.record import document, now

__all__ = ["BenchReport", "section_of", "summary"]

Figures = Mapping[str, float]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def section_of(figure: str) -> str:
    """The section of a figure: ``"gather"`` of ``"gather/bytes_per_s"``, ``""`` without a slash."""
    return figure.rpartition("/")[0]


def _always(rounds: Sequence[Figures]) -> set[str]:
    """Names of the figures that every round has. A round that missed a target, say, has no time to it."""
    return set.intersection(*(set(r) for r in rounds)) if rounds else set()


@dataclass
class BenchReport:
    """Collects the rounds of one benchmark.

    A system may lack figures that others have. Figures of different sections (see ``section_of``) are shown apart.

    Attributes:
        bench: name of the benchmark.
        config: its settings, for the document.
        ours: the system that ratios are about.
        costs: names of figures that are times. Their ratio is theirs / ours: how many times faster ours is.
        drawn: name of the figure that ``plot`` draws.
        rounds: system -> figures of each round.
        errors: system -> why it could not run.
        limit_rounds: limits of the machine in each round.
        limit_of: figure -> name of the limit that bounds it.
        started: when the benchmark began.
    """

    bench: str
    config: dict[str, Any]
    ours: str = "atta"
    costs: frozenset[str] = frozenset()
    drawn: str = ""
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    limit_rounds: list[Figures] = field(default_factory=list)
    limit_of: dict[str, str] = field(default_factory=dict)
    started: str = field(default_factory=now)

    def add(self, system: str, figures: Figures) -> None:
        """Add the figures of one system in its next round; round n of one system pairs with round n of another."""
        self.rounds.setdefault(system, []).append(figures)

    def add_limits(self, limits: Figures) -> None:
        """Add the limits of the machine, measured in one round."""
        self.limit_rounds.append(limits)

    @property
    def limits(self) -> dict[str, float]:
        """Medians of the limits over the rounds."""
        names = self.limit_rounds[0] if self.limit_rounds else {}
        return {name: statistics.median(r[name] for r in self.limit_rounds) for name in names}

    def fail(self, system: str, why: str) -> None:
        """Note why a system could not run. The report gives this cause, and drops the rounds that it had finished."""
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
        return document(
            self.bench,
            started=self.started,
            ours=self.ours,
            costs=sorted(self.costs),
            config=self.config,
            runs=max((len(r) for r in self.rounds.values()), default=0),
            results=results,
            limits=self.limits,
            ratios=self.ratios(),
        )

    def show(self) -> Group:
        """The same figures for people: medians, ratios of ours to each of the others, failures and limits."""
        failures = [Text(f"{system} could not run: {why}") for system, why in self.errors.items()]
        limits = ", ".join(f"{name} {value:,.4g}" for name, value in self.limits.items())
        sections = dict.fromkeys(section_of(n) for rounds in self.rounds.values() for n in rounds[0])
        return Group(*map(self._table, sections), *failures, Text(f"limits: {limits}" if limits else ""))

    def _table(self, section: str) -> Table:
        """The figures of a section, in columns by the systems that have any of them."""
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

    def plot(self, path: str) -> None:
        """Draw the figure ``drawn`` as bars, the systems that have it side by side, with the spread of the rounds."""
        shown = {s: [r[self.drawn] for r in rounds] for s, rounds in self.rounds.items() if self.drawn in rounds[0]}
        medians = [statistics.median(v) for v in shown.values()]
        below = [m - min(v) for m, v in zip(medians, shown.values(), strict=True)]
        above = [max(v) - m for m, v in zip(medians, shown.values(), strict=True)]
        with figure(path, (1.5 + 1.2 * len(shown), 3.2)) as axes:
            axes.bar(list(shown), medians, yerr=[below, above], capsize=4, color=BAR_COLOUR)
            axes.set_ylabel(self.drawn.replace("_", " "))
            axes.set_title(f"{self.bench} (median, min to max)")
