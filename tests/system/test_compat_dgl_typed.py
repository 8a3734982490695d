"""DGL's distributed interface on a graph with several types, beside DGL's results in memory; R-GCN learns on it."""

from __future__ import annotations

from collections.abc import Iterator
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


def test_blocks_of_several_types_are_those_of_dgl(g: Any, folder: Folder) -> None:
    train = dgl.distributed.node_split(g.nodes["paper"].data["train_mask"], ntype="paper")
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2)
    theirs = real.dataloading.MultiLayerFullNeighborSampler(2)
    seen = 0
    for inputs, outputs, blocks in dgl.dataloading.DistNodeDataLoader(g, {"paper": train}, sampler, batch_size=16):
        assert list(outputs) == ["paper"]
        seen += len(outputs["paper"])
        known, _, expected = theirs.sample(folder.whole, outputs)
        for ntype, ids in known.items():
            assert sorted(inputs[ntype].tolist()) == sorted(ids.tolist())
        for mine, other in zip(blocks, expected, strict=True):
            drawn = [etype for etype in folder.whole.canonical_etypes if other.num_edges(etype)]
            assert sorted(mine.canonical_etypes) == sorted(drawn)  # so it is with DistDGL
            for etype in drawn:
                found = mine.edges[etype].data[real.EID].tolist()
                assert sorted(found) == sorted(other.edges[etype].data[real.EID].tolist())
                assert ends(mine, etype) == ends(other, etype)
        assert torch.equal(
            g.nodes["paper"].data["feat"][inputs["paper"]], folder.whole.nodes["paper"].data["feat"][inputs["paper"]]
        )
    assert seen == int(folder.whole.nodes["paper"].data["train_mask"].sum())


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


def test_r_gcn_with_embeddings_for_a_type_without_features_learns(g: Any) -> None:
    torch.manual_seed(0)
    authors = dgl.distributed.DistEmbedding(
        g.num_nodes("author"), 3, name="author", init_func=lambda shape, dtype: torch.rand(shape).to(dtype),
        part_policy=g.get_node_partition_policy("author"),
    )  # fmt: skip
    sparse = dgl.distributed.optim.SparseAdam([authors], lr=0.05)
    layers = torch.nn.ModuleList(
        dgl.nn.HeteroGraphConv({etype: dgl.nn.GraphConv(3, 3, norm="right", allow_zero_in_degree=True) for etype in g.etypes})
        for _ in range(2)
    )  # fmt: skip
    dense = torch.optim.Adam(layers.parameters(), lr=0.05)
    train = dgl.distributed.node_split(g.nodes["paper"].data["train_mask"], ntype="paper")
    sampler = dgl.dataloading.MultiLayerNeighborSampler([5, 5])
    loader = dgl.dataloading.DistNodeDataLoader(g, {"paper": train}, sampler, batch_size=32, shuffle=True)
    before, losses = authors.weight[:], []
    for _ in range(12):
        for inputs, outputs, blocks in loader:
            h = {"paper": g.nodes["paper"].data["feat"][inputs["paper"]], "author": authors(inputs["author"])}
            for layer, block in zip(layers, blocks, strict=True):
                h = layer(block, h)
            labels = g.nodes["paper"].data["label"][outputs["paper"]]
            loss = torch.nn.functional.cross_entropy(h["paper"], labels)
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            losses.append(loss.item())
    assert sum(losses[-4:]) < sum(losses[:4])
    assert not torch.equal(authors.weight[:], before)
