"""Distributed tensors and embeddings with DGL's arguments. The cases of DGL's own tests stand one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta

torch = pytest.importorskip("torch")

import atta.compat.dgl as dgl  # noqa: E402 - after torch is known to be there
from atta.compat.dgl.distributed.tensor import DistTensor  # noqa: E402
from atta.partition import partition_graph  # noqa: E402
from atta.partition.graph import GraphWriter  # noqa: E402

NODES, EDGES = 150, 900


@pytest.fixture(scope="module")
def g(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder, rng = tmp_path_factory.mktemp("tensors"), np.random.default_rng(2)
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", NODES, tables={"x": rng.random((NODES, 3), np.float32)})
        out.add_edges("node__to__node", *rng.integers(0, NODES, (2, EDGES)))
    partition_graph(folder / "graph", folder / "data", parts=2, method="random")
    dgl.distributed.initialize(None)
    yield dgl.distributed.DistGraph("small", part_config=folder / "data")
    dgl.distributed.exit_client()


def ones(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.ones(shape, dtype=dtype)


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.rand(shape).to(dtype)


def test_rows_are_zeros_at_first_and_are_written_and_read_by_id(g: Any, tmp_path: Path) -> None:
    made = DistTensor((NODES, 2), torch.float32, "zeros")
    assert (made.shape, made.dtype, len(made)) == ((NODES, 2), torch.float32, NODES)
    assert (made.tensor_name, g.ndata["x"].tensor_name) == ("zeros", "x")
    assert torch.equal(made[np.arange(NODES)], torch.zeros(NODES, 2))
    assert made.count_nonzero() == 0
    made = DistTensor((NODES, 2), torch.float32)
    ids = torch.tensor([140, 3, 77])
    made[ids] = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert made[[77, 3, 77]].tolist() == [[5, 6], [3, 4], [5, 6]]
    assert made[[0]].tolist() == [[0, 0]]
    made[5:9] = np.ones((4, 2))
    made[torch.arange(NODES) == 10] = torch.tensor([7.0, 8.0])
    assert made[5:11].tolist() == [[1, 1]] * 4 + [[0, 0], [7, 8]]
    assert made.count_nonzero() == 16
    with pytest.raises(atta.ConfigError, match=r"values \[3\] for \[2, 2\]"):
        made[[1, 2]] = torch.ones(3)
    with pytest.raises(atta.ConfigError, match="0 to 149"):
        made[[NODES]]
    made = DistTensor((NODES, 2), torch.float32, init_func=numbers)
    for name, rows in (("made", made), ("x", g.ndata["x"])):
        torch.save(rows, tmp_path / name)
        found = torch.load(tmp_path / name, weights_only=True)
        assert type(found) is torch.Tensor
        assert torch.equal(found, rows[np.arange(NODES)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_a_tensor_has_the_dtype_it_was_made_with(g: Any, dtype: Any) -> None:
    made = DistTensor((NODES, 2), dtype, init_func=ones)
    assert made.dtype == made[:3].dtype == dtype
    assert torch.equal(made[:], torch.ones(NODES, 2, dtype=dtype))


@pytest.mark.parametrize("rows", [NODES, EDGES])
def test_the_rows_of_init_func_belong_to_ids(g: Any, rows: int) -> None:
    """With two partitions the order of the tables is another one."""
    given = []

    def count(shape: tuple[int, ...], dtype: Any) -> Any:
        given.append(shape)
        return torch.arange(shape[0] * shape[1]).reshape(shape).to(dtype)

    expected = torch.arange(2 * rows).reshape(rows, 2)
    made = DistTensor((rows, 2), torch.int64, init_func=count)
    assert given == [(rows, 2)]
    assert torch.equal(made[:], expected)
    policy = g.get_edge_partition_policy("to") if rows == EDGES else None
    learned = dgl.distributed.DistEmbedding(rows, 2, init_func=count, part_policy=policy)
    assert torch.equal(learned(torch.arange(rows)).detach(), expected.float())
    with pytest.raises(atta.ConfigError, match="init_func gave"):
        DistTensor((rows, 2), torch.int64, init_func=lambda shape, dtype: torch.ones(3))


def test_names_of_tensors(g: Any) -> None:
    first = DistTensor((NODES, 2), torch.float32, "twice", init_func=numbers)
    second = DistTensor((NODES, 2), torch.float32, "twice")
    assert torch.equal(first[:], second[:])
    for shape, dtype in (((NODES, 3), torch.float32), ((NODES, 2), torch.int64)):
        with pytest.raises(atta.ConfigError, match="twice"):
            DistTensor(shape, dtype, "twice")
    del second  # it has not created the tensor
    first[[1]] = torch.ones(1, 2)
    assert first[[1]].tolist() == [[1, 1]]
    made = DistTensor((NODES, 2), torch.float32, "gone", init_func=ones)
    del made
    again = DistTensor((NODES, 3), torch.float32, "gone")
    assert again.count_nonzero() == 0
    made = DistTensor((NODES, 2), torch.float32, "kept", init_func=ones, persistent=True)
    del made
    with pytest.raises(atta.ConfigError, match="kept"):
        DistTensor((NODES, 3), torch.float32, "kept")
    assert DistTensor((NODES, 2), torch.float32, "kept").count_nonzero() == 2 * NODES
    with pytest.raises(atta.ConfigError, match="needs a name"):
        DistTensor((NODES, 2), torch.float32, persistent=True)
    made = DistTensor((NODES, 2), torch.float32, "left", init_func=ones, persistent=True)
    made.part_policy.partition_book.job.tensors.discard(made.name)  # as in another process
    assert DistTensor((NODES, 4), torch.float32, "left").count_nonzero() == 0


def test_the_number_of_rows_tells_the_type_unless_a_policy_does(g: Any) -> None:
    assert DistTensor((NODES,), torch.float32).part_policy.policy_str == "node:_N"
    edges = DistTensor((EDGES, 1), torch.float32)
    assert edges.part_policy.policy_str == "edge:_N:_E:_N"
    edges[[EDGES - 1, 0]] = torch.tensor([[1.0], [2.0]])
    assert edges[[0, EDGES - 1, 1]].tolist() == [[2], [1], [0]]
    policy = g.get_edge_partition_policy("_E")
    assert policy.get_size() == EDGES
    assert DistTensor((EDGES,), torch.float32, part_policy=policy).part_policy is policy
    with pytest.raises(atta.ConfigError, match="no type of vertices or edges has so many"):
        DistTensor((7,), torch.float32)
    with pytest.raises(atta.ConfigError, match=f"7 rows: edge:_N:_E:_N has {EDGES}"):
        DistTensor((7,), torch.float32, part_policy=policy)


def test_a_tensor_can_stand_beside_those_of_the_graph(g: Any) -> None:
    g.ndata["h"] = DistTensor((NODES, 2), torch.float32, init_func=ones)
    assert list(g.ndata) == ["x", "h"]
    assert g.ndata["h"][[3]].tolist() == [[1, 1]]
    del g.ndata["h"]
    assert list(g.ndata) == ["x"]
    with pytest.raises(atta.ConfigError, match="DistTensor"):
        g.ndata["h"] = torch.ones(NODES, 2)
    assert (g.node_attr_schemes()["x"].shape, g.node_attr_schemes()["x"].dtype) == ((3,), torch.float32)
    assert g.edge_attr_schemes() == {}


def test_two_masks_are_joined(g: Any) -> None:
    first = DistTensor((NODES,), torch.bool, init_func=lambda shape, dtype: torch.rand(shape) > 0.5)
    second = DistTensor((NODES,), torch.bool, init_func=lambda shape, dtype: torch.rand(shape) > 0.5)
    either = first | second
    assert isinstance(either, DistTensor)
    assert either.name not in (first.name, second.name)
    assert either.dtype == torch.bool
    assert torch.equal(either[:], first[:] | second[:])
    bits = DistTensor((EDGES, 2), torch.int64, init_func=lambda shape, dtype: torch.randint(0, 99, shape))
    others = DistTensor((EDGES, 2), torch.int64, init_func=lambda shape, dtype: torch.randint(0, 99, shape))
    assert torch.equal((bits | others)[:], bits[:] | others[:])
    for other in (DistTensor((NODES,), torch.int64), DistTensor((NODES, 1), torch.bool), bits):
        with pytest.raises(atta.ConfigError, match="both need the same"):
            first | other
    with pytest.raises(atta.ConfigError, match="bools or integers"):
        g.ndata["x"] | g.ndata["x"]
    with pytest.raises(TypeError):
        first | torch.ones(NODES, dtype=torch.bool)


def test_a_policy_is_made_from_its_name(g: Any) -> None:
    book = g.get_partition_book()
    for name, kind, rows in (("node", "nodes", NODES), ("edge", "edges", EDGES), ("node~_N", "nodes", NODES)):
        policy = dgl.distributed.PartitionPolicy(name, book)
        assert (policy.kind, policy.get_size()) == (kind, rows)
        ids = torch.arange(rows)
        parts = policy.to_partid(ids)
        assert policy.get_part_size() == int((parts == policy.part_id).sum())
        local = policy.to_local(ids)
        for part in range(2):
            assert sorted(local[parts == part].tolist()) == [*range(int((parts == part).sum()))]
    assert dgl.distributed.PartitionPolicy("edge:_N:_E:_N", book).policy_str == "edge:_N:_E:_N"
    with pytest.raises(atta.ConfigError, match="write node, edge"):
        dgl.distributed.PartitionPolicy("vertex", book)


@pytest.mark.parametrize("kind", ["SparseAdagrad", "SparseAdam"])
def test_an_embedding_learns_as_torch_does(g: Any, kind: str) -> None:
    start = torch.rand(NODES, 4)
    embedding = dgl.distributed.DistEmbedding(NODES, 4, name=f"of-{kind}")
    optimiser = getattr(dgl.distributed.optim, kind)([embedding], lr=0.1)
    embedding.weight[:] = start
    plain = [torch.nn.Parameter(row.clone()) for row in start]  # Adam counts the steps of each, as DGL does of a row
    theirs = (torch.optim.Adagrad if kind == "SparseAdagrad" else torch.optim.Adam)(plain, lr=0.1)
    for step in range(6):
        ids = torch.arange(step, 60, 7)[torch.randint(0, 8, (20,))]
        for rows, steps in ((embedding(ids), optimiser), (torch.stack([plain[i] for i in ids]), theirs)):
            loss = (rows**2).sum() + rows.sum()
            steps.zero_grad()
            loss.backward()
            steps.step()
    assert torch.allclose(embedding.weight[:], torch.stack(plain).detach(), atol=1e-6)
    with pytest.raises(atta.ConfigError, match="only one can step it"):
        dgl.distributed.optim.SparseAdagrad([embedding], lr=0.1)


def test_an_embedding_that_was_read_gets_its_optimiser_later(g: Any) -> None:
    start = torch.rand(NODES, 2)
    embedding = dgl.distributed.DistEmbedding(NODES, 2, name="early", init_func=ones)
    with torch.no_grad():
        assert torch.equal(embedding(torch.arange(4)), torch.ones(4, 2))
    with pytest.raises(atta.ConfigError, match="no optimiser"):
        embedding.step()
    embedding.weight[:] = start
    optimiser = dgl.distributed.optim.SparseAdagrad([embedding], lr=0.5)
    assert torch.equal(embedding.weight[:], start)
    embedding(torch.tensor([3, 8])).sum().backward()
    optimiser.step()
    start[[3, 8]] -= 0.5  # Adagrad's first step of a gradient of 1
    assert torch.allclose(embedding.weight[:], start)
    names = g.cluster.tables.specs()
    assert not [name for name in names if name.endswith(".aside")]


@pytest.mark.parametrize("kind", ["SparseAdagrad", "SparseAdam"])
def test_an_optimiser_that_takes_the_place_of_another_goes_on_with_its_state(g: Any, kind: str) -> None:
    made, ids = getattr(dgl.distributed.optim, kind), torch.arange(5)
    embedding = dgl.distributed.DistEmbedding(NODES, 2)
    rows = [torch.nn.Parameter(torch.zeros(2)) for _ in ids]
    theirs = (torch.optim.Adagrad if kind == "SparseAdagrad" else torch.optim.Adam)(rows)
    optimiser = None
    for lr in (0.5, 0.05):
        del optimiser
        optimiser = made([embedding], lr=lr)
        theirs.param_groups[0]["lr"] = lr
        for _ in range(2):
            for found, steps in ((embedding(ids), optimiser), (torch.stack(rows), theirs)):
                steps.zero_grad()
                ((found - 3) ** 2).sum().backward()
                steps.step()
    assert torch.allclose(embedding.weight[ids], torch.stack(rows).detach(), atol=1e-6)


def test_two_uses_of_a_row_make_one_step(g: Any) -> None:
    embedding = dgl.distributed.DistEmbedding(NODES, 1, name="cat")
    optimiser = dgl.distributed.optim.SparseAdagrad([embedding], lr=0.001)
    ids = torch.arange(NODES)
    (torch.cat([embedding(ids), embedding(ids)]) + 1).sum().backward()
    optimiser.step()
    assert torch.allclose(embedding(ids), torch.full((NODES, 1), -0.001))


def test_an_embedding_of_a_known_name_is_that_one(g: Any) -> None:
    first = dgl.distributed.DistEmbedding(NODES, 2, name="shared")
    with pytest.raises(atta.ConfigError, match="'shared' exists with 2 columns; it cannot have 3"):
        dgl.distributed.DistEmbedding(NODES, 3, name="shared")
    first.weight[[5]] = torch.ones(1, 2)
    second = dgl.distributed.DistEmbedding(NODES, 2, name="shared")
    assert second.weight[[5]].tolist() == [[1, 1]]
    optimiser = dgl.distributed.optim.SparseAdagrad([second], lr=1.0)
    second(torch.tensor([5])).sum().backward()
    optimiser.step()
    assert first(torch.tensor([5])).tolist() == [[0, 0]]
    del first, second, optimiser
    assert dgl.distributed.DistEmbedding(NODES, 3, name="shared").weight[[5]].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", ["SparseAdagrad", "SparseAdam"])
@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_optimisers_are_saved(g: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, world: int) -> None:
    """``world`` trainers save, one after the other; one loads. What it loads steps rows as the first one does."""
    made = getattr(dgl.distributed.optim, kind)
    monkeypatch.setattr("atta.compat.dgl.distributed.optim.barrier", lambda: None)
    ids, nodes, edges = torch.arange(0, NODES, 3), torch.rand(NODES, 3), torch.rand(EDGES, 2)

    def embeddings() -> list[Any]:
        found = [dgl.distributed.DistEmbedding(NODES, 3, name="n"), dgl.distributed.DistEmbedding(EDGES, 2)]
        for embedding, rows in zip(found, (nodes, edges), strict=True):
            embedding.weight[:] = rows
        return found

    def step(found: list[Any], optimiser: Any) -> None:
        sum((embedding(ids) ** 2).sum() for embedding in found).backward()
        optimiser.step()

    first = embeddings()
    optimiser = made(first, lr=0.1, eps=1e-7)
    step(first, optimiser)
    for rank in range(world):
        with monkeypatch.context() as launched:
            launched.setenv("WORLD_SIZE", str(world))
            launched.setenv("RANK", str(rank))
            optimiser.save(tmp_path / "state")
    assert len([*tmp_path.iterdir()]) == world
    for embedding, rows in zip(first, (nodes, edges), strict=True):
        embedding.weight[:] = rows
    step(first, optimiser)
    expected = [embedding.weight[:] for embedding in first]
    del first, optimiser, embedding

    second = embeddings()
    loaded = made(second, lr=0.7)
    loaded.load(tmp_path / "state")
    assert (loaded.spec.lr, loaded.spec.eps) == (0.1, 1e-7)
    step(second, loaded)
    for embedding, rows in zip(second, expected, strict=True):
        assert torch.equal(embedding.weight[:], rows)
    with pytest.raises(atta.DataError, match="not the state"):
        loaded.load(tmp_path / "nothing")
    (tmp_path / "bad_0").write_bytes((tmp_path / "state_0").read_bytes()[:300])
    with pytest.raises(atta.DataError, match="bad_0"):
        loaded.load(tmp_path / "bad")
    with np.load(tmp_path / "state_0") as archive, (tmp_path / "later_0").open("wb") as file:
        about = {**json.loads(archive["about"].tobytes()), "version": 2}
        np.savez(file, **{**archive, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    with pytest.raises(atta.DataError, match="later_0: format version 2; this release reads version 1"):
        loaded.load(tmp_path / "later")
    other = dgl.distributed.DistEmbedding(NODES, 4, name="other")
    with pytest.raises(atta.DataError, match="the state of embeddings"):
        made([other], lr=0.1).load(tmp_path / "state")
