"""Batches stay bit for bit what they were: digests of many loaders, on graphs cut in one, two and three parts.

python -m tests.system.test_batches_stay    # writes the digests anew, where they change on purpose
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter

DIGESTS = Path(__file__).with_name("batches.txt")
"""A line for each kind, and in it a digest for each loader."""
MOST_BATCHES = 6
"""A digest is of the first batches of an epoch: those of one seed each would be many."""
COUNTS = {"neighbours": 70, "typed": 25, "links": 25, "operators": 15}
CHOICES: dict[str, list[Any]] = {
    "num_neighbors": [[4], [3, 2], [-1, 3], [2, 2, 2], [5, 0, 3]],
    "batch_size": [1, 16, 50],
    "frontier": ["new", "all"],
    "disjoint": [False, False, True],
    "replace": [False, False, True],
    "subgraph_type": ["directional", "directional", "directional", "induced", "bidirectional"],
    "edge_tables": [(), ("note",)],
    "edge_norm": [None, None, "gcn", "row", "both"],
    "unbiased": [False, False, True],
    "edge_order": ["source", "source", "file"],
    "shuffle": [False, True],
}
HOW: list[dict[str, Any]] = [
    {}, {}, {"method": "labor"}, {"weight_attr": "weight"}, {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
]  # fmt: skip
OPERATORS: list[tuple[str, dict[str, Any], bool]] = [
    ("shadow", {"depth": 2, "num_neighbors": 3}, True),
    ("shadow", {"depth": 1, "replace": True}, True),
    ("saint-nodes", {"budget": 30}, False),
    ("saint-edges", {"budget": 30}, False),
    ("saint-walks", {"length": 3}, True),
    ("induced", {}, True),
    ("ladies", {"layers": [20, 10]}, True),
    ("fastgcn", {"layers": [20, 10]}, False),
    ("walks", {"length": 5, "p": 0.5, "q": 2.0}, True),
    ("walks", {"length": 4, "restart": 0.3}, True),
    ("pinsage", {"count": 4}, True),
    ("pagerank", {"count": 5}, True),
    ("closure", {"hops": 2}, True),
    ("closure", {"hops": 1, "rim": False}, True),
    ("expansion-aware", {"max_hop": 1, "fanout": 3}, True),
]


SIZES = {"paper": 90, "author": 60}
RELATIONS = {
    ("paper", "cites", "paper"): 500,
    ("author", "writes", "paper"): 300,
    ("paper", "rev_writes", "author"): 300,
}


def write_graphs(folder: Path) -> None:
    """A graph with weights, times, hubs, loops and parallel edges, and one with two node types."""
    rng = np.random.default_rng(5)
    n, m = 200, 2000
    ends = rng.integers(0, n - 5, m), (rng.random(m) ** 2 * (n - 10)).astype(np.int64)
    ends[0][:10], ends[1][:10] = np.arange(10), np.arange(10)
    ends[0][10:30], ends[1][10:30] = ends[0][30:50], ends[1][30:50]
    with GraphWriter(folder / "plain") as writer:
        ids = rng.permutation(5000)[:n]
        tables = {"x": rng.random((n, 4), dtype=np.float32), "y": rng.integers(0, 3, n), "time": rng.integers(0, 9, n)}
        writer.add_nodes("node", n, ids=ids, tables=tables, splits={"train": np.sort(rng.permutation(n)[:90])})
        weight = np.where(rng.random(m) < 0.1, 0, rng.random(m)).astype(np.float32)
        tables = {"weight": weight, "time": rng.integers(0, 9, m), "note": rng.random((m, 2), dtype=np.float32)}
        writer.add_edges("node__to__node", *ends, tables=tables)
    with GraphWriter(folder / "typed") as writer:
        for name, size in SIZES.items():
            splits = {"train": np.arange(0, size, 2)} if name == "paper" else {}
            writer.add_nodes(name, size, tables={"x": rng.random((size, 3), dtype=np.float32)}, splits=splits)
        for (source, relation, target), size in RELATIONS.items():
            edges = rng.integers(0, SIZES[source], size), rng.integers(0, SIZES[target], size)
            writer.add_edges(f"{source}__{relation}__{target}", *edges, tables={"note": rng.random(size)})
    for graph, parts, method in (("plain", 1, "random"), ("plain", 3, "random"), ("typed", 2, "random")):
        partition_graph(folder / graph, folder / f"{graph}-{parts}", parts=parts, method=method, seed=1)


def _draws(kind: str) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(sum(map(ord, kind)))
    for _ in range(COUNTS[kind]):
        drawn = {name: values[rng.integers(len(values))] for name, values in CHOICES.items()}
        how = HOW[rng.integers(len(HOW))]
        yield _agreeing({**drawn, **how, "seed": int(rng.integers(100)), "seed_policy": "global"}, kind)


def _agreeing(options: dict[str, Any], kind: str) -> dict[str, Any]:
    given, plainest = dict(options), {"edge_norm": None, "unbiased": False}
    if kind == "typed":
        for name in ("weight_attr", "time_attr", "temporal_strategy"):
            given.pop(name, None)
        given.update(plainest if given["edge_norm"] == "gcn" else {})
        alone = given["subgraph_type"] == "bidirectional" or not given["edge_tables"]
        given["edge_tables"] = {} if alone else {key: ["note"] for key in RELATIONS}
    if given.get("method") == "labor" or "time_attr" in given:
        given["replace"] = False
    if "time_attr" in given:
        given.update(plainest)
    if given["subgraph_type"] != "directional":
        given["unbiased"] = False
    if given["subgraph_type"] == "bidirectional":
        given["edge_norm"] = None
    return given


def _typed_loaders(cluster: Any) -> dict[str, Any]:
    def made(options: dict[str, Any]) -> Any:
        if options["seed"] % 5:
            return atta.NeighborLoader(cluster, input_nodes=("paper", "train"), **options)
        taken = {name: options[name] for name in ("batch_size", "shuffle", "seed", "seed_policy", "edge_tables")}
        return atta.HGTLoader(cluster, {"paper": [8, 6], "author": [5, 4]}, ("paper", "train"), **taken)

    return _loaders("typed", made)


def _link_loaders(cluster: Any) -> dict[str, Any]:
    ids = atta.NeighborLoader(cluster, [0], None, batch_size=200, tables=[])
    vertices = np.sort(next(iter(ids)).n_id())
    edges = np.stack([vertices[:60], vertices[::-1][:60]])
    drawn = [atta.NegativeSampling("binary", 2.0, strategy) for strategy in ("degree", "in_batch", "exact")]
    negatives = [None, "binary", "triplet", *drawn]

    def made(options: dict[str, Any]) -> Any:
        times = {"edge_label_time": np.full(60, 6)} if "time_attr" in options else {}
        negative = negatives[options["seed"] % len(negatives)]
        return atta.LinkNeighborLoader(cluster, edge_label_index=edges, neg_sampling=negative, **times, **options)

    return _loaders("links", made)


def _operator_loaders(cluster: Any) -> dict[str, Any]:
    found = {}
    for number in range(COUNTS["operators"]):
        name, options, seeded = OPERATORS[number % len(OPERATORS)]
        given = {"input_nodes": "train", "batch_size": 20} if seeded else {"batches": 3}
        loader = atta.BatchLoader(cluster, name, options, seed=number, seed_policy="global", **given)  # type: ignore[arg-type]
        found[f"operators {name} {options} seed={number}"] = loader
    return found


def _loaders(kind: str, made: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    return {
        f"{kind} " + " ".join(f"{name}={value}" for name, value in options.items()): made(options)
        for options in _draws(kind)
    }


def _digest(loader: Any) -> str:
    hasher = hashlib.sha256()
    for batch in islice(loader, MOST_BATCHES):
        _add(hasher, batch.to_pyg().to_dict())
    return hasher.hexdigest()[:20]


def _add(hasher: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            hasher.update(str(key).encode())
            _add(hasher, value[key])
    elif hasattr(value, "numpy"):
        hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
        hasher.update(np.ascontiguousarray(value.numpy()).tobytes())
    else:
        hasher.update(str(value).encode())


def _digests(folder: Path, plain: str, every: int = 1, **how: int) -> dict[str, str]:
    with ExitStack() as stack:
        cluster = stack.enter_context(atta.local(folder / plain, **how))
        typed = stack.enter_context(atta.local(folder / "typed-2", threads=1))
        return digests_of(cluster, typed, every=every)


def digests_of(cluster: Any, typed: Any, *, every: int = 1) -> dict[str, str]:
    """Of all loaders, or of one in so many, by their names. ``cluster`` and ``typed`` serve the two graphs."""
    loaders = {
        **_loaders("neighbours", lambda options: atta.NeighborLoader(cluster, **options)),
        **_link_loaders(cluster),
        **_operator_loaders(cluster),
        **_typed_loaders(typed),
    }
    return {name: _digest(loader) for name, loader in [*loaders.items()][::every]}


def expected_digests() -> list[str]:
    """Those that have been written down, in the same order."""
    return [digest for line in DIGESTS.read_text().splitlines() for digest in line.split()[1:]]


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_batches_stay(tmp_path: Path, every: int) -> None:
    """Those of one part, which the digests are of, are those of three parts, which two daemons serve. ``every``: of so many
    loaders one is tried."""
    write_graphs(tmp_path)
    found = _digests(tmp_path, "plain-3", every, threads=2, daemons=2)
    lines = [line.split() for line in DIGESTS.read_text().splitlines()]
    assert {kind: len(of_kind) for kind, *of_kind in lines} == COUNTS
    assert [
        name
        for (name, digest), known in zip(found.items(), expected_digests()[::every], strict=True)
        if digest != known
    ] == []
    assert len(set(found.values())) > 0.9 * len(found)  # else many batches would have nothing in them


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_here:
        write_graphs(Path(made_here))
        made = [(name.split()[0], digest) for name, digest in _digests(Path(made_here), "plain-1", threads=1).items()]
        groups = {kind: " ".join(digest for of, digest in made if of == kind) for kind, _ in made}
        DIGESTS.write_text("".join(f"{kind} {digests}\n" for kind, digests in groups.items()))
