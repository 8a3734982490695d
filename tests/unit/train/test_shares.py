"""What each trainer of a server gets, and that files carry it unchanged."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from atta.errors import DataError
from atta.samplers.graph import LocalGraph
from atta.samplers.operators.server import Closure
from atta.samplers.server import ServerGraph, server_subgraph
from atta.train.cooperative.shares import Share, divide
from atta.train.servers import divide_targets

VERTICES = 60


@pytest.fixture
def found(rng: np.random.Generator) -> ServerGraph:
    source, target = rng.integers(0, VERTICES, (2, 200))
    graph = LocalGraph.from_edges(source, target, VERTICES)
    extracted = server_subgraph(graph, np.arange(30), Closure(1))
    split = rng.integers(0, 3, extracted.num_nodes)
    return replace(
        extracted,
        tables={
            "x": rng.standard_normal((extracted.num_nodes, 3)),
            "y": rng.integers(0, 4, extracted.num_nodes).astype(np.int32),
        },
        splits={name: split == i for i, name in enumerate(("train", "val", "test"))},
    )


def test_every_inner_vertex_of_a_split_is_in_one_share(found: ServerGraph) -> None:
    shares = list(divide(found, 3))
    for name, mask in found.splits.items():
        owned = np.concatenate([share.view.global_ids[share.splits[name]] for share in shares])
        assert np.array_equal(np.sort(owned), np.sort(found.n_id[mask & found.inner]))
    assert all(np.array_equal(share.splits["train"], share.view.targets) for share in shares)
    assert {share.view.features.dtype for share in shares} == {np.dtype(np.float32)}


def test_files_carry_shares_unchanged(found: ServerGraph, tmp_path: Path) -> None:
    for i, share in enumerate(divide(found, 2)):
        path = tmp_path / f"{i}.npz"
        share.save(path)
        again = Share.load(path)
        for field in fields(share.view):
            mine, its = getattr(share.view, field.name), getattr(again.view, field.name)
            assert type(mine) is type(its)
            assert np.array_equal(mine, its)
        assert again.splits.keys() == share.splits.keys()
        assert all(np.array_equal(rows, share.splits[name]) for name, rows in again.splits.items())


def test_a_folder_that_is_gone_is_named(found: ServerGraph, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.*cannot hand over"):
        next(divide(found, 1)).save(tmp_path / "absent" / "x.npz")


def test_targets_are_divided_evenly_and_the_same_way_each_time() -> None:
    targets = np.arange(100, 203)
    groups = divide_targets(targets, 4, seed=3, epoch=5)
    assert [len(g) for g in groups] == [26, 26, 26, 25]
    assert np.array_equal(np.sort(np.concatenate(groups)), targets)
    assert all((np.diff(g) > 0).all() for g in groups)
    assert all(np.array_equal(a, b) for a, b in zip(groups, divide_targets(targets, 4, seed=3, epoch=5), strict=True))
    assert not np.array_equal(groups[0], divide_targets(targets, 4, seed=3, epoch=6)[0])
    assert not np.array_equal(groups[0], divide_targets(targets, 4, seed=4, epoch=5)[0])
