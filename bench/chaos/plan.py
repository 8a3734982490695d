"""What a chaos run is about: its graph, the loaders of its consumers, and the faults."""

from __future__ import annotations

import enum
import hashlib
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.errors import ConfigError, UnknownNameError
from atta.partition import GraphWriter, partition_graph

VERTICES, EDGES, TRAIN, WIDTH = 2000, 24_000, 960, 16
TIMES = 50
"""Edges and seeds have times from 0 to this."""


@dataclass(frozen=True)
class ChaosGraph:
    """A small graph: user ids and float32 features of its vertices, edges and training vertices by position.

    Attributes:
        ids: int64 [vertices].
        x: float32 [vertices, WIDTH].
        sources, targets: int64 [edges].
        times: int64 [edges].
        train: int64 [TRAIN], ascending.
    """

    ids: np.ndarray
    x: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    times: np.ndarray
    train: np.ndarray

    @classmethod
    def drawn(cls) -> ChaosGraph:
        """Always the same one."""
        rng = np.random.default_rng(5)
        return cls(
            ids=rng.permutation(9 * VERTICES)[:VERTICES].astype(np.int64),
            x=rng.standard_normal((VERTICES, WIDTH)).astype(np.float32),
            sources=rng.integers(0, VERTICES, EDGES),
            targets=rng.integers(0, VERTICES, EDGES),
            times=rng.integers(0, TIMES, EDGES),
            train=np.sort(rng.permutation(VERTICES)[:TRAIN]),
        )

    def write(self, folder: Path, parts: int) -> Path:
        """The folder of the partitioned dataset."""
        with GraphWriter(folder / "graph") as out:
            out.add_nodes("node", VERTICES, ids=self.ids, tables={"x": self.x}, splits={"train": self.train})
            out.add_edges("node__to__node", self.sources, self.targets, tables={"time": self.times})
        partition_graph(folder / "graph", folder / "parts", parts=parts, method="random", seed=1)
        return folder / "parts"

    @property
    def seeds(self) -> np.ndarray:
        """int64 [TRAIN]: ascending user ids of the training vertices, the seeds of loaders of vertices."""
        return np.sort(self.ids[self.train])

    @property
    def links(self) -> np.ndarray:
        """int64 [2, TRAIN]: user ids of the edges that are the seeds of loaders of links."""
        return np.stack([self.ids[self.sources[:TRAIN]], self.ids[self.targets[:TRAIN]]])

    def times_of(self, seeds: Any) -> np.ndarray:
        """int64 [seeds]: the time of each seed, a user id."""
        return np.asarray(seeds, dtype=np.int64) % TIMES

    def positions(self, ids: Any) -> np.ndarray:
        """Positions of user ids."""
        order = np.argsort(self.ids)
        return order[np.searchsorted(self.ids[order], np.asarray(ids))]


HOPS, SEED = (5, 5), 3
WALK = 3
"""Steps of the operator's walks."""


class LoaderKind(enum.Enum):
    """Whose batches a consumer takes."""

    NEIGHBOURS = "neighbours"
    DISJOINT = "disjoint"
    """Each seed has a tree of its own."""
    TEMPORAL = "temporal"
    """So it has, and no edge is later than its seed."""
    LINK = "link"
    OPERATOR = "operator"
    """GraphSAINT's random walks."""

    @property
    def local(self) -> bool:
        """Whether the local sampler makes these batches; else only an undisturbed run does."""
        return self not in {LoaderKind.LINK, LoaderKind.OPERATOR}


def loader_kinds(names: Sequence[str]) -> list[LoaderKind]:
    """The kinds with these names, each once; raises UnknownNameError or ConfigError."""
    known = {kind.value: kind for kind in LoaderKind}
    for name in names:
        if name not in known:
            raise UnknownNameError.of("loader", name, known)
    if not names:
        raise ConfigError("--loaders names none")
    return [known[name] for name in dict.fromkeys(names)]


def loader_of(kind: LoaderKind, cluster: atta.Cluster, *, rank: int, world: int, size: int) -> Any:
    """The loader of one of ``world`` ranks, in batches of ``size`` seeds of the chaos graph."""
    graph = ChaosGraph.drawn()
    own: dict[str, Any] = {
        "batch_size": size, "shuffle": True, "seed": SEED, "rank": rank, "world_size": world,
    }  # fmt: skip
    hops = list(HOPS)
    match kind:
        case LoaderKind.NEIGHBOURS:
            return atta.NeighborLoader(cluster, hops, "train", **own)
        case LoaderKind.DISJOINT:
            return atta.NeighborLoader(cluster, hops, "train", disjoint=True, **own)
        case LoaderKind.TEMPORAL:
            times = graph.times_of(graph.seeds)
            return atta.NeighborLoader(cluster, hops, graph.seeds, input_time=times, time_attr="time", **own)
        case LoaderKind.LINK:
            return atta.LinkNeighborLoader(cluster, hops, graph.links, neg_sampling="binary", **own)
        case LoaderKind.OPERATOR:
            return atta.BatchLoader(cluster, "saint-walks", {"length": WALK}, input_nodes=graph.seeds, **own)


