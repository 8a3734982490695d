"""The report of benchmarks that run several systems, and the records in bench/results: NAME.json and NAME.md for people.

    python -m bench.results bench/results/loader.json --command "atta bench loader ..."

writes NAME.md for a document of ``atta bench --json``. Scripts write both files through this module. People write the
text below "## What it means"; it is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from atta.cli.figures import COLOURS, figure
from atta.errors import ConfigError
from atta.observe.packages import EXTRAS, machine, missing, versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
MEANING = "## What it means"
_UNRECORDED = ("help", "out", "json", "keep", "only")
"""Options that say where figures go, or which of them to measure anew."""


# -- the command -------------------------------------------------------------------------------------------------------


def parser_of(script: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a script, from its ``__file__`` and ``__doc__``; ``--out`` is the folder of its record."""
    module = ".".join(Path(script).resolve().relative_to(ROOT).with_suffix("").parts)
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m {module}", description=about, formatter_class=kind)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record [bench/results]")
    return parser


class Maybe(NamedTuple):
    """An option of this kind that need not be given."""

    kind: Callable[[str], Any]
    help: str | None = None


def arguments_of(script: str, about: str | None, **options: Any) -> argparse.Namespace:
    """The arguments of a script, from its ``__file__`` and ``__doc__``.

    Args:
        script, about: see ``parser_of``.
        options: by name the default, or a kind if it must be given, or ``Maybe``; or a pair of these and a text for people.
            An option whose default is False turns something on.

    Returns:
        Their values by name, ``out``, and ``typed``: what to type to measure the same again.
    """
    parser = parser_of(script, about)
    for name, given in options.items():
        default, text = given if type(given) is tuple else (given, None)
        how: dict[str, Any] = {"type": type(default), "default": default}
        if default is False:
            how = {"action": "store_true"}
        elif isinstance(default, type):
            how = {"type": default, "required": True}
        elif isinstance(default, Maybe):
            how, text = {"type": default.kind}, default.help
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **how)
    found = parser.parse_args()
    found.typed = command(parser, found)
    return found


def command(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> str:
    """What to type to measure the same again: the options that differ from their defaults, DIR for --data-root."""
    words = [parser.prog]
    for action in parser._actions:
        value = getattr(arguments, action.dest, None)
        if action.dest in _UNRECORDED or value == action.default:
            continue
        words.append(action.option_strings[0])
        if action.dest == "data_root":
            words.append("DIR")
        elif isinstance(value, list):
            words.append((" " if action.nargs else ",").join(map(str, value)))
        elif value is not True:
            words.append(str(value))
    return " ".join(words)


def commit_of(checkout: Path) -> str:
    """The commit that a checkout stands at, short."""
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=checkout, text=True).strip()


# -- the document ------------------------------------------------------------------------------------------------------


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def document(bench: str, *, started: str | None = None, **contents: Any) -> dict[str, Any]:
    """The JSON document of a benchmark: when it started (default: now), machine and versions, then ``contents``."""
    about = {"started": started or now(), "machine": machine(), "versions": versions()}
    return {"schema": 1, "bench": bench, **about, **contents}


# -- the files ---------------------------------------------------------------------------------------------------------


def write(target: Path, document: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Write ``document`` to ``target`` (NAME.json), and ``lines`` with the meaning that was there to NAME.md."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")
    write_text(target.with_suffix(".md"), lines)


def write_report(target: Path, document: Mapping[str, Any], typed: str) -> None:
    """Write the document of a ``BenchReport``, which the command ``typed`` has made, and its tables."""
    write(target, document, report_lines(document, typed, target))


def write_text(target: Path, lines: Iterable[str]) -> None:
    """Write NAME.md; the text below ``MEANING`` stays what it was."""
    meaning = target.read_text().partition(MEANING)[2].strip() if target.exists() else ""
    text = "\n".join(lines).rstrip()
    target.write_text(f"{text}\n\n{MEANING}\n\n{meaning or '(to be written)'}\n")


# -- the text ----------------------------------------------------------------------------------------------------------


def head(title: str, about: Mapping[str, Any], *more: str) -> list[str]:
    """The first lines of NAME.md: what ``about`` has of started, machine, versions and command, then ``more``."""
    lines = []
    if "started" in about:
        lines.append(f"Date: {about['started']}")
    if "machine" in about:
        where = about["machine"]
        memory = f"{where['memory_bytes'] / 2**30:.0f} GiB"
        lines.append(f"Machine: {where['cores']} cores, {where['cpu']}, {memory}, GPU: {where['gpu'] or 'none'}")
    if "versions" in about:
        lines.append(f"Versions: {', '.join(f'{name} {number}' for name, number in about['versions'].items())}")
    if "command" in about:
        lines.append(f"Command: `{about['command']}`")
    return [f"# {title}", "", "  \n".join([*lines, *more]), ""]


def report_lines(document: Mapping[str, Any], typed: str, source: Path) -> list[str]:
    """NAME.md for the document of a ``BenchReport``: title, ``about``, tables, limits, picture."""
    about = document.get("about")
    figures = f"medians (minimum to maximum); all figures: [{source.name}]({source.name})"
    title = document.get("title") or f"atta bench {document['bench']}"
    lines = [
        *head(title, {**document, "command": typed}, f"Runs: {document['runs']}, {figures}"),
        *([about, ""] if about else []),
        *tables(document, document.get("ours") or whose(document)),
        "",
        "| limit of the machine | measured in the same runs |",
        "|---|---|",
        *(f"| {name} | {figure_text(value)} |" for name, value in document["limits"].items()),
    ]
    if (source.with_suffix(".png")).exists():
        lines += ["", f"![{document['bench']}]({source.stem}.png)"]
    return lines


