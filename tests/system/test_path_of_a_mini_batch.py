"""The worked example of docs/internals/path-of-a-mini-batch.md is true: two real daemons, ten vertices, one batch.

A relay in front of each daemon records every message. The test writes each table of the page again from the recording
and compares it with the page.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.observe.recording import ServedSpan, TaskSpan
from atta.partition import Dataset, partition_graph
from atta.partition.graph import GraphWriter
from atta.protos.v1 import session_pb2
from atta.samplers.dag.instance import OTHERS
from atta.wire.clusterfile import write_cluster
from atta.wire.rpc import METHODS
from tests.addresses import held_addresses
from tests.system.relay import Call, Relay
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs/internals/path-of-a-mini-batch.md"
IDS = np.arange(10, 20)
SOURCES = np.array([13, 14, 17, 10, 11, 18, 12, 16, 19, 12, 19, 16, 12, 13, 15, 10])
TARGETS = np.array([12, 12, 12, 15, 15, 15, 13, 14, 14, 17, 17, 10, 11, 18, 16, 19])
SEEDS, FAN_OUTS = [12, 15], [2, 2]
EDGES = "node__to__node"
VARYING = ("age_ms", "pid", "train_ms", "slot", "stats")
"""Fields that differ from run to run. The page does not count their bytes."""
WAITS_FOR = {
    "seed": (),
    "feature0": ("seed",),
    "nbr1": ("seed",),
    "join nbr1": ("nbr1",),
    "feature1": ("join nbr1",),
    "nbr2": ("join nbr1",),
    "join nbr2": ("nbr2", "join nbr1"),
    "feature2": ("join nbr2",),
    "end": ("feature0", "feature1", "feature2", "join nbr2"),
}


@dataclass(frozen=True)
class Example:
    """The recording: the dataset, the messages, the tasks of daemon 0, the requests that daemon 1 served, the batch."""

    dataset: Dataset
    calls: list[Call]
    tasks: list[TaskSpan]
    served: list[ServedSpan]
    batch: Any

    def of(self, *services: str) -> list[tuple[Call, Any, Any]]:
        found = [call for call in self.calls if call.method.split(".")[0] in services]
        return [(call, *messages(call)) for call in found]

    @property
    def header(self) -> session_pb2.BatchHeader:
        headers = [reply.header for call, _, reply in self.of("SessionService") if call.method.endswith("Next")]
        return next(header for header in headers if header.arrays)


def messages(call: Call) -> tuple[Any, Any]:
    """The request and the reply of a call that occurred once, without the fields that vary."""
    method = METHODS[call.method]
    (request,), (reply,) = call.requests, call.replies
    found = method.request.FromString(request), method.reply.FromString(reply)
    for message in found:
        for name in set(VARYING) & set(message.DESCRIPTOR.fields_by_name):
            message.ClearField(name)
    if call.method == "SessionService.Next":
        found[1].header.ClearField("stats")
        found[1].header.ClearField("slot")
    return found


def make_dataset(folder: Path) -> Path:
    """The ten vertices: the even ones in partition 0, the odd ones in partition 1."""
    rows = np.arange(10)
    with GraphWriter(folder / "graph") as out:
        x = (10 * IDS[:, None] + np.arange(4)).astype(np.float32)
        out.add_nodes("node", 10, ids=IDS, tables={"x": x, "y": rows % 3})
        out.add_edges(EDGES, SOURCES - 10, TARGETS - 10)
    np.save(folder / "parts.npy", (IDS % 2).astype(np.int32))
    given = {"path": str(folder / "parts.npy")}
    partition_graph(folder / "graph", folder / "data", parts=2, method="given", options=given)
    return folder / "data"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    folder = tmp_path_factory.mktemp("path")
    data, calls = make_dataset(folder), []  # type: ignore[var-annotated]
    addresses = held_addresses(4)
    relays, daemons = addresses[:2], addresses[2:]
    write_cluster(folder / "cluster.toml", relays)
    with ExitStack() as ending:
        for part in range(2):
            command = [sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", str(part)]
            command += ["--listen", daemons[part], "--peers", str(folder / "cluster.toml"), "--threads", "1"]
            command += ["--cache-fill", "0", "--no-links"]
            command += ["--log-level", "warning", "--exit-with-parent"]
            child = subprocess.Popen(command, stdin=subprocess.PIPE)
            ending.callback(child.wait)
            ending.callback(child.terminate)
            ending.callback(Relay(part, relays[part], daemons[part], calls).close)
        cluster = ending.enter_context(atta.connect(folder / "cluster.toml"))
        loader = atta.NeighborLoader(cluster, FAN_OUTS, SEEDS, batch_size=2, job="example")
        (batch,) = loader
        eventually(lambda: any(call.method == "SessionService.Close" and call.replies for call in calls))
        home, other = (recording.entries for recording in cluster.trace())
        tasks = [entry for entry in home if isinstance(entry, TaskSpan)]
        served = [entry for entry in other if isinstance(entry, ServedSpan)]
        yield Example(Dataset.open(data), list(calls), tasks, served, batch)


def table(*rows: Sequence[object]) -> list[str]:
    return ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def listed(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)


def written(rows: Sequence[str]) -> list[str]:
    """The page's rows in the table with the same heading."""
    lines = PAGE.read_text().splitlines()
    start = lines.index(rows[0])
    return [rows[0], *takewhile(lambda line: line.startswith("|"), lines[start + 2 :])]


