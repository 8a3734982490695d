"""Layers from given sums, and sums of in-neighbours, beside PyG and numeric gradients; blocks are small here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv
from torch_geometric.utils import scatter

from atta import nn
from atta.nn import first_layer, neighbor_sums

ROWS, CHANNELS = 300, 5
LAYERS: dict[str, Callable[[int], Any]] = {
    "sage": lambda width: SAGEConv(CHANNELS, width),
    "sage-alone": lambda width: SAGEConv(CHANNELS, width, root_weight=False, bias=False),
    "sage-normalized": lambda width: SAGEConv(CHANNELS, width, normalize=True),
    "gcn": lambda width: GCNConv(CHANNELS, width),
    "gcn-plain": lambda width: GCNConv(CHANNELS, width, bias=False),
    "graph": lambda width: GraphConv(CHANNELS, width),
    "gin": lambda width: GINConv(torch.nn.Linear(CHANNELS, width)),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn._Affine, "BLOCK_BYTES", 1)


def stepwise(conv: Any, x: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """What the layer makes of sums, one step of PyG's after the other."""
    if isinstance(conv, GCNConv):
        return conv.lin(sums) if conv.bias is None else conv.lin(sums) + conv.bias
    if isinstance(conv, GINConv):
        return conv.nn(sums + (1 + conv.eps) * x)
    if isinstance(conv, GraphConv):
        return conv.lin_rel(sums) + conv.lin_root(x)
    out = conv.lin_l(sums) + (conv.lin_r(x) if conv.root_weight else 0)
    return torch.nn.functional.normalize(out, p=2.0, dim=-1) if conv.normalize else out


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("width", [3, 8])  # narrower and wider than rows: gradients are made in another order
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients_are_those_of_its_steps(name: str, width: int, relu: bool) -> None:
    torch.manual_seed(3)
    conv = LAYERS[name](width).double()
    x, sums = (torch.randn(ROWS, CHANNELS, dtype=torch.float64, requires_grad=True) for _ in range(2))
    wanted = stepwise(conv, x, sums)
    wanted = wanted.relu() if relu else wanted
    pulled = torch.randn_like(wanted)
    leaves = [x, sums, *conv.parameters()]
    expected = torch.autograd.grad(wanted, leaves, pulled, allow_unused=True)
    out = first_layer(conv, x, sums, relu=relu)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    for found, want in zip(torch.autograd.grad(out, leaves, pulled, allow_unused=True), expected, strict=True):
        assert (found is None) == (want is None)
        if found is not None:
            torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
def test_sums_of_in_neighbours_are_those_of_edges(aggregate: str) -> None:
    torch.manual_seed(5)
    counts = torch.tensor([2, 0, 4, 1, 0])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    sources = torch.tensor([3, 6, 1, 1, 6, 0, 2])
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    sums, own = neighbor_sums(x, starts, sources, aggregate)
    wanted = scatter(x[sources], torch.arange(5).repeat_interleave(counts), 0, 5, aggregate)
    torch.testing.assert_close(sums, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(own, x[:5])
    assert gradcheck(lambda rows: neighbor_sums(rows, starts, sources, aggregate), (x,))


def test_a_layer_that_is_more_than_its_weights_is_called() -> None:
    x, sums = torch.randn(2, ROWS, CHANNELS)
    called: list[str] = []
    conv = SAGEConv(CHANNELS, 4)
    wanted = first_layer(conv, x, sums)
    handle = conv.lin_r.register_forward_hook(lambda *_: called.append("hook"))
    torch.testing.assert_close(first_layer(conv, x, sums), wanted)
    assert called == ["hook"]
    handle.remove()
    torch.testing.assert_close(first_layer(conv, x.to_sparse_csr(), sums), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert first_layer(conv, x, sums).dtype == torch.bfloat16
    assert first_layer(conv, x[:0], sums[:0]).shape == (0, 4)
