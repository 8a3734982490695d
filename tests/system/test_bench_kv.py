"""The whole ``atta bench kv`` with tiny tables: every figure is there. No time is checked."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

SMALL = ("--rows", "3000", "--dim", "20", "--batch", "600", "--repeats", "2")
ATTA = (sys.executable, "-m", "atta.cli.main", "bench", "kv", *SMALL)
TABLES = [
    f"tables/{op}_{what}" for op in ("read", "write", "add", "sgd", "adagrad", "adam") for what in ("rows", "bytes")
]


def bench(folder: Path, *options: str) -> dict[str, Any]:
    target = folder / "kv.json"
    command = [*ATTA, "--work", str(folder), "--json", str(target), "--quiet", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(target.read_text())
    return document


def check(document: dict[str, Any]) -> None:
    """Figures are positive. With a single run, ratios are plain quotients."""
    results = {name: found for name, found in document["results"].items() if "error" not in found}
    for found in results.values():
        for name, value in found.items():
            assert value["min"] == value["median"] == value["max"]
            assert value["median"] > 0 or name.endswith("/streaming")
    assert all(value > 0 for value in document["limits"].values())
    for figure, by_system in document["ratios"].items():
        for system, ratio in by_system.items():
            if system != "limit":
                quotient = results["atta"][figure]["median"] / results[system][figure]["median"]
                assert ratio == pytest.approx(quotient)


@pytest.mark.slow
def test_every_figure_is_there(tmp_path: Path) -> None:
    document = bench(tmp_path, "--runs", "1", "--vs", "dgl")
    check(document)
    results, ratios = document["results"], document["ratios"]
    for section in ("gather", "gather-2-threads"):
        assert {"loop", "copy"} <= ratios[f"{section}/bytes_per_s"].keys()
    for figure in ("bytes_per_s", "client_cpu_s_per_gb", "server_cpu_s_per_gb"):
        assert ratios[f"pull/{figure}"].keys() == {"grpc", "grpc-small"}
    for figure in ("rows_per_s", "bytes_per_s", "cpu_s_per_gb"):
        assert ratios[f"reads/{figure}"].keys() == {"messages", "loop", "copy"}
    for name in TABLES:
        assert "local" in ratios[f"{name}_per_s"]
    if importlib.util.find_spec("torch"):
        assert {"torch", "torch-out"} <= ratios["gather/bytes_per_s"].keys()
        assert all("torch" in ratios[f"{name}_per_s"] for name in TABLES)
    if importlib.util.find_spec("dgl") is None:
        assert results["dgl"] == {"error": "not installed: dgl: install atta[dgl]"}
    assert set(document["limits"]) == {"tcp_bytes_per_s", "grpc_bytes_per_s"}


@pytest.mark.netns
@pytest.mark.slow
def test_over_a_shaped_link(tmp_path: Path) -> None:
    document = bench(tmp_path, "--runs", "1", "--threads", "1", "--link", "400mbit")
    check(document)
    for system in ("atta", "grpc", "grpc-small"):
        found = document["results"][system]
        assert found["link/capacity_share"]["median"] == pytest.approx(found["link/bytes_per_s"]["median"] / 50e6)
    assert document["limits"]["link_capacity_bytes_per_s"] == 50e6
    assert document["ratios"]["link/bytes_per_s"].keys() == {"grpc", "grpc-small", "limit"}


def test_bad_options_are_named(tmp_path: Path) -> None:
    done = subprocess.run([*ATTA, "--batch", "3001"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "--batch 3001: rows are distinct, and there are 3000" in done.stderr


@pytest.mark.slow
def test_interrupted_it_leaves_no_process_behind(tmp_path: Path) -> None:
    running = subprocess.Popen([*ATTA, "--work", str(tmp_path), "--runs", "50"], stderr=subprocess.PIPE, text=True)
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 120
    try:
        # the byte stream's two ends, and a daemon
        while len([p for p in family if "atta_bench.pieces.kv_rows" in " ".join(_words(p))]) < 2:
            assert time.monotonic() < deadline
            assert running.poll() is None
            family = psutil.Process(running.pid).children(recursive=True)
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, said
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    assert [p for p in psutil.process_iter() if str(tmp_path) in " ".join(_words(p))] == []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
