"""Models by name. All are PyG's own; ``SampledModel`` chooses the rows that each layer computes."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

from atta.errors import ConfigError
from atta.train.models.deep import DeepGNN
from atta.train.settings import DEEP_MODELS, TrainSettings

__all__ = ["SampledModel", "adjacency", "build_model", "compile_in_place", "csr_matrix", "whole_model"]


def build_model(config: TrainSettings, in_channels: int, num_classes: int) -> SampledModel:
    """The model of ``config`` for sampled batches: one layer per hop."""
    return SampledModel(whole_model(config, in_channels, num_classes))


def whole_model(config: TrainSettings, in_channels: int, num_classes: int) -> torch.nn.Module:
    """The model of ``config`` as ``model(x, edge_index)``, for any graph."""
    if config.model in DEEP_MODELS:
        return DeepGNN(
            in_channels,
            config.hidden,
            num_classes,
            num_layers=config.depth,
            kind=config.model,
            dropout=config.dropout,
            checkpointed=config.checkpoint_layers,
        )
    common: dict[str, Any] = {
        "in_channels": in_channels,
        "hidden_channels": config.hidden,
        "num_layers": config.depth,
        "out_channels": num_classes,
        "dropout": config.dropout,
    }
    if config.model == "gat":
        gat: torch.nn.Module = GAT(**common, heads=config.heads, v2=False)
        return gat
    model: torch.nn.Module = {"sage": GraphSAGE, "gcn": GCN}[config.model](**common)
    return model


class SampledModel(torch.nn.Module):
    """A PyG model that reads sampled batches.

    ``model(x, edge_index)`` would compute each layer for all vertices of the batch. But the outermost hop, by far the
    largest, is only read, and each further layer needs one hop less. So each layer is called on the pair (vertices that
    it reads, vertices that it computes). The weights and their names are those of the PyG model.

    ``gnn``: the PyG model.
    """

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
    ) -> torch.Tensor:
        """Class scores of the seeds.

        x: [vertices, channels] features, seeds first, then hop by hop; edge_index: [2, edges] int64, hop by hop,
        targets ascending (as ``atta.NeighborLoader`` with ``frontier="new"`` delivers them); nodes_per_hop: [hops + 1],
        edges_per_hop: [hops]; edge_weight: [edges], for a GCN, by ``edge_norm="gcn"``. Returns [seeds, classes].
        """
        if isinstance(self.gnn, GCN) and edge_weight is not None:
            return self._weighed(x, edge_index, edge_weight, nodes_per_hop, edges_per_hop)
        if isinstance(self.gnn, GCN):
            # Its edge weights need degrees of vertices whose in-edges a later layer does not read.
            scores: torch.Tensor = self.gnn(x, edge_index)
            return scores[: nodes_per_hop[0]]
        if isinstance(self.gnn, DeepGNN):
            return self._deep(self.gnn, x, edge_index, nodes_per_hop, edges_per_hop)
        layers, dtype = list(self.gnn.convs), x.dtype
        in_rows = isinstance(self.gnn, GraphSAGE) and x.device.type == "cpu"
        rows = _Adjacency(edge_index, sum(nodes_per_hop[: len(layers)]), x.dtype) if in_rows else None
        for done, layer in enumerate(layers):
            hops = len(layers) - done
            read, computed = sum(nodes_per_hop[: hops + 1]), sum(nodes_per_hop[:hops])
            edges = sum(edges_per_hop[:hops])
            adjacency = edge_index[:, :edges] if rows is None else rows.first(computed, read, edges)
            # Sparse sums take one number type, and autocast makes layers return another one.
            x = x.to(dtype) if in_rows else x
            x = layer((x, x[:computed]), adjacency)
            if hops > 1:
                x = self.gnn.dropout(self.gnn.act(x))
        return x

    def _weighed(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        weight: torch.Tensor,
        nodes: Sequence[int],
        edges: Sequence[int],
    ) -> torch.Tensor:
        """A GCN whose edges have weights, so that no layer counts any."""
        layers = list(self.gnn.convs)
        for done, layer in enumerate(layers):
            hops = len(layers) - done
            read, computed, near = sum(nodes[: hops + 1]), sum(nodes[:hops]), sum(edges[:hops])
            summed = layer.propagate(edge_index[:, :near], x=layer.lin(x[:read]), edge_weight=weight[:near])
            x = summed[:computed] if layer.bias is None else summed[:computed] + layer.bias
            if hops > 1:
                x = self.gnn.dropout(self.gnn.act(x))
        return x

    @staticmethod
    def _deep(
        gnn: DeepGNN, x: torch.Tensor, edge_index: torch.Tensor, nodes: Sequence[int], edges: Sequence[int]
    ) -> torch.Tensor:
        """A residual layer returns a row for each row that it reads, so rows are cut off before each layer.

        The outermost rows of a layer's result lack their neighbours, but the next layer does not read them.
        """
        h = gnn.encoder(x)
        for done in range(len(gnn.layers)):
            hops = len(gnn.layers) - done
            h = gnn.layer(done, h[: sum(nodes[: hops + 1])], edge_index[:, : sum(edges[:hops])])
        return gnn.scores(h[: nodes[0]])


class _Adjacency:
    """Adjacencies in CSR, with which PyG sums up rows while it reads them.

    With a list of edges PyG would first copy one row per edge. With 4,700 features this took twice the time of
    everything else. Targets ascend over all hops, so each layer reads the beginning of the rows that the layer before
    read.
    """

    def __init__(self, edge_index: torch.Tensor, targets: int, dtype: torch.dtype) -> None:
        self._sources = edge_index[0]
        self._start = row_starts(edge_index[1], targets)
        self._ones = torch.ones(edge_index.shape[1], dtype=dtype)

    def first(self, targets: int, sources: int, edges: int) -> torch.Tensor:
        """Adjacency [targets, sources] of the first ``edges`` edges, which are all edges into the first ``targets``
        vertices.
        """
        parts = self._start[: targets + 1], self._sources[:edges], self._ones[:edges]
        return csr_matrix(*parts, (targets, sources))


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
    """Have ``torch.compile`` turn the forward and backward pass of ``model`` into kernels, at its first call.

    Batches differ in size, so sizes are variables of the kernels: each piece of code is compiled once or twice, not once
    per batch. What torch cannot compile runs as it is. Weights keep their names, so checkpoints are those of other runs.

    Raises ConfigError: the device's compiler is missing.
    """
    if backend == "inductor":
        _check_compiler(device)
    torch._dynamo.config.suppress_errors = True
    model.compile(dynamic=True, backend=backend)


def _check_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ConfigError("--compile: needs the package triton to make kernels for a GPU")
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(f"--compile: needs a C++ compiler, and there is no {compiler}; CXX names another one")
