"""Edges among the vertices of a batch: PyG's ``subgraph_type`` and HGT's budgets, by brute force and for any partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from torch_geometric.sampler.base import SubgraphType

import atta
from atta.partition import GraphWriter, partition_graph

CITES, BY, WRITES = "paper__cites__paper", "paper__rev_writes__author", "author__writes__paper"


class Case:
    """A typed graph with a hub, its edges [2, E] in user ids, and clusters of one and of two partitions."""

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self.counts = {"paper": 90, "author": 40}
        self.ids = {t: rng.permutation(5 * n)[:n] for t, n in self.counts.items()}
        rows = {CITES: rng.integers(0, 90, (2, 300)), WRITES: rng.integers(0, 40, (2, 160))}
        rows[CITES][1, :80] = 7  # more in-edges than share a vote
        rows[BY] = rows[WRITES][::-1]
        self.rows = rows
        self.ends = {
            e: np.stack([self.ids[t][r] for t, r in zip((e.split("__")[0], e.split("__")[2]), ends, strict=True)])
            for e, ends in rows.items()
        }
        self.note = {e: rng.random((ends.shape[1], 2), dtype=np.float32) for e, ends in rows.items()}
        self.clusters: list[Any] = []


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made, folder = Case(), tmp_path_factory.mktemp("graph")
    with GraphWriter(folder / "graph") as out:
        for node_type, count in made.counts.items():
            out.add_nodes(node_type, count, ids=made.ids[node_type], tables={"x": made.ids[node_type].astype("f4")})
        for edge_type, ends in made.rows.items():
            out.add_edges(edge_type, *ends, tables={"note": made.note[edge_type]})
    with ExitStack() as stack:
        for parts in (1, 2):
            partition_graph(folder / "graph", folder / f"parts-{parts}", parts=parts, method="random")
            made.clusters.append(stack.enter_context(atta.local(folder / f"parts-{parts}", threads=1)))
        yield made


def same(batches: list[Any]) -> Any:
    first, *others = batches
    for other in others:
        assert first.arrays.keys() == other.arrays.keys()
        for name, array in first.arrays.items():
            assert np.array_equal(array, other.arrays[name]), name
    return first


def pairs(case: Case, make: Any, **options: Any) -> Iterator[Any]:
    loaders = [make(cluster, seed_policy="global", **options) for cluster in case.clusters]
    for batches in zip(*loaders, strict=True):
        yield same(list(batches))


def check_ends(case: Case, batch: Any, edge_type: str) -> None:
    source, _, target = edge_type.split("__")
    row, col = batch.edge_index(edge_type)
    ends = np.stack([batch.n_id(source)[row], batch.n_id(target)[col]])
    e_id = batch.e_id(edge_type)
    assert np.array_equal(ends, case.ends[edge_type][:, e_id])
    assert np.array_equal(batch.edge_table("note", edge_type), case.note[edge_type][e_id])
    for node_type in case.counts:
        assert np.array_equal(batch.table("x", node_type), batch.n_id(node_type).astype("f4"))


NOTES = {"edge_tables": {e: ["note"] for e in (CITES, BY, WRITES)}}


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("frontier", ["new", "all"])
def test_induced_has_all_edges_among_the_vertices(case: Case, disjoint: bool, frontier: str) -> None:
    how = {"input_nodes": ("paper", case.ids["paper"]), "batch_size": 9, "disjoint": disjoint, "frontier": frontier}
    plain = pairs(case, atta.NeighborLoader, num_neighbors=[3, 2], **how)
    induced = pairs(case, atta.NeighborLoader, num_neighbors=[3, 2], subgraph_type="induced", **NOTES, **how)
    for drawn, batch in zip(plain, induced, strict=True):
        for node_type in case.counts:
            assert np.array_equal(batch.n_id(node_type), drawn.n_id(node_type))
            assert batch.num_sampled_nodes(node_type) == drawn.num_sampled_nodes(node_type)
        for edge_type, ends in case.ends.items():
            check_ends(case, batch, edge_type)
            source, _, target = edge_type.split("__")
            of = {t: batch.tree(t) if disjoint else np.zeros(len(batch.n_id(t)), int) for t in case.counts}
            found: Counter[Any] = Counter()
            for tree in range(batch.batch_size if disjoint else 1):
                there = {t: batch.n_id(t)[of[t] == tree] for t in case.counts}
                among = np.isin(ends[0], there[source]) & np.isin(ends[1], there[target])
                found.update((tree, e) for e in np.flatnonzero(among).tolist())
            at = of[target][batch.edge_index(edge_type)[1]].tolist()
            assert Counter(zip(at, batch.e_id(edge_type).tolist(), strict=True)) == found


def test_bidirectional_has_every_reverse_once(case: Case) -> None:
    how = {"input_nodes": ("paper", case.ids["paper"]), "batch_size": 9, "num_neighbors": [3, 2]}
    plain, both = pairs(case, atta.NeighborLoader, **how), SubgraphType("bidirectional")
    for drawn, batch in zip(plain, pairs(case, atta.NeighborLoader, subgraph_type=both, **how), strict=True):
        for edge_type, reverse in ((CITES, CITES), (BY, WRITES), (WRITES, BY)):
            ends = [tuple(pair) for pair in drawn.edge_index(edge_type).T.tolist()]
            ends += [tuple(pair) for pair in drawn.edge_index(reverse)[::-1].T.tolist()]
            found = [tuple(pair) for pair in batch.edge_index(edge_type).T.tolist()]
            assert found == sorted(set(ends), key=lambda pair: pair[::-1])
            if edge_type != CITES:
                assert batch.e_id(edge_type) is None
        row, col = batch.edge_index(CITES)
        known = case.ends[CITES][:, batch.e_id(CITES)]
        assert all(
            {a, b} == {c, d}
            for a, b, c, d in zip(*batch.n_id("paper")[[row, col]].tolist(), *known.tolist(), strict=True)
        )


def test_links_with_all_edges_among_the_vertices(case: Case) -> None:
    chosen = case.ends[CITES][:, 100:130]
    how = {"edge_label_index": (CITES, chosen), "batch_size": 10, "num_neighbors": [2], "neg_sampling": "binary"}
    for batch in pairs(case, atta.LinkNeighborLoader, subgraph_type="induced", **how):
        seeds = chosen[:, batch.input_id]
        unwanted = {*zip(*seeds.tolist(), strict=True), *zip(*seeds[::-1].tolist(), strict=True)}
        n_id, ends = batch.n_id("paper"), case.ends[CITES]
        among = np.flatnonzero(np.isin(ends, n_id).all(axis=0))
        assert set(batch.e_id(CITES).tolist()) == {
            e for e in among.tolist() if tuple(ends[:, e].tolist()) not in unwanted
        }


def test_what_is_refused(case: Case) -> None:
    cluster = case.clusters[0]
    with pytest.raises(atta.UnknownNameError, match="did you mean 'induced'"):
        atta.NeighborLoader(cluster, [1], ("paper", [1]), subgraph_type="inducd")
    with pytest.raises(atta.ConfigError, match="edge_tables: reverses of author__writes__paper"):
        atta.NeighborLoader(cluster, [1], ("paper", [1]), subgraph_type="bidirectional", edge_tables={WRITES: ["note"]})
    with pytest.raises(atta.ConfigError, match="no numbers for node type 'author'"):
        atta.HGTLoader(cluster, {"paper": [3]}, ("paper", [1]))
    with pytest.raises(atta.ConfigError, match="lists of different lengths"):
        atta.HGTLoader(cluster, {"paper": [3], "author": [3, 4]}, ("paper", [1]))


def votes(case: Case, known: dict[str, set[int]], expanded: dict[str, set[int]]) -> dict[str, dict[int, float]]:
    """PyG's budgets after ``expanded`` have voted; no vertex here has more in-edges than share its vote."""
    found: dict[str, dict[int, float]] = {t: {} for t in case.counts}
    for edge_type, ends in case.ends.items():
        source, _, target = edge_type.split("__")
        for vertex in expanded[target]:
            near = ends[0, ends[1] == vertex].tolist()
            for other in near:
                if other not in known[source]:
                    found[source][other] = found[source].get(other, 0) + 1 / len(near)
    return found


