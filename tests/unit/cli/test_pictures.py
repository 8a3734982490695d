"""The pictures of the documents are what the code says."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_layers import LAYERS

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools/pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_are_up_to_date_and_shown(tool: Any) -> None:
    documents = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for path, text in tool.pictures().items():
        assert path.read_text() == text, "run python tools/pictures.py"
        assert f"pictures/{path.name})" in documents


def test_a_batch_has_a_box_for_each_operator_and_an_arrow_for_each_input(tool: Any) -> None:
    plan = tool.batch_plan()
    root = ET.fromstring(tool.batch_picture(plan))
    boxes = {tuple(box.attrib[name] for name in ("x", "y")) for box in root.findall(f"{SVG}rect") if "x" in box.attrib}
    assert len(boxes) == len(plan.ops) == 6
    assert len(root.findall(f"{SVG}line")) == sum(len(op.inputs) for op in plan.ops) == 5
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert {op.id for op in plan.ops} <= set(texts)
    assert "2 in-neighbours of each" in texts


def test_layers_are_those_that_imports_keep_to(tool: Any) -> None:
    root = ET.fromstring(tool.layers_picture((ROOT / "docs/internals/architecture.md").read_text()))
    titles = [t.text or "" for t in root.findall(f"{SVG}text") if t.attrib.get("font-weight") == "bold"]
    assert [tuple(re.split(", ", title)) for title in reversed(titles)] == [tuple(layer) for layer in LAYERS]
