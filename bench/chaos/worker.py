"""The processes of a chaos run that take batches. They write lines, and go on where their lines, or checkpoints, end.

python -m atta_bench.chaos.worker consumer SETTINGS.json
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.errors import AttaError
from atta.samplers import LocalGraph, LocalSampler
from atta_bench.chaos.plan import HOPS, SEED, WIDTH, ChaosGraph, LoaderKind, batch_digest, loader_of, named, taken

EPOCHS = 3
SAVE_EVERY = 5
"""Steps from one checkpoint to the next."""
PAUSE_S = 0.02
"""How long a consumer computes on a batch."""
AGAIN_S = 0.5
"""How long a consumer waits after an error before it begins again."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker gets.

    Attributes:
        cluster: the cluster file.
        rank, world: which of how many workers it is.
        lines: file that its lines go to.
        checkpoints: folder of its checkpoints.
        batch_size: number of seeds of a batch.
        loader: kind of its loader.
    """

    cluster: str
    rank: int
    world: int
    lines: str
    checkpoints: str
    batch_size: int
    loader: str = LoaderKind.NEIGHBOURS.value


def stepped(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The next weights, float64 [WIDTH]; ``rows``: float32 [S, WIDTH], features of the seeds."""
    moved: np.ndarray = 0.9 * weights + rows.astype(np.float64).mean(axis=0)
    return moved


def weights_digest(weights: np.ndarray) -> str:
    """Digest of weights, bit by bit."""
    return hashlib.sha256(weights.tobytes()).hexdigest()


def loader_for(cluster: atta.Cluster, settings: WorkerSettings) -> Any:
    """The loader of a worker."""
    about = {"rank": settings.rank, "world": settings.world, "size": settings.batch_size}
    return loader_of(LoaderKind(settings.loader), cluster, **about)


def home_of(cluster: atta.Cluster, settings: WorkerSettings) -> int:
    """The first partition of the daemon that makes a worker's batches."""
    return cluster.parts[cluster.home_daemon(settings.rank, settings.world)].start


class Lines:
    """A file of lines that outlives the process."""

    def __init__(self, path: str) -> None:
        """Drop a line that is torn."""
        self._path = Path(path)
        content = self._path.read_bytes() if self._path.exists() else b""
        self._path.write_bytes(content[: content.rfind(b"\n") + 1])
        self._file = self._path.open("ab", buffering=0)

    def read(self) -> list[dict[str, Any]]:
        """All of them."""
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]

    def write(self, **line: Any) -> None:
        """Append one."""
        self._file.write(json.dumps({**line, "t": time.monotonic()}).encode() + b"\n")


def consume(settings: WorkerSettings, lines: Lines) -> None:
    """Take all batches again and again; the lines say which are taken already."""
    with atta.connect(settings.cluster, wait=True) as cluster:
        loader, kind = loader_for(cluster, settings), LoaderKind(settings.loader)
        last = next((line for line in reversed(lines.read()) if "digest" in line), None)
        home = home_of(cluster, settings)
        lap, epoch, batch = (last["lap"], last["epoch"], last["batch"] + 1) if last else (0, 0, 0)
        while True:
            for found in loader.resume(epoch, batch):
                at = cluster.addresses[home]
                lines.write(lap=lap, epoch=epoch, batch=batch, digest=taken(kind, found), daemon=at)
                batch += 1
                time.sleep(PAUSE_S)
            epoch, batch = epoch + 1, 0
            lap, epoch = (lap + 1, 0) if epoch == EPOCHS else (lap, epoch)


def train(settings: WorkerSettings, lines: Lines) -> None:
    """Take steps, with a checkpoint of weights and position every few steps."""
    path = Path(settings.checkpoints) / "trainer.json"
    with atta.connect(settings.cluster, wait=True) as cluster:
        loader, weights, step = loader_for(cluster, settings), np.zeros(WIDTH), 0
        home = home_of(cluster, settings)
        if path.exists():
            state = json.loads(path.read_text())
            weights, step = np.array(state["weights"]), state["step"]
            loader.load_state_dict(state["loader"])
        while True:
            if loader.state_dict()["epoch"] >= EPOCHS:
                loader.set_epoch(0)
            for batch in loader:
                weights = stepped(weights, np.asarray(batch.table("x"))[: batch.batch_size])
                step += 1
                at = cluster.addresses[home]
                lines.write(step=step, digest=weights_digest(weights), process=os.getpid(), daemon=at)
                if step % SAVE_EVERY == 0:
                    state = {"weights": weights.tolist(), "step": step, "loader": loader.state_dict()}
                    with contextlib.suppress(OSError):  # the disk is full: the checkpoint of before stays
                        partial = path.with_suffix(".partial")
                        partial.write_text(json.dumps(state))
                        partial.replace(path)
                        lines.write(saved=step)
                time.sleep(PAUSE_S)


