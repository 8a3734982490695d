"""A table that one daemon has lost: what clients are told depends on whether it had a lease."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atta.client.tables import cluster
from atta.errors import UnknownNameError
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2


class FakeConnection:
    def __init__(self, address: str, spec: MutableSpec | None) -> None:
        self.address, self._spec = address, spec

    def call(self, method: str, request: Any) -> table_pb2.TableInfo:
        assert method == "TableService.Describe"
        if self._spec is None:
            raise UnknownNameError(f"{self.address}: no table {request.name}")
        return table_pb2.TableInfo(spec=json.dumps(self._spec.to_dict()), table_id=7, whole=True)


@pytest.mark.parametrize(
    ("lease_s", "told"),
    [
        (None, "which was started anew: 'atta tables load SNAPSHOT' brings back what was saved"),
        (8.0, "which was started anew, or where nobody asked for it during its lease of 8 s"),
    ],
)
def test_the_error_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch, lease_s: float | None, told: str) -> None:
    monkeypatch.setattr(cluster, "_LOOKS_S", (0.0,))
    spec = MutableSpec("job", 8, lease_s=lease_s)
    connections: Any = [FakeConnection("a:1", spec), FakeConnection("b:1", None)]
    tables = cluster.ClusterTables(connections, [range(1), range(1, 2)], "d")
    for ask in (lambda: tables.create(spec), lambda: tables.open("job")):
        with pytest.raises(UnknownNameError) as raised:
            ask()
        assert str(raised.value) == (
            f"table 'job' is lost on b:1 (part 1), {told}; 'atta tables delete job' drops the other rows, so that it can be "
            "created anew"
        )
