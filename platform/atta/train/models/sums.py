"""Layers of PyG by totals (``SummedLayer``): those that add rows up, or take their mean, before or after a linear layer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import GCNConv, GraphConv, Linear, SAGEConv

from atta.client.inference.block import Doubles, Floats, SummedLayer
from atta.errors import ConfigError
from atta.nn import aggregate_of, first_layer

_FORWARD_HOOKS = ("forward_hooks", "forward_pre_hooks")
"""Ends of the names that torch and PyG keep a module's hooks by."""
Then = Callable[[torch.Tensor], torch.Tensor]
_LINEAR = {GCNConv: "lin", SAGEConv: "lin_l", GraphConv: "lin_rel"}
"""What a layer makes of the sum of rows. Where that is shorter, totals are of what it makes of each row."""


def is_stock(conv: torch.nn.Module) -> bool:
    """Whether a layer computes what its class says: it has no hooks, and nobody has replaced one of its functions."""
    hooks = (held for part in conv.modules() for name, held in vars(part).items() if name.endswith(_FORWARD_HOOKS))
    replaced = (callable(held) and hasattr(type(conv), name) for name, held in vars(conv).items())
    return not any(hooks) and not any(replaced)


def row_aggregate(conv: Any, device: torch.device) -> str | None:
    """``aggregate`` of ``neighbor_sums`` for a layer of PyG on ``device``; None: PyG must make a row per edge."""
    if type(conv) is SAGEConv and device.type == "cpu" and is_stock(conv):
        with contextlib.suppress(ConfigError):
            return aggregate_of(conv)
    return None


def layer_sums(conv: Any, device: torch.device, then: Then | None = None) -> SummedLayer | None:
    """A layer of PyG by totals; ``then``: what comes after it. None: it is not stock, or does more with rows of in-neighbours
    than to add them up. Of a mean, the last number of a total counts the edges."""
    try:
        how, name = aggregate_of(conv), _LINEAR.get(type(conv), "")
    except ConfigError:
        return None
    linear, after = getattr(conv, name, None), conv
    constant = how == "gcn" and getattr(linear, "bias", None) is not None  # which would be added once per neighbour
    if not isinstance(linear, torch.nn.Linear | Linear) or constant or not is_stock(conv):
        return None
    weight, bias = linear.weight.detach().double().T, linear.bias
    if early := weight.shape[1] < weight.shape[0]:
        setattr(after := copy.deepcopy(conv), name, torch.nn.Identity())

    def moved(array: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device, dtype)

    def scaled(rows: torch.Tensor, degrees: Any) -> torch.Tensor:
        if how != "gcn":
            return rows
        scale = moved(degrees).pow(-0.5)
        return rows * torch.where(torch.isinf(scale), 0, scale)[:, None]

    @torch.no_grad()
    def message(_: str, rows: Floats, degrees: Floats | None) -> Doubles:
        found = scaled(moved(rows), degrees)
        found = found @ weight if early else found
        found = torch.cat([found, torch.ones(len(found), 1).to(found)], 1) if how == "mean" else found
        return np.asarray(found.cpu().numpy())

    @torch.no_grad()
    def update(rows: Floats, totals: Doubles, degrees: Floats | None) -> Floats:
        total = moved(totals)
        if how == "mean":
            total = total[:, :-1] / total[:, -1:].clamp(min=1)
        elif how == "gcn":  # the self-loop that each vertex has comes to the others
            total = scaled(total + moved(message("", rows, degrees)), degrees)
        total = total + bias if early and bias is not None else total
        out = first_layer(after, moved(rows, linear.weight.dtype), total.to(linear.weight.dtype))
        return np.asarray((out if then is None else then(out)).float().cpu().numpy())

    return SummedLayer({"": min(weight.shape) + (how == "mean")}, message, update, loops=how != "gcn")
