"""``bench/transport/bulk.py`` with tiny tables: every figure is there and every row is right. Times do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import AttaError
from atta_bench.transport import receivers

ROOT = Path(__file__).parents[2]
SMALL = ("--rows", "70000", "--dim", "7", "--batch", "5001", "--rounds", "2", "--seconds", "0.01")
FIGURES = {"bytes_per_s", "bytes_per_s_per_core", "server_cpu_s_per_gb", "client_cpu_s_per_gb"}
SIZES = ("0.0625-MiB", "0.25-MiB")
SYSTEMS = {"grpc-sync", "grpc-aio", "grpc-aio-shared", "flight", "tcp"}


def bulk(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.transport.bulk", *SMALL, "--out", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)


@pytest.mark.slow
def test_every_figure_is_there(tmp_path: Path) -> None:
    (tmp_path / "bulk.md").write_text("# old\n\n## What it means\n\nIt is said here.\n")
    done = bulk(tmp_path, "--chunk-mib", "0.0625,0.25", "--json", "-")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads((tmp_path / "bulk.json").read_text())
    assert json.loads(done.stdout) == document
    assert document["results"].keys() == SYSTEMS
    ran = {system: found for system, found in document["results"].items() if "error" not in found}
    assert SYSTEMS - ran.keys() <= {"flight"}
    for system, found in ran.items():
        assert found.keys() == {f"{size}/{name}" for size in SIZES for name in FIGURES}
        assert all(0 < value["min"] <= value["median"] <= value["max"] for value in found.values())
        assert document["verified_rows"][system] == 2 * 2 * 2 * 5001  # rounds, sizes, before and after measuring
    assert document["ratios"][f"{SIZES[0]}/bytes_per_s"].keys() == ran.keys() - {"grpc-aio"}
    text = (tmp_path / "bulk.md").read_text()
    assert "Command: `python -m bench.transport.bulk --rounds 2 --seconds 0.01 --chunk-mib 0.0625,0.25 " in text
    assert str(tmp_path) not in text
    assert "| grpc-aio / tcp |" in text
    assert text.endswith("## What it means\n\nIt is said here.\n")


def test_bad_sizes_are_named(tmp_path: Path) -> None:
    for size in ("64", "1,nan"):
        done = bulk(tmp_path, "--chunk-mib", size)
        assert done.returncode == 2
        assert f"--chunk-mib {size}: sizes above 0 and below 64" in done.stderr


def test_wrong_rows_are_noticed() -> None:
    target, ids = receivers.Target(4, 3), np.array([7, 1, 7, 70_000_000], dtype=np.int32)
    rows = receivers.table_rows(ids, 3)
    assert not np.array_equal(rows[0], rows[1])
    target.place(0, rows[:3].tobytes())
    target.wait()
    with pytest.raises(AttaError, match="1 of 4 rows are wrong, the first one at 3"):
        target.check(ids)
    target.place(3, rows[3:].tobytes())
    target.wait()
    assert target.check(ids) == 4
    with pytest.raises(AttaError, match="4 of 4 rows are wrong"):  # the tables are wiped after the comparison
        target.check(ids)
