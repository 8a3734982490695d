"""Pictures: what they show is counted independently, and every label is in the file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.cli.figures import COLOURS
from atta.cli.main import cli
from atta.cli.pictures import (
    _draw_times,
    _idle,
    _phases,
    _shown,
    _under_way,
    draw_graph,
    draw_run,
    draw_runs,
    draw_timeline,
)
from atta.errors import ConfigError
from atta.observe.recording import BatchMark, Recording, ServedSpan, SessionMark, TaskSpan
from atta.observe.timeline import trace_events
from atta.partition.dataset import Dataset
from atta.partition.describe import degree_counts
from atta.partition.graph import Graph
from atta.train.reports.epochs import SERVER_PHASES, Watched
from tests.unit.train.test_reports import epochs, measured

mpl = pytest.importorskip("matplotlib")
SETTINGS = ["--nodes", "600", "--edges", "6000", "--features", "4", "--quiet"]


@pytest.fixture(autouse=True)
def texts_stay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SVG with words as they are, and no window system or state of pyplot."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with mpl.rc_context({"svg.fonttype": "none"}):
        yield


@pytest.fixture
def words(tmp_path: Path) -> Callable[..., str]:
    def drawn(draw: Callable[..., None], *about: Any) -> str:
        draw(str(tmp_path / "picture.svg"), *about)
        return "|".join(re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "picture.svg").read_text()))

    return drawn


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("cut")
    cli.main(["generate", "powerlaw", str(folder / "graph"), *SETTINGS], standalone_mode=False)
    done = ["partition", str(folder / "graph"), str(folder / "data"), "--parts", "3", "--quiet"]
    cli.main(done, standalone_mode=False)
    return folder / "graph", folder / "data"


def test_a_run_is_drawn_with_its_best_epoch_and_times(words: Callable[..., str]) -> None:
    run = measured("val_accuracy", [0.25, 0.75, None, 0.5])
    run[0] = replace(run[0], seconds=50.0)
    found = words(draw_run, run, Watched())
    for word in ("best epoch, 1", "validation", "training", "seconds", "epoch 0 took 50 s", "wait", "evaluation"):
        assert word in found
    assert "fetch" not in found, "daemons fetch while trainers wait"
    assert "mean loss" in words(draw_run, epochs([None]), Watched())
    assert "80 %" in words(draw_run, measured("val_accuracy", [0.25, 0.75, 1.0]), Watched())
    served = [replace(e, breakdown=dict.fromkeys(SERVER_PHASES, 0.1), eval_seconds=2.0) for e in run]
    assert "external" in words(draw_run, served, Watched("val_loss", rises=False))


def test_the_phases_of_an_epoch_add_up_to_it() -> None:
    for breakdown in ({"wait": 0.25, "sample": 9.0, "compute": 0.5, "copy": 0.001}, {"sample": 0.5, "sync": 0.25}, {}):
        run = [replace(e, seconds=1.0 + e.epoch, eval_seconds=0.5, breakdown=breakdown) for e in epochs([None] * 3)]
        layers = _phases(run)
        assert "copy" not in layers, "a thousandth is not to be seen"
        np.testing.assert_allclose(sum(layers.values()), [1.5, 2.5, 3.5])


def test_a_phase_has_the_same_colour_in_every_picture() -> None:
    colours = dict[str, set[Any]]()
    for breakdown in ({"wait": 0.25, "compute": 0.25}, {"compute": 0.5}, dict.fromkeys(SERVER_PHASES, 0.1)):
        axis = mpl.figure.Figure().subplots()
        _draw_times(axis, [replace(e, breakdown=breakdown) for e in epochs([None] * 2)])
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            colours.setdefault(name, set()).add(handle[0].get_facecolor())
    assert {*colours} == {*SERVER_PHASES, "wait", "other", "evaluation"}
    assert {len(found) for found in colours.values()} == {1}
    assert len(set.union(*colours.values())) == len(colours)


@pytest.mark.parametrize(("count", "bars"), [(1, 1), (2, 2), (60, 0)])
def test_the_bars_of_few_epochs_do_not_touch(count: int, bars: int) -> None:
    axis = mpl.figure.Figure().subplots()
    _draw_times(axis, [replace(e, epoch=n) for n, e in enumerate(epochs([None]) * count)])
    places = sorted({(bar.get_x(), bar.get_x() + bar.get_width()) for of in axis.containers for bar in of})
    assert len(places) == bars
    assert all(end < begin for (_, end), (begin, _) in pairwise(places))


def test_nine_groups_of_runs_are_told_apart(words: Callable[..., str], tmp_path: Path) -> None:
    run = measured("val_mae", [0.5, 0.25, None, 0.125])
    groups = {f"lr=0.{n}": [run, run[:2], epochs([None])] for n in range(9)}
    found = words(draw_runs, groups, Watched("val_mae", rises=False))
    assert all(name in found for name in groups)
    assert found.count("validation mae") == 2
    lines = re.findall(
        r'style="(fill: none; stroke[^"]*stroke-width: (?:4\.6|3\.2|1\.8)[^"]*)"',
        (tmp_path / "picture.svg").read_text(),
    )
    assert len(set(lines)) == 9, "colours and dashes differ"


@pytest.mark.parametrize("count", [2, 7])
def test_runs_with_the_same_curve_are_all_seen(count: int, tmp_path: Path) -> None:
    run = measured("val_mae", [0.5, 0.25, 0.125, 0.125])
    picture = tmp_path / "picture.png"
    draw_runs(str(picture), {f"lr=0.{n}": [run] for n in range(count)}, Watched("val_mae", rises=False))
    assert picture.read_bytes().startswith(b"\x89PNG")
    pixels = pytest.importorskip("matplotlib.image").imread(picture)[:500, 150:, :3]  # without legend and axes
    seen = {
        "#" + bytes(pixel).hex() for pixel in np.unique((pixels * 255).round().astype(np.uint8).reshape(-1, 3), axis=0)
    }
    assert set(COLOURS[:count]) <= seen


def test_axes_of_epochs_have_whole_numbers(words: Callable[..., str]) -> None:
    run, watched = measured("val_mae", [0.5, 0.25, 0.125]), Watched("val_mae", rises=False)
    for found in (words(draw_run, run, watched), words(draw_runs, {"a": [run], "b": [run]}, watched)):
        first, second, *_ = found.split("|epoch|")
        assert first == "0|1|2"
        assert second.endswith("|0|1|2")


def test_degrees_are_those_of_the_edges(cut: tuple[Path, Path], words: Callable[..., str]) -> None:
    graph = Graph.open(cut[0])
    into = np.zeros(600, np.int64)
    np.add.at(into, graph.edges("node__to__node").dst, 1)
    wanted = {"node": np.bincount(into)}
    for folder in cut:
        np.testing.assert_equal(degree_counts(folder), wanted)
    (first,), rest = degree_counts(cut[1], [0]).values(), degree_counts(cut[1], [1, 2])["node"]
    assert first.sum() == np.diff(Dataset.open(cut[1]).book.range("node", 0))
    assert first.sum() + rest.sum() == 600
    assert "in-degree" in words(draw_graph, {"kind": "graph"}, {"paper": np.array([1, 0, 3]), "nobody": np.array([0])})
    assert "1|2|5|10|20|in-degree" in words(draw_graph, {"kind": "graph"}, {"few": np.bincount([1, 3, 30])})
    assert "1|10|100|1,000|in-degree" in words(draw_graph, {"kind": "graph"}, {"many": np.bincount([1, 3, 2000])})


def test_inspect_draws_what_it_prints(
    cut: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.svg"), "--quiet"]
    cli.main(["inspect", str(cut[1]), *options], standalone_mode=False)
    assert capsys.readouterr() == ("", ""), "with --quiet nothing is said"
    cli.main(["inspect", str(cut[1]), "--json", *options[2:4]], standalone_mode=False)
    said = capsys.readouterr()
    assert said.err == f"wrote {tmp_path / 'p.svg'}\n"
    assert json.loads(said.out)["kind"] == "dataset"
    quality = json.loads((tmp_path / "r.json").read_text())["quality"]
    text = (tmp_path / "p.svg").read_text()
    assert f"edges cut: {quality['edge_cut']:.2%}" in text
    assert f"HALO vertices per own vertex: {quality['halo_ratio']:.3f}" in text
    for part in quality["parts"]:
        assert f">{part['cut_edges'] / part['edges']['node__to__node']:.2%}<" in text
    with pytest.raises(Exception, match="--plot: goes without --sample"):
        cli.main(["inspect", str(cut[1]), "--sample", "1", *options], standalone_mode=False)
    with pytest.raises(ConfigError, match="no such folder"):
        cli.main(["inspect", str(cut[1]), "--plot", str(tmp_path / "absent/p.png")], standalone_mode=False)


def test_what_is_under_way_is_counted() -> None:
    rng = np.random.default_rng(0)
    edges, start = np.linspace(1.0, 4.0, 31), rng.uniform(0, 4, 200)
    spans = np.stack([start, start + rng.exponential(0.3, 200)], 1)
    fine = np.linspace(1.0, 4.0, 30 * 1000, endpoint=False) + 5e-5
    at_once = ((spans[:, :1] <= fine) & (fine < spans[:, 1:])).sum(0)
    np.testing.assert_allclose(_under_way(spans, edges), at_once.reshape(30, 1000).mean(1), atol=0.05)
    assert not _under_way(np.zeros((0, 2)), edges).any()


def test_times_without_work_are_left_out() -> None:
    rng = np.random.default_rng(1)
    start = np.concatenate([rng.uniform(0, 4, 200), rng.uniform(50, 54, 200), rng.uniform(99, 100, 200)])
    spans = np.stack([start, start + rng.exponential(0.1, 600)], 1)
    at_work = ((spans[:, :1] <= (fine := np.arange(0, 103, 1e-3))) & (fine < spans[:, 1:])).any(0)
    idle = _idle(spans)
    np.testing.assert_allclose(np.diff(idle).sum(), (~at_work[: int(spans.max() * 1e3)]).sum() / 1e3, atol=0.5)
    assert len(idle) == 2
    shown = _shown(fine, idle)
    assert (np.diff(shown) >= -1e-9).all()  # in order
    np.testing.assert_allclose(np.ptp(shown[at_work]), at_work.sum() / 1e3, atol=0.5)
    assert not len(_idle(spans[:0]))
    assert not len(_idle(spans[:200]))


def test_a_timeline_has_a_row_for_each_daemon_and_begins_with_the_first_batch(words: Callable[..., str]) -> None:
    task = TaskSpan(7.5, 5.0, 5.0, "s", 0, 0, "feature", "f", "net", 1, 0, 1, 1.0, 1, 2, 3, 4, "done")
    marks = [
        BatchMark(5.0 + at, what, "s", n, n)
        for n in range(2)
        for at, what in enumerate(("launched", "ready", "taken", "sent"))
    ]
    entries = (ServedSpan(1.0, 0.5, "Pull", 7), SessionMark(5.0, "opened", "s", "j", 1, 9), *marks, task)
    recordings = [Recording(part, f"10.0.0.{part}:7000", 8.0, 0, 99, False, entries) for part in range(3)]
    found = words(draw_timeline, trace_events(recordings))
    for recording in recordings:
        assert f"part {recording.part} at {recording.address}" in found
    assert "seconds since the first batch" in found
    assert found.count("batches, up to 2 at once") == found.count("network, up to 1 at once") == 3
    assert "served" not in found, "a lane in which nothing was is not shown"
    assert "batches that wait" in found
    assert "s left out" not in found
    with pytest.raises(ConfigError, match="nothing was under way, so nothing to draw: trace while a run trains"):
        words(draw_timeline, trace_events([replace(recordings[0], entries=())]))
    late = [mark._replace(at=mark.at + 60.0, batch=mark.batch + 2, dag=mark.dag + 2) for mark in marks]
    parted = words(draw_timeline, trace_events([replace(recordings[0], now=70.0, entries=(*entries, *late))]))
    assert "57 s left out" in parted
