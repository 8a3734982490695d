"""Models by name. All are PyG's own; ``SampledModel`` chooses the rows that each layer computes."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import shutil
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.nn.models import GAT, GCN, GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN

from atta.errors import ConfigError, PluginError
from atta.nn import first_layer, neighbor_sums
from atta.train.models.deep import DeepGNN
from atta.train.models.sums import row_aggregate
from atta.train.settings.common import DEEP_MODELS, MODEL, TrainSettings
from atta.wire.parts import AUTO

__all__ = [
    "SampledModel",
    "adjacency",
    "build_model",
    "compile_in_place",
    "csr_matrix",
    "row_starts",
    "takes_one_set",
    "whole_model",
]


def build_model(config: TrainSettings, in_channels: int, num_classes: int) -> SampledModel:
    """The model of ``config`` for sampled batches: one layer per hop."""
    return SampledModel(whole_model(config, in_channels, num_classes))


def whole_model(config: TrainSettings, in_channels: int, num_classes: int) -> torch.nn.Module:
    """The model of ``config`` as ``model(x, edge_index)``, for any graph."""
    if config.model in DEEP_MODELS:
        deep: dict[str, Any] = {"kind": config.model, "checkpointed": config.checkpoint_layers}
        return DeepGNN(in_channels, config.hidden, num_classes, config.depth, dropout=config.dropped, **deep)
    more: dict[str, Any] = {"heads": config.heads, "v2": False} if config.model == "gat" else {}
    own = {AUTO: GraphSAGE, "sage": GraphSAGE, "gcn": GCN, "gat": GAT}
    kind = own.get(config.model) or MODEL[config.model]
    model: BasicGNN = kind(in_channels, config.hidden, config.depth, num_classes, dropout=config.dropped, **more)
    if config.model not in own:
        _check_plain(config.model, model)
    made: torch.nn.Module = model
    return made


def _check_plain(name: str, model: BasicGNN) -> None:
    # Refuses a plug-in's model that is more than its layers: each is called by itself, and between two come activation
    # and dropout.
    more = {
        "a forward of its own": type(model).forward is not BasicGNN.forward,
        "a normalisation": any(not isinstance(norm, torch.nn.Identity) for norm in model.norms or ()),
        "jumping knowledge": model.jk_mode is not None,
        "a layer that takes no pair (x_source, x_target)": any(map(takes_one_set, model.convs)),
    }
    if found := [what for what, has in more.items() if has]:
        raise PluginError(f"model {name!r}: has {' and '.join(found)}; give it layers (init_conv) alone")


def takes_one_set(layer: torch.nn.Module) -> bool:
    """Whether a layer of PyG takes only one set of vertices: its first argument cannot be a pair."""
    first = next(iter(inspect.signature(layer.forward).parameters.values()), None)
    return first is not None and first.annotation in (torch.Tensor, "Tensor", "torch.Tensor")


class SampledModel(torch.nn.Module):
    """The PyG model ``gnn`` on sampled batches: each layer is called on the pair (vertices that it reads, vertices that
    it computes), one hop fewer than the layer before. The weights and their names are those of the PyG model."""

    def __init__(self, gnn: torch.nn.Module) -> None:
        super().__init__()
        self.gnn: Any = gnn

    def forward(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        nodes_per_hop: Sequence[int],
        edges_per_hop: Sequence[int],
        *,
        edge_weight: torch.Tensor | None = None,
        aggregated: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Class scores of the seeds.

        x: [vertices, channels] features, seeds first, then hop by hop; edge_index: [2, edges] int64, hop by hop,
        targets ascending (as ``atta.NeighborLoader`` with ``frontier="new"`` delivers them); nodes_per_hop: [hops + 1],
        edges_per_hop: [hops]; edge_weight: [edges], for a GCN, by ``edge_norm="gcn"``. ``aggregated`` [vertices, channels], of
        a loader that aggregates: what the first layer reads; then there is one hop less. Returns [seeds, classes]."""
        gnn, deep, dtype = self.gnn, isinstance(self.gnn, DeepGNN), x.dtype
        weighed = isinstance(gnn, GCN)
        if weighed and edge_weight is None:
            # Its edge weights need degrees of vertices whose in-edges a later layer does not read.
            scores: torch.Tensor = gnn(x, edge_index)
            return scores[: nodes_per_hop[0]]
        layers = list(gnn.layers if deep else gnn.convs)
        relu, plain = isinstance(getattr(gnn, "act", None), torch.nn.ReLU), not torch.compiler.is_compiling()
        # Targets ascend over all hops, so each layer reads the beginning of the rows that the layer before read.
        starts = row_starts(edge_index[1], sum(nodes_per_hop[: len(layers)]))
        x = gnn.encoder(x) if deep else x
        for done, layer in enumerate(layers):
            hops = len(layers) - done
            read, computed = sum(nodes_per_hop[: hops + 1]), sum(nodes_per_hop[:hops])
            edges = edge_index[:, : sum(edges_per_hop[:hops])]
            given = aggregated if not done else None
            if given is None and plain and (how := row_aggregate(layer, x.device)):
                # Sums take one number type, and autocast makes layers return another one.
                given, x = neighbor_sums(x.to(dtype), starts[: computed + 1], edges[0], how)
            if given is not None:
                x = first_layer(layer, x, given, relu=relu and hops > 1)
                x = gnn.dropout(x if relu else gnn.act(x)) if hops > 1 else x
                continue
            count = edges.shape[1]
            if deep:  # a row for each that is read: the outermost lack their neighbours, and the next layer reads none
                x = gnn.layer(done, x[:read], edges)
                continue
            if weighed and edge_weight is not None:
                summed = layer.propagate(edges, x=layer.lin(x[:read]), edge_weight=edge_weight[:count])[:computed]
                x = summed if layer.bias is None else summed + layer.bias
            else:
                x = layer((x, x[:computed]), edges)
            if hops > 1:
                x = gnn.dropout(gnn.act(x))
        return gnn.scores(x[: nodes_per_hop[0]]) if deep else x


