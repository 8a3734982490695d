"""Synthetic graphs that a GNN can learn, written in a stream: the same arguments always give the same files. ``sbm``
and ``powerlaw`` plant communities (a degree-corrected stochastic block model), each of one class, which the features of
a vertex show only weakly. ``rmat`` draws the recursive matrix graph (Chakrabarti et al., 2004): a label is the
commonest hidden topic among the in-neighbours, and features show the topics. Every edge is stored in both directions.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.observe.machine.threads import in_order
from atta.observe.progress import Progress, shown
from atta.partition.deploy import written_graph
from atta.partition.disk.files import chunks
from atta.partition.graph import NODE_TYPE, GraphWriter

KINDS = ("sbm", "rmat", "powerlaw")
TARGETS = ("classes", "labels", "regression")
_CHUNK_EDGES = 2 << 20
_CHUNK_VALUES = 8 << 20
_TOPIC_SIGNAL = 4
# Numbers of the independent random streams of one graph.
_STREAM_PERMUTE, _STREAM_WEIGHT, _STREAM_EDGES, _STREAM_X, _STREAM_CENTROID, _STREAM_SPLIT, _STREAM_TOPIC = range(7)
_STREAM_TARGET = 7
_LABEL_SHARE = 0.3
_TARGET_NOISE = 0.1

Ints = npt.NDArray[np.int64]
Edges = tuple[Ints, Ints]  # sources and destinations


@dataclass(frozen=True)
class GenerateOptions:
    """What to generate.

    Attributes:
        edges: number of stored directed edges, about. A pair that is drawn twice inside a community or a chunk is
            dropped after a few further attempts.
        features: number of columns of ``x`` (float32); 0: no features.
        classes: number of classes of ``y``.
        targets: what ``y`` holds (one of TARGETS): the class; a row of ``classes`` labels, each 0 or 1 (int8); or a number
            (float32), of unit variance between classes and a tenth of their deviation within.
        communities: planted communities, at least ``classes`` (default: one per class for sbm, about 2,000 vertices each
            for powerlaw). ``inter``: share of edges drawn without regard to them. rmat ignores both.
        exponent: exponent of the power law of degrees (powerlaw only).
        signal: strength of the class in one vertex's features, in standard deviations of their noise (times four for
            the topics of rmat).
        train, val, test: shares of the vertices in the splits."""

    nodes: int
    edges: int
    features: int = 100
    classes: int = 16
    seed: int = 0
    communities: int | None = None
    inter: float = 0.15
    exponent: float = 2.3
    signal: float = 1.0
    train: float = 0.08
    val: float = 0.02
    test: float = 0.05
    targets: str = "classes"

    def __post_init__(self) -> None:
        limits: dict[str, tuple[float, float]] = {
            "nodes": (2, 2**40), "edges": (0, 2**50), "features": (0, 2**20), "classes": (1, 2**20), "seed": (0, 2**64),
            "inter": (0, 1), "exponent": (1.5, 20), "signal": (0, 1e6), "train": (0, 1), "val": (0, 1), "test": (0, 1),
        }  # fmt: skip
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"--{name} {value}: must lie between {low:g} and {high:g}")
        if self.targets not in TARGETS:
            raise ConfigError(f"--targets {self.targets}: there are {', '.join(TARGETS)}")
        if self.train + self.val + self.test > 1 + 1e-9:
            raise ConfigError("--train, --val and --test add up to more than 1")
        if self.classes > self.nodes:
            raise ConfigError(f"--classes {self.classes}: more classes than vertices")
        if self.edges > self.nodes * (self.nodes - 1) // 2:
            raise ConfigError(f"--edges {self.edges}: too dense for {self.nodes} vertices")
        if self.communities is not None and not self.classes <= self.communities <= self.nodes:
            raise ConfigError(f"--communities {self.communities}: must lie between --classes and --nodes")


def generate(
    kind: str,
    dst: str | Path,
    options: GenerateOptions,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
) -> None:
    """Write the graph ``kind`` (one of KINDS) to ``dst``, a folder or a URL of object storage; raises ConfigError.
    ``threads`` that draw edges and features (default: one per core) have no influence on the graph."""
    if kind not in KINDS:
        raise ConfigError(f"unknown kind {kind!r}; there are: {', '.join(KINDS)}")
    progress = shown(progress)
    provenance = {"command": f"generate {kind}", "options": asdict(options)}
    with written_graph(dst, overwrite=overwrite, provenance=provenance, progress=progress) as out:
        out.add_nodes(NODE_TYPE, options.nodes)
        row_of = _rng(options, _STREAM_PERMUTE).permutation(options.nodes)
        threads = threads or len(os.sched_getaffinity(0))
        if kind == "rmat":
            topics, labels = _write_rmat(out, options, row_of, progress)
        else:
            model = _Communities.plant(kind, options)
            drawn = in_order(model.jobs(options, row_of), threads)
            deque(_write_edges(out, drawn, options, progress), maxlen=0)
            topics = labels = np.empty(options.nodes, np.int64)
            labels[row_of] = model.labels(options)
        _write_targets(out, labels, options)
        # A topic is not a class: a vertex's own topic does not tell its label, so features may show it plainly.
        strength = options.signal * (_TOPIC_SIGNAL if kind == "rmat" else 1)
        _write_features(out, topics, strength, options, progress=progress, threads=threads)
        _write_splits(out, options)


def _rng(options: GenerateOptions, *stream: int) -> np.random.Generator:
    return np.random.default_rng([options.seed, *stream])


def _write_edges(
    out: GraphWriter, edges: Iterator[Edges], options: GenerateOptions, progress: Progress
) -> Iterator[Edges]:
    progress.stage("edges", options.edges)
    appender = out.open_edges()
    for src, dst in edges:
        appender.append(src, dst)
        progress.advance(len(src))
        yield src, dst


@dataclass(frozen=True)
class _Communities:
    """Vertices in hidden order, community by community, with their weights for drawing end points."""

    bounds: Ints  # [communities + 1], hidden vertex numbers
    weights: npt.NDArray[np.float64]  # [n]

    @classmethod
    def plant(cls, kind: str, options: GenerateOptions) -> _Communities:
        n = options.nodes
        default = max(options.classes, n // 2000) if kind == "powerlaw" else options.classes
        count = options.communities or default
        weights = np.ones(n)
        if kind == "powerlaw":
            # Inverse of the Pareto distribution. It is cut where two hubs would share more than one edge on average.
            mean = max(options.edges / n, 1)
            uniform = 1 - _rng(options, _STREAM_WEIGHT).random(n)
            weights = uniform ** (-1 / (options.exponent - 1))
            weights = np.minimum(weights, weights.mean() * max(10, np.sqrt(n / mean)))
        return cls(np.linspace(0, n, count + 1).astype(np.int64), weights)

    def labels(self, options: GenerateOptions) -> Ints:
        return np.repeat(np.arange(len(self.bounds) - 1) % options.classes, np.diff(self.bounds))

    def jobs(self, options: GenerateOptions, row_of: Ints) -> Iterator[Callable[[], Edges]]:
        """Yield functions that draw the edges of one chunk each: first inside communities, then anywhere. All pairs of
        a community are in one chunk, so none of them is drawn twice. A pair is a hash of the seed, its community and
        its number there, so it depends neither on threads nor on the size of chunks."""
        wheel, undirected = _native.Wheel(self.weights), options.edges // 2
        inside = round(undirected * (1 - options.inter))
        mass = np.concatenate([[0], np.cumsum(self.weights)])[self.bounds]
        targets = np.round(mass / mass[-1] * inside).astype(np.int64)

        def chunk(stream: int, first: int, bounds: Ints, wants: Ints) -> Callable[[], Edges]:
            key = _native.stream_key(options.seed % 2**64, _STREAM_EDGES, stream, 0, 0)
            return lambda: _native.draw_planted(wheel, row_of, bounds, wants, key, first)

        first = 0
        while first < len(self.bounds) - 1:
            last = max(first + 1, int(np.searchsorted(targets, targets[first] + _CHUNK_EDGES, side="right")) - 1)
            yield chunk(0, first, self.bounds[first : last + 1], np.diff(targets[first : last + 1]))
            first = last
        everywhere = np.array([0, options.nodes])
        for number, (low, high) in enumerate(chunks(undirected - inside, _CHUNK_EDGES)):
            yield chunk(1, number, everywhere, np.array([high - low]))


def _write_rmat(out: GraphWriter, options: GenerateOptions, row_of: Ints, progress: Progress) -> tuple[Ints, Ints]:
    n, classes = options.nodes, options.classes
    topics = _rng(options, _STREAM_TOPIC).integers(0, classes, n)
    votes = np.zeros(n * classes, np.int32)

    for src, dst in _write_edges(out, _rmat_edges(options, row_of), options, progress):
        np.add.at(votes, dst * classes + topics[src], 1)
    by_vertex = votes.reshape(n, classes)
    # The vertex's own topic decides ties, and is the label of vertices without neighbours.
    own = np.arange(n), topics
    best = by_vertex.argmax(axis=1)
    labels = np.where(by_vertex[own] == by_vertex[np.arange(n), best], topics, best)
    return topics, labels


def _rmat_edges(options: GenerateOptions, row_of: Ints) -> Iterator[Edges]:
    a, b, c = 0.57, 0.19, 0.19
    n = options.nodes
    levels = max(1, int(n - 1).bit_length())
    for number, (low, high) in enumerate(chunks(options.edges // 2, _CHUNK_EDGES)):
        rng = _rng(options, _STREAM_EDGES, 2, number)

        def draw(count: int, rng: np.random.Generator = rng) -> Edges:
            u, v = np.zeros(count, np.int64), np.zeros(count, np.int64)
            for _ in range(levels):
                corner = rng.random(count, dtype=np.float32)
                u = 2 * u + (corner >= a + b)
                v = 2 * v + (((corner >= a) & (corner < a + b)) | (corner >= a + b + c))
            inside = (u < n) & (v < n)
            return u[inside], v[inside]

        one, other = (row_of[ends] for ends in _distinct(draw, high - low, n))
        yield np.concatenate([one, other]), np.concatenate([other, one])


def _distinct(draw: Callable[[int], Edges], want: int, n: int) -> Edges:
    """Draw until ``want`` different unordered pairs without self-loops are found, or five attempts are made."""
    found = np.empty(0, np.int64)
    for _ in range(5):
        u, v = draw(want - len(found))
        low, high = np.minimum(u, v), np.maximum(u, v)
        found = np.sort(np.concatenate([found, (low * n + high)[low != high]]))
        found = found[np.diff(found, prepend=-1) > 0]
        if len(found) >= want * 0.999:
            break
    return found // n, found % n


def _write_targets(out: GraphWriter, classes: Ints, options: GenerateOptions) -> None:
    if options.targets == "classes":
        out.add_labels(classes)
        out.num_classes = options.classes
        return
    rng = _rng(options, _STREAM_TARGET)
    if options.targets == "labels":
        sets = rng.random((options.classes, options.classes)) < _LABEL_SHARE
        np.fill_diagonal(sets, val=True)  # so no two classes need to look alike, and none is without a label
        out.add_table("y", sets.astype(np.int8)[classes])
        return
    values, noise = rng.standard_normal(options.classes), rng.standard_normal(len(classes))
    out.add_table("y", (values[classes] + _TARGET_NOISE * noise).astype(np.float32))


def _write_features(
    out: GraphWriter, topics: Ints, strength: float, options: GenerateOptions, *, progress: Progress, threads: int
) -> None:
    """Write ``x``: a random direction of length ``strength`` per topic plus normal noise."""
    if not options.features:
        return
    centroids = _rng(options, _STREAM_CENTROID).standard_normal((options.classes, options.features))
    centroids *= strength / np.linalg.norm(centroids, axis=1, keepdims=True)
    table = out.open_table("x", np.float32, (options.features,))
    progress.stage("features", options.nodes)

    def draw(number: int, low: int, high: int) -> npt.NDArray[np.float32]:
        rows = _rng(options, _STREAM_X, number).standard_normal((high - low, options.features), dtype=np.float32)
        rows += centroids.astype(np.float32)[topics[low:high]]
        return rows

    spans = enumerate(chunks(options.nodes, max(1, _CHUNK_VALUES // options.features)))
    for rows in in_order((partial(draw, number, *span) for number, span in spans), threads):
        table.append(rows)
        progress.advance(len(rows))


def _write_splits(out: GraphWriter, options: GenerateOptions) -> None:
    order = _rng(options, _STREAM_SPLIT).permutation(options.nodes)
    start = 0
    for name, share in (("train", options.train), ("val", options.val), ("test", options.test)):
        end = min(options.nodes, start + round(share * options.nodes))
        out.add_split(name, order[start:end])
        start = end
