"""``atta.check``: whether a model gives on batches of a cluster's graph what it gives on the graph."""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import atta
from atta.errors import ConfigError, blaming
from atta.observe.packages import member
from atta.samplers.arguments import whole

if TYPE_CHECKING:
    import torch

    from atta.partition.schema import Schema
    from atta.train.models.forms import SmallGraph
    from atta.train.reports.exactness import ExactnessReport

FAN_OUTS = (8, 4, 2)
"""Of the vertices that are fetched, hop by hop around each of ``SEEDS``: at most 105 for each."""
SEEDS = 4
_BLOCKS = ("blocks", "mfgs")
"""What DGL's examples call the first argument of a model."""
MOST_EDGES = 100_000
"""At most this many edges among them are looked at."""


def check(
    model: torch.nn.Module,
    cluster: atta.Cluster,
    *,
    hops: int | None = None,
    features: str = "x",
    seed: int = 0,
    draws: int = 1000,
    seconds: float = 60.0,
) -> ExactnessReport:
    """Run a model on a small part of the graph and on batches of it, and say where the two differ and what helps.

    The part, some hundred vertices with all edges among them, is taken for a whole graph. Each form of a batch is compared
    with it, in double precision. Where rows differ, remedies are tried, and those that work are named.

    Args:
        model: called as ``model(x, edge_index)`` and with ``edge_weight``, ``edge_attr`` or another argument ``edge_...`` if it
            has such and the graph has the table; or, as DGL's, ``model(blocks, x)`` with ``hops``. It returns a row per vertex.
        cluster: from ``atta.connect`` or ``atta.local``, of a graph with one node type and one edge type.
        hops: of the batches; None: as many as the model reads, which is found out.
        features: node table that is ``x``.
        seed: of the choice of vertices.
        draws: of the first layer with 2 neighbours, which tell its bias; 0: it is not measured.
        seconds: forms that have not begun by then are not run.

    Returns what was found: ``print`` shows a table, ``ok`` says whether every form is equal, ``to_json()`` gives all of it.

    Raises ConfigError: the model cannot be called so, or the graph has several types, no such features, or no edges;
    RemoteError: a daemon does not answer.
    """
    from atta.train.models.exactness import check_on

    if hops is not None:
        whole("hops", hops, 1, 32)
    whole("draws", draws, 0, 100_000)
    if not seconds > 0:
        raise ConfigError(f"seconds {seconds}: must be positive")
    own, arguments = _called_as(model, hops)
    graph, seeds = part_to_check(cluster, features, arguments, seed)
    report = check_on(own, graph, seeds, hops, draws=draws, seconds=seconds)
    return replace(report, notes=(*report.notes, *_other_histograms(model, cluster.schema)))


def imported_model(name: str) -> torch.nn.Module:
    """The model that ``MODULE:NAME`` names, also in this folder: a module of torch, or what returns one without
    arguments. Raises ConfigError: it cannot be imported or made."""
    import torch

    module, _, called = name.partition(":")
    if not module or not called:
        raise ConfigError(f"{name!r}: name a model as MODULE:NAME, such as models:net")
    sys.path.insert(0, "")
    try:
        found = member(name, module, called)
    finally:
        sys.path.remove("")
    model = found if isinstance(found, torch.nn.Module) or not callable(found) else _made(name, found)
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"{name}: is of {type(model).__name__}, not a module of torch")
    return model


def _made(name: str, make: Any) -> Any:
    with blaming(ConfigError, f"{name}: cannot be called without arguments", of=TypeError):
        inspect.signature(make).bind()
    try:
        return make()
    except Exception as error:  # whatever a user's function raises
        raise ConfigError(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}") from None


