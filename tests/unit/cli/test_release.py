"""The check of a release's list of packages finds what is wrong with a list."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
INSTALLED = {"numpy": "2.0", "grpcio": "1.85"}


@pytest.fixture(scope="module")
def check() -> Any:
    spec = importlib.util.spec_from_file_location("check_sbom", ROOT / "tools/check_sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(*packages: tuple[str, str]) -> dict[str, Any]:
    return {"components": [{"name": name, "version": version} for name, version in packages]}


@pytest.mark.parametrize(
    ("packages", "text", "faults"),
    [
        ([("numpy", "2.0"), ("grpcio", "1.85")], "", []),
        ([("numpy", "2.0")], "", ["grpcio is missing"]),
        ([("numpy", "2.0"), ("grpcio", "1.0")], "", ["grpcio 1.85 is listed as 1.0"]),
        ([("numpy", "2.0"), ("grpcio", "1.85"), ("torch", "2")], "", ["torch is not installed"]),
        ([("numpy", "2.0"), ("grpcio", "1.85"), ("numpy", "2.0")], "", ["numpy is listed twice"]),
        ([("numpy", "2.0"), ("grpcio", "1.85")], "file:///home/me", ["a path of this machine is in it"]),
    ],
)
def test_what_is_wrong_is_named(check: Any, packages: list[tuple[str, str]], text: str, faults: list[str]) -> None:
    assert check.faults(listed(*packages), INSTALLED, text) == faults
