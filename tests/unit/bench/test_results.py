"""The benchmark document, and ``atta bench kv`` without daemons: rounds, ratios within a round, peers that failed."""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from atta.errors import AttaError
from atta.partition import Dataset
from atta_bench.pieces import kv
from atta_bench.pieces.kv import KvBench
from atta_bench.pieces.kv_rows import GatherConfig, measure_gather
from atta_bench.results import BenchReport, _worded, summary

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


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("seeds_per_s", "seeds per s"),
        ("epoch_s", "epoch, s"),
        ("gather/bytes_per_s", "gather: bytes per s"),
        ("edge_cut", "edge cut"),
    ],
)
def test_an_axis_has_words_and_a_unit(figure: str, words: str) -> None:
    assert _worded(figure) == words


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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> KvBench:
    return KvBench(rows=700, dim=12, batch=100, repeats=2, runs=2, work=str(tmp_path_factory.mktemp("work")))


@pytest.fixture
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_table_is_made_once(small: KvBench) -> None:
    assert (KvBench(link="200mbit").capacity, KvBench().capacity) == (25e6, 0)
    folder = kv.prepare(small)
    made = (folder / "manifest.json").stat().st_mtime_ns
    dataset = Dataset.open(folder)
    table = dataset.part(0).table("node", "x")
    assert (dataset.num_parts, table.shape, table.dtype) == (1, (700, 12), np.float32)
    assert len(np.unique(table)) > 1000
    assert kv.prepare(small) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == made
    (folder / "manifest.json").write_text("{}")  # damaged, or of another version
    kv.prepare(small)
    np.testing.assert_array_equal(Dataset.open(folder).part(0).table("node", "x").shape, (700, 12))
    assert [entry.name for entry in folder.parent.iterdir() if "lock" not in entry.name] == [folder.name]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("one_thread")
def test_local_gathers_have_all_figures(small: KvBench, threads: int) -> None:
    found = measure_gather(GatherConfig(str(kv.prepare(small)), "atta", 100, threads, repeats=2, seed=1))
    assert set(found) == {"atta", "loop", "copy", "torch", "torch-out"} | ({"numpy"} if threads == 1 else set())
    for figures in found.values():
        assert figures["bytes_per_s"] > 0
        assert figures["bytes_per_s"] * figures["ns_per_row"] == pytest.approx(1e9 * 48)
    assert found["loop"]["rows_ahead"] in (4, 8, 16, 32, 64, 128)
    json.dumps(found, allow_nan=False)


@pytest.mark.usefixtures("one_thread")
def test_a_way_that_gathers_wrong_rows_is_found_out(small: KvBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.kvstore.store.Store.gather_to", lambda *_: None)
    with pytest.raises(AttaError, match="atta gathers wrong rows"):
        measure_gather(GatherConfig(str(kv.prepare(small)), "atta", 100, 1, repeats=1, seed=1))


class Measured:
    """Stands in for the measuring processes, and records the order in which they ran."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.broken = ""

    def ask(self, host: object, what: str, settings: str, threads: int) -> dict[str, dict[str, float]]:
        config = json.loads(settings)
        self.asked.append((config["system"], threads))
        if config["system"] == self.broken:
            raise AttaError("out of cheese")
        value = float(len(self.asked))
        if config["system"] == "dgl":
            return {"dgl": {"bytes_per_s": value}}
        return {"atta": {"bytes_per_s": 10 * value}, "loop": {"bytes_per_s": 20 * value, "rows_ahead": 8.0}}

    def served(self, bench: KvBench, dataset: Path, hosts: object, say: object) -> dict[str, dict[str, float]]:
        return kv.figures("pull", {"atta": {"bytes_per_s": 3.0}, "grpc": {"bytes_per_s": 4.0}})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    made = Measured()
    monkeypatch.setattr(kv, "_ask", made.ask)
    monkeypatch.setattr(kv, "_served", made.served)
    monkeypatch.setattr(kv, "_limits", lambda *_: {"tcp_bytes_per_s": 5.0})
    monkeypatch.setattr("atta_bench.results.missing", lambda _: [])
    return made


def peers(small: KvBench, **options: Any) -> KvBench:
    return KvBench(rows=700, dim=12, batch=100, work=small.work, runs=2, vs=("dgl",), **options)


def test_rounds_alternate_and_ratios_pair(small: KvBench, measured: Measured) -> None:
    said: list[str] = []
    document = kv.run(peers(small), said.append).to_json()
    forth = [("atta", 1), ("dgl", 1), ("atta", 2), ("dgl", 2)]
    assert measured.asked == forth + forth[::-1]
    assert said[1].startswith("round 1 of 2")
    assert document["runs"] == 2
    assert document["results"]["atta"]["gather/bytes_per_s"] == {"median": 45.0, "min": 10.0, "max": 80.0}
    sections = ("gather", "gather-2-threads", "pull")
    assert set(document["results"]["atta"]) == {f"{section}/bytes_per_s" for section in sections}
    assert document["ratios"]["gather/bytes_per_s"]["loop"] == 0.5
    assert document["ratios"]["gather/bytes_per_s"]["dgl"] == pytest.approx((10 / 2 + 80 / 7) / 2)
    assert document["ratios"]["pull/bytes_per_s"] == {"grpc": 0.75}
    assert document["limits"] == {"tcp_bytes_per_s": 5.0}
    assert document["config"]["row_bytes"] == 48
    json.dumps(document, allow_nan=False)


def test_a_broken_or_missing_peer_is_named_and_broken_atta_ends_it(
    small: KvBench, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured.broken = "dgl"
    report = kv.run(peers(small))
    assert report.to_json()["results"]["dgl"] == {"error": "out of cheese"}
    assert measured.asked.count(("dgl", 1)) == 1
    assert len(report.rounds["atta"]) == 2
    measured.asked.clear()
    monkeypatch.setattr("atta_bench.results.missing", lambda name: [name] if name == "dgl" else [])
    document = kv.run(peers(small)).to_json()
    assert document["results"]["dgl"] == {"error": "not installed: dgl: install atta[dgl]"}
    assert {system for system, _ in measured.asked} == {"atta"}
    measured.broken = "atta"
    with pytest.raises(AttaError, match="out of cheese"):
        kv.run(peers(small))


def test_sections_are_tables_of_their_own(small: KvBench, measured: Measured) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(kv.run(peers(small)).show())
    text = console.export_text()
    for title in ("kv gather: medians", "kv gather-2-threads: medians", "kv pull: medians"):
        assert title in text
    assert "grpc" not in text.partition("kv pull")[0]
