"""Distributed tensors and embeddings with DGL's arguments. The cases of DGL's own tests stand one by one."""

from __future__ import annotations

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


def test_rows_are_zeros_at_first(g: Any) -> None:
    made = DistTensor((NODES, 2), torch.float32, "zeros")
    assert (made.shape, made.dtype, len(made)) == ((NODES, 2), torch.float32, NODES)
    assert torch.equal(made[np.arange(NODES)], torch.zeros(NODES, 2))
    assert made.count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_a_tensor_has_the_dtype_it_was_made_with(g: Any, dtype: Any) -> None:
    made = DistTensor((NODES, 2), dtype, init_func=ones)
    assert made.dtype == made[:3].dtype == dtype
    assert torch.equal(made[:], torch.ones(NODES, 2, dtype=dtype))


def test_init_func_sees_every_row_once(g: Any) -> None:
    given = []

    def count(shape: tuple[int, ...], dtype: Any) -> Any:
        given.append(shape)
        return torch.arange(shape[0] * shape[1], dtype=dtype).reshape(shape)

    made = DistTensor((NODES, 2), torch.int64, init_func=count)
    assert given == [(NODES, 2)]
    assert sorted(made[:].reshape(-1).tolist()) == list(range(2 * NODES))
    with pytest.raises(atta.ConfigError, match="init_func gave"):
        DistTensor((NODES, 2), torch.int64, init_func=lambda shape, dtype: torch.ones(3))


def test_rows_are_written_and_read_by_id(g: Any) -> None:
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


def test_a_vector_has_one_number_per_row(g: Any) -> None:
    made = DistTensor((NODES,), torch.int64, "vector")
    made[[4, 2]] = torch.tensor([9, 8])
    assert made.shape == (NODES,)
    assert made[1:5].tolist() == [0, 8, 0, 9]


def test_a_saved_tensor_is_a_plain_one(g: Any, tmp_path: Path) -> None:
    made = DistTensor((NODES, 2), torch.float32, init_func=numbers)
    for name, rows in (("made", made), ("x", g.ndata["x"])):
        torch.save(rows, tmp_path / name)
        found = torch.load(tmp_path / name, weights_only=True)
        assert type(found) is torch.Tensor
        assert torch.equal(found, rows[np.arange(NODES)])


def test_a_name_that_exists_opens_its_tensor(g: Any) -> None:
    first = DistTensor((NODES, 2), torch.float32, "twice", init_func=numbers)
    second = DistTensor((NODES, 2), torch.float32, "twice")
    assert torch.equal(first[:], second[:])
    for shape, dtype in (((NODES, 3), torch.float32), ((NODES, 2), torch.int64)):
        with pytest.raises(atta.ConfigError, match="twice"):
            DistTensor(shape, dtype, "twice")
    del second  # it has not created the tensor
    first[[1]] = torch.ones(1, 2)
    assert first[[1]].tolist() == [[1, 1]]


def test_a_name_whose_tensor_has_gone_can_be_used_anew(g: Any) -> None:
    made = DistTensor((NODES, 2), torch.float32, "gone", init_func=ones)
    del made
    again = DistTensor((NODES, 3), torch.float32, "gone")
    assert again.count_nonzero() == 0


def test_tensors_without_a_name_are_different_ones(g: Any) -> None:
    first = DistTensor((NODES, 2), torch.float32, init_func=numbers)
    kept = first[0:10]
    second = DistTensor((NODES, 2), torch.float32, init_func=numbers)
    del first
    third = DistTensor((NODES, 2), torch.float32, init_func=numbers)
    assert not torch.equal(kept, second[0:10])
    assert not torch.equal(kept, third[0:10])


def test_a_persistent_tensor_outlives_its_object(g: Any) -> None:
    made = DistTensor((NODES, 2), torch.float32, "kept", init_func=ones, persistent=True)
    del made
    with pytest.raises(atta.ConfigError, match="kept"):
        DistTensor((NODES, 3), torch.float32, "kept")
    assert DistTensor((NODES, 2), torch.float32, "kept").count_nonzero() == 2 * NODES
    with pytest.raises(atta.ConfigError, match="needs a name"):
        DistTensor((NODES, 2), torch.float32, persistent=True)


def test_what_an_earlier_job_has_left_goes(g: Any) -> None:
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
    with pytest.raises(atta.ConfigError, match="make its optimiser before"):
        dgl.distributed.optim.SparseAdagrad([embedding], lr=0.1)


def test_an_embedding_without_an_optimiser_gives_its_first_rows(g: Any) -> None:
    embedding = dgl.distributed.DistEmbedding(NODES, 2, init_func=ones)
    assert embedding(torch.tensor([1, 5])).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(atta.ConfigError, match="no optimiser"):
        embedding.step()
