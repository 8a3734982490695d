"""Counts sizes of a partitioned dataset in this process, without daemons; in a large one, of some servers only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.hashing import stream_key
from atta.samplers.kernels.sums import PRICE, plan_sums
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import ServerGraph, server_subgraph
from atta.samplers.operators.server import Closure, ExpansionAware
from atta.samplers.requests import Expand, LocalAccess
from atta.train.planning.sizes import PAPER_EXPANSION, Expansion, MeanBatch, ServerWork, Sizes

EXPANSIONS = (Expansion(1, 5), PAPER_EXPANSION, Expansion(2, 15), Expansion(3, 25))
"""Bounds that the paper trains with (1 hop, 15 neighbours) and compares with."""

_EXTRACTED_EDGES = 50_000_000
"""Edges of all servers' closures together above which only some servers are counted."""
_SATURATED = 0.5
"""Share of the graph above which a closure grows more slowly because few vertices are left."""
_DIVIDED_EDGES = 1_000_000
"""Edges of a subgraph that METIS sees; with more, a plan would take too long."""

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """What to count.

    ``servers``: machines; ``trainers``: on each. ``layers``: of the model, and hops of a closure. ``settings``: of
    expansion-aware sampling; those with more hops than layers are left out. ``co_batches``: numbers of them per epoch;
    ``rule``: bounds of the subgraph that they are taken from. ``num_neighbors``, ``batch_size``: of mini-batches, of
    which ``batches`` are sampled per server. ``sums``: owners sum the last hop's rows. ``split``: vertices to train on;
    all if the dataset has none.
    ``divided_edges``: most edges that METIS sees of a server's subgraph. ``extracted_edges``: of all closures, above
    which only some servers are counted.
    """

    servers: int
    trainers: int
    layers: int
    settings: Sequence[Expansion] = EXPANSIONS
    co_batches: Sequence[int] = (2, 4, 8, 16)
    rule: Expansion = PAPER_EXPANSION
    num_neighbors: Sequence[int] = ()
    batch_size: int = 1024
    batches: int = 4
    sums: bool = False
    split: str = "train"
    seed: int = 0
    divided_edges: int = _DIVIDED_EDGES
    extracted_edges: int = _EXTRACTED_EDGES

    def __post_init__(self) -> None:
        if min(self.servers, self.trainers, self.layers, self.batch_size, self.batches, *self.co_batches) < 1:
            raise ConfigError("servers, trainers, layers, batch sizes and numbers of batches must be at least 1")
        if any(k < -1 or k == 0 for k in self.num_neighbors) or len(self.num_neighbors) not in (0, self.layers):
            raise ConfigError(f"num_neighbors {list(self.num_neighbors)}: one per layer ({self.layers}), -1 or more")


@dataclass(frozen=True)
class Servers:
    """A whole graph, all in-edges by internal ids. Server s has the vertices ``ranges[s]`` up to ``ranges[s + 1]``.
    ``targets``: ascending internal ids of training vertices."""

    graph: LocalGraph
    ranges: Longs
    targets: Longs

    def inner(self, server: int) -> Longs:
        """A server's own vertices."""
        return np.arange(self.ranges[server], self.ranges[server + 1])

    def own_targets(self, server: int) -> Longs:
        """A server's own training vertices."""
        first, last = np.searchsorted(self.targets, self.ranges[server : server + 2])
        return self.targets[first:last]


