"""Write bench/results/NAME.md beside NAME.json, as ``atta bench`` wrote it.

    python bench/record.py bench/results/loader.json --command "atta bench loader ..."

The text below "## What it means" is written by people: it is kept when the file exists.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

MEANING = "## What it means"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("--command", required=True)
    arguments = parser.parse_args()
    record(arguments.json, arguments.command)


def record(source: Path, command: str) -> None:
    target = source.with_suffix(".md")
    old = target.read_text() if target.exists() else ""
    meaning = old.partition(MEANING)[2].strip() or "(to be written)"
    document = json.loads(source.read_text())
    target.write_text(f"{render(document, command, source)}\n{MEANING}\n\n{meaning}\n")


def render(document: dict[str, Any], command: str, source: Path) -> str:
    machine = document["machine"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    about = document.get("about")
    lines = [
        f"# {document.get('title') or 'atta bench ' + document['bench']}",
        "",
        f"Date: {document['started']}  ",
        f"Machine: {machine['cores']} cores, {machine['cpu']}, {memory}, GPU: {machine['gpu'] or 'none'}  ",
        f"Versions: {', '.join(f'{name} {number}' for name, number in document['versions'].items())}  ",
        f"Command: `{command}`  ",
        f"Runs: {document['runs']}, medians (minimum to maximum); all figures: [{source.name}]({source.name})",
        "",
        *([about, ""] if about else []),
        *tables(document, document.get("ours") or whose(document)),
        "",
        "| limit of the machine | measured in the same runs |",
        "|---|---|",
        *(f"| {name} | {value:,.4g} |" for name, value in document["limits"].items()),
        "",
    ]
    if (source.with_suffix(".png")).exists():
        lines += [f"![{document['bench']}]({source.stem}.png)", ""]
    return "\n".join(lines)


def whose(document: dict[str, Any]) -> str:
    """The system that ratios are about: the one that is compared with no other."""
    compared = {system for ratios in document["ratios"].values() for system in ratios}
    return next((system for system in document["results"] if system not in compared), "atta")


def tables(document: dict[str, Any], ours: str) -> list[str]:
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


def table(document: dict[str, Any], systems: dict[str, Any], figures: list[str], ours: str) -> list[str]:
    peers = [name for name in systems if name != ours]
    head = ["figure", *systems, *(f"{ours} / {peer}" for peer in peers)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in figures:
        cells = [cell(found.get(name)) for found in systems.values()]
        ratios, cost = document["ratios"].get(name, {}), name in document.get("costs", ())
        cells += [f"{ratios[peer]:.2f}{' times faster' * cost}" if peer in ratios else "" for peer in peers]
        lines.append(f"| {' | '.join([name.rpartition('/')[2], *cells])} |")
    return lines


def cell(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['median']:,.4g} ({found['min']:,.4g} to {found['max']:,.4g})"


if __name__ == "__main__":
    main()
