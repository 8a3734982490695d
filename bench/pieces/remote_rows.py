"""Rows that a daemon asks the others for, per seed: the fewest, what policies of its cache leave, what daemons do.

    python -m bench.pieces.remote_rows --data DATASET [--ways uniform:1,labor:64,...] [--shares 5,20]

The seeds are training vertices of partition 0, in a new order each time that all had their turn. A way is a method and
its ``dependency``; a share is the room of the cache in percent of the HALO vertices. The first third of the batches fills
the caches, the others count. Columns of the record:

- ``none``: without a cache.
- ``optimum``: those rows stay that the next ``--window`` batches ask for first, then those that most batches ask for.
- ``degree``, ``recent``: policies of ``atta serve --cache-rank``, replayed.
- ``summed``: those rows stay that ``degree`` chooses. For the last hop, an owner sends a row, or the sum of all its rows
  that a vertex needs. The cheapest choice is a minimum vertex cover, which is as large as a maximum matching.
- ``daemons, ...``: what daemons with that policy have asked for, on the same batches; ``window``: with ``recent``, and
  the rows of ``--window`` batches known ahead (``atta serve --window``), else with none.

Writes remote-rows.json and remote-rows.md.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

import atta
from atta.errors import AttaError
from atta.kvstore.cache import RowCache
from atta.kvstore.cache.choice import HaloHeat
from atta.partition.dataset import Dataset
from atta.samplers import LocalGraph, LocalSampler
from atta_bench.lab.workload import ints
from atta_bench.pieces.cache import pull, with_small_rows
from atta_bench.results import arguments_of, document, head, rows_of, write

RANKS = ("degree", "recent")
NEVER = 1 << 40
"""The number of a batch that does not come."""


class Need(NamedTuple):
    """What a batch needs of other partitions: int64, internal ids but for ``targets``.

    Attributes:
        rows: all of it, ascending.
        inner: those that an earlier hop than the last has brought.
        targets, sources: edges of the last hop from the other ones; targets by position in the batch.
        vertices: number of all vertices of the batch.
    """

    rows: np.ndarray
    inner: np.ndarray
    targets: np.ndarray
    sources: np.ndarray
    vertices: int


class Work(NamedTuple):
    """The batches: ``seeds`` int64 [batches, seeds of a batch], user ids."""

    dataset: Dataset
    node_type: str
    seeds: np.ndarray
    given: Namespace

    @classmethod
    def of(cls, given: Namespace) -> Work:
        """Those that the options name. Raises SystemExit: the dataset is of another kind, or has too few seeds."""
        dataset = Dataset.open(given.data, verify=False)
        node_type, *more = dataset.schema.node_types
        if more or len(dataset.schema.edge_types) != 1 or dataset.num_parts < 2:
            raise SystemExit(f"--data {given.data}: must have one node type, one edge type and several partitions")
        train = np.asarray(dataset.split(node_type, "train"))
        mine, rng = train[train < dataset.book.range(node_type, 0)[1]], np.random.default_rng(given.seed)
        turns = len(mine) // given.batch_size
        if not turns:
            raise SystemExit(f"--batch-size {given.batch_size}: partition 0 has {len(mine)} training vertices")
        orders = [rng.permutation(mine)[: turns * given.batch_size] for _ in range(-(-given.batches // turns))]
        seeds = dataset.ids(node_type)[np.concatenate(orders)[: given.batches * given.batch_size]]
        return cls(dataset, node_type, seeds.reshape(given.batches, -1), given)

    def needs(self, graph: LocalGraph, how: dict[str, Any]) -> Iterator[Need]:
        """What each batch needs of other partitions than the first."""
        sampler, (_, stop) = LocalSampler(graph, method=how["method"]), self.dataset.book.range(self.node_type, 0)
        fan_outs, k = ints(self.given.num_neighbors), how["dependency"]
        for number, ids in enumerate(self.seeds):
            at_home = self.dataset.to_internal(self.node_type, ids)
            batch = sampler.sample(at_home, fan_outs, seed=self.given.seed, batch=number, dependency=k)
            found = self.dataset.to_internal(self.node_type, batch.n_id)
            before, last = sum(batch.num_sampled_nodes[:-1]), slice(sum(batch.num_sampled_edges[:-1]), None)
            row, col, inner = batch.row[last], batch.col[last], found[:before]
            outer = (row >= before) & (found[row] >= stop)
            edges = col[outer].astype(np.int64), found[row[outer]]
            yield Need(np.sort(found[found >= stop]), inner[inner >= stop], *edges, len(found))

    def replayed(self, needs: Sequence[Need], share: float, rank: str) -> list[int]:
        """Rows that each batch asks for with a policy of the daemons' cache."""
        small, asked = with_small_rows(self.dataset), [0]
        cache = RowCache.of(small, 0, share=share, limit_bytes=1 << 62, rank=rank)
        for need in needs:
            pull(small, 0, cache, {self.node_type: need.rows})
            asked.append(cache.rows_asked - cache.rows_hit)
        return np.diff(asked).tolist()

    def measured(self, needs: Sequence[Need], how: dict[str, Any], *options: str) -> list[float]:
        """Rows that the home daemon has asked others for. Raises AttaError: the batches are not those of ``needs``."""
        with atta.local(self.dataset.path, threads=1, options=options, verify=False) as cluster:
            while not cluster.stats()[0]["caches_filled"]:
                time.sleep(0.1)
            how = {**how, "batch_size": self.given.batch_size, "seed": self.given.seed, "home": 0}
            fan_outs, tables = ints(self.given.num_neighbors), [self.given.table]
            loader = atta.NeighborLoader(cluster, fan_outs, self.seeds.ravel(), tables=tables, **how)
            batches = [(batch.num_nodes, batch.stats["remote_rows"]) for batch in loader]
        if [vertices for vertices, _ in batches] != [need.vertices for need in needs]:
            raise AttaError(f"{how}: daemons make other batches than a sampler in one process")
        return [rows for _, rows in batches]


