"""The Python in the documents runs, one block after another, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from atta.partition import partition_graph
from atta.partition.graph import GraphWriter

ROOT = Path(__file__).parents[2]


def blocks(name: str) -> str:
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return "\n".join(found)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset where the documents expect one."""
    rng, n = np.random.default_rng(4), 400
    with GraphWriter(tmp_path / "graph") as out:
        tables = {"x": rng.random((n, 4), dtype=np.float32), "y": rng.integers(0, 3, n)}
        out.add_nodes("node", n, tables=tables, splits={"train": np.arange(100)})
        out.add_edges("node__to__node", rng.integers(0, n, 4000), rng.integers(0, n, 4000))
    partition_graph(tmp_path / "graph", tmp_path / "data" / "demo-2p", parts=2, method="random")
    monkeypatch.chdir(tmp_path)


def test_sampling_without_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("sampling-standalone.md"), "sampling-standalone.md", "exec"), {"__name__": "document"})
    assert len(capsys.readouterr().out.splitlines()) >= 6


def test_samplers(demo: None, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("samplers.md"), "samplers.md", "exec"), {"__name__": "document"})
    assert "torch.Size" in capsys.readouterr().out


def test_tables(demo: None, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("tables.md"), "tables.md", "exec"), {"__name__": "document"})
    assert "torch.Size([1000, 16])" in capsys.readouterr().out


def test_cooperative_training(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("cooperative.md"), "cooperative.md", "exec"), {"__name__": "document"})
    assert len(capsys.readouterr().out.splitlines()) == 10


def test_the_operator_in_the_document_is_the_example() -> None:
    text = (ROOT / "examples" / "own_operator" / "atta_snowball.py").read_text()
    without_docstrings = re.sub(r'^ +""".*"""\n(\n(?=    \w))?', "", text, flags=re.MULTILINE)
    first = blocks("own-operator.md").partition("\n\nfor batch")[0].strip()
    assert first.replace("\n", "") in without_docstrings.replace("\n", "")