def named(ids: np.ndarray, tree: np.ndarray | None) -> np.ndarray:
    """int64 [nodes]: a name for each vertex of a batch, from its user id and the number of its tree."""
    return ids if tree is None else ids + (tree.astype(np.int64) << 32)


def batch_digest(batch_id: int, seeds: np.ndarray, sources: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> str:
    """Digest of a batch by names of vertices.

    Args:
        batch_id: its number.
        seeds: int64 [S], in order.
        sources, targets: int64 [E], names of the edges' ends, in any order.
        rows: [nodes, 1 + WIDTH] of float64, the name of each vertex and its features, in any order.
    """
    edges = np.stack([sources, targets]).astype(np.int64)
    found = hashlib.sha256(str(batch_id).encode())
    for array in (seeds.astype(np.int64), edges[:, np.lexsort(edges)], rows[np.argsort(rows[:, 0])]):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def taken(kind: LoaderKind, batch: Any) -> str:
    """Digest of a batch that has come: what the local sampler can make again, or all of its arrays."""
    if not kind.local:
        found = hashlib.sha256(str(batch.batch_id).encode())
        for name, array in sorted(batch._raw.arrays.items()):
            found.update(f"{name} {array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return found.hexdigest()
    tree = None if kind is LoaderKind.NEIGHBOURS else np.asarray(batch.tree())
    names, (row, col) = named(np.asarray(batch.n_id()), tree), np.asarray(batch.edge_index())
    rows = np.column_stack([names.astype(np.float64), np.asarray(batch.table("x")).astype(np.float64)])
    return batch_digest(batch.batch_id, names[: batch.batch_size], names[row], names[col], rows)


class FaultKind(enum.Enum):
    """What is done to a process."""

    KILL = "kill"
    """SIGKILL. A supervisor starts it again."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT later."""
    CUT = "cut"
    """Its network interface goes down, and up again later."""
    DISK = "disk"
    """The disk of its checkpoints is full for a while."""
    MEMORY = "memory"
    """It may take next to no further memory for a while."""


_TARGETS = {
    FaultKind.KILL: ("daemon", "consumer", "trainer"),
    FaultKind.STOP: ("daemon", "consumer", "trainer"),
    FaultKind.CUT: ("daemon",),
    FaultKind.DISK: ("trainer",),
    FaultKind.MEMORY: ("daemon",),
}
_LASTS_S = {
    FaultKind.KILL: (0.0, 0.0),
    FaultKind.STOP: (0.5, 6.0),
    FaultKind.CUT: (0.5, 6.0),
    FaultKind.DISK: (2.0, 6.0),
    FaultKind.MEMORY: (1.0, 4.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: when it begins, what it is, the name of the process that it hits, and how long it lasts (0: at once)."""

    at_s: float
    kind: FaultKind
    target: str
    lasts_s: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "kind": self.kind.value}


def kinds_of(names: Sequence[str]) -> list[FaultKind]:
    """The kinds with these names, each once; raises UnknownNameError or ConfigError."""
    known = {kind.value: kind for kind in FaultKind}
    for name in names:
        if name not in known:
            raise UnknownNameError.of("fault", name, known)
    if not names:
        raise ConfigError("--faults names none")
    return [known[name] for name in dict.fromkeys(names)]


def plan_faults(
    seed: int,
    seconds: float,
    kinds: Sequence[FaultKind],
    processes: Sequence[str],
    every_s: float,
    *,
    spared: Sequence[str] = (),
) -> list[Fault]:
    """Faults for ``seconds``, one after another, so that a replica is left while one daemon is away.

    Args:
        seed: the same one gives the same faults.
        seconds: how long they go on.
        kinds: which kinds there are.
        processes: names that begin with ``daemon``, ``consumer`` or ``trainer``. Half of the faults hit daemons.
        every_s: mean time from the end of a fault to the begin of the next one; half to one and a half times as long.
        spared: processes that are not killed. Other faults hit them too.

    Raises:
        ConfigError: a kind has nothing that it could hit.
    """
    draw = random.Random(seed)
    victims = {kind: [p for p in processes if p.startswith(_TARGETS[kind])] for kind in kinds}
    if FaultKind.KILL in victims:
        victims[FaultKind.KILL] = [p for p in victims[FaultKind.KILL] if p not in spared]
    if empty := [kind.value for kind, found in victims.items() if not found]:
        raise ConfigError(f"--faults {','.join(empty)}: there is no process that it hits")
    faults, now = list[Fault](), every_s
    while (begins := round(now, 3)) < seconds:
        kind = draw.choice(list(kinds))
        daemons = [name for name in victims[kind] if name.startswith("daemon")]
        others = [name for name in victims[kind] if not name.startswith("daemon")]
        target = draw.choice(daemons if daemons and (not others or draw.random() < 0.5) else others)
        fault = Fault(begins, kind, target, round(draw.uniform(*_LASTS_S[kind]), 3))
        faults.append(fault)
        now += fault.lasts_s + every_s * draw.uniform(0.5, 1.5)
    return faults
