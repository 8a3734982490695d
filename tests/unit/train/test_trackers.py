"""Loggers of other packages, by the packages themselves: what is written is read back by their readers, or from the bytes."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atta.errors import ConfigError
from atta.train import EpochReport, TrainConfig
from atta.train.reports.loggers import RunLog, check_logger, figures_of, make_logger, read_epochs
from tests.unit.train.test_reports import epochs, measured

SETTINGS = {"lr": 0.125, "model": "sage", "fanouts": (15, 10), "cluster": None, "checkpoint": "runs/a", "resume": False}
EPOCHS = [replace(e, loss=1 / (1 + e.epoch)) for e in measured("val_accuracy", [0.25, 0.5, None, 0.75, 0.5, 0.5])]
CHILD = """
import os, sys, time
from pathlib import Path
from tests.unit.train.test_trackers import EPOCHS, SETTINGS, RunLog, make_logger
log = RunLog([make_logger(f"{sys.argv[1]}:save_dir={sys.argv[2]}")], SETTINGS)
for epoch in EPOCHS[:3]:
    log.epoch(epoch)
time.sleep(1)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(params=["tensorboard", "wandb", "mlflow"])
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def log(kind: str, folder: Path, reports: Sequence[EpochReport], **settings: Any) -> None:
    with RunLog([make_logger(f"{kind}:save_dir={folder}")], {**SETTINGS, **settings}) as told:
        for report in reports:
            told.epoch(report)


def written(kind: str, folder: Path) -> list[tuple[dict[str, str], dict[str, list[tuple[int, float]]]]]:
    """Of each run its settings, and the points of its curves."""
    return [*{"tensorboard": of_tensorboard, "wandb": of_wandb, "mlflow": of_mlflow}[kind](folder)]


def of_tensorboard(folder: Path) -> Iterator[Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    found = EventAccumulator(str(folder)).Reload()
    tag = metadata.SESSION_START_INFO_TAG
    content = found.SummaryMetadata(tag).plugin_data.content
    params = metadata.parse_session_start_info_plugin_data(content).hparams
    settings = {name: str(getattr(value, value.WhichOneof("kind"))) for name, value in params.items()}
    yield settings, {t: [(e.step, e.value) for e in found.Scalars(t)] for t in found.Tags()["scalars"]}


def of_wandb(folder: Path) -> Iterator[Any]:
    """Runs by id: the folders of one that was resumed follow each other."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs: dict[str, Any] = {}
    for file in sorted(folder.glob("wandb/*run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime_ns):
        settings, curves = runs.setdefault(file.stem, ({}, {}))
        for data in records(file.read_bytes()):
            record = Record.FromString(data)
            settings.update((u.key, json.loads(u.value_json)) for u in record.run.config.update)
            row = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
            for name, value in row.items():
                curves.setdefault(name, []).append((row["_step"], value))
    yield from (({k: str(v) for k, v in settings.items()}, curves) for settings, curves in runs.values())


def records(data: bytes) -> Iterator[bytes]:
    """Of LevelDB's log, in blocks of 32 KiB; wandb's has 7 bytes before."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := -at % (1 << 15)) < 7 and left:
            at += left
            continue
        _, length, form = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if form in (1, 4):
            yield parts
            parts = b""


def of_mlflow(folder: Path) -> Iterator[Any]:
    for run in sorted(folder.glob("*/*/meta.yaml"), key=lambda meta: meta.read_text().partition("start_time")[2]):
        settings = {path.name: path.read_text() for path in (run.parent / "params").iterdir()}
        lines = {path.name: path.read_text().split("\n")[:-1] for path in (run.parent / "metrics").iterdir()}
        points = {name: [line.split() for line in of] for name, of in lines.items()}
        yield settings, {name: [(int(step), float(value)) for _, value, step in of] for name, of in points.items()}


def curve(reports: Sequence[EpochReport], name: str) -> list[tuple[int, float]]:
    known = [(report.epoch, figures_of(report)) for report in reports]
    return [(epoch, pytest.approx(figures[name], rel=1e-6)) for epoch, figures in known if name in figures]


def test_figures_and_settings_are_read_back(kind: str, tmp_path: Path) -> None:
    log(kind, tmp_path, EPOCHS)
    ((settings, curves),) = written(kind, tmp_path)
    for name in ("loss", "val_accuracy", "seconds_wait", "seeds_per_s"):
        assert curves[name] == curve(EPOCHS, name), name
    assert {name: settings[name] for name in ("model", "checkpoint")} == {"model": "sage", "checkpoint": "runs/a"}
    assert float(settings["lr"]) == 0.125
    assert "15" in settings["fanouts"]


def test_a_resumed_run_goes_on_without_duplicates(kind: str, tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        log(kind, tmp_path, [*EPOCHS[:4], replace(EPOCHS[4], breakdown=None)])  # type: ignore[arg-type]
    others = [] if kind == "tensorboard" else [curve(EPOCHS[:1], "loss")]  # its folder is of one run
    if others:
        log(kind, tmp_path, EPOCHS[:1], checkpoint="runs/b")
    log(kind, tmp_path, EPOCHS[2:], resume=True, epochs=20)
    assert [curves["loss"] for _, curves in written(kind, tmp_path)] == [curve(EPOCHS, "loss"), *others]
    log(kind, tmp_path, EPOCHS[:2], resume=False)  # a new run
    assert [curves["loss"] for _, curves in written(kind, tmp_path)][-1] == curve(EPOCHS[:2], "loss")


@pytest.mark.slow
def test_a_killed_run_leaves_its_epochs(kind: str, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD, kind, tmp_path], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-9, "")
    ((settings, curves),) = written(kind, tmp_path)
    assert settings["model"] == "sage"
    assert curves["loss"] == curve(EPOCHS[:3], "loss")
    log(kind, tmp_path, EPOCHS[2:], resume=True)
    assert [curves["loss"] for _, curves in written(kind, tmp_path)] == [curve(EPOCHS, "loss")]


@pytest.mark.parametrize(
    ("kind", "argument"), [("tensorboard", "project=x"), ("wandb", "deep=1"), ("mlflow", "mode=online")]
)
def test_a_missing_package_and_unknown_arguments_are_told(
    kind: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    TrainConfig(data="x", logger=(f"{kind}:save_dir=x",))  # names nothing that is missing
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, kind, None)
        with pytest.raises(ConfigError, match=rf"--logger {kind} needs {kind}: install atta\[{kind}\]"):
            check_logger(f"{kind}:save_dir=x")
    pytest.importorskip(kind)
    with pytest.raises(ConfigError, match=f"--logger {kind}: .*{argument.partition('=')[0]}"):
        check_logger(f"{kind}:save_dir=x,{argument}")


def test_epochs_so_far_are_those_whose_line_is_complete(tmp_path: Path) -> None:
    file, reports = tmp_path / "so-far.jsonl", epochs([0.5, None, 0.25])
    assert read_epochs(file) == []
    told = RunLog([], {}, file, reports[:1])
    assert read_epochs(file) == reports[:1]
    for report in reports[1:]:
        told.epoch(report)
    assert read_epochs(file) == reports
    file.write_bytes(file.read_bytes()[:-1])
    assert read_epochs(file) == reports[:2]
