"""Modules of earlier versions under their old names."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

import atta


@pytest.mark.parametrize("old", sorted(atta._MOVED))
def test_an_old_module_name_is_the_new_module_and_says_so(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = import_module(atta._MOVED[old])
    spec = new.__spec__
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new.__name__}"):
        assert import_module(old) is new
    assert new.__spec__ is spec
    assert new.__name__ == atta._MOVED[old]
    monkeypatch.delitem(sys.modules, old)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("atta.partition.methods", "Method", "PartitionMethod"),
        ("atta.simulate", "Cluster", "SimulatedCluster"),
        ("atta.train.planning", "Network", "PlannedModel"),
    ],
)
def test_an_old_class_name_is_the_new_class_and_says_so(module: str, old: str, new: str) -> None:
    home = import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {new}"):
        assert getattr(home, old) is getattr(home, new)
    with pytest.raises(AttributeError, match="never_was"):
        _ = home.never_was


def test_a_name_that_never_was_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("atta.never_was")
