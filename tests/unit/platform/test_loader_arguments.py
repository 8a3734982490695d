"""Arguments under their earlier names mean the same, with a warning that gives the present names."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.loaders.pyg import AttaSampler, backends
from atta.client.tables.string_ids import StringIds
from atta.partition.schema import Schema, TableSpec

E = "node__to__node"
SCHEMA = Schema(("node",), (E,), {"node": 9}, {E: 9}, {"node": {"x": TableSpec("<f4", (2,))}})
CLUSTER: Any = SimpleNamespace(schema=SCHEMA, num_parts=1, ids=StringIds(SCHEMA, []))
IDS = np.arange(4)


def neighbors(**options: Any) -> Any:
    return atta.NeighborLoader(CLUSTER, [2], IDS, job="j", **options)


def links(**options: Any) -> Any:
    return atta.LinkNeighborLoader(CLUSTER, [2], np.stack([IDS, IDS]), job="j", **options)


def operator(**options: Any) -> Any:
    return atta.BatchLoader(CLUSTER, "induced", input_nodes=IDS, job="j", **options)


def dag(**options: Any) -> Any:
    return atta.DagLoader(CLUSTER, neighbors()._request.dag, input_nodes=IDS, job="j", **options)


def server(**options: Any) -> Any:
    return atta.ServerLoader(CLUSTER, [IDS], job="j", **options)


@pytest.mark.parametrize("make", [neighbors, links, operator, dag, server])
@pytest.mark.parametrize(
    ("old", "new", "value"), [("seeds", "seed_policy", "global"), ("weight", "share", 2.5), ("weight", "share", 1)]
)
def test_an_earlier_name_warns_and_does_the_same(make: Any, old: str, new: str, value: Any) -> None:
    present = make(**{new: value})
    with pytest.warns(DeprecationWarning, match=f"^{old} is now {new}; the old name goes with version 0.2$") as found:
        earlier = make(**{old: value})
    assert earlier._request == present._request
    assert [warning.filename for warning in found] == [__file__]  # the calling line, not one of Atta's


@pytest.mark.parametrize("make", [neighbors, links, operator, dag, server])
def test_one_argument_by_both_names_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="seeds is the earlier name of seed_policy: give seed_policy alone"):
        make(seeds="local", seed_policy="local")
    with pytest.raises(TypeError, match="weight is the earlier name of share"):
        make(weight=1, share=2)


def test_what_they_mean_reaches_the_daemon() -> None:
    request = neighbors(seed_policy="global", share=2.5)._request
    assert (request.policy, request.share) == (1, 2.5)
    with pytest.raises(atta.UnknownNameError, match="seed policy 'globl'; did you mean 'global'"):
        neighbors(seed_policy="globl")
    with pytest.raises(atta.ConfigError, match="share"):
        neighbors(share=0)


def test_backends_of_pyg_warn_once() -> None:
    with pytest.warns(DeprecationWarning, match="seeds is now seed_policy") as found:
        sampler = AttaSampler(CLUSTER, [2], seeds="global")
    assert [warning.filename for warning in found] == [__file__]
    assert sampler._options == {"seed_policy": "global"}
    with pytest.warns(DeprecationWarning, match="weight is now share"):
        assert backends(CLUSTER, [2], weight=2)[2]._options == {"share": 2}


def test_loaders_are_found_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "atta.loader", raising=False)
    with pytest.warns(DeprecationWarning, match="atta.loader is now atta.client.loaders"):
        from atta.loader import BatchLoader, DagLoader, NeighborLoader  # type: ignore[import-not-found]
    assert (BatchLoader, DagLoader, NeighborLoader) == (atta.BatchLoader, atta.DagLoader, atta.NeighborLoader)
    monkeypatch.delitem(sys.modules, "atta.loader")
