"""Arguments under their earlier names mean the same, with a warning that gives the present names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.tables.string_ids import StringIds
from atta.partition.schema import Schema, TableSpec

E = "node__to__node"
SCHEMA = Schema(("node",), (E,), {"node": 9}, {E: 9}, {"node": {"x": TableSpec("<f4", (2,))}})
CLUSTER: Any = SimpleNamespace(schema=SCHEMA, num_parts=1, ids=StringIds(SCHEMA, []))
IDS = np.arange(4)


def neighbors(**options: Any) -> Any:
    return atta.NeighborLoader(CLUSTER, [2], IDS, job="j", **options)


def test_what_they_mean_reaches_the_daemon() -> None:
    request = neighbors(seed_policy="global", share=2.5)._request
    assert (request.policy, request.share) == (1, 2.5)
    with pytest.raises(atta.UnknownNameError, match="seed policy 'globl'; did you mean 'global'"):
        neighbors(seed_policy="globl")
    with pytest.raises(atta.ConfigError, match="share"):
        neighbors(share=0)
