"""Shared by the benchmarks of GPUs: the graph, its batches, a trainer's step, and how rates are taken."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import atta
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train.models import build_model
from atta.train.settings.minibatch import MinibatchSettings
from atta_bench.results import arguments_of, document, head, rows_of, write

FAN_OUTS = (15, 10, 5)
HIDDEN = 256


def gpu_arguments(script: str, about: str | None, **more: Any) -> argparse.Namespace:
    """Options that all these benchmarks have, and ``more``, see ``arguments_of``."""
    return arguments_of(
        script,
        about,
        work=(Path, "folder for the graph; it is kept"),
        nodes=(2_450_000, "vertices of the generated graph"),
        edges=124_000_000,
        threads=(15, "worker threads of a daemon"),
        seconds=(3.0, "how long each rate is measured"),
        **more,
    )


def graph_of(arguments: argparse.Namespace) -> Path:
    """The power-law graph with 100 features, generated if it is not there."""
    folder: Path = arguments.work / f"graph-{arguments.nodes}"
    if not folder.exists():
        generate("powerlaw", folder, GenerateOptions(nodes=arguments.nodes, edges=arguments.edges, features=100))
    return folder


def dataset_of(arguments: argparse.Namespace, parts: int) -> Path:
    """The graph in ``parts`` random parts."""
    folder: Path = arguments.work / f"graph-{arguments.nodes}-{parts}p"
    if not folder.exists():
        partition_graph(graph_of(arguments), folder, parts=parts, method="random")
    return folder


def serve(data: Path, threads: int, *options: str) -> Any:
    """Daemons of a dataset, whose caches are full; ``options`` of ``atta serve``."""
    cluster = atta.local(data, threads=threads, verify=False, options=options)
    cluster.wait_filled(60)
    return cluster


def batches_of(cluster: atta.Cluster, size: int, **options: Any) -> Iterator[atta.MiniBatch]:
    """Batches of training seeds, as a trainer asks for them, epoch after epoch."""
    loader = atta.NeighborLoader(
        cluster, list(FAN_OUTS), (cluster.schema.node_types[0], "train"), batch_size=size, shuffle=True, pad=True,
        tables=["x"], seed_tables=["y"], edge_ids=False, epochs=1000, **options,
    )  # fmt: skip
    for epoch in range(1000):
        loader.set_epoch(epoch)
        yield from loader


class Step:
    """A trainer's step: GraphSAGE, cross entropy and Adam."""

    def __init__(self, channels: int, outputs: int, *, precision: str = "fp32", hidden: int = HIDDEN) -> None:
        settings = MinibatchSettings(model="sage", num_neighbors=FAN_OUTS, hidden=hidden)
        self.model: Any = build_model(settings, channels, outputs).to("cuda")
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.003, capturable=True)
        self._half = precision == "bf16"

    def __call__(self, data: Any) -> torch.Tensor:
        """Forward, backward and update with a batch that is on the GPU; its loss."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self._half):
            scores = self._scores(data)
        loss = F.cross_entropy(scores.float(), data.y[: len(scores)])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _scores(self, data: Any) -> torch.Tensor:
        """Each layer for the rows that the next one reads; for all, if the batch does not tell them apart by hops."""
        if "num_sampled_nodes" not in data:
            whole: torch.Tensor = self.model.gnn(data.x.float(), data.edge_index)
            return whole[: data.batch_size]
        scores: torch.Tensor = self.model(
            data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges
        )
        return scores


def sizes_of(cluster: atta.Cluster) -> tuple[int, int]:
    """Number of features, and of classes at most."""
    tables = cluster.schema.node_tables[cluster.schema.node_types[0]]
    return tables["x"].row_shape[0], 64


def rate(turn: Callable[[], object], seconds: float, *, warm_s: float = 1.0, wait: bool = True) -> float:
    """How often per second ``turn`` can be done, the work of the GPU included unless ``wait`` is False."""
    until = time.perf_counter() + warm_s
    turn()
    while time.perf_counter() < until:
        turn()
    if wait:
        torch.cuda.synchronize()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        turn()
        count += 1
    if wait:
        torch.cuda.synchronize()
    return count / (time.perf_counter() - begun)


def milliseconds(turn: Callable[[int], object], times: int = 20) -> float:
    """Median time of a turn on the GPU's clock; a turn gets its number."""
    found = []
    for number in range(-3, times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        turn(max(0, number))
        end.record()
        torch.cuda.synchronize()
        if number >= 0:
            found.append(begin.elapsed_time(end))
    return float(statistics.median(found))


def kept(cluster: atta.Cluster, size: int, count: int) -> list[Any]:
    """Batches as PyG's data in memory of their own."""
    found, source = [], batches_of(cluster, size)
    for batch in source:
        found.append(batch.to_pyg().clone())
        if len(found) == count:
            break
    source.close()
    return found


class Record:
    """The record of a benchmark, written anew after every row: time on a GPU's machine may end at any moment."""

    def __init__(self, name: str, title: str, about: str | None, told: argparse.Namespace) -> None:
        """``told``: the script's arguments. ``about``: its docstring."""
        self._name, self._title, self._about = name, title, (about or "").split("\n\n", 2)[2].strip()
        self._command, self._target = told.typed, told.out / f"{name}.json"
        self._tables: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}

    def add(self, table: str, row: dict[str, Any]) -> None:
        """Add a row to a table, print it, and write the files."""
        self._tables.setdefault(table, []).append(row)
        print("  ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)
        self.write()

    def write(self) -> None:
        """Write the files."""
        found = document(self._name, command=self._command, **self._tables, **self.notes)
        lines = [*head(self._title, found), self._about]
        for rows in self._tables.values():
            lines += ["", *rows_of(rows[0], *(map(shown, row.values()) for row in rows))]
        lines += ["", *(f"{name}: {note}" for name, note in self.notes.items())]
        write(self._target, found, lines)


def shown(value: object) -> str:
    """A figure for people."""
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
