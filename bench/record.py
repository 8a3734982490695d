"""Writes the records in bench/results: NAME.json with all figures, and NAME.md for people.

    python -m bench.record bench/results/loader.json --command "atta bench loader ..."

writes NAME.md for a document of ``atta bench --json``. The scripts in this folder write both files through this module.
People write the text below "## What it means"; it is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from atta.observe.versions import machine, versions

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
        *(f"| {name} | {value:,.4g} |" for name, value in document["limits"].items()),
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
    return "" if found is None else f"{found['median']:,.4g} ({found['min']:,.4g} to {found['max']:,.4g})"


def main() -> None:
    """Write NAME.md beside NAME.json, as the module docstring says."""
    parser = argparse.ArgumentParser("python -m bench.record", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("json", type=Path)
    parser.add_argument("--command", required=True)
    arguments = parser.parse_args()
    document = json.loads(arguments.json.read_text())
    write_text(arguments.json.with_suffix(".md"), report_lines(document, arguments.command, arguments.json))


if __name__ == "__main__":
    main()
