"""Shared by the tests of cooperative training: a small graph, its subgraphs by networkx, and each trainer's program.

``python -m tests.system.cooperative FOLDER RANK`` is one of four trainers. It runs all cases and writes ``RANK.pt``.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx
import numpy as np
import torch
import torch.distributed as dist
from torch_geometric.nn import GAT, GCN, GATConv, GINConv, GraphSAGE
from torch_geometric.utils import scatter

from atta.train.cooperative import (
    CooperativeModel,
    DeepGNN,
    ServerGroups,
    TrainerBatch,
    TrainingGraph,
    backward,
    broadcast_weights,
    count_targets,
    exchange,
    source,
    split_vertices,
    start_exchange,
    worker_view,
)
from atta.train.cooperative.halo import ReadRows, meet
from atta.train.cooperative.shares import first_vertices
from atta.train.cooperative.source import ExactSource

WORLD = 4
VERTICES, CHANNELS, CLASSES = 240, 5, 3


@dataclass(frozen=True)
class Case:
    """One step on ``4 / trainers`` servers.

    Attributes:
        model: a name in ``MODELS``.
        layers: number of layers of the model.
        trainers: number of trainers per server.
        missing: number of hops that the subgraph lacks.
        degrees: ``subgraph`` gives the model degrees in the subgraph: a mistake.
        loss: ``all`` takes the loss of all training vertices in the subgraph: a mistake. ``even`` is a co-batch of the
            training vertices with even ids.
        owners: ``random`` (nearly every vertex reads remote rows), ``split``, or ``one`` (one trainer of each server
            has no vertex).
        steps: number of steps of Adam; 0: the gradient only.
        across: servers hold their own vertices and one hop of HALO, and rows travel between them.
    """

    model: str
    layers: int = 2
    trainers: int = 2
    missing: int = 0
    degrees: str = "global"
    loss: str = "inner"
    owners: str = "random"
    transport: str = "auto"
    dropout: float = 0.0
    dtype: str = "float64"
    steps: int = 0
    across: bool = False

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in vars(self).values())


class OwnLayer(torch.nn.Module):
    """A layer that PyG does not know. No type annotation says which arguments it takes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2 * width, width)

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        read, own = x if isinstance(x, tuple) else (x, x)
        gathered = scatter(read[edge_index[0]].tanh(), edge_index[1], 0, len(own), reduce="sum")
        return self.linear(torch.cat([own, gathered], dim=1))


class OwnModel(torch.nn.Module):
    """A user's module: layers by hand, two parallel branches, one layer used twice, normalised rows."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(CHANNELS, 8), torch.nn.LayerNorm(8), torch.nn.ReLU())
        self.attention = GATConv(8, 4, heads=2)
        self.isomorphism = GINConv(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
        self.custom = OwnLayer(8)
        self.decoder = torch.nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        h = self.encoder(x)
        h = h + self.attention(h, edge_index) * self.isomorphism(h, edge_index)
        h = self.custom(self.custom(h, edge_index).relu(), edge_index)
        return self.decoder(h)


def deep(case: Case, kind: str, checkpointed: bool) -> DeepGNN:
    return DeepGNN(
        CHANNELS, 8, CLASSES, num_layers=case.layers, kind=kind, dropout=case.dropout, checkpointed=checkpointed
    )


def reentrant(case: Case) -> DeepGNN:
    """PyG's own checkpointing, of the convolutions only."""
    model = deep(case, "deepergcn", False)
    for layer in model.layers:
        layer.ckpt_grad = True
    return model


MODELS: dict[str, Callable[[Case], torch.nn.Module]] = {
    "sage": lambda c: GraphSAGE(CHANNELS, 8, c.layers, CLASSES, dropout=c.dropout),
    "sage-max": lambda c: GraphSAGE(CHANNELS, 8, c.layers, CLASSES, dropout=c.dropout, aggr="max"),
    "gcn": lambda c: GCN(CHANNELS, 8, c.layers, CLASSES, dropout=c.dropout),
    "gcn-jumping": lambda c: GCN(CHANNELS, 8, c.layers, CLASSES, jk="cat"),
    "gat": lambda c: GAT(CHANNELS, 8, c.layers, CLASSES, heads=2, dropout=c.dropout),
    "resgcn": lambda c: deep(c, "resgcn+", False),
    "resgcn-checkpointed": lambda c: deep(c, "resgcn+", True),
    "deepergcn": lambda c: deep(c, "deepergcn", False),
    "deepergcn-checkpointed": lambda c: deep(c, "deepergcn", True),
    "deepergcn-reentrant": reentrant,
    "own": lambda c: OwnModel(),
}
OWN_LAYERS = ("attention", "isomorphism", "custom")

