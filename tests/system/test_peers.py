"""The run of peers' test files over Atta: what it calls passed, different, at fault or apart, and where reasons stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dgl")
pytest.importorskip("torch_geometric")

from tests.peers.outcomes import known_differences

ROOT = Path(__file__).parents[2]
CASES = """
import pytest, torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.testing import withPackage

DATA = Data(x=torch.arange(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))

@withPackage("pyg_lib")
def test_over_atta():
    with pytest.raises(ValueError, match="words of PyG"):
        NeighborLoader(DATA, [-1], batch_size=0)
    loader = NeighborLoader(DATA, [-1], batch_size=2, transform=lambda batch: batch.x.tolist())
    assert list(loader) == [[0, 1], [2, 3, 1]] and loader([3]) == [3, 2]

@withPackage("pyg_lib")
def test_wrong():
    assert next(iter(NeighborLoader(DATA, [-1]))).num_nodes == 7

def test_of_custom_stores():
    NeighborLoader((None, None), [-1])

def test_of_custom_stores_in_another_way():
    NeighborLoader(DATA, [-2])

def test_without_a_loader():
    assert len(DATA) == 2
"""


@pytest.mark.slow
def test_each_case_tells_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "test_neighbor_loader.py").write_text(CASES)
    words = [sys.executable, "-m", "tests.peers", str(tmp_path), "--parts", "1", "--json", str(tmp_path / "told.json")]
    run = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.stdout.splitlines()[-1] == "1 passed, 1 documented difference, 2 fault, 1 apart"
    told = {case["name"].partition("::")[2]: case for case in json.loads((tmp_path / "told.json").read_text())["cases"]}
    assert {name: case["outcome"] for name, case in told.items()} == {
        "test_over_atta": "passed",
        "test_wrong": "fault",
        "test_of_custom_stores": "documented difference",
        "test_of_custom_stores_in_another_way": "fault",
        "test_without_a_loader": "apart",
    }
    assert "assert 1 == 7" in told["test_wrong"]["why"]
    assert run.returncode == 1


def test_every_reason_stands_in_its_document() -> None:
    for known in known_differences():
        text = " ".join((ROOT / known.document).read_text().split())
        assert " ".join(known.reason.split()) in text, known.cases
