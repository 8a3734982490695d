"""A PyG model that computes one trainer's rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch_geometric import nn as pyg
from torch_geometric.nn.conv import MessagePassing

from atta.errors import ConfigError, UnknownNameError
from atta.train.cooperative.exchange import CooperativeGraph
from atta.train.cooperative.layers import Exchanged

__all__ = ["CooperativeModel"]

_OVER_ROWS = (
    _NormBase,  # batch and instance normalisation of torch
    pyg.BatchNorm,
    pyg.HeteroBatchNorm,
    pyg.InstanceNorm,
    pyg.GraphNorm,
    pyg.GraphSizeNorm,
    pyg.PairNorm,
    pyg.MeanSubtractionNorm,
    pyg.DiffGroupNorm,
)
"""Normalisations whose result for a row depends on other rows."""


class CooperativeModel(torch.nn.Module):
    """A model whose message-passing layers fetch the rows they read from the other trainers (GraNNDis section 4.4).

    Two rules for a model of your own. ``forward(x, edge_index)`` only passes its second argument to message-passing
    layers. All other operations treat each row alike: activation, dropout, row-wise normalisation, residuals, jumping
    knowledge. Here x holds the trainer's own rows, and a ``CooperativeGraph`` takes the place of ``edge_index``.

    The module does not change: neither its weights and their names, nor how it runs on a whole graph. A copy of its
    containers runs here. It shares every weight, and each layer in it is ``Exchanged``.

    Attributes:
        module: the given model.
    """

    def __init__(self, module: torch.nn.Module, layers: Sequence[str] | None = None) -> None:
        """``layers``: names of the submodules that read neighbours, as in ``named_modules``; None: every PyG
        message-passing layer.

        Raises:
            ConfigError: the model has no such layer, a layer cannot tell sources from targets, or there is a
                normalisation over rows (such as BatchNorm). Its statistics would include rows of other servers'
                vertices and change the gradient.
            UnknownNameError: ``layers`` names something that does not exist.
        """
        super().__init__()
        self.module = module
        _refuse_norms_over_rows(module)
        named = dict(module.named_modules())
        for name in layers or ():
            if name not in named:
                raise UnknownNameError.of("layer", name, named)
        self._chosen = None if layers is None else {named[name] for name in layers}
        if not self._twin()[1]:
            raise ConfigError(
                f"{type(module).__name__}: has no message-passing layer; name those that read neighbours in layers="
            )

    def forward(self, x: torch.Tensor, graph: CooperativeGraph, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The module's output for own rows: [o, out channels] from x [o, channels]. Extra arguments reach the module
        unchanged.
        """
        # Each call makes a new copy, which is cheap. So it follows train(), eval() and any change to the module.
        out: torch.Tensor = self._twin()[0](x, graph, *args, **kwargs)
        return out

    def _twin(self) -> tuple[torch.nn.Module, Mapping[torch.nn.Module, int]]:
        numbers: dict[torch.nn.Module, int] = {}
        return _twin(self.module, self._chosen, numbers), numbers


def _twin(
    module: torch.nn.Module,
    chosen: set[torch.nn.Module] | None,
    numbers: dict[torch.nn.Module, int],
    name: str = "model",
) -> torch.nn.Module:
    """``module`` with its layers exchanged: containers of layers are shallow copies, all other modules the same
    objects.

    ``numbers`` gets a number for each layer, in the order of the modules. A layer that is used twice has one. ``name``
    is that of the module in the whole model, ``model.layers.3``.
    """
    layer = module.layer if isinstance(module, Exchanged) else module
    given = isinstance(module, Exchanged)
    if given or (module in chosen if chosen is not None else isinstance(module, MessagePassing)):
        return Exchanged(layer, numbers.setdefault(layer, len(numbers)))
    children = {n: child and _twin(child, chosen, numbers, f"{name}.{n}") for n, child in module._modules.items()}
    if all(child is module._modules[n] for n, child in children.items()):
        return module
    twin = copy.copy(module)
    twin.__dict__["_modules"] = children
    twin.__dict__["forward"] = partial(_within, name, twin.forward)
    return twin


def _within(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a module by its ``forward``. If it gets a graph, the graph's dropout knows where in the model it is."""
    graph = next((a for a in (*args, *kwargs.values()) if isinstance(a, CooperativeGraph)), None)
    with nullcontext() if graph is None else graph.within(name):
        return forward(*args, **kwargs)


def _refuse_norms_over_rows(module: torch.nn.Module) -> None:
    for name, child in module.named_modules():
        over_graph = isinstance(child, pyg.LayerNorm) and child.mode == "graph"
        if over_graph or isinstance(child, _OVER_ROWS):
            hint = "; for GENConv: norm='layer'" if "mlp" in name else ""
            raise ConfigError(
                f"{name or 'the model'}: {type(child).__name__} normalises over rows, which breaks equality with the whole graph; "
                f"take one that normalises each row, such as torch.nn.LayerNorm (or PyG's with mode='node'){hint}"
            )
