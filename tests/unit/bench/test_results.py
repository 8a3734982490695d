"""The benchmark document: summaries, pairing within a round, limits, peers that failed."""

from __future__ import annotations

import io
import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from atta_bench.results import BenchReport, summary

RATES = st.lists(st.floats(1.0, 1e9), min_size=1, max_size=9)


def shown(report: BenchReport) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.show())
    return console.export_text()


def report_of(ours: list[float], theirs: list[float]) -> BenchReport:
    report = BenchReport(
        "loader", {"batch_size": 8}, drawn="seeds_per_s", limit_of={"seeds_per_s": "gather_bytes_per_s"}
    )
    for a, b in zip(ours, theirs, strict=False):
        report.add("atta", {"seeds_per_s": a, "only_ours": 1.0})
        report.add("dgl", {"seeds_per_s": b, "only_theirs": 1.0})
        report.add_limits({"gather_bytes_per_s": 2 * a, "copy_bytes_per_s": 7.0})
    return report


@given(RATES)
def test_summary_against_statistics(values: list[float]) -> None:
    assert summary(values) == {"median": statistics.median(values), "min": min(values), "max": max(values)}


def test_document_has_what_the_command_line_promises() -> None:
    document = report_of([10.0, 30.0, 20.0], [5.0, 5.0, 5.0]).to_json()
    assert list(document) == [
        *("schema", "bench", "started", "machine", "versions"),
        *("ours", "costs", "config", "runs", "results", "limits", "ratios"),
    ]
    assert (document["schema"], document["bench"], document["runs"]) == (1, "loader", 3)
    assert set(document["machine"]) >= {"cpu", "cores", "memory_bytes", "gpu"}
    assert "atta" in document["versions"]
    assert document["config"] == {"batch_size": 8}
    assert document["results"]["atta"]["seeds_per_s"] == {"median": 20.0, "min": 10.0, "max": 30.0}
    assert document["ratios"]["seeds_per_s"] == {"dgl": 4.0, "limit": 0.5}
    assert document["limits"] == {"gather_bytes_per_s": 40.0, "copy_bytes_per_s": 7.0}
    json.dumps(document, allow_nan=False)


def test_ratios_pair_the_figures_of_a_round() -> None:
    # The machine becomes ten times slower in the middle: every round still gives 2.
    ratios = report_of([200.0, 20.0, 180.0], [100.0, 10.0, 90.0]).ratios()
    assert ratios["seeds_per_s"]["dgl"] == 2.0
    # A ratio of medians would hide that the rounds disagree. The median of ratios shows it.
    assert report_of([1.0, 2.0, 30.0], [3.0, 2.0, 1.0]).ratios()["seeds_per_s"]["dgl"] == 1.0
    assert report_of([8.0, 9.0, 1.0], [1.0, 2.0, 1.0]).ratios()["seeds_per_s"]["dgl"] == 4.5
    # Figures of one system only, or of zero, give no ratio.
    assert report_of([1.0], [0.0]).ratios() == {"seeds_per_s": {"limit": 0.5}}


def test_a_failed_peer_is_named_and_a_picture_is_drawn(tmp_path: Path) -> None:
    report = report_of([1.0, 2.0], [1.0])
    report.fail("dgl", "needs root")
    document = report.to_json()
    assert document["results"]["dgl"] == {"error": "needs root"}
    assert "dgl" not in document["ratios"]["seeds_per_s"]
    assert "dgl could not run: needs root" in shown(report)
    pytest.importorskip("matplotlib")
    report_of([1.0, 2.0], [3.0, 4.0]).plot(str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_figures_of_a_section_share_a_table() -> None:
    report = BenchReport("kv", {})
    report.add("atta", {"gather/ns_per_row": 1.0, "pull/bytes_per_s": 2.0})
    report.add("grpc", {"pull/bytes_per_s": 4.0})
    report.fail("dgl", "not installed")
    gather, pull = shown(report).split("kv pull: ")
    assert "kv gather: " in gather
    assert "ns_per_row" in gather
    assert "grpc" not in gather
    assert "(0.50x)" in pull
    assert "dgl could not run: not installed" in pull


def test_a_figure_that_a_round_lacks_is_left_out() -> None:
    report = BenchReport("strategies", {}, "ours", frozenset({"seconds"}))
    for ours, theirs in (
        ({"seconds": 1.0, "until": 3.0}, {"seconds": 2.0, "until": 6.0}),
        ({"seconds": 1.0}, {"seconds": 3.0}),
    ):
        report.add("ours", ours)
        report.add("theirs", theirs)
    document = report.to_json()
    assert [set(figures) for figures in document["results"].values()] == [{"seconds"}, {"seconds"}]
    assert document["ratios"] == {"seconds": {"theirs": 2.5}}
    report.show()