def open_servers(dataset: Dataset, servers: int, split: str = "train") -> Servers:
    """Join the partitions of a dataset into one graph, of about 12 bytes per edge. A server has one partition, or all
    of them. Raises ConfigError: the number of partitions is not that of servers, or the graph has several node or edge
    types."""
    schema = dataset.schema
    if servers not in (1, dataset.num_parts):
        raise ConfigError(
            f"{dataset.path}: has {dataset.num_parts} partitions for {servers} servers; "
            f"each needs one (atta partition --parts {servers})"
        )
    if len(schema.edge_types) != 1 or len(schema.node_types) != 1:
        raise ConfigError(f"{dataset.path}: planning needs a graph with one node type and one edge type")
    (edge_type,), (node_type,) = schema.edge_types, schema.node_types
    parts = [dataset.part(p).csc(edge_type) for p in range(dataset.num_parts)]
    starts = np.cumsum([0, *(len(p.indices) for p in parts)])
    indptr = np.concatenate([[0], *(p.indptr[1:] + start for p, start in zip(parts, starts, strict=False))])
    indices = np.concatenate([p.indices for p in parts])
    numbers = np.arange(len(indices), dtype=np.int32 if len(indices) < 1 << 31 else np.int64)
    graph = LocalGraph.from_csc(indptr, indices, keys=dataset.ids(node_type), edge_ids=numbers)
    known = split in schema.splits[node_type]
    targets = np.asarray(dataset.split(node_type, split)) if known else np.arange(graph.num_nodes)
    return Servers(graph, dataset.book.offsets[node_type][:: dataset.num_parts // servers], targets)


def count_sizes(whole: Servers, question: Question) -> Sizes:
    """Count what each strategy computes and sends. The same arguments give the same result."""
    if len(whole.ranges) != question.servers + 1:
        raise ConfigError(f"the graph is that of {len(whole.ranges) - 1} servers, not {question.servers}")
    counted = [_Server(whole, server, question) for server in _looked_at(whole, question)]
    edges = len(whole.graph.indices)
    settings = [s for s in dict.fromkeys(question.settings) if s.max_hop <= question.layers]
    closures = [server.subgraph(Closure(question.layers)) for server in counted]
    bases = [server.subgraph(_rule(question.rule, question.layers)) for server in counted]
    hops = [np.cumsum(np.bincount(c.hop, minlength=question.layers + 1)) for c in closures]
    by_number = {n: [s.co_batch(b, n) for s, b in zip(counted, bases, strict=True)] for n in question.co_batches}
    batches = [found for server in counted for found in server.mini_batches()] if question.num_neighbors else []
    return Sizes(
        vertices=whole.graph.num_nodes,
        edges=edges,
        targets=len(whole.targets),
        exchanged=largest([server.exchanged() for server in counted]),
        closure=largest([s.work(c) for s, c in zip(counted, closures, strict=True)]),
        closure_by_hop=tuple(float(n) for n in np.mean(hops, axis=0)),
        sampled={s: largest([c.work(c.subgraph(_rule(s, question.layers))) for c in counted]) for s in settings},
        co_batches={n: largest([s for s in found if s]) for n, found in by_number.items() if any(found)},
        co_batch_rule=question.rule,
        mini_batch=_mean(batches),
        batch_size=question.batch_size,
        num_neighbors=tuple(question.num_neighbors),
        counted_servers=len(counted),
        whole_split=question.trainers == 1 or max(len(c.row) for c in closures) <= question.divided_edges,
    )


def fitted_alpha(closure: Sequence[float], vertices: float, degree: float) -> float | None:
    """The alpha for which D^(alpha h) fits counted closure sizes best (GraNNDis, section 4); None if they do not
    determine it. closure: vertices within 0, 1, ... hops, of one server; vertices: of the whole graph. Least squares of
    logarithms, over hops that reach at most half of the graph (the first hop always counts)."""
    if degree <= 1 or len(closure) < 2 or closure[0] <= 0:
        return None
    hops = [h for h in range(1, len(closure)) if h == 1 or closure[h] <= _SATURATED * vertices]
    logs = [math.log(closure[h] / closure[0]) for h in hops]
    return sum(h * y for h, y in zip(hops, logs, strict=True)) / sum(h * h for h in hops) / math.log(degree)


def mini_batch_of(whole: Servers, seeds: Longs, num_neighbors: Sequence[int], number: int = 0) -> MeanBatch:
    """Sample one mini-batch. All its vertices count as remote, because no server is given."""
    return _drawn(whole, seeds, num_neighbors, number).mean


def _looked_at(whole: Servers, question: Question) -> Sequence[int]:
    most = max(1, question.extracted_edges // max(1, len(whole.graph.indices)))
    return range(0, question.servers, -(-question.servers // most))


def _rule(setting: Expansion, layers: int) -> ExpansionAware:
    return ExpansionAware(min(setting.max_hop, layers), setting.fanout)


@dataclass(frozen=True)
class _Server:
    """One server's counts."""

    whole: Servers
    number: int
    question: Question

    def subgraph(self, rule: Closure | ExpansionAware) -> ServerGraph:
        return server_subgraph(self.whole.graph, self.whole.inner(self.number), rule, seed=self.question.seed)

    def work(self, graph: ServerGraph) -> ServerWork:
        return work_of(graph, self._owner(graph), self.question.trainers)

    def _owner(self, graph: ServerGraph) -> npt.NDArray[np.int32]:
        return split_trainers(graph, self.question.trainers, most_edges=self.question.divided_edges)

    def exchanged(self) -> ServerWork:
        """Work on own vertices only. Other servers send the other sources of their in-edges before each layer."""
        graph, inner = self.whole.graph, self.subgraph(Closure(0))
        owner = self._owner(inner)
        first, last = self.whole.ranges[self.number : self.number + 2]
        bounds = graph.indptr[first : last + 1]
        sources = graph.indices[bounds[0] : bounds[-1]]
        outside = (sources < first) | (sources >= last)
        reader = np.repeat(owner, np.diff(bounds))[outside]
        external = received_rows(reader, sources[outside], self.question.trainers).sum()
        own = work_of(inner, owner, self.question.trainers)
        cut = float(outside.sum() / max(1, len(sources)))
        return replace(own, edges=float(len(sources)), external=float(external), cut=cut)

    def co_batch(self, base: ServerGraph, batches: int) -> ServerWork | None:
        """One of ``batches`` co-batches within ``base``, whose features are fetched once for all of them; None where
        there are fewer targets."""
        targets = self._rng(batches).permutation(self.whole.own_targets(self.number) - self.whole.ranges[self.number])
        if len(targets) < batches:
            return None
        one = self.work(base.co_batch(targets[: -(-len(targets) // batches)], self.question.layers))
        return replace(one, preloaded=float(base.num_nodes - base.num_inner))

    def mini_batches(self) -> Iterator[MeanBatch]:
        """Mini-batches of trainers with seeds from this server's targets."""
        targets, rng = self.whole.own_targets(self.number), self._rng(0)
        seeds = min(self.question.batch_size, -(-len(targets) // self.question.trainers))
        first, last = self.whole.ranges[self.number : self.number + 2]
        for number in range(self.question.batches if seeds else 0):
            found = _drawn(self.whole, rng.choice(targets, seeds, replace=False), self.question.num_neighbors, number)
            away = (found.ids < first) | (found.ids >= last)
            summed = found.crossing(self.whole.ranges, away) if self.question.sums else None
            yield replace(found.mean, remote=float(away.sum()), summed=summed)

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.question.seed, self.number, purpose])


class _DrawnBatch(NamedTuple):
    """A mini-batch: its vertices by local id, and the edges of its last hop by local ids of their ends."""

    mean: MeanBatch
    ids: Longs
    row: npt.NDArray[np.int32]
    col: npt.NDArray[np.int32]

    def crossing(self, ranges: Longs, away: npt.NDArray[np.bool_]) -> float:
        """Rows' worth of bytes that come of the vertices ``away``, where owners sum the last hop's."""
        first = int(len(self.ids) - self.mean.vertices[-1])
        owners = np.where(away, np.searchsorted(ranges, self.ids, side="right") - 1, -1).astype(np.int32)[first:]
        plan = plan_sums(self.row, self.col, first=first, targets=first, owners=owners, parts=len(ranges) - 1)
        return float(away[:first].sum() + (plan.raw & (owners >= 0)).sum() + PRICE * len(plan.counts))


def _drawn(whole: Servers, seeds: Longs, num_neighbors: Sequence[int], number: int) -> _DrawnBatch:
    row = col = np.empty(0, np.int32)
    access, known = LocalAccess(whole.graph), kernels.Compactor()
    known.insert(seeds)
    ends, edges = [0, known.size], []
    for hop, fan_out in enumerate(num_neighbors, start=1):
        frontier = known.ids(ends[-2], ends[-1])
        found = access.answer(Expand(frontier, fan_out, stream_key=stream_key(0, 0, number, hop, 0)))
        row, col = known.insert(found.sources), np.repeat(np.arange(*ends[-2:], dtype=np.int32), found.counts)
        edges.append(float(len(found.sources)))
        ends.append(known.size)
    vertices = known.ids(0, known.size)
    mean = MeanBatch(tuple(float(n) for n in np.diff(ends)), tuple(edges), float(len(vertices)))
    return _DrawnBatch(mean, vertices, row, col)


def _mean(batches: Sequence[MeanBatch]) -> MeanBatch | None:
    if not batches:
        return None
    vertices, edges = (np.mean([getattr(b, name) for b in batches], axis=0) for name in ("vertices", "edges"))
    summed = [batch.summed for batch in batches if batch.summed is not None]
    remote = float(np.mean([batch.remote for batch in batches]))
    return MeanBatch(
        tuple(vertices.tolist()), tuple(edges.tolist()), remote, float(np.mean(summed)) if summed else None
    )


Owners = npt.NDArray[np.int32]
_MEANS = ("mean_vertices", "cut")


def split_trainers(graph: ServerGraph, trainers: int, *, most_edges: int) -> Owners:
    """Trainer of each vertex, int32 [n], much as in training. METIS runs once, where training takes the best of three
    results; the difference is a few per cent of boundary rows. In a large graph METIS sees ``most_edges`` random edges,
    which gives a somewhat larger cut. With 0 edges vertices are split in order."""
    n = graph.num_nodes
    if trainers == 1 or not n:
        return np.zeros(n, np.int32)
    from atta.train import cooperative  # imports torch, which counting alone does not need

    nothing = np.zeros(n, np.int64)
    edges = np.stack([graph.row, graph.col]).astype(np.int64)
    if edges.shape[1] > most_edges:
        edges = edges[:, np.random.default_rng(0).random(edges.shape[1]) * edges.shape[1] < most_edges]
    features, targets = np.zeros((n, 0), np.float32), np.zeros(n, np.bool_)
    whole = cooperative.TrainingGraph(graph.n_id, edges, features, nothing, targets, nothing, nothing)
    return cooperative.split_vertices(whole, trainers, tries=1)


def received_rows(
    reader: npt.NDArray[np.integer], source: npt.NDArray[np.integer], readers: int
) -> npt.NDArray[np.int64]:
    """Number of different sources of each reader, int64 [readers]; ``reader`` and ``source`` have an entry per edge."""
    width = int(source.max()) + 1 if len(source) else 1
    pairs = np.unique(reader.astype(np.int64) * width + source)
    return np.bincount(pairs // width, minlength=readers)


def work_of(graph: ServerGraph, owner: Owners, trainers: int) -> ServerWork:
    """Work of a server whose trainers compute its whole subgraph; ``owner``: trainer of each vertex, int32 [n]."""
    cut = owner[graph.row] != owner[graph.col]
    internal = received_rows(owner[graph.col[cut]], graph.row[cut], trainers)
    n = float(graph.num_nodes)
    return ServerWork(n, float(len(graph.row)), n, float(internal.max()), preloaded=n - graph.num_inner)


def largest(found: Sequence[ServerWork]) -> ServerWork:
    """The largest of each figure over servers, because all wait for the slowest; means of vertices and of the cut."""
    columns = {name: [getattr(s, name) for s in found] for name in vars(found[0])}
    return ServerWork(**{n: float(np.mean(v)) if n in _MEANS else max(v) for n, v in columns.items()})
