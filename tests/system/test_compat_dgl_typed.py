"""DGL's distributed interface on a graph with several types, beside DGL's results in memory; R-GCN learns on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import atta

real = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

from atta.compat import dgl  # noqa: E402 - after DGL is known to be there
from tests.system.distdgl_folders import Folder, typed  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return typed(tmp_path_factory.mktemp("distdgl-typed"))


@pytest.fixture(scope="module")
def g(folder: Folder) -> Iterator[Any]:
    dgl.distributed.initialize(None)
    yield dgl.distributed.DistGraph("toy", part_config=folder.config)
    dgl.distributed.exit_client()


def test_types_counts_and_tensors_are_those_of_the_folder(g: Any, folder: Folder) -> None:
    whole = folder.whole
    assert sorted(g.ntypes) == sorted(whole.ntypes)
    assert sorted(g.canonical_etypes) == sorted(whole.canonical_etypes)
    for ntype in whole.ntypes:
        assert g.num_nodes(ntype) == whole.num_nodes(ntype)
        assert g.ntypes[g.get_ntype_id(ntype)] == ntype
    for etype in whole.canonical_etypes:
        assert g.num_edges(etype) == g.num_edges(etype[1]) == whole.num_edges(etype)
        assert g.to_canonical_etype(etype[1]) == etype
        assert torch.equal(g.in_degrees(etype=etype), whole.in_degrees(etype=etype))
    for name in ("feat", "label", "train_mask"):
        assert torch.equal(g.nodes["paper"].data[name][:], whole.nodes["paper"].data[name])
    with pytest.raises(atta.ConfigError, match="name a node type"):
        _ = g.ndata


def ends(block: Any, etype: tuple[str, str, str]) -> list[tuple[int, int]]:
    src, dst = block.edges(etype=etype)
    sources, targets = block.srcnodes[etype[0]].data[real.NID][src], block.dstnodes[etype[2]].data[real.NID][dst]
    return sorted(zip(sources.tolist(), targets.tolist(), strict=True))


def test_fan_outs_by_type_and_sampled_graphs(g: Any, folder: Folder) -> None:
    whole, seeds = folder.whole, torch.arange(0, 120, 5)
    sampler = dgl.dataloading.NeighborSampler([{"cites": 2, "writes": 1}])
    for _, outputs, (block,) in dgl.dataloading.DistNodeDataLoader(g, {"paper": seeds}, sampler, batch_size=24):
        for relation, fan_out in (("cites", 2), ("writes", 1)):
            wanted = whole.in_degrees(outputs["paper"], etype=relation).clamp(max=fan_out)
            assert torch.equal(block.in_degrees(etype=relation), wanted)
        assert "by" not in block.etypes
    found = dgl.distributed.in_subgraph(g, {"paper": seeds, "author": torch.tensor([1, 2])})
    expected = real.in_subgraph(whole, {"paper": seeds, "author": torch.tensor([1, 2])})
    for etype in whole.canonical_etypes:
        ids = found.edges[etype].data[real.EID].tolist()
        assert sorted(ids) == sorted(expected.edges[etype].data[real.EID].tolist())


REVERSE = {("author", "writes", "paper"): ("paper", "by", "author")}


@pytest.mark.parametrize("exclude", [None, "self", "reverse_types"])
@pytest.mark.parametrize("negatives", [0, 2])
def test_edges_of_a_type_have_pairs_and_blocks(g: Any, folder: Folder, exclude: str | None, negatives: int) -> None:
    whole, (etype, reverse) = folder.whole, next(iter(REVERSE.items()))
    eids, seen = torch.arange(0, 400, 3), []
    uniform = dgl.dataloading.negative_sampler.Uniform(negatives) if negatives else None
    loader = dgl.dataloading.DistEdgeDataLoader(
        g, {etype: eids}, dgl.dataloading.NeighborSampler([-1, -1]), exclude=exclude, negative_sampler=uniform,
        reverse_etypes=REVERSE if exclude == "reverse_types" else None, batch_size=50, shuffle=True,
    )  # fmt: skip
    for batch in loader:
        inputs, pairs, blocks = batch[0], batch[1], batch[-1]
        nodes = {ntype: pairs.nodes[ntype].data[real.NID] for ntype in whole.ntypes}
        of_batch = pairs.edges[etype].data[real.EID]
        seen += of_batch.tolist()
        assert pairs.canonical_etypes == [etype]
        sources, targets = (nodes[t][end] for t, end in zip(("author", "paper"), pairs.edges(etype=etype), strict=True))
        assert torch.equal(torch.stack([sources, targets]), torch.stack(whole.find_edges(of_batch, etype=etype)))
        if negatives:
            others = batch[2]
            assert torch.equal(others.edges(etype=etype)[0], pairs.edges(etype=etype)[0].repeat_interleave(2))
            assert torch.equal(others.nodes["paper"].data[real.NID], nodes["paper"])
        left_out = {*zip(sources.tolist(), targets.tolist(), strict=True)} if exclude else set()
        for ntype, ids in nodes.items():
            assert torch.equal(blocks[-1].dstnodes[ntype].data[real.NID], ids)
            assert torch.equal(blocks[0].srcnodes[ntype].data[real.NID], inputs[ntype])
        for kind in blocks[-1].canonical_etypes:
            src, dst = whole.in_edges(nodes[kind[2]], etype=kind)
            gone = left_out if kind == etype else set()
            if kind == reverse and exclude == "reverse_types":
                gone = {(d, s) for s, d in left_out}
            expected = [pair for pair in zip(src.tolist(), dst.tolist(), strict=True) if pair not in gone]
            assert ends(blocks[-1], kind) == sorted(expected)
        found = g.nodes["paper"].data["feat"][inputs["paper"]]
        assert torch.equal(found, whole.nodes["paper"].data["feat"][inputs["paper"]])
    assert sorted(seen) == eids.tolist()


def test_edges_of_a_type_within_a_node_type_have_reverses_of_their_own_type(g: Any, folder: Folder) -> None:
    sampler = dgl.dataloading.NeighborSampler([-1])
    made = partial(dgl.dataloading.DistEdgeDataLoader, g, graph_sampler=sampler)
    for _, pairs, (block,) in made({"cites": torch.arange(90)}, exclude="reverse_id", batch_size=30):
        src, dst = folder.whole.find_edges(pairs.edges["cites"].data[real.EID], etype="cites")
        gone = {*zip(src.tolist(), dst.tolist(), strict=True), *zip(dst.tolist(), src.tolist(), strict=True)}
        assert not gone & {*ends(block, ("paper", "cites", "paper"))}
    for share, options, cause in (
        ({"by": [1]}, {"exclude": "reverse_id"}, "no reverse edges of its own type"),
        ({"by": [1]}, {"exclude": "reverse_types", "reverse_etypes": REVERSE}, "reverse_etypes: name the type"),
        ({"by": [1], "cites": [2]}, {}, "seeds of one type"),
        ([1], {}, "name an edge type"),
    ):
        with pytest.raises(atta.ConfigError, match=cause):
            made(share, **options)


@pytest.mark.parametrize("relabel", [True, False])
def test_a_graph_of_given_edges_is_that_of_dgl(g: Any, folder: Folder, relabel: bool) -> None:
    chosen = {"writes": torch.tensor([5, 300, 5]), "cites": torch.arange(40)}
    found = g.edge_subgraph(chosen, relabel_nodes=relabel)
    assert sorted(found.etypes) == ["cites", "writes"]
    for relation, ids in chosen.items():
        etype = folder.whole.to_canonical_etype(relation)
        assert torch.equal(found.edges[relation].data[real.EID], ids)
        src, dst = found.edges(etype=relation)
        if relabel:
            src, dst = found.nodes[etype[0]].data[real.NID][src], found.nodes[etype[2]].data[real.NID][dst]
        assert torch.equal(torch.stack([src, dst]), torch.stack(folder.whole.find_edges(ids, etype=relation)))
    kept = [found.num_nodes(t) for t in ("paper", "author")]
    assert (kept == [120, 60]) != relabel
    for etype in folder.whole.canonical_etypes:
        assert torch.equal(g.out_degrees(etype=etype), folder.whole.out_degrees(etype=etype))


def test_rows_of_embeddings_are_pulled_ahead_and_are_the_newest(g: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    ask = atta.DistEmbedding._ask
    monkeypatch.setattr(atta.DistEmbedding, "_ask", lambda self, ids: asked.append(ids) or ask(self, ids))
    policy = g.get_node_partition_policy("author")
    authors = dgl.distributed.DistEmbedding(g.num_nodes("author"), 2, "ahead", lambda s, _: torch.rand(s), policy)
    sparse = dgl.distributed.optim.SparseAdagrad([authors], lr=0.5)
    sampler = dgl.dataloading.NeighborSampler([-1, -1])
    loader = dgl.dataloading.DistNodeDataLoader(g, {"paper": torch.arange(96)}, sampler, batch_size=16)
    for number, (inputs, _, _) in enumerate(loader):
        ids = inputs["author"]
        assert [found is ids for found in asked] == [True] * (number > 0)  # from the second batch on
        asked.clear()
        if number == 2:  # a write comes between the batch and its use
            authors.weight[ids[:3]] = torch.full((3, 2), 7.0)
        found = authors(ids)
        assert len(asked) == (number in {0, 2})
        asked.clear()
        assert torch.equal(found, authors.weight[ids])
        if number == 4:  # no step: what is pulled ahead for the next batch is taken all the same
            continue
        found.square().sum().backward()
        sparse.step()
        assert not torch.equal(found, authors.weight[ids])
    for number, _ in enumerate(loader):
        assert len(asked) == (number == 0)  # the first batch of an epoch follows the last one
        asked.clear()
        if number == 1:
            break
    assert len(authors(torch.arange(5))) == 5
