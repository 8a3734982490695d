"""The short experiments on claims: bounds hold from the right side, and each has a row in the table of all claims."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from atta_bench import claims
from atta_bench.claims import CLAIMS, ROOT, Claim, shown

ONE = Claim("X1", "a claim", "2 x", 1.5, True, lambda work: 2.0)


@pytest.mark.parametrize(
    ("least", "figure", "reached"),
    [(True, 1.5, True), (True, 1.49, False), (False, 1.5, True), (False, 1.51, False), (True, float("nan"), False)],
)
def test_a_bound_holds_on_its_side(least: bool, figure: float, reached: bool) -> None:
    assert shown(replace(ONE, least=least), figure).reached is reached


def test_claims_are_those_of_the_table() -> None:
    table = (ROOT / "bench/results/claims.md").read_text()
    rows = re.findall(r"^\| (\w\d) \|", table, re.MULTILINE)
    short = [claim.id for claim in CLAIMS]
    assert sorted(set(short)) == sorted(short)
    assert set(short) <= set(rows)
    assert f"`make claims` repeats {', '.join(short[:-1])} and {short[-1]}" in table


def test_a_missed_bound_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = replace(ONE, id="X2", measure=lambda work: float(work.exists()))
    monkeypatch.setattr(claims, "CLAIMS", (ONE, missed))
    assert claims.main(["--only", "X1", "--strict"]) == 0
    assert claims.main(["--json", str(tmp_path / "f.json")]) == 0
    assert claims.main(["--only", "X2", "--strict"]) == 1
    out = capsys.readouterr().out
    assert "| X2 | a claim | 2 x | at least 1.5 | 1.0 | NO |" in out
    assert [one["reached"] for one in json.loads((tmp_path / "f.json").read_text())["claims"]] == [True, False]
    assert claims.main(["--list"]) == 0
    assert capsys.readouterr().out == "X1  a claim\nX2  a claim\n"
    with pytest.raises(SystemExit):
        claims.main(["--only", "Z9"])
