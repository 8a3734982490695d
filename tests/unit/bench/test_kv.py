"""``atta bench kv`` without daemons: settings, the generated table, the local gather, and the report of rounds."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from atta.errors import AttaError
from atta.partition import Dataset
from atta_bench.pieces import kv
from atta_bench.pieces.kv import KvBench
from atta_bench.pieces.kv_rows import GatherConfig, measure_gather


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
    assert found["loop"]["rows_ahead"] in (4, 8, 16, 32)
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
    monkeypatch.setattr(kv, "missing", lambda _: [])
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
    monkeypatch.setattr(kv, "missing", lambda name: [name] if name == "dgl" else [])
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