def asked_by_next_use(batches: Sequence[np.ndarray], room: int, window: int, vertices: int) -> list[int]:
    """Rows that each batch asks for if the best ones stay: the optimum of the module docstring."""
    following, use = [np.empty(0, np.int64)] * len(batches), np.full(vertices, NEVER)
    for number in reversed(range(len(batches))):
        following[number] = use[batches[number]]
        use[batches[number]] = number
    often = np.bincount(np.concatenate(batches), minlength=vertices)
    kept, asked = np.zeros(vertices, np.bool_), []
    for number, rows in enumerate(batches):
        asked.append(int(np.count_nonzero(~kept[rows])))
        use[rows] = following[number]
        kept[rows] = True
        held = np.flatnonzero(kept)
        if len(held) > room:
            due = np.where(use[held] > number + window, NEVER - often[held], use[held])
            kept[held[np.argpartition(due, room)[room:]]] = False
    return asked


def summed(need: Need, kept: np.ndarray, offsets: np.ndarray) -> int:
    """The fewest rows and sums that a batch needs, if it has the rows of ``kept`` (ascending). ``offsets``: owners'."""
    wanted = ~np.isin(need.sources, kept)
    targets, sources = need.targets[wanted], need.sources[wanted]
    inner = int(np.count_nonzero(~np.isin(need.inner, kept)))
    if not len(sources):
        return inner
    pairs = targets * len(offsets) + np.searchsorted(offsets, sources, side="right")
    ends = [np.unique(ids, return_inverse=True)[1] for ids in (pairs, sources)]
    cover = maximum_bipartite_matching(csr_matrix((np.ones(len(sources)), ends)), perm_type="column")
    return inner + int(np.count_nonzero(cover >= 0))


def figures(work: Work, way: str, graph: LocalGraph) -> Iterator[dict[str, Any]]:
    """The figures of a way, one per share."""
    (method, _, k), given, dataset = way.partition(":"), work.given, work.dataset
    how = {"method": method, "dependency": int(k or 1)}
    needs = list(work.needs(graph, how))
    rows, offsets, warm = [need.rows for need in needs], dataset.book.offsets[work.node_type], given.batches // 3
    for percent in map(float, given.shares.split(",")):
        room = int(percent / 100 * len(dataset.part(0).halo(work.node_type)))
        kept, serve = HaloHeat(dataset, 0).hottest(work.node_type, room), ("--cache-share", f"{percent:g}")
        asked: dict[str, Sequence[float]] = {
            "none": [len(ids) for ids in rows],
            "optimum": asked_by_next_use(rows, room, given.window, graph.num_nodes),
            **{rank: work.replayed(needs, percent / 100, rank) for rank in RANKS},
            "summed": [summed(need, kept, offsets) for need in needs],
            **{
                f"daemons, {name}": work.measured(needs, how, *serve, "--cache-rank", rank, "--window", ahead)
                for name, rank, ahead in (*((r, r, "0") for r in RANKS), ("window", "recent", f"{given.window}"))
            },
        }
        yield {
            **how, "share": percent, "rows": room,
            "asked": {name: sum(c[warm:]) / work.seeds[warm:].size for name, c in asked.items()},
        }  # fmt: skip


def main() -> None:
    """Count and write the record."""
    given = arguments_of(
        __file__, __doc__, data=Path, ways="uniform:1,uniform:64,labor:1,labor:64", shares="5,20", num_neighbors="15,10,5",
        batch_size=1024, batches=72, window=4, seed=0, table="x",
    )  # fmt: skip
    work, found = Work.of(given), []
    csc = work.dataset.joined([range(work.dataset.num_parts)]).part(0).csc(work.dataset.schema.edge_types[0])
    graph = LocalGraph.from_csc(csc.indptr, csc.indices, keys=work.dataset.ids(work.node_type))
    for way in given.ways.split(","):
        for figure in figures(work, way, graph):
            print(figure, flush=True)
            found.append(figure)
    schema = work.dataset.schema
    about: dict[str, Any] = {
        "vertices": schema.node_counts,
        "edges": schema.edge_counts,
        "parts": work.dataset.num_parts,
    }
    record = document("remote-rows", command=given.typed, **about, results=found)
    columns, rows = list(found[0]["asked"]), []
    for figure in found:
        asked = figure["asked"]
        share = f"{asked['daemons, window'] / asked['optimum']:.2f}"
        where = figure["method"], figure["dependency"], f"{figure['share']:g} %"
        rows.append((*where, *(f"{asked[name]:.1f}" for name in columns), share))
    lines = [
        *head("Rows that a daemon asks others for", record),
        f"Rows per seed; {given.batch_size} seeds a batch, fan-outs {given.num_neighbors}. Columns: `--help`.",
        "",
        *rows_of(("method", "dependency", "cache", *columns, "daemons, window : optimum"), *rows),
    ]
    write(given.out / "remote-rows.json", record, lines)


if __name__ == "__main__":
    main()