def _called_as(model: Any, hops: int | None) -> tuple[Any, list[str]]:
    """The model as ``check_on`` calls it, and its arguments that take rows of edge tables; raises ConfigError for others
    that it cannot do without."""
    from atta.train.models.forms import OfBlocks

    name = type(model).__name__
    try:
        first, second, *others = inspect.signature(model.forward).parameters.values()
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{name}: a model is called as model(x, edge_index)") from None
    if first.name in _BLOCKS:
        if hops is None:
            raise ConfigError(f"{name}: is called as model({first.name}, x): say with hops how many blocks it reads")
        return OfBlocks(model, hops), []
    if second.kind is second.KEYWORD_ONLY or first.kind is first.VAR_KEYWORD:
        raise ConfigError(f"{name}: a model is called as model(x, edge_index)")
    for other in others:
        needed = other.default is other.empty and other.kind not in (other.VAR_POSITIONAL, other.VAR_KEYWORD)
        if needed and not other.name.startswith("edge_"):
            raise ConfigError(f"{name}: needs {other.name!r}, which a check lacks; it calls model(x, edge_index)")
    return model, [other.name for other in others if other.name.startswith("edge_")]


def _other_histograms(model: torch.nn.Module, schema: Schema) -> list[str]:
    """What layers of ``model`` that scale by a histogram of degrees say wrongly of the graph's mean degree."""
    (node_type,), (edge_type,) = schema.node_types, schema.edge_types
    mean = schema.edge_counts[edge_type] / max(1, schema.node_counts[node_type])
    held = {name: float(buffer.mean()) for name, buffer in model.named_buffers() if name.endswith("avg_deg_lin")}
    return [
        f"{name.rpartition('.')[0] or 'the model'}: its histogram has a mean degree of {found:.3g}, the graph one of "
        f"{mean:.3g}: give it the histogram of the whole graph"
        for name, found in held.items()
        if not math.isclose(found, mean, rel_tol=1e-3)
    ]


def part_to_check(
    cluster: atta.Cluster, features: str, arguments: list[str], seed: int
) -> tuple[SmallGraph, list[int]]:
    """``small_graph``, and vertices of it with some in-edges; raises ConfigError if there are none."""
    graph = small_graph(cluster, features, arguments, seed)
    found = graph.in_degrees.argsort(descending=True, stable=True)
    middle = [int(v) for v in found if graph.in_degrees[v] > 0]
    if len(middle) < 2:
        raise ConfigError("the graph has no edges to check a model on")
    return graph, middle[len(middle) // 4 :][:SEEDS]


def check_graph(schema: Schema, features: str) -> None:
    """Raise ConfigError for a graph of several types, UnknownNameError for one without the node table ``features``."""
    if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
        raise ConfigError("check: takes graphs with one node type and one edge type")
    schema.table(schema.node_types[0], features)


def small_graph(cluster: atta.Cluster, features: str, arguments: list[str], seed: int) -> SmallGraph:
    """Some vertices of a cluster with all edges among them, by edge id. ``arguments``: of the model, for edge tables."""
    import torch

    from atta.client.loaders.pyg_data import tensor_name
    from atta.train.models.forms import SmallGraph

    schema = cluster.schema
    check_graph(schema, features)
    (node_type,), (edge_type,) = schema.node_types, schema.edge_types
    tables = {
        tensor_name(name if name.startswith("edge") else f"edge_{name}"): name for name in schema.edge_tables[edge_type]
    }
    wanted = {argument: tables[argument] for argument in arguments if argument in tables}
    loader = atta.NeighborLoader(
        cluster, FAN_OUTS, (node_type, None), batch_size=SEEDS, shuffle=True, seed=seed, subgraph_type="induced",
        tables={node_type: [features]}, edge_tables={edge_type: [*wanted.values()]}, rank=0, world_size=1,
    )  # fmt: skip
    batch = next(iter(loader))
    e_id, ends = batch.e_id(), batch.edge_index()
    assert e_id is not None
    order = np.argsort(e_id, kind="stable")[:MOST_EDGES]
    edge = {argument: torch.from_numpy(batch.edge_table(name)[order]) for argument, name in wanted.items()}
    x = torch.from_numpy(np.array(batch.tables[node_type][features]))
    x = x.reshape(len(x), math.prod(x.shape[1:]))
    return SmallGraph(x, torch.from_numpy(ends[:, order].astype(np.int64)), edge)
