"""The record of a chaos run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atta_bench.chaos import command as reliability


def document(seed: int, **changes: Any) -> dict[str, Any]:
    kill = {"kind": "kill", "target": "daemon-0", "in_use": True, "pause_s": 4.0, "serves_s": 3.0}
    return {
        "settings": {"seed": seed, "parts": 2, "replicas": 1, "consumers": 2, "folder": "FOLDER"},
        "command": f"atta chaos --seed {seed}", "load_average": [float(seed), 1.0, 1.0], "batches": 10, "steps": 4,
        "repeated_steps": 1, "starts": {"daemon-0": 2}, "errors": {"RemoteError": 1}, "violations": [], "lives": [],
        "faults": [
            {**kill, "after_serving_s": 0.5}, {**kill, "after_serving_s": 2.5}, {**kill, "in_use": False},
            {"kind": "stop", "target": "daemon-1", "in_use": True, "pause_s": 6.0},
        ], **changes,
    }  # fmt: skip


def test_several_runs_make_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (1, 2):
        (tmp_path / f"{seed}.json").write_text(json.dumps(document(seed)))
    words = ["reliability", "--out", str(tmp_path), "--name", "both", *(str(tmp_path / f"{n}.json") for n in (1, 2))]
    monkeypatch.setattr("sys.argv", words)
    reliability.main()
    text, found = (tmp_path / "both.md").read_text(), json.loads((tmp_path / "both.json").read_text())
    assert "`atta chaos --seed 1|2`" in text
    assert "Batches checked: 20. Steps of the trainer checked: 8, of which 2 again" in text
    assert "went on after: 2 RemoteError" in text
    assert "| kill, daemon in use | 4 | 4 | 4.0 | 4.0 | 4.0 |" in text
    assert "| stop, daemon in use | 2 | 0 | 6.0 | 6.0 | 6.0 |" in text
    assert "served again after 3.0 s (median; at most 3.0 s)" in text
    assert "| daemon in use | 4 | 2 | 1.5 | 2.5 | 2.5 |" in text
    assert found["settings"]["seed"] == [1, 2]
    assert "folder" not in found["settings"]
    assert len(found["faults"]) == 8


def test_with_replicas_nobody_waits_for_the_killed_daemon() -> None:
    one = document(1)
    one["settings"]["replicas"] = 2
    assert not any("Without a replica" in line for line in reliability.report(one))
