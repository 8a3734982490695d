"""Errors that one process passes to another: types, fields and messages survive. Nonsense does not become an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atta.errors import AttaError, ConfigError, DataError, QuotaExceededError, UnavailableError, UnknownNameError
from atta.observe import lastwords

ERRORS = [
    AttaError("something: went wrong"),
    ConfigError("--buffer: 1 is less than 64MiB"),
    UnknownNameError.of("split", "trian", ["train"]),
    DataError("/data/odd: name/x.npy", "truncated: 3 bytes instead of 4"),
    QuotaExceededError("no memory left"),
    UnavailableError("10.0.0.1:7070", "no daemon answers"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_survives(error: AttaError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lastwords.VARIABLE, str(tmp_path / "words"))
    lastwords.leave(error)
    found = lastwords.read(tmp_path / "words")
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_without_a_file_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lastwords.VARIABLE, raising=False)
    lastwords.leave(AttaError("unheard"))
    assert lastwords.read(tmp_path / "words") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "DataError"',
        json.dumps({"kind": "annotations", "message": "", "fields": {}}),
        json.dumps({"kind": "Path", "message": "", "fields": {}}),
        json.dumps({"kind": "AttaError", "message": "x", "fields": 3}),
        json.dumps({"kind": 3, "message": "x", "fields": {}}),
    ],
)
def test_nonsense_is_no_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text(text)
    assert lastwords.read(tmp_path / "words") is None