def test_hgt_takes_what_budgets_allow(case: Case) -> None:
    number = {"paper": [4, 100], "author": [3, 100]}
    seeds = np.setdiff1d(case.ids["paper"], case.ids["paper"][7])
    how = {"num_samples": number, "input_nodes": ("paper", seeds), "batch_size": 5}
    for batch in pairs(case, atta.HGTLoader, **NOTES, **how):
        sizes = {t: batch.num_sampled_nodes(t) for t in case.counts}
        n_id = {t: batch.n_id(t).tolist() for t in case.counts}
        known = {t: set(n_id[t][: sizes[t][0]]) for t in case.counts}
        assert {t: len(of_type) for t, of_type in known.items()} == {"paper": batch.batch_size, "author": 0}
        able = votes(case, known, known)
        first = {t: n_id[t][sizes[t][0] : sum(sizes[t][:2])] for t in case.counts}
        for node_type, of_type in first.items():
            assert len(of_type) == min(number[node_type][0], len(able[node_type]))
            assert set(of_type) <= able[node_type].keys()
        known = {t: known[t] | set(first[t]) for t in case.counts}
        later = votes(case, known, {t: set(of_type) for t, of_type in first.items()})
        hub = int(case.ids["paper"][7]) in known["paper"]
        for node_type, of_type in n_id.items():  # the second hop takes all that is in reach
            reach = (able[node_type].keys() | later[node_type].keys()) - known[node_type]
            assert set(of_type[sum(sizes[node_type][:2]) :]) == reach or (hub and node_type == "paper")
        for edge_type, ends in case.ends.items():
            check_ends(case, batch, edge_type)
            source, _, target = edge_type.split("__")
            among = np.flatnonzero(np.isin(ends[0], n_id[source]) & np.isin(ends[1], n_id[target]))
            into = ends[1] == case.ids["paper"][7] if target == "paper" else np.zeros(ends.shape[1], bool)
            got = set(batch.e_id(edge_type).tolist())
            assert got <= set(among.tolist())
            assert got >= set(among[~into[among]].tolist())
            assert into[list(got)].sum() <= 50


