"""bench/claims.py: the table of claims.md, the choice of measurements, and what documents say about bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import claims as script
from bench.record import RESULTS

CLAIMS = script.claims_of((RESULTS / "claims.md").read_text())


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def test_the_table_has_every_claim_and_every_measurement_a_row() -> None:
    counts = {"D": 4, "B": 3, "G": 4, "S": 4, "I": 4, "T": 4, "O": 5}
    assert list(CLAIMS) == [f"{letter}{number + 1}" for letter, count in counts.items() for number in range(count)]
    assert CLAIMS["O2"].paper == "1.9 times"
    names = [name for one in script.MEASUREMENTS for name in one.judges]
    assert set(names) <= set(CLAIMS)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "row", ["| D1 | too | few |", "| D1 | a | b | c | d | e | f |\n| D1 | a | b | c | d | e | f |"]
)
def test_damaged_tables_are_refused(row: str) -> None:
    with pytest.raises(ValueError, match="D1"):
        script.claims_of(row)


def test_judges_agree_with_what_the_record_says() -> None:
    documents = recorded("partition-workload")["results"]
    found = {name: judge(documents) for name, judge in script.MEASUREMENTS[0].judges.items()}
    assert all(one.reached for one in found.values())
    assert found["D1"].ours.startswith("remote rows 0.317 (sbm), 0.303 (powerlaw)")
    assert "splits at most 1.02" in found["B3"].ours
    assert "E1 sends 0.373 of CAGNET's" in script.payload({"stale-bytes": recorded("stale-bytes")}).ours


def test_figures_beyond_their_bound_reach_nothing() -> None:
    documents = recorded("partition-workload")["results"]
    for one in documents["powerlaw"]["methods"]:
        if one["method"] == "metis":
            one["balance"]["train"] = 1.031
        if one["method"] == "random":
            one["remote_rows"] /= 2
    assert not any(judge(documents).reached for judge in script.MEASUREMENTS[0].judges.values())
    bytes_ = recorded("stale-bytes")
    bytes_["results"][1]["sent"] += 1
    found = script.payload({"stale-bytes": bytes_})
    assert not found.reached
    assert "CAGNET, features kept" in found.ours


def test_a_choice_keeps_only_what_it_names() -> None:
    assert [(one.name, list(one.judges)) for one in script.chosen("O5,D2")] == [
        ("partition-workload", ["D2"]),
        ("value", ["O5"]),
    ]
    assert len(script.chosen(None)) == len(script.MEASUREMENTS)
    with pytest.raises(ValueError, match="X9 not repeated"):
        script.chosen("D1,X9")


def test_commands_are_run_by_this_python() -> None:
    assert script.words_of("atta partition {work}/a", "/w", "py", "bin/atta") == ["bin/atta", "partition", "/w/a"]
    assert script.words_of("pytest -q x.py", "/w", "py", "bin/atta") == ["py", "-m", "pytest", "-q", "x.py"]


def test_the_table_that_is_printed_has_the_order_of_the_claims() -> None:
    found = {"O5": script.Found("ours", True), "D1": script.Found("failed: x", False)}
    lines = script.table(found, CLAIMS)
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| D1", "| O5"]
    assert lines[2].endswith("| failed: x | **no** |")
    assert lines[3].endswith("| ours | yes |")


def test_a_failed_command_is_the_finding(tmp_path: Path) -> None:
    one = script.Measurement("none", (f"json.tool {tmp_path}/missing.json",), {"O5": script.tests_pass})
    found = script.measure(one)["O5"]
    assert not found.reached
    assert found.ours.startswith("failed: ")


def test_the_list_names_commands_and_an_unknown_id_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--list", "--only", "O5"]) == 0
    assert capsys.readouterr().out == "O5 (value)\n    pytest -q tests/unit/planning/test_value.py\n"
    with pytest.raises(SystemExit) as ended:
        script.main(["--only", "G1"])
    assert ended.value.code == 2
