"""Optimisers and bfloat16 against torch itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atta.kvstore import codecs
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROWS, DIM, STEPS = 40, 12, 60


def optimisers() -> list[tuple[OptimiserSpec, Any]]:
    return [
        (OptimiserSpec.sgd(0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (OptimiserSpec.adagrad(), lambda p: torch.optim.Adagrad(p)),
        (
            OptimiserSpec.adagrad(0.1, lr_decay=0.02, eps=1e-6, initial_accumulator_value=0.3),
            lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.02, eps=1e-6, initial_accumulator_value=0.3),
        ),
        (OptimiserSpec.adam(), lambda p: torch.optim.SparseAdam(p)),
        (
            OptimiserSpec.adam(0.05, betas=(0.7, 0.9), eps=1e-5),
            lambda p: torch.optim.SparseAdam(p, lr=0.05, betas=(0.7, 0.9), eps=1e-5),
        ),
    ]


@pytest.mark.parametrize(("spec", "make"), optimisers(), ids=["sgd", "adagrad", "adagrad2", "adam", "adam2"])
def test_a_table_learns_as_a_sparse_embedding_does(spec: OptimiserSpec, make: Any, rng: np.random.Generator) -> None:
    table = MutableTable(MutableSpec("emb", ROWS, row_shape=(DIM,), optimiser=spec))
    table.register(1)
    begin = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    table.push(np.arange(ROWS), begin, "write", client=1, sequence=0)
    embedding = torch.nn.Embedding(ROWS, DIM, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(torch.from_numpy(begin))
    optimiser = make(list(embedding.parameters()))
    for step in range(STEPS):
        rows = rng.integers(0, ROWS, rng.integers(1, 80))
        weight = torch.from_numpy(rng.standard_normal((len(rows), DIM)).astype(np.float32))
        optimiser.zero_grad()
        (embedding(torch.from_numpy(rows)) * weight).sum().backward()
        optimiser.step()
        table.push(rows, weight.numpy(), "step", client=1, sequence=1 + step)
    want = embedding.weight.detach().numpy()
    np.testing.assert_allclose(table.pull(np.arange(ROWS)).values, want, rtol=1e-6, atol=2e-6)


def test_row_adam_is_adam_of_each_row_alone(rng: np.random.Generator) -> None:
    how: dict[str, Any] = {"betas": (0.7, 0.9), "eps": 1e-5}
    spec = OptimiserSpec.row_adam(0.05, **how)
    table = MutableTable(MutableSpec("emb", ROWS, row_shape=(DIM,), optimiser=spec))
    table.register(1)
    begin = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    table.push(np.arange(ROWS), begin, "write", client=1, sequence=0)
    alone = [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in begin]
    optimisers = [torch.optim.Adam([row], lr=0.05, **how) for row in alone]
    for step in range(STEPS):
        rows = rng.integers(0, ROWS, rng.integers(1, 20))
        grads = rng.standard_normal((len(rows), DIM)).astype(np.float32)
        for row in np.unique(rows).tolist():
            alone[row].grad = torch.from_numpy(grads[rows == row].sum(axis=0))
            optimisers[row].step()
        table.push(rows, grads, "step", client=1, sequence=1 + step)
    want = torch.stack([*alone]).detach().numpy()
    np.testing.assert_allclose(table.pull(np.arange(ROWS)).values, want, rtol=1e-6, atol=2e-6)


def test_bfloat16_is_torch_s_bit_for_bit(rng: np.random.Generator) -> None:
    bits = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1, ties & 0xFFFF0000]).view(np.float32)[None]
    ours = codecs.encode("bf16", values).view(np.uint16)
    theirs = torch.from_numpy(values).to(torch.bfloat16)
    nan = np.isnan(values)
    assert np.array_equal(ours[~nan], theirs.view(torch.uint16).numpy()[~nan])
    out = np.empty_like(values)
    codecs.decode("bf16", codecs.encode("bf16", values), out)
    assert np.isnan(out[nan]).all()
    assert np.array_equal(out[~nan], theirs.float().numpy()[~nan])
