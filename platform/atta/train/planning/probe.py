"""Measures this machine: training steps on a piece of the graph, rows between two processes, and sampling."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from atta.kvstore.disk import DiskTable
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import node_file, plan_disk
from atta.samplers.local.server import server_subgraph
from atta.samplers.operators.server import ExpansionAware
from atta.scheduler.fine import Line
from atta.train.cooperative import CooperativeModel, TrainerBatch, TrainingGraph, backward, split_vertices, worker_view
from atta.train.models import whole_model
from atta.train.planning.count import Question, Servers, mini_batch_of, split_trainers
from atta.train.planning.loopback import internal_bytes_per_s
from atta.train.planning.sizes import PlannedModel, Rates
from atta.train.settings.common import TrainSettings

_PIECE_EDGES = 100_000
"""Edges of the piece per second of measuring. A piece that fits into the caches would be faster than a real graph."""
_FEWEST_EDGES, _MOST_EDGES = 20_000, 2_000_000
_EXTRACTED_VERTICES = 20_000
_PROBED_LAYERS = 4
"""Most layers of the measured model; further layers take the same time."""
_COMPUTE_SHARE = 0.6
_WIRE_SHARE = 0.2
"""Shares of the given time; sampling and starting processes take the rest."""


def device_here() -> str:
    """Default device of this machine's trainers: ``cuda`` if there is a GPU, otherwise ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def measure(whole: Servers, question: Question, network: PlannedModel, *, link: float, seconds: float = 10.0) -> Rates:
    """Measure all rates in about ``seconds``, plus a few seconds to start processes. A step runs alone, with one
    trainer's share of the cores. If memory is the bottleneck, several trainers together are slower than measured.
    ``link``: bytes per second."""
    device = device_here()
    layers = min(network.layers, _PROBED_LAYERS)
    cores = max(1, (os.cpu_count() or 1) // question.trainers)
    model = _model(replace(network, layers=layers))
    times, edges = [], []
    with _threads(cores):
        most = int(min(_MOST_EDGES, max(_FEWEST_EDGES, _PIECE_EDGES * seconds)))
        for share in (1, 2):
            graph = piece(whole, network, most_edges=most, every=share)
            step = _stepper(model, graph, device)
            edges.append(graph.edges.shape[1])
            times.append(_timed(step, seconds * _COMPUTE_SHARE / 2))
        points = [(count * layers, taken) for count, taken in zip(edges, times, strict=True)]
        of_rows, per_edge = Line.through(points).fit()
        drawing, extracting = _drawing(whole, question), _extracting(whole, question)
    internal = internal_bytes_per_s(seconds * _WIRE_SHARE) if question.trainers > 1 else float("inf")
    whole_model = _model(network)
    return Rates(
        vertices=_rate(of_rows / (len(graph) * layers)),
        edges=_rate(per_edge),
        internal=internal / network.row_bytes,
        external=link / network.row_bytes,
        drawing=drawing,
        extracting=extracting,
        parameters=float(sum(p.numel() for p in whole_model.parameters())),
    )


def disk_rows_per_s(dataset: Dataset, memory: int, *, reads: int = 20_000) -> float:
    """Rows of features per second that a daemon with ``--memory`` of so many bytes gives, if all are asked for alike: those
    of the first partition that have no room are read at random. inf: all have room. Raises ConfigError: too little."""
    (node_type,) = dataset.schema.node_types
    file, spec = node_file(0, node_type, "x"), dataset.schema.table(node_type, "x")
    buffer = max(64 << 20, memory // 8)  # as DaemonConfig
    slots, rows = plan_disk(dataset, 0, memory, cache=None, buffer=buffer).slots.get(file), dataset.files[file].shape[0]
    if slots is None or slots >= rows:
        return float("inf")
    table = DiskTable(dataset.path / file, rows, spec.row_bytes, 1)
    some = np.random.default_rng(0).integers(0, rows, reads)
    begin = time.perf_counter()
    table.gather(some, np.empty((reads, spec.row_bytes), np.uint8))
    return reads / (time.perf_counter() - begin) / (1 - slots / rows)


def piece(whole: Servers, network: PlannedModel, *, most_edges: int = _MOST_EDGES, every: int = 1) -> TrainingGraph:
    """Random vertices with their real in-degrees and random sources among them: the time for a step depends on nothing
    else. most_edges: about how many edges there are. every: of each vertex keep one in-edge out of this many."""
    indptr, rng = whole.graph.indptr, np.random.default_rng(0)
    some = rng.permutation(whole.graph.num_nodes)[:most_edges]
    degrees = indptr[some + 1] - indptr[some]
    n = max(1, int(np.searchsorted(np.cumsum(degrees), most_edges, side="right")))
    degrees = -(-degrees[:n] // every)
    col = np.repeat(np.arange(len(degrees)), degrees)
    row = rng.integers(0, len(degrees), len(col))
    n = len(degrees)
    return TrainingGraph(
        global_ids=np.arange(n),
        edges=np.stack([row, col]),
        features=rng.standard_normal((n, network.inputs), dtype=np.float32),
        labels=rng.integers(0, network.classes, n),
        loss_mask=np.ones(n, np.bool_),
        in_degrees=np.bincount(col[row != col], minlength=n),
        distance=np.zeros(n, np.int64),
    )


def _model(network: PlannedModel) -> torch.nn.Module:
    settings = TrainSettings(model=network.model, layers=network.layers, hidden=network.hidden)
    return whole_model(settings, network.inputs, network.classes)


def _stepper(model: torch.nn.Module, graph: TrainingGraph, device: str) -> Callable[[], None]:
    batch = TrainerBatch.of(worker_view(graph, split_vertices(graph, 1), 0, 1), device=device)
    trained = CooperativeModel(model.to(device))
    targets = len(batch.targets)

    def step() -> None:
        backward(trained, batch, None, targets)
        if device != "cpu":
            torch.cuda.synchronize()

    return step


def _drawing(whole: Servers, question: Question) -> float:
    if not question.num_neighbors or not len(whole.targets):
        return float("inf")
    seeds = whole.targets[: question.batch_size]
    begin = time.perf_counter()
    found = mini_batch_of(whole, seeds, question.num_neighbors)
    return max(1.0, sum(found.edges)) / (time.perf_counter() - begin)


def _extracting(whole: Servers, question: Question) -> float:
    inner = whole.inner(0)[:_EXTRACTED_VERTICES]
    begin = time.perf_counter()
    found = server_subgraph(whole.graph, inner, ExpansionAware(*question.rule))
    split_trainers(found, question.trainers, most_edges=question.divided_edges)
    return max(1.0, float(len(found.row))) / (time.perf_counter() - begin)


def _timed(step: Callable[[], None], seconds: float) -> float:
    """Median seconds of a step, after a warm-up; at least one step is timed."""
    end = time.perf_counter() + seconds
    step()
    taken: list[float] = []
    while not taken or time.perf_counter() < end:
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return median(taken)


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds else float("inf")


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
