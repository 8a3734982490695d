"""What of DGL's distributed interface needs no daemon: names, arguments, and doing without DGL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta.compat.dgl as dgl
from atta.compat.dgl.dataloading import MultiLayerFullNeighborSampler, NeighborSampler
from atta.compat.dgl.distributed.book import TypeBook
from atta.compat.dgl.distributed.recent import Wanted
from atta.compat.dgl.job import _target
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition.schema import Schema, TableSpec

PLAIN = Schema(
    ("node",), ("node__to__node",), {"node": 5}, {"node__to__node": 9},
    {"node": {"x": TableSpec("<f4", (2,)), "y": TableSpec("<i8")}}, splits={"node": {"train": 3}},
)  # fmt: skip
TYPED = Schema(
    ("author", "paper"), ("author__writes__paper", "paper__by__author", "paper__cites__paper"),
    {"author": 3, "paper": 5}, {"author__writes__paper": 4, "paper__by__author": 4, "paper__cites__paper": 6},
    {"paper": {"feat": TableSpec("<f4", (2,)), "x": TableSpec("<f4", (3,))}},
)  # fmt: skip

WITHOUT = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("dgl", "torch"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
import atta.compat.dgl as dgl
for part in ("graph", "tensor", "embedding", "optim", "split", "edges", "book"):
    __import__("atta.compat.dgl.distributed." + part)
dgl.dataloading.DistNodeDataLoader, dgl.dataloading.DistEdgeDataLoader, dgl.dataloading.NeighborSampler([1])
for use in (lambda: dgl.NID, lambda: dgl.distributed.sample_neighbors(None, [1], 2)):
    try:
        use()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_dgl_and_torch_it_can_be_imported_and_says_what_needs_them() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("ConfigError atta.compat.dgl.NID needs dgl and torch: install atta[dgl]")
    assert second.startswith("ConfigError sample_neighbors needs dgl and torch: install atta[dgl]")


@pytest.mark.parametrize(
    ("module", "name", "offered"),
    [
        (dgl, "merge", "dataloading"),
        (dgl.distributed, "DistGraphServer", "DistGraph"),
        (dgl.distributed.optim, "SparseSGD", "SparseAdam"),
        (dgl.dataloading, "ClusterGCNSampler", "NeighborSampler"),
        (dgl.dataloading.negative_sampler, "GlobalUniform", "Uniform"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(module: object, name: str, offered: str) -> None:
    with pytest.raises(UnknownNameError, match=f"does not offer '{name}'; it offers: .*{offered}"):
        getattr(module, name)
    assert not hasattr(module, name)
    assert all(hasattr(module, known) for known in dir(dgl.distributed) if module is dgl.distributed)


def test_types_and_tables_have_the_names_that_dgl_gives_them() -> None:
    plain, typed = TypeBook(PLAIN), TypeBook(TYPED)
    assert plain.ntypes() == ["_N"]
    assert plain.canonical_etypes() == [("_N", "_E", "_N")]
    assert plain.node_type(None) == plain.node_type("_N") == plain.node_type("node") == "node"
    assert plain.edge_type("_E") == plain.edge_type(("_N", "_E", "_N")) == plain.edge_type(None) == "node__to__node"
    named = [plain.table("node", name) for name in ("feat", "features", "label", "x", "age")]
    assert named == ["x", "x", "y", "x", None]
    assert plain.split("node", "train_mask") == "train"
    assert plain.split("node", "train") is plain.split("node", "val_mask") is None
    assert typed.ntypes() == ["author", "paper"]
    assert typed.edge_type("cites") == typed.edge_type(("paper", "cites", "paper")) == "paper__cites__paper"
    assert [typed.table("paper", name) for name in ("feat", "features")] == ["feat", "x"]
    for ask, error, words in (
        (lambda: typed.node_type(None), ConfigError, "name a node type"),
        (lambda: typed.node_type("papers"), UnknownNameError, "did you mean 'paper'"),
        (lambda: typed.edge_type("likes"), UnknownNameError, "edge type"),
        (lambda: NeighborSampler([-2]).hops(plain), ConfigError, "fanouts -2"),
        (lambda: NeighborSampler([1], edge_dir="out"), UnknownNameError, "does not offer"),
        (lambda: NeighborSampler([1], prob="p", mask="m"), ConfigError, "exclude each other"),
    ):
        with pytest.raises(error, match=words):
            ask()


def test_fan_outs_stand_by_layer_from_the_input_on() -> None:
    assert NeighborSampler([5, 10, 15]).hops(TypeBook(PLAIN)) == [15, 10, 5]
    assert MultiLayerFullNeighborSampler(2).hops(TypeBook(PLAIN)) == [-1, -1]
    by_type = NeighborSampler([{"cites": 2, ("author", "writes", "paper"): 3}, 7]).hops(TypeBook(TYPED))
    assert by_type == {"author__writes__paper": [7, 3], "paper__by__author": [7, 0], "paper__cites__paper": [7, 2]}


def test_tables_that_are_asked_for_are_wanted_and_after_the_first_epoch_no_others() -> None:
    wanted = Wanted()
    wanted.note("node", "y", whole=False)
    assert wanted.state() == (frozenset(), {("node", "y")})
    wanted.note("node", "y", whole=True)  # the seeds have it, too
    wanted.note("node", "x", whole=True)
    assert wanted.state() == ({("node", "x"), ("node", "y")}, frozenset())
    features, other, classes = ("paper", "x"), ("author", "x"), ("paper", "y")
    wanted = Wanted([features, other], [classes])
    wanted.note(*features, whole=True)
    wanted.note(*other, whole=False)
    assert wanted.state() == ({features, other}, {classes})  # a session has both already, so none begins anew
    wanted.settle()
    assert wanted.state() == ({features}, {other})


def test_the_gradient_of_a_row_is_the_mean_over_all_its_uses_as_in_dgl(rng: np.random.Generator) -> None:
    pytest.importorskip("torch")
    from atta.client.tables.embedding import Gradients
    from atta.compat.dgl.distributed.embedding import mean_of_uses

    uses = [(row, rng.standard_normal(3).astype(np.float32)) for row in rng.integers(0, 6, 40).tolist()]
    given = []
    for mine in (uses[:15], uses[15:]):  # of two trainers, each of which has added up the uses of a row
        rows = sorted({row for row, _ in mine})
        of_row = [[gradient for other, gradient in mine if other == row] for row in rows]
        sums = np.array([np.sum(some, axis=0) for some in of_row], np.float32)
        given.append(Gradients(np.array(rows), sums, np.array([len(some) for some in of_row])))
    rows, means = mean_of_uses(given)
    assert rows.tolist() == sorted({row for row, _ in uses})
    for row, mean in zip(rows, means, strict=True):
        np.testing.assert_allclose(mean, np.mean([g for other, g in uses if other == row], axis=0), rtol=1e-5)


class Post:
    """``torch.distributed`` of trainers that take turns: everyone sends before anyone asks for what has come."""

    def __init__(self, world: int) -> None:
        self.world, self.rank = world, 0
        self.sent: list[list[Any]] = []  # by call: what each trainer has sent to each

    def of(self, rank: int) -> Post:
        self.rank, self.calls = rank, 0
        return self

    def all_to_all_single(self, output: Any, given: Any, *sizes: Any) -> None:
        lengths = sizes[1] if sizes else [len(given) // self.world] * self.world
        if len(self.sent) == self.calls:
            self.sent.append([None] * self.world)
        sent = self.sent[self.calls]
        sent[self.rank] = [part.clone() for part in given.split(lengths)]
        output.zero_()
        if None not in sent:
            output.copy_(pytest.importorskip("torch").cat([to[self.rank] for to in sent]))
        self.calls += 1


@pytest.mark.parametrize(("world", "widths"), [(1, [4]), (2, [3]), (3, [1, 4, 3])])
def test_every_trainer_gets_the_gradients_that_are_for_it(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, world: int, widths: list[int]
) -> None:
    pytest.importorskip("torch")
    from atta.client.tables.embedding import Gradients
    from atta.compat.dgl.distributed import embedding as gradients

    numbers = rng.integers(0, 9, (world, len(widths)))
    numbers[0, 0] = 0
    mine = [
        [
            Gradients(rng.integers(0, 50, n), rng.random((n, width), dtype=np.float32), rng.integers(1, 5, n))
            for n, width in zip(of, widths, strict=True)
        ]
        for of in numbers.tolist()
    ]
    ranks = [[rng.integers(0, world, len(one.rows)) for one in of] for of in mine]
    post = Post(world)
    for _ in range(3):  # first the numbers of all have been sent, then the gradients
        found = []
        for rank in range(world):
            monkeypatch.setattr(gradients, "meeting", lambda rank=rank: post.of(rank))
            found.append(gradients.exchanged(mine[rank], ranks[rank], world))
    for rank in range(world):
        for embedding in range(len(widths)):
            for sender, got in enumerate(found[rank][embedding]):
                chosen = ranks[sender][embedding] == rank
                for array, wanted in zip(got, mine[sender][embedding], strict=True):
                    assert array.dtype == wanted.dtype
                    np.testing.assert_array_equal(array, wanted[chosen])


def test_a_file_of_addresses_is_that_of_dgl(tmp_path: Path) -> None:
    path = tmp_path / "ip_config.txt"
    with pytest.raises(DataError, match="not a file of addresses"):
        _target(path)
    path.write_text("10.0.0.1 7070\n\n10.0.0.2\n")
    assert _target(path) == ["10.0.0.1:7070", "10.0.0.2:30050"]
    assert _target("10.0.0.1:7070,10.0.0.2:7070") == "10.0.0.1:7070,10.0.0.2:7070"
    assert _target("cluster.toml") == "cluster.toml"
    path.write_text("10.0.0.1 7070 2\n")
    with pytest.raises(DataError, match="wanted is HOST"):
        _target(path)


def test_a_process_that_should_serve_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="initialize first"):
        dgl.distributed.DistGraph("g")
    monkeypatch.setenv("DGL_ROLE", "server")
    with pytest.raises(ConfigError, match="atta serve"):
        dgl.distributed.initialize("ip_config.txt")
    with pytest.raises(TypeError, match="'nett_type'"):
        dgl.distributed.initialize(None, nett_type="socket")
