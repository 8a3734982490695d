"""The examples run and their models learn. The small graphs have classes and links that a model can find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def learnt(script: str, folder: Path, epochs: int, says: str) -> float:
    """The figure of the test, in percent."""
    out = folder.parent / "out.json"
    words = f"--data {folder} --epochs {epochs} --work {folder.parent}/work --json {out}"
    assert says in run(script, *words.split(), cwd=folder.parent)
    (result,) = json.loads(out.read_text())["runs"]
    found: float = result["test"]
    return found


@pytest.mark.slow
def test_hetero_nodes(tmp_path: Path) -> None:
    """Papers of three classes, and authors without features who write within one class."""
    rng, papers, authors = np.random.default_rng(1), 240, 60
    y, folder = rng.integers(0, 3, papers), tmp_path / "bibliography"
    by = np.array([rng.choice(np.flatnonzero(np.arange(authors) % 3 == c)) for c in y.repeat(2)])
    folder.mkdir()
    np.savez(folder / "graph.npz", edge_index__paper__by__author=np.stack([np.arange(papers).repeat(2), by]))
    np.save(folder / "x__paper.npy", rng.standard_normal((papers, 8)).astype(np.float32))
    np.save(folder / "y.npy", y)
    order = rng.permutation(papers)
    for name, part in (("train", order[:120]), ("val", order[120:180]), ("test", order[180:])):
        np.save(folder / f"{name}_mask.npy", np.isin(np.arange(papers), part))
    meta = {"node_types": {"paper": papers, "author": authors}, "target_type": "paper"}
    (folder / "meta.json").write_text(json.dumps(meta))
    assert learnt("hetero_nodes.py", folder, 15, "bibliography:") > 80  # by chance a third; features alone say nothing


@pytest.mark.slow
def test_link_prediction(tmp_path: Path) -> None:
    rng, n, groups, folder = np.random.default_rng(2), 200, 5, tmp_path / "groups"
    folder.mkdir()
    group = np.arange(n) % groups
    src = rng.integers(0, n, 2000)
    dst = rng.integers(0, n // groups, 2000) * groups + group[src]
    np.savez(folder / "graph.npz", edge_index=np.stack([src, dst]))
    np.save(folder / "x.npy", (np.eye(groups)[group] + rng.standard_normal((n, groups))).astype(np.float32))
    assert learnt("link_prediction.py", folder, 10, "AUC") > 80  # by chance, half of the pairs are in the right order


@pytest.mark.slow
def test_draw_batch(tmp_path: Path) -> None:
    said = run("draw_batch.py", "--out", str(tmp_path / "batch.png"), "--seeds", "0,33", cwd=tmp_path)
    assert "batch.png: " in said
    assert (tmp_path / "batch.png").read_bytes().startswith(b"\x89PNG")