def learn(settings: WorkerSettings, lines: Lines) -> None:
    """Write which seeds all batches of all loaders have, and their digests, before anything goes wrong."""
    with atta.connect(settings.cluster, wait=True, deadline_s=60) as cluster:
        for kind, rank in itertools.product(map(LoaderKind, settings.loader.split(",")), range(settings.world)):
            loader = loader_of(kind, cluster, rank=rank, world=settings.world, size=settings.batch_size)
            for epoch in range(EPOCHS):
                for batch in loader.resume(epoch, 0):
                    about = {"loader": kind.value, "rank": rank, "epoch": epoch, "batch_id": batch.batch_id}
                    lines.write(**about, inputs=batch.input_id.tolist(), digest=taken(kind, batch))


ROLES: dict[str, Callable[[WorkerSettings, Lines], None]] = {"consumer": consume, "trainer": train, "learner": learn}


def main() -> None:
    """Work until killed. An error of Atta's is noted, and work goes on where the lines end."""
    role, file = sys.argv[1:]
    settings = WorkerSettings(**json.loads(Path(file).read_text()))
    while True:
        lines = Lines(settings.lines)
        try:
            ROLES[role](settings, lines)
            return
        except AttaError as error:
            lines.write(error=type(error).__name__, message=str(error))
            time.sleep(AGAIN_S)


Learnt = Sequence[Mapping[str, Any]]


def expected_batches(graph: ChaosGraph, learnt: Learnt, kind: LoaderKind, rank: int) -> list[list[str]]:
    """Digests of a rank's batches by epoch and position: from the local sampler, or as they were learnt.

    ``learnt``: the lines about all batches of all ranks. What cannot be computed without daemons is checked: in each
    epoch each seed comes once. Raises AttaError: it does not.
    """
    lines = [line for line in learnt if line["loader"] == kind.value]
    for epoch in range(EPOCHS):
        inputs = sorted(number for line in lines if line["epoch"] == epoch for number in line["inputs"])
        if inputs != [*range(len(graph.train))]:
            raise AttaError(
                f"{kind.value}: the seeds of epoch {epoch} are not those that the loader was given, each once"
            )
    expected: list[list[str]] = [[] for _ in range(EPOCHS)]
    makes = _LocalDigests(graph, kind) if kind.local else _learnt_digest
    for line in lines:
        if line["rank"] == rank:
            expected[line["epoch"]].append(makes(line))
    return expected


def _learnt_digest(line: Mapping[str, Any]) -> str:
    return str(line["digest"])


class _LocalDigests:
    """Digests of batches of the local sampler."""

    def __init__(self, graph: ChaosGraph, kind: LoaderKind) -> None:
        self._graph, self._kind, temporal = graph, kind, kind is LoaderKind.TEMPORAL
        times = graph.times if temporal else None
        local = LocalGraph.from_edges(graph.sources, graph.targets, len(graph.ids), keys=graph.ids, time=times)
        self._sampler = LocalSampler(local, method="temporal" if temporal else "uniform")

    def __call__(self, line: Mapping[str, Any]) -> str:
        graph, seeds = self._graph, self._graph.seeds[line["inputs"]]
        batch = self._sampler.sample(
            graph.positions(seeds), list(HOPS), seed=SEED, epoch=line["epoch"], batch=line["batch_id"],
            disjoint=self._kind is LoaderKind.DISJOINT,
            input_time=graph.times_of(seeds) if self._kind is LoaderKind.TEMPORAL else None,
        )  # fmt: skip
        names, x = named(batch.n_id, batch.tree), graph.x[graph.positions(batch.n_id)]
        rows = np.column_stack([names.astype(np.float64), x.astype(np.float64)])
        return batch_digest(line["batch_id"], names[: len(seeds)], names[batch.row], names[batch.col], rows)


def expected_weights(graph: ChaosGraph, learnt: Learnt, rank: int, steps: int) -> list[str]:
    """Digests of a trainer's weights after each of the first ``steps`` steps."""
    lines = [line for line in learnt if line["loader"] == LoaderKind.NEIGHBOURS.value and line["rank"] == rank]
    batches = [graph.x[graph.positions(graph.seeds[line["inputs"]])] for line in lines]
    weights, digests = np.zeros(WIDTH), list[str]()
    for step in range(steps):
        weights = stepped(weights, batches[step % len(batches)])
        digests.append(weights_digest(weights))
    return digests


if __name__ == "__main__":
    main()
