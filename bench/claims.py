"""``make claims``: repeats the short measurements of bench/results/claims.md and says which bounds still hold.

    python -m bench.claims --list
    python -m bench.claims --only D1,O3 --json claims.json

What the papers claim and what is asked are read from the table of bench/results/claims.md; figures are measured anew.
Claims that need hours, root or other machines are not repeated: their records have the commands. The exit status is 1
if a bound does not hold any more or a command failed, 2 for an id that is not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.record import RESULTS, ROOT

DEADLINE_S = 900.0
"""A command that takes longer has failed."""
_COLUMNS = ("id", "claim", "paper", "asked", "recorded", "reached", "record")
_GRAPHS = ("sbm", "powerlaw")
_METIS_ROWS, _METIS_TRAIN, _BLOCK_ROWS, _BLOCK_SPLITS = 0.47, 1.03, 0.5, 1.1
"""Bounds of D1, D2 and B3, as claims.md asks for them."""

Documents = Mapping[str, Any]
"""What the commands of a measurement wrote, by file name without its ending."""


@dataclass(frozen=True)
class Claim:
    """A row of claims.md."""

    id: str
    claim: str
    paper: str
    asked: str
    recorded: str
    reached: str
    record: str


@dataclass(frozen=True)
class Found:
    """What came out now. ``reached``: whether the bound holds; a failed command reaches nothing."""

    ours: str
    reached: bool


@dataclass(frozen=True)
class Measurement:
    """Commands, and what their documents say about some claims.

    Commands are words; the first is ``atta`` or a module of Python, and ``{work}`` is a temporary folder, where they
    write documents.
    """

    name: str
    commands: tuple[str, ...]
    judges: Mapping[str, Callable[[Documents], Found]]


# -- what documents say ------------------------------------------------------------------------------------------------


def _methods(documents: Documents, graph: str) -> dict[str, dict[str, Any]]:
    return {one["method"]: one for one in documents[graph]["methods"]}


def rows_of_random(documents: Documents, method: str) -> dict[str, float]:
    """Remote rows per batch with ``method``, divided by those with random parts, by graph."""
    found = {graph: _methods(documents, graph) for graph in _GRAPHS}
    return {graph: by[method]["remote_rows"] / by["random"]["remote_rows"] for graph, by in found.items()}


def _each(values: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.3g} ({name})" for name, value in values.items())


def metis_rows(documents: Documents) -> Found:
    ratios = rows_of_random(documents, "metis")
    return Found(f"remote rows {_each(ratios)} of random parts; time not measured", max(ratios.values()) <= _METIS_ROWS)


def metis_balance(documents: Documents) -> Found:
    values = {graph: float(_methods(documents, graph)["metis"]["balance"]["train"]) for graph in _GRAPHS}
    return Found(f"training vertices {_each(values)}; time not measured", max(values.values()) <= _METIS_TRAIN)


def block_rows(documents: Documents) -> Found:
    ratios = rows_of_random(documents, "block")
    balances = [_methods(documents, graph)["block"]["balance"] for graph in _GRAPHS]
    splits = max(float(balance[split]) for balance in balances for split in ("train", "val", "test"))
    holds = max(ratios.values()) <= _BLOCK_ROWS and splits <= _BLOCK_SPLITS
    return Found(f"remote rows {_each(ratios)} of random parts, splits at most {splits:.3g}", holds)


def payload(documents: Documents) -> Found:
    results = documents["stale-bytes"]["results"]
    wrong = [one["variant"] for one in results if one["sent"] != one["expected"]]
    if wrong or not results:
        return Found(f"not the formula's bytes: {', '.join(wrong) or 'no variants'}", False)
    sent = {one["variant"]: one["sent"] for one in results}
    ratio = sent["SANCUS E1"] / sent["CAGNET"]
    return Found(f"bytes of {len(results)} variants equal the formula; E1 sends {ratio:.3g} of CAGNET's", True)


def tests_pass(_: Documents) -> Found:
    """Tests that fail end their command with an error, so this is asked only after they passed."""
    return Found("its tests pass", True)


# -- measurements ------------------------------------------------------------------------------------------------------


def _compared(graph: str) -> tuple[str, str]:
    folder = f"{{work}}/few-{graph}"
    return (
        f"atta generate {graph} {folder} --nodes 100000 --edges 2000000 --features 16 --classes 20 --train 0.005 "
        "--val 0.0025 --test 0.0025",
        f"atta partition {folder} {folder}-4p --parts 4 --compare metis,block,random --num-neighbors 15,10 "
        f"--json {{work}}/{graph}.json",
    )


MEASUREMENTS = (
    Measurement(
        "partition-workload",
        tuple(command for graph in _GRAPHS for command in _compared(graph)),
        {"D1": metis_rows, "D2": metis_balance, "B3": block_rows},
    ),
    Measurement(
        "stale-bytes",
        ("bench.training.stale --data-root {work} --work {work}/stale --bytes --out {work}",),
        {"S1": payload},
    ),
    Measurement(
        "cache-memory",
        ("pytest -q tests/system/test_stale.py -k payload_and_copies_are_what_the_formulas_say",),
        {"S3": tests_pass},
    ),
    Measurement(
        "dying-workers",
        ("pytest -q tests/system/test_dorylus.py -m slow -k workers_that_are_killed_or_slow_change_no_bit",),
        {"O3": tests_pass},
    ),
    Measurement("value", ("pytest -q tests/unit/planning/test_value.py",), {"O5": tests_pass}),
)


# -- pure parts --------------------------------------------------------------------------------------------------------


def claims_of(text: str) -> dict[str, Claim]:
    """The rows of the table in claims.md, by id. Raises ValueError for a row with other columns, or an id used twice."""
    found: dict[str, Claim] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or cells[0] == "id" or set(cells[0]) <= set("-: "):
            continue
        if len(cells) != len(_COLUMNS) or cells[0] in found:
            raise ValueError(f"claims.md: a row that is not {len(_COLUMNS)} cells with an id of its own: {line}")
        found[cells[0]] = Claim(*cells)
    return found


def chosen(only: str | None, measurements: Sequence[Measurement] = MEASUREMENTS) -> list[Measurement]:
    """The measurements of the ids in ``only`` (commas between), or all, without judges of other ids.

    Raises ValueError for an id that is not repeated.
    """
    known = {name for one in measurements for name in one.judges}
    wanted = known if only is None else set(only.split(","))
    if unknown := sorted(wanted - known):
        raise ValueError(f"--only: {', '.join(unknown)} not repeated here; take some of {', '.join(sorted(known))}")
    kept = ({name: judge for name, judge in one.judges.items() if name in wanted} for one in measurements)
    return [
        Measurement(one.name, one.commands, judges) for one, judges in zip(measurements, kept, strict=True) if judges
    ]


def words_of(command: str, work: str, python: str, atta: str) -> list[str]:
    """What to execute for a command of a measurement."""
    first, *rest = [word.replace("{work}", work) for word in command.split()]
    return [atta, *rest] if first == "atta" else [python, "-m", first, *rest]


def table(found: Mapping[str, Found], claims: Mapping[str, Claim]) -> list[str]:
    """The lines of a table in Markdown, in the order of claims.md."""
    lines = ["| id | claim | paper | asked | ours | reached |", "|---|---|---|---|---|---|"]
    for name, claim in claims.items():
        if name in found:
            one = found[name]
            words = (name, claim.claim, claim.paper, claim.asked, one.ours, "yes" if one.reached else "**no**")
            lines.append(f"| {' | '.join(words)} |")
    return lines


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(one: Measurement) -> dict[str, Found]:
    """Run the commands one after the other; the first that fails is the finding of all claims."""
    atta = str(Path(sys.executable).parent / "atta")
    with tempfile.TemporaryDirectory(prefix="atta-claims-") as work:
        for command in one.commands:
            words = words_of(command, work, sys.executable, atta)
            try:
                ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            except subprocess.TimeoutExpired:
                return dict.fromkeys(one.judges, Found(f"no result after {DEADLINE_S:g} s: {command}", False))
            if ended.returncode:
                said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:]
                return dict.fromkeys(one.judges, Found(f"failed: {' '.join(said).replace('|', '/')}", False))
        documents = {file.stem: json.loads(file.read_text()) for file in Path(work).glob("*.json")}
    return {name: judge(documents) for name, judge in one.judges.items()}


def main(arguments: Iterable[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser("python -m bench.claims", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="say what would be repeated, and end")
    parser.add_argument("--only", metavar="IDS", help="claims to repeat, commas between [all that are short]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    given = parser.parse_args(None if arguments is None else list(arguments))
    claims = claims_of((RESULTS / "claims.md").read_text())
    try:
        measurements = chosen(given.only)
    except ValueError as error:
        parser.error(str(error))
    if given.list:
        for one in measurements:
            print(f"{', '.join(one.judges)} ({one.name})", *(f"    {command}" for command in one.commands), sep="\n")
        return 0
    found, seconds = {}, {}
    for one in measurements:
        print(f"== {', '.join(one.judges)}: {one.name}", file=sys.stderr, flush=True)
        start = time.perf_counter()
        found.update(measure(one))
        seconds[one.name] = time.perf_counter() - start
    print("\n".join(table(found, claims)))
    if given.json is not None:
        rows = [{**asdict(claims[name]), **asdict(one)} for name, one in found.items()]
        given.json.write_text(
            json.dumps({"schema": 1, "bench": "claims", "seconds": seconds, "claims": rows}, indent=1)
        )
    return 0 if all(one.reached for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