EXACT = (
    *(Case(model) for model in ("sage", "sage-max", "gcn", "gcn-jumping", "gat")),
    *(Case(model, layers=4) for model in MODELS if model.startswith(("resgcn", "deepergcn"))),
    Case("own", layers=3),
    Case("gcn", layers=3, owners="split"),
    Case("resgcn-checkpointed", layers=28),
    *(Case(model, owners="one") for model in ("sage", "gcn", "gat", "deepergcn-checkpointed")),
    *(Case(model, transport="collective") for model in ("sage", "gat")),
    *(Case(model, trainers=n, loss="even") for model in ("sage", "gcn", "gat") for n in (1, 2, 4)),
    *(Case(model, trainers=n, steps=5, owners="split") for model, n in (("sage", 2), ("gcn", 4))),
)
ACROSS = (
    *(Case(model, across=True) for model in ("sage", "sage-max", "gcn", "gcn-jumping", "gat")),
    *(Case(model, layers=4, across=True) for model in MODELS if model.startswith(("resgcn", "deepergcn"))),
    Case("own", layers=3, across=True),
    *(Case(model, layers=3, owners="one", across=True) for model in ("sage", "gat", "deepergcn-checkpointed")),
    Case("gat", transport="collective", across=True),
    *(Case(model, trainers=n, loss="even", across=True) for model in ("sage", "gcn", "gat") for n in (1, 4)),
    Case("gcn", layers=3, steps=5, owners="split", across=True),
)
SINGLE = tuple(Case(model, dtype="float32") for model in ("sage", "gcn", "gat"))
WRONG = (
    *(Case(model, missing=1) for model in ("sage", "gcn", "gat")),
    Case("gcn", degrees="subgraph"),
    *(Case(model, loss="all") for model in ("sage", "gcn")),
)
RECOMPUTED = tuple(Case(model, layers=4, dropout=0.5) for model in ("resgcn", "resgcn-checkpointed"))

QUICK = (
    *(case for case in EXACT if case.model in ("sage", "own") or case.steps),
    *(case for case in EXACT if case.model in ("gat", "deepergcn-reentrant") and case.trainers == 2),
    *(case for case in ACROSS if case.model in ("gcn", "sage-max", "gcn-jumping", "own", "deepergcn-checkpointed")),
    *(*SINGLE[:1], *WRONG, *RECOMPUTED),
)
"""Cases that `make test` runs."""


def build(case: Case) -> torch.nn.Module:
    torch.manual_seed(7)
    return MODELS[case.model](case).to(getattr(torch, case.dtype))


