"""A PyG model that computes one trainer's rows, and its message-passing layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch_geometric import nn as pyg
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.conv import MessagePassing

from atta.errors import ConfigError, known_name
from atta.train.cooperative.exchange import CooperativeGraph, RowRange, exchange, start_exchange
from atta.train.models import adjacency, takes_one_set

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

    ``module`` does not change. A copy of its containers runs here. It shares every weight, and each layer in it is
    ``Exchanged``."""

    def __init__(self, module: torch.nn.Module, layers: Sequence[str] | None = None) -> None:
        """``layers``: names of the submodules that read neighbours, as in ``named_modules``; None: every PyG layer of messages.

        Raises ConfigError: the model has no such layer, a layer cannot tell sources from targets, or there is a normalisation
        over rows (such as BatchNorm), which would include rows of other servers; UnknownNameError: an unknown layer."""
        super().__init__()
        self.module = module
        _refuse_norms_over_rows(module)
        named = dict(module.named_modules())
        for name in layers or ():
            known_name("layer", name, named)
        self._chosen = None if layers is None else {named[name] for name in layers}
        if not self._twin()[1]:
            raise ConfigError(
                f"{type(module).__name__}: has no message-passing layer; name those that read neighbours in layers="
            )

    def forward(self, x: torch.Tensor, graph: CooperativeGraph, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The module's output for own rows: [o, out channels] from x [o, channels]. Extra arguments reach the module."""
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
    """``module`` with its layers exchanged: containers of layers are shallow copies, all others the same objects.
    ``numbers`` gets a number for each layer, in the order of modules. ``name``: of the module, ``model.layers.3``."""
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


class Exchanged(torch.nn.Module):
    """A layer that first fetches the rows it reads from the other trainers of the server.

    ``Exchanged(layer)(h, graph)`` takes own rows [o, channels] and returns own rows [o, out channels]. The layer is called
    as ``layer((read, own), edge_index)`` with read [o + r, channels], as every PyG layer accepts it that can tell sources
    from targets. If the second argument is not a ``CooperativeGraph``, it is called as it is: on a whole graph.

    ``GCNConv`` uses the degrees of the *whole* graph. SAGE and GCN compute interior rows while remote rows are under way.
    ``number``: by which the layer asks for remote rows; ``CooperativeModel`` numbers them as they lie in the model."""

    def __init__(self, layer: torch.nn.Module, number: int = 0) -> None:
        """Raises ConfigError for a PyG layer that cannot tell sources from targets."""
        super().__init__()
        check_layer(layer)
        self.layer: Any = layer
        self.number = number

    def reset_parameters(self) -> None:
        """Reset the wrapped layer."""
        self.layer.reset_parameters()

    def forward(self, h: torch.Tensor, graph: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Own rows [o, out channels]. Raises ConfigError: edge weights or edge features are given: a server's subgraph
        has none."""
        if not isinstance(graph, CooperativeGraph):
            plain: torch.Tensor = self.layer(h, graph, *args, **kwargs)
            return plain
        extra = [str(i) for i, a in enumerate(args, 2) if a is not None] + [
            k for k, a in kwargs.items() if a is not None
        ]
        if extra:
            raise ConfigError(f"{type(self.layer).__name__}: argument {', '.join(extra)} has no cooperative form")
        with graph.within(f"layer {self.number}", self.layer):
            return self._rows(h, graph)

    def _rows(self, h: torch.Tensor, graph: CooperativeGraph) -> torch.Tensor:
        if type(self.layer) is GCNConv:
            return _gcn(self.layer, h, graph, self.number)
        if type(self.layer) is SAGEConv:
            return _sage(self.layer, h, graph, self.number)
        out: torch.Tensor = self.layer((exchange(h, graph, self.number), h), graph.edge_index)
        return out


def check_layer(layer: torch.nn.Module) -> None:
    """Refuse PyG layers that take only one set of vertices. Most of them also reach over several hops in one call.
    Raises ConfigError: names the layer; also for ``GCNConv(improved=True)``, whose weights differ between PyG's
    versions, and for layers that pass messages against the edges."""
    if isinstance(layer, MessagePassing) and layer.flow != "source_to_target":
        raise ConfigError(
            f"{type(layer).__name__}: flow {layer.flow!r} has no cooperative form; edges lie with their targets"
        )
    if type(layer) is GCNConv:
        if layer.improved:
            raise ConfigError("GCNConv(improved=True): has no cooperative form; take improved=False")
        return
    if isinstance(layer, MessagePassing) and takes_one_set(layer):
        raise ConfigError(
            f"{type(layer).__name__}: takes one set of vertices, where a trainer reads more than it computes; "
            "take a layer that accepts a pair (x_source, x_target)"
        )


def _sage(layer: SAGEConv, h: torch.Tensor, graph: CooperativeGraph, number: int) -> torch.Tensor:
    def rows(read: torch.Tensor, span: RowRange) -> torch.Tensor:
        edges = span.edge_index
        if _as_matrix(layer, h):
            edges = graph.cached(("ones", span.first, span.sources, h.dtype), lambda: _ones(span, h))
        out: torch.Tensor = layer((read, h[span.first : span.last]), edges)
        return out

    return _in_two_parts(h, graph, number, lambda read: read, rows)


def _gcn(layer: GCNConv, h: torch.Tensor, graph: CooperativeGraph, number: int) -> torch.Tensor:
    def rows(z: torch.Tensor, span: RowRange) -> torch.Tensor:
        key = ("gcn", span.first, span.sources, h.dtype, layer.normalize, layer.add_self_loops, _as_matrix(layer, h))
        edges, weights = graph.cached(key, lambda: _gcn_edges(layer, span, graph, h))
        # The layer's own forward refuses to read more rows than it computes. This is what it would do.
        out: torch.Tensor = layer.propagate(
            edges, x=z, edge_weight=weights, size=(span.sources, span.last - span.first)
        )
        return out

    out = _in_two_parts(h, graph, number, layer.lin, rows)
    return out if layer.bias is None else out + layer.bias


def _in_two_parts(
    h: torch.Tensor,
    graph: CooperativeGraph,
    number: int,
    linear: Callable[[torch.Tensor], torch.Tensor],
    rows: Callable[[torch.Tensor, RowRange], torch.Tensor],
) -> torch.Tensor:
    """Compute interior rows while remote ones are under way. ``linear``: of each row that is read, before ``rows``."""
    if graph.source is None:
        return rows(linear(h), graph.whole)
    pending = start_exchange(h, graph, number)
    z = linear(h)
    interior = rows(z, graph.interior)
    return torch.cat([interior, rows(torch.cat([z, linear(pending.finish())]), graph.boundary)])


def _as_matrix(layer: MessagePassing, h: torch.Tensor) -> bool:
    """Whether a sparse matrix can sum up rows, without a copy of a row per edge."""
    return h.device.type == "cpu" and layer.aggr in ("add", "sum", "mean")


def _ones(span: RowRange, like: torch.Tensor) -> torch.Tensor:
    weights = torch.ones(span.edge_index.shape[1], dtype=like.dtype, device=like.device)
    sources, targets = span.edge_index
    return adjacency(sources, targets, weights, (span.last - span.first, span.sources))


def _gcn_edges(
    layer: GCNConv, span: RowRange, graph: CooperativeGraph, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Edges of some rows and their weights; on the CPU as one sparse matrix. As PyG's ``gcn_norm``, with degrees of the
    whole graph: in-edges and the self-loop that is added."""
    source, target = span.edge_index
    weights = torch.ones(len(source), dtype=like.dtype, device=like.device)
    if layer.normalize:
        loop = 1.0 if layer.add_self_loops else 0.0
        no_loop = source != target + span.first
        if not layer.add_self_loops and not bool(no_loop.all()):
            raise ConfigError(
                "GCNConv(add_self_loops=False): the graph has self-loops, which degrees do not count; remove them"
            )
        scale = (graph.in_degrees.to(like.dtype) + loop).pow(-0.5)
        scale = scale.masked_fill(scale == float("inf"), 0.0)
        source, target = source[no_loop], target[no_loop]
        weights = scale[source] * scale[target + span.first]
        if loop:
            own = torch.arange(span.last - span.first, device=like.device)
            source, target = torch.cat([source, own + span.first]), torch.cat([target, own])
            weights = torch.cat([weights, scale[span.first : span.last] ** 2])
            order = torch.argsort(target, stable=True)
            source, target, weights = source[order], target[order], weights[order]
    if not _as_matrix(layer, like):
        return torch.stack([source, target]), weights
    return adjacency(source, target, weights, (span.last - span.first, span.sources)), None