def name_of(task: TaskSpan) -> str:
    return "end" if task.kind == "end" else f"join {task.op}" if task.kind == "join" else task.op


def test_the_graph_is_partitioned_as_written(example: Example) -> None:
    ids, book = example.dataset.ids("node"), example.dataset.book
    rows = [("vertex", "partition", "internal id", "row there", "in-neighbours", "their edge ids")]
    for vertex in IDS:
        internal = int(np.flatnonzero(ids == vertex)[0])
        part = int(vertex % 2)
        into = np.flatnonzero(vertex == TARGETS)
        start = int(book.offsets["node"][part])
        rows.append((vertex, part, internal, internal - start, listed(SOURCES[into]), listed(into)))  # type: ignore[arg-type]
    assert written(table(*rows)) == table(*rows)


def test_the_tasks_are_those_of_the_page_and_wait_for_each_other(example: Example) -> None:
    rows: list[Sequence[object]] = [("task", "operator", "lane", "owner", "cost", "rows from there", "waits for")]
    order = list(WAITS_FOR)
    for task in sorted(example.tasks, key=lambda t: (order.index(name_of(t)), t.lane)):
        waits = listed(WAITS_FOR[name_of(task)]) or "-"
        remote = task.remote_rows if task.lane == "net" else "-"
        owner = "others" if task.owner == OTHERS else task.owner
        assert task.owners == ("1" if task.owner == OTHERS else "")
        rows.append((task.kind.upper(), task.op or "-", task.lane.upper(), owner, f"{task.cost:g}", remote, waits))
    assert written(table(*rows)) == table(*rows)
    for task in example.tasks:
        before = [other for other in example.tasks if name_of(other) in WAITS_FOR[name_of(task)]]
        assert all(other.at <= task.ready <= task.started <= task.at for other in before), task


def test_the_messages_between_the_daemons_are_those_of_the_page(example: Example) -> None:
    ids, start = example.dataset.ids("node"), int(example.dataset.book.offsets["node"][1])
    rows: list[Sequence[object]] = [("method", "asks for", "answer", "request", "reply")]
    found = []
    for call, request, reply in example.of("GraphService", "KvService"):
        assert call.part == 1
        if call.method == "GraphService.Sample":
            neighbors, edges = np.frombuffer(reply.neighbors, np.int32), np.frombuffer(reply.edge_ids, np.int32)
            assert np.frombuffer(reply.counts, np.int32).sum() == len(neighbors) <= request.fan_out
            answer = f"{listed(ids[neighbors])} by edges {listed(edges)}"
        else:
            x, y = np.frombuffer(reply.data[:16], np.float32), np.frombuffer(reply.data[16:], np.int64)
            answer = f"x {listed(f'{v:g}' for v in x)}; y {y[0]}"
        vertex = ids[np.frombuffer(request.rows, np.int32) + start]
        found.append((call.method, listed(vertex), answer, request.ByteSize(), len(call.replies[0])))
    hop_of = {15: 0, 13: 1, 19: 2}
    found.sort(key=lambda row: (hop_of[int(row[1])], row[0]))
    assert written(table(*rows, *found)) == table(*rows, *found)
    assert sorted(len(call.replies[0]) for call, *_ in example.of("GraphService", "KvService")) == sorted(
        span.nbytes for span in example.served
    )


def test_the_messages_of_the_client_are_those_of_the_page(example: Example) -> None:
    rows = [("method", "request", "reply")]
    seen = [
        (call.method, request.ByteSize(), reply.ByteSize())
        for call, request, reply in example.of("SessionService")
        if call.method != "SessionService.Renew" and not (call.method == "SessionService.Next" and reply.header.pending)
    ]
    assert written(table(*rows, *dict.fromkeys(seen))) == table(*rows, *dict.fromkeys(seen))  # type: ignore[arg-type]


def test_the_batch_is_that_of_the_page(example: Example) -> None:
    header = example.header
    arrays = {a.name: a for a in header.arrays}
    n_id, hops = example.batch.n_id(), [2, 4, 2]
    levels = np.repeat(np.arange(3), hops)
    vertices = [("local id", "vertex", "hop", "owner"), *zip(range(8), n_id, levels, n_id % 2, strict=True)]
    assert written(table(*vertices)) == table(*vertices)

    row, col = example.batch.edge_index()
    ends = [(f"{n_id[r]} → {n_id[c]}") for r, c in zip(row, col, strict=True)]
    edges = [("edge", "row", "col", "e_id"), *zip(ends, row, col, example.batch.e_id(), strict=True)]
    assert written(table(*edges)) == table(*edges)

    sizes = {name: int(np.prod(a.shape)) * int(a.dtype[2:]) for name, a in arrays.items()}
    slot = [("array", "dtype", "shape", "offset", "bytes")]
    slot += [(f"`{n}`", a.dtype, f"[{listed(a.shape)}]", a.offset, sizes[n]) for n, a in arrays.items()]  # type: ignore[misc]
    assert written(table(*slot)) == table(*slot)
    assert f"{sum(sizes.values())} bytes" in PAGE.read_text()
    assert header.buffer_bytes == sum(sizes.values())


def test_every_sampled_edge_is_an_edge_of_the_graph(example: Example) -> None:
    n_id, (row, col), e_id = example.batch.n_id(), example.batch.edge_index(), example.batch.e_id()
    assert (n_id[row] == SOURCES[e_id]).all()
    assert (n_id[col] == TARGETS[e_id]).all()
    assert np.bincount(col).max() == FAN_OUTS[0]