@cache
def whole() -> dict[str, np.ndarray]:
    """A ring: vertices read near ones. Some edges are far, loops or parallel, and some vertices read nothing."""
    rng = np.random.default_rng(11)
    target = rng.integers(0, VERTICES, 3 * VERTICES)
    reach = np.where(rng.random(len(target)) < 0.02, VERTICES // 2, 5)
    source = (target + rng.integers(-reach, reach + 1)) % VERTICES  # some of these are loops
    edges = np.stack([source, target])
    edges = np.concatenate([edges, edges[:, :20]], axis=1)[:, rng.permutation(len(target) + 20)]
    edges = edges[:, ~np.isin(edges[1], [3, 50, 200])]
    return {
        "edges": edges,
        "x": rng.standard_normal((VERTICES, CHANNELS)),
        "y": rng.integers(0, CLASSES, VERTICES),
        "train": rng.random(VERTICES) < 0.6,
    }


def wanted(case: Case) -> np.ndarray:
    graph = whole()
    return graph["train"] & (np.arange(VERTICES) % 2 == 0) if case.loss == "even" else graph["train"]


def server_graph(case: Case, server: int) -> TrainingGraph:
    """The vertices that the server needs, by networkx: all within as many in-hops as the model has layers."""
    graph, servers = whole(), WORLD // case.trainers
    edges, train = graph["edges"], wanted(case)
    inner = np.arange(VERTICES) * servers // VERTICES == server
    roots = inner & train if case.loss == "even" else inner
    against = nx.DiGraph(list(zip(*edges[::-1].tolist(), strict=True)))
    against.add_nodes_from(range(VERTICES))
    hops = case.layers - case.missing
    distances = nx.multi_source_dijkstra_path_length(against, set(np.flatnonzero(roots).tolist()), hops, weight=None)
    ids = np.random.default_rng(server).permutation(sorted(distances))
    local = {int(v): i for i, v in enumerate(ids)}
    kept = [(local[s], local[t]) for s, t in edges.T.tolist() if s in local and t in local]
    inside = np.array(kept, np.int64).reshape(-1, 2).T
    degrees = np.bincount(edges[1][edges[0] != edges[1]], minlength=VERTICES)[ids]
    if case.degrees == "subgraph":
        degrees = np.bincount(inside[1][inside[0] != inside[1]], minlength=len(ids))
    distance = np.array([distances[int(v)] for v in ids], np.int64)
    return TrainingGraph(
        global_ids=ids.astype(np.int64),
        edges=np.ascontiguousarray(inside),
        features=graph["x"][ids].astype(case.dtype),
        labels=graph["y"][ids],
        loss_mask=train[ids] if case.loss == "all" else (train & inner)[ids],
        in_degrees=degrees,
        distance=np.zeros_like(distance) if case.loss == "all" else distance,
    )


def own_graph(case: Case, server: int) -> TrainingGraph:
    """The server's own vertices and those that they read. What is not known of the latter is wrong on purpose."""
    graph, servers = whole(), WORLD // case.trainers
    edges = graph["edges"]
    inner = np.arange(VERTICES) * servers // VERTICES == server
    edges = edges[:, inner[edges[1]]]
    rng = np.random.default_rng(server)
    ids = np.concatenate([rng.permutation(np.flatnonzero(inner)), np.setdiff1d(edges[0], np.flatnonzero(inner))])
    local = np.full(VERTICES, -1, np.int64)
    local[ids] = np.arange(len(ids))
    degrees = np.bincount(edges[1][edges[0] != edges[1]], minlength=VERTICES)
    return TrainingGraph(
        global_ids=ids,
        edges=local[edges],
        features=graph["x"][ids].astype(case.dtype),
        labels=np.where(inner, graph["y"], -5)[ids],
        loss_mask=(wanted(case) & inner)[ids],
        in_degrees=np.where(inner, degrees, 10**6)[ids],
        distance=(~inner[ids]).astype(np.int64),
    )


def found_rows(case: Case, groups: ServerGroups) -> ReadRows:
    place = groups.place
    graph = own_graph(case, place.server)
    count = int((graph.distance == 0).sum())
    owner = np.full(len(graph), -1)
    owner[:count] = owners(case, first_vertices(graph, count), place.server)
    return meet(worker_view(graph, owner, place.local_rank, case.trainers), place, torch.device("cpu"))


def own_batch(case: Case, groups: ServerGroups) -> TrainerBatch:
    place, found = groups.place, found_rows(case, groups)
    elsewhere = [rank // case.trainers != place.server for rank in range(WORLD)]
    across = ExactSource(found.lists, found.own, dist.group.WORLD, elsewhere=elsewhere)
    return TrainerBatch.of(found.view, groups.inside, across=across)


def owners(case: Case, graph: TrainingGraph, server: int) -> np.ndarray:
    if case.owners == "split":
        return split_vertices(graph, case.trainers)
    most = case.trainers - 1 if case.owners == "one" else case.trainers
    return np.random.default_rng(100 + server).integers(0, most, len(graph))


def run_case(case: Case, groups: ServerGroups) -> dict[str, Any]:
    """This trainer's step: gradients (or weights after ``steps``), loss, bytes."""
    place = groups.place
    if case.across:
        batch = own_batch(case, groups)
    else:
        graph = server_graph(case, place.server)
        view = worker_view(graph, owners(case, graph, place.server), place.local_rank, case.trainers)
        batch = TrainerBatch.of(view, groups.inside)
    model = CooperativeModel(build(case), OWN_LAYERS if case.model == "own" else None)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(place.rank)  # only the weights of rank 0 count
    broadcast_weights(model)
    torch.manual_seed(place.rank)
    targets = count_targets(batch, groups)
    loss = backward(model, batch, groups, targets)
    sent, crossed = batch.graph.exchanged_bytes, batch.graph.crossed_bytes
    result = {n: p.grad.clone() for n, p in model.module.named_parameters()}
    if case.steps:
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(case.steps):
            loss = backward(model, batch, groups, targets)
            optimizer.step()
        result = {n: p.detach() for n, p in model.module.named_parameters()}
    return {"result": result, "loss": float(loss), "bytes": sent, "crossed": crossed}


def check_exchange(groups: ServerGroups) -> dict[str, Any]:
    """Rows that an exchange brings, and its bytes there and back."""
    case, place, width = Case("sage"), groups.place, 3
    graph = server_graph(case, place.server)
    view = worker_view(graph, owners(case, graph, place.server), place.local_rank, 2)
    batch = TrainerBatch.of(view, groups.inside)
    full = torch.from_numpy(np.random.default_rng(5).standard_normal((len(graph), width))).requires_grad_()
    found = exchange(full[torch.from_numpy(view.own)], batch.graph)
    expected = full[torch.from_numpy(np.concatenate([view.own, view.remote]))]
    forward_bytes = batch.graph.exchanged_bytes
    found.sum().backward()
    return {
        "rows": bool(torch.equal(found, expected)),
        "forward_bytes": forward_bytes,
        "round_bytes": batch.graph.exchanged_bytes,
        "width": width,
        "own": torch.from_numpy(view.own),
    }


def check_fixed(groups: ServerGroups) -> bool:
    """Features travel once: a second step sends exactly these bytes less."""
    case, place = Case("sage"), groups.place
    graph = server_graph(case, place.server)
    view = worker_view(graph, owners(case, graph, place.server), place.local_rank, 2)
    batch = TrainerBatch.of(view, groups.inside)
    model, sent = CooperativeModel(build(case)), [0]
    for _ in range(2):
        backward(model, batch, groups, count_targets(batch, groups))
        sent.append(batch.graph.exchanged_bytes)
    features = int(view.send_counts.sum()) * batch.x.shape[1] * batch.x.element_size()
    return sent[1] - (sent[2] - sent[1]) == features > 0


def check_crossing(groups: ServerGroups) -> dict[str, Any]:
    """Bytes that an exchange and its backward send to the other machine: four trainers on two machines."""
    graph = server_graph(Case("sage", trainers=4), 0)
    owner = np.random.default_rng(3).integers(0, 4, len(graph))
    view = worker_view(graph, owner, groups.place.local_rank, 4)
    batch = TrainerBatch.of(view, groups.inside, machines=2)
    rows = torch.zeros(len(view.own), 5, dtype=torch.float64, requires_grad=True)
    exchange(rows, batch.graph).sum().backward()
    return {"bytes": batch.graph.crossed_bytes, "owner": torch.from_numpy(owner)}


def halves(groups: ServerGroups) -> bool:
    """Two exchanges run at once and finish in the opposite order."""
    case, place = Case("sage"), groups.place
    graph = server_graph(case, place.server)
    view = worker_view(graph, owners(case, graph, place.server), place.local_rank, 2)
    batch = TrainerBatch.of(view, groups.inside)
    full = torch.arange(float(len(graph)))[:, None]
    own, remote = torch.from_numpy(view.own), torch.from_numpy(view.remote)
    first, second = start_exchange(full[own], batch.graph), start_exchange(-full[own], batch.graph)
    return torch.equal(second.finish(), -full[remote]) and torch.equal(first.finish(), full[remote])


def numbers(rank: int) -> torch.Tensor:
    """float32 [1000]: they do not fill what travels in one piece."""
    return torch.randn(1000, generator=torch.Generator().manual_seed(rank))


def sums(groups: ServerGroups) -> dict[str, torch.Tensor]:
    return {codec: groups.sum_(numbers(groups.place.rank), codec) for codec in ("bf16", "int8")}


def transported(transport: str) -> AbstractContextManager[Any]:
    """Rows travel as with other backends: gloo has both."""
    return mock.patch.object(source, "BY_MESSAGES", () if transport == "collective" else source.BY_MESSAGES)


def main(folder: Path, rank: int, which: str = "all") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), rank=rank, world_size=WORLD)
    groups = {trainers: ServerGroups(trainers) for trainers in (1, 2, 4)}
    cases = QUICK if which == "quick" else (*EXACT, *ACROSS, *SINGLE, *WRONG, *RECOMPUTED)
    results: dict[str, Any] = {}
    for case in cases:
        with transported(case.transport):
            results[case.name] = run_case(case, groups[case.trainers])
    results["exchange"] = {}
    for transport in ("messages", "collective"):
        with transported(transport):
            results["exchange"][transport] = check_exchange(groups[2])
    results["fixed"] = check_fixed(groups[2])
    results["crossing"] = check_crossing(groups[4])
    results["halves"] = halves(groups[2])
    results["sums"] = [sums(groups[trainers]) for trainers in (1, 2)]
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