# Adjacency matrices in CSR. With a list of edges PyG would copy one row per edge; it multiplies rows by a matrix.


def row_starts(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return int64 [count + 1]: where each row begins, if entries with these row numbers are sorted by them."""
    starts = torch.zeros(count + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(torch.bincount(rows, minlength=count), 0, out=starts[1:])
    return starts


def adjacency(
    sources: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Return the matrix ``size``, [targets, sources], of edges that are sorted by target; all tensors are [E]."""
    return csr_matrix(row_starts(targets, size[0]), sources, weights, size)


def csr_matrix(
    starts: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Return a matrix of torch in CSR, whose arrays are not checked; without torch's note that CSR is in beta."""
    _note_given()
    return torch.sparse_csr_tensor(starts, columns, values, size=size, check_invariants=False)


@functools.cache
def _note_given() -> None:
    """Have torch give its note on CSR where nobody reads it. It gives the note once per process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        empty = torch.zeros(1, dtype=torch.int64)
        torch.sparse_csr_tensor(empty, empty[:0], torch.zeros(0), size=(0, 0), check_invariants=False)


def compile_in_place(model: torch.nn.Module, device: torch.device, backend: str = "inductor") -> None:
    """Have ``torch.compile`` turn the passes of ``model`` into kernels for batches of any size, at its first call. What torch
    cannot compile runs as it is. Weights keep their names. Raises ConfigError: the device's compiler is missing."""
    compiler = os.environ.get("CXX", "g++")
    if backend == "inductor" and device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError("--compile: needs the package triton to make kernels for a GPU")
    if backend == "inductor" and device.type != "cuda" and shutil.which(compiler) is None:
        raise ConfigError(f"--compile: needs a C++ compiler, and there is no {compiler}; CXX names another one")
    torch._dynamo.config.suppress_errors = True
    model.compile(dynamic=True, backend=backend)
