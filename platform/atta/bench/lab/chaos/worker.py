"""The processes of a chaos run that take batches. They write lines, and go on where their lines, or checkpoints, end.

python -m atta.bench.lab.chaos.worker consumer SETTINGS.json
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.errors import AttaError

__all__ = ["EPOCHS", "HOPS", "SEED", "WIDTH", "WorkerSettings", "batch_digest", "stepped", "weights_digest"]

EPOCHS, HOPS, SEED, WIDTH = 3, (5, 5), 3, 16
SAVE_EVERY = 5
"""Steps from one checkpoint to the next."""
PAUSE_S = 0.02
"""How long a consumer computes on a batch."""
AGAIN_S = 0.5
"""How long a consumer waits after an error before it begins again."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker gets: the cluster file, its rank, where its lines go, and the folder of its checkpoints."""

    cluster: str
    rank: int
    world: int
    lines: str
    checkpoints: str
    batch_size: int


def batch_digest(batch_id: int, seeds: np.ndarray, sources: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> str:
    """Digest of a batch by user ids.

    Args:
        batch_id: its number.
        seeds: int64 [S], in order.
        sources, targets: int64 [E], user ids of the edges' ends, in any order.
        rows: [nodes, 1 + WIDTH] of float64, the user id of each vertex and its features, in any order.
    """
    edges = np.stack([sources, targets]).astype(np.int64)
    found = hashlib.sha256(str(batch_id).encode())
    for array in (seeds.astype(np.int64), edges[:, np.lexsort(edges)], rows[np.argsort(rows[:, 0])]):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def stepped(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The next weights, float64 [WIDTH]; ``rows``: float32 [S, WIDTH], features of the seeds."""
    moved: np.ndarray = 0.9 * weights + rows.astype(np.float64).mean(axis=0)
    return moved


def weights_digest(weights: np.ndarray) -> str:
    """Digest of weights, bit by bit."""
    return hashlib.sha256(weights.tobytes()).hexdigest()


def loader_of(cluster: atta.Cluster, settings: WorkerSettings) -> Any:
    """The loader of a rank."""
    return atta.NeighborLoader(
        cluster, list(HOPS), "train", batch_size=settings.batch_size, shuffle=True, seed=SEED, rank=settings.rank,
        world_size=settings.world,
    )  # fmt: skip


def taken(batch: Any) -> str:
    """Digest of a batch that has come."""
    ids, (row, col) = np.asarray(batch.n_id()), np.asarray(batch.edge_index())
    rows = np.column_stack([ids.astype(np.float64), np.asarray(batch.table("x")).astype(np.float64)])
    return batch_digest(batch.batch_id, ids[: batch.batch_size], ids[row], ids[col], rows)


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
        loader = loader_of(cluster, settings)
        last = next((line for line in reversed(lines.read()) if "digest" in line), None)
        home = cluster.parts[cluster.home_daemon(settings.rank, settings.world)].start
        lap, epoch, batch = (last["lap"], last["epoch"], last["batch"] + 1) if last else (0, 0, 0)
        while True:
            for found in loader.resume(epoch, batch):
                at = cluster.addresses[home]
                lines.write(lap=lap, epoch=epoch, batch=batch, digest=taken(found), daemon=at)
                batch += 1
                time.sleep(PAUSE_S)
            epoch, batch = epoch + 1, 0
            lap, epoch = (lap + 1, 0) if epoch == EPOCHS else (lap, epoch)


def train(settings: WorkerSettings, lines: Lines) -> None:
    """Take steps, with a checkpoint of weights and position every few steps."""
    path = Path(settings.checkpoints) / "trainer.json"
    with atta.connect(settings.cluster, wait=True) as cluster:
        loader, weights, step = loader_of(cluster, settings), np.zeros(WIDTH), 0
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
                lines.write(step=step, digest=weights_digest(weights), process=os.getpid())
                if step % SAVE_EVERY == 0:
                    state = {"weights": weights.tolist(), "step": step, "loader": loader.state_dict()}
                    with contextlib.suppress(OSError):  # the disk is full: the checkpoint of before stays
                        partial = path.with_suffix(".partial")
                        partial.write_text(json.dumps(state))
                        partial.replace(path)
                        lines.write(saved=step)
                time.sleep(PAUSE_S)


def learn(settings: WorkerSettings, lines: Lines) -> None:
    """Write the seeds of all batches, before anything goes wrong."""
    with atta.connect(settings.cluster, wait=True, deadline_s=60) as cluster:
        for rank in range(settings.world):
            loader = loader_of(cluster, WorkerSettings(**{**vars(settings), "rank": rank}))
            for epoch in range(EPOCHS):
                for batch in loader.resume(epoch, 0):
                    seeds = np.asarray(batch.n_id())[: batch.batch_size].tolist()
                    lines.write(rank=rank, epoch=epoch, batch_id=batch.batch_id, seeds=seeds)


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


if __name__ == "__main__":
    main()
