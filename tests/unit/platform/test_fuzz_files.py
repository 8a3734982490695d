"""Files of all kinds whose bytes were changed, or their contents under a right checksum: read, or a typed error."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atta.errors import DataError
from atta.train.checkpoint.files import seal
from atta.wire.parts import read_toml
from tests.fuzz.files import Files, sealed
from tests.fuzz.targets import kept

KINDS = (
    "best", "checkpoint", "cluster.toml", "graph.json", "log", "manifest.json", "profile", "rank",
    "store.json", "tables.log", "token", "tokens.toml", "version.json", "votes",
)  # fmt: skip


SEALED = ("graph.json", "manifest.json", "store.json", "version.json", "votes")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("fuzz") / "files")


def test_the_corpus_is_read_or_refused(files: Files) -> None:
    inputs = [*kept("files")]
    assert len(inputs) >= 3
    for kind, data in inputs:
        files.again(kind, data)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32))
def test_a_changed_file_is_read_or_refused(files: Files, kind: str, seed: int) -> None:
    assert files.changed(kind, random.Random(seed))


def test_every_kind_is_covered(files: Files) -> None:
    assert sorted(files.kinds) == sorted(KINDS)


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        ("store.json", "id", "zz", "does not tell the id"),
        ("store.json", "id", 3, "does not tell the id"),
        ("manifest.json", "provenance", [1], "does not say how it was made"),
        ("graph.json", "provenance", [1], "does not say how it was made"),
        ("manifest.json", "quality", "x", "does not say how it was made"),
        *((kind, "version", 99, "format version 99; this release reads version") for kind in SEALED),
    ],
)
def test_a_wrong_entry_is_an_error_of_the_file(files: Files, kind: str, name: str, value: Any, words: str) -> None:
    """Under a right checksum."""
    file = files.kinds[kind]
    good = file.path.read_bytes()
    content = {k: v for k, v in json.loads(good).items() if k != "checksum"}
    try:
        file.path.write_bytes(sealed({**content, name: value}))
        with pytest.raises(DataError, match=words):
            file.read()
    finally:
        file.path.write_bytes(good)


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        ("checkpoint", "model", {"w": 3}, "no tensor|does not fit"),
        ("checkpoint", "optimizer", "x", "does not fit"),
        ("checkpoint", "shape", 3, "its model"),
        ("best", "embedding_ids", None, "does not tell whose embeddings"),
        ("best", "embedding_ids", [3, 5, 9], "does not tell whose embeddings"),
        ("best", "embedding_ids", {"author": 3}, "no tensor"),
        *((kind, "version", 1, "checkpoint version 1; this release reads") for kind in ("best", "checkpoint", "rank")),
    ],
)
def test_a_wrong_entry_of_a_checkpoint_is_an_error_of_the_file(
    files: Files, kind: str, name: str, value: Any, words: str
) -> None:
    file = files.kinds[kind]
    good, content = file.path.read_bytes(), io.BytesIO()
    torch.save({**torch.load(io.BytesIO(good), weights_only=True), name: value}, content)
    try:
        file.path.write_bytes(seal(content.getvalue()))
        with pytest.raises(DataError, match=words):
            file.read()
    finally:
        file.path.write_bytes(good)


def test_a_log_of_another_version_is_an_error_of_the_file(files: Files) -> None:
    file = files.kinds["log"]
    good = file.path.read_bytes()
    try:
        file.path.write_bytes(good[:8] + (1).to_bytes(4, "little") + good[12:])
        with pytest.raises(DataError, match="format version 1; this release reads version 2"):
            file.read()
    finally:
        file.path.write_bytes(good)


def test_values_that_are_nested_too_deeply_are_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("a = " + "[" * 5000)
    with pytest.raises(DataError, match="nested too deeply"):
        read_toml(tmp_path / "c.toml")