def test_hgt_draws_by_the_squares_of_votes(case: Case) -> None:
    """The first of one drawn vertex, over many batches of the same seeds, beside the probabilities of PyG's rule."""
    seeds = np.setdiff1d(case.ids["paper"], case.ids["paper"][7])[:6]
    known = {"paper": set(seeds.tolist()), "author": set()}
    able = votes(case, known, known)["author"]
    given: dict[str, Any] = {"batch_size": 6, "tables": {}, "world_size": 1, "rank": 0}
    loader = atta.HGTLoader(case.clusters[1], {"paper": [0], "author": [1]}, ("paper", np.tile(seeds, 400)), **given)
    drawn: Counter[int] = Counter()
    for batch in loader:
        assert set(batch.n_id("paper").tolist()) == known["paper"]
        drawn.update(batch.n_id("author").tolist())
    total = sum(v * v for v in able.values())
    expected = {author: 400 * v * v / total for author, v in able.items()}
    assert drawn.keys() <= expected.keys()
    chi = sum((drawn[author] - e) ** 2 / e for author, e in expected.items())
    freedom = len(expected) - 1
    assert chi < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_seeds_of_several_types(case: Case, shuffle: bool, subgraph_type: str) -> None:
    """Every seed comes once, its in-edges are all there, and whoever asks for a type gets positions in the type's ids."""
    given = {"paper": case.ids["paper"][:33], "author": case.ids["author"][5:25]}
    how = {"num_neighbors": [-1], "input_nodes": given, "batch_size": 7, "shuffle": shuffle}
    how["subgraph_type"] = subgraph_type
    seen: dict[str, list[int]] = {t: [] for t in given}
    batches = list(pairs(case, atta.NeighborLoader, **NOTES, **how))
    assert [batch.batch_size for batch in batches] == [7] * 7 + [4]
    for batch in batches:
        for node_type, ids in given.items():
            asked = ids[batch.seeds_of(node_type)]
            assert np.array_equal(batch.n_id(node_type)[: len(asked)], asked)
            seen[node_type] += asked.tolist()
            for edge_type, ends in case.ends.items():
                check_ends(case, batch, edge_type)
                if edge_type.endswith(f"__{node_type}"):
                    assert set(np.flatnonzero(np.isin(ends[1], asked)).tolist()) <= set(batch.e_id(edge_type).tolist())
        data = batch.to_pyg()
        assert sum(data[t].batch_size for t in given) == batch.batch_size
        assert all(
            data[t].n_id[: data[t].batch_size].tolist() == given[t][data[t].input_id.numpy()].tolist() for t in given
        )
    assert {t: sorted(ids) for t, ids in seen.items()} == {t: sorted(ids.tolist()) for t, ids in given.items()}
    if not shuffle:
        assert seen == {t: ids.tolist() for t, ids in given.items()}


def test_seeds_of_several_types_go_round_the_ranks(case: Case) -> None:
    given = {"author": case.ids["author"], "paper": case.ids["paper"][:21]}
    for cluster in case.clusters:
        for policy in ("local", "global"):
            seen = []
            for rank in range(3):
                how = {"batch_size": 8, "shuffle": True, "rank": rank, "world_size": 3, "seed_policy": policy}
                loader = atta.NeighborLoader(cluster, [2], given, pad=False, **how)
                batches = list(loader)
                assert len(batches) == len(loader)
                seen += [(t, v) for batch in batches for t in given for v in given[t][batch.seeds_of(t)].tolist()]
            assert sorted(seen) == sorted((t, v) for t, ids in given.items() for v in ids.tolist())
    with pytest.raises(atta.ConfigError, match="no times"):
        atta.NeighborLoader(case.clusters[0], [2], given, time_attr="time")
    with pytest.raises(atta.ConfigError, match="given by ids, not 'train'"):
        atta.NeighborLoader(case.clusters[0], [2], {"paper": "train"})
    with pytest.raises(atta.ConfigError, match="only NeighborLoader takes seeds of several"):
        atta.HGTLoader(case.clusters[0], [2], given)