def whose(document: Mapping[str, Any]) -> str:
    """The system that ratios are about: the only one that is not compared with another."""
    compared = {system for ratios in document["ratios"].values() for system in ratios}
    return next((system for system in document["results"] if system not in compared), "atta")


def tables(document: Mapping[str, Any], ours: str) -> list[str]:
    """One table, or one for each section of figures with names like "gather/bytes_per_s"."""
    results = document["results"]
    systems = {name: figures for name, figures in results.items() if "error" not in figures}
    figures = dict.fromkeys(name for found in systems.values() for name in found)
    lines = []
    for section in dict.fromkeys(name.rpartition("/")[0] for name in figures):
        chosen = [name for name in figures if name.rpartition("/")[0] == section]
        having = {name: found for name, found in systems.items() if any(figure in found for figure in chosen)}
        lines += [*([f"**{section}**", ""] if section else []), *table(document, having, chosen, ours), ""]
    return [*lines, *(f"{name} could not run: {found['error']}" for name, found in results.items() if "error" in found)]


def table(document: Mapping[str, Any], systems: Mapping[str, Any], figures: list[str], ours: str) -> list[str]:
    peers = [name for name in systems if name != ours]
    lines = rows_of(["figure", *systems, *(f"{ours} / {peer}" for peer in peers)])
    for name in figures:
        cells = [cell(found.get(name)) for found in systems.values()]
        ratios, cost = document["ratios"].get(name, {}), name in document.get("costs", ())
        cells += [f"{ratios[peer]:.2f}{' times faster' * cost}" if peer in ratios else "" for peer in peers]
        lines += [row_of([name.rpartition("/")[2], *cells])]
    return lines


def rows_of(names: Iterable[str], *rows: Iterable[object]) -> list[str]:
    """A Markdown table: names of the columns, and rows."""
    first = row_of(names)
    return [first, "|---" * (first.count(" | ") + 1) + "|", *map(row_of, rows)]


def row_of(cells: Iterable[object]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def cell(found: Mapping[str, float] | None) -> str:
    """``MEDIAN (MIN to MAX)``; empty for None."""
    return "" if found is None else spread(list(found.values()))


def figure_text(value: float) -> str:
    """A figure with four digits at least, and without an exponent where it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread(values: Sequence[float], form: str = ",.4g") -> str:
    """``MEDIAN (MIN to MAX)``."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def yes_or_no(holds: bool) -> str:
    """Whether a bound holds, for a table."""
    return "yes" if holds else "**no**"


def main() -> None:
    """Write NAME.md beside NAME.json, as the module docstring says."""
    parser = argparse.ArgumentParser("python -m bench.results", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("json", type=Path)
    parser.add_argument("--command", required=True)
    arguments = parser.parse_args()
    document = json.loads(arguments.json.read_text())
    write_text(arguments.json.with_suffix(".md"), report_lines(document, arguments.command, arguments.json))


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


def _worded(figure: str) -> str:
    """The name of a figure for people: ``seeds_per_s`` is seeds per s, ``epoch_s`` is epoch, s."""
    rate = figure.endswith("_per_s") or not figure.endswith("_s")
    return (figure if rate else figure.removesuffix("_s") + ", s").replace("_", " ").replace("/", ": ")


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
        about: what is unusual about all systems, a sentence for people.
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
    about: str = ""
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

    def lacks(self, system: str, *packages: str) -> bool:
        """Whether some of the ``packages`` that a system needs are not installed; notes which, and the extras."""
        if lacking := missing(*packages):
            extras = sorted({f"atta[{EXTRAS[package]}]" for package in lacking if package in EXTRAS})
            install = f": install {' and '.join(extras)}" if extras else ""
            self.fail(system, f"not installed: {', '.join(lacking)}{install}")
        return bool(lacking)

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
        limits = ", ".join(f"{name} {figure_text(value)}" for name, value in self.limits.items())
        sections = dict.fromkeys(section_of(n) for rounds in self.rounds.values() for n in rounds[0])
        about = [Text(self.about)] if self.about else []
        return Group(*about, *map(self._table, sections), *failures, Text(f"limits: {limits}" if limits else ""))

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
                cells.append("" if value is None else figure_text(value) + (f"  ({ratio:.2f}x)" if ratio else ""))
            table.add_row(name.rpartition("/")[2], *cells)
        return table

    def plot(self, path: str) -> None:
        """Draw the figure ``drawn`` as bars, the systems that have it side by side: medians, and a dot for each round. Raises
        ConfigError: no system has it."""
        shown = {
            s: [r[self.drawn] for r in rounds] for s, rounds in self.rounds.items() if self.drawn in _always(rounds)
        }
        if not shown:
            raise ConfigError(f"--plot {path}: no system has {self.drawn} in every round")
        medians = [statistics.median(values) for values in shown.values()]
        with figure(path, (1.8 + 0.8 * len(shown), 3.6)) as axes:
            axes.bar(list(shown), medians, color=COLOURS[5], width=0.6)
            for place, (median, values) in enumerate(zip(medians, shown.values(), strict=True)):
                # At the foot: no round's dot is there.
                axes.annotate(figure_text(median), (place, 0), (0, 5), textcoords="offset points", ha="center")
                axes.plot([place] * len(values), values, linestyle="", marker="o", markersize=4, color=COLOURS[0])
            turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if max(map(len, shown)) > 8 else {}
            axes.set_xticks(range(len(shown)), list(shown), **turned)
            axes.grid(visible=False, axis="x")
            axes.yaxis.set_major_formatter("{x:,.10g}")
            axes.set_ylabel(_worded(self.drawn))
            axes.set_title(f"{self.bench}: medians of {max(map(len, shown.values()))} rounds", fontsize="medium")


if __name__ == "__main__":
    main()
