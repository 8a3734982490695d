"""A loader's cursor as plain values, and what makes two requests have the same batches."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.client.sessions.cursor import Cursor, request_digest
from atta.errors import ConfigError
from atta.protos.v1 import session_pb2

WHOLE = st.integers(0, (1 << 64) - 1)


@given(st.text(), WHOLE, WHOLE, WHOLE, WHOLE, st.none() | WHOLE)
def test_a_state_survives_json(request: str, rank: int, world: int, epoch: int, batch: int, tables: int | None) -> None:
    cursor = Cursor(request, rank, world, epoch, batch, tables)
    assert Cursor.from_state(json.loads(json.dumps(cursor.to_state()))) == cursor


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2 is unknown"),
        ({"epoch": -1}, "epoch is -1"),
        ({"rank": "0"}, "rank is '0'"),
        ({"batch": True}, "batch is True"),
        ({"batch": 1.0}, "batch is 1.0"),
        ({"request": None}, "request is None"),
        ({"more": 1}, "exactly the keys"),
        ({"tables_version": -1}, "tables_version is -1"),
        ({"tables_version": "1"}, "tables_version is '1'"),
    ],
)
def test_other_states_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Cursor.from_state({**Cursor("r", 0, 1, 1, 2).to_state(), **change})
    with pytest.raises(ConfigError, match="exactly the keys"):
        Cursor.from_state([1])  # type: ignore[arg-type]


def test_what_a_digest_depends_on() -> None:
    def digest(**changes: Any) -> str:
        return request_digest(session_pb2.OpenRequest(**{"dataset_id": "d", "seed": 1, "batch_size": 4, **changes}))

    same: list[dict[str, Any]] = [
        {"epoch": 3},
        {"start_batch": 7},
        {"session": "s"},
        {"job": "j"},
        {"share": 2.0},
        {"version": 3},
    ]
    other: list[dict[str, Any]] = [{"dataset_id": "e"}, {"seed": 2}, {"batch_size": 5}, {"rank": 1}, {"shuffle": True}]
    assert {digest(**changes) for changes in same} == {digest()}
    assert len({digest(), *(digest(**changes) for changes in other)}) == 1 + len(other)
