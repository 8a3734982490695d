"""What DGL's samplers draw by and from: edge tables, masks, seeds of several types and named relations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.partition import GraphWriter, partition_graph

real = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

from atta.compat import dgl  # noqa: E402 - after DGL is known to be there
from tests.system.distdgl_folders import partitioned, typed  # noqa: E402


@contextmanager
def opened(config: Path) -> Iterator[Any]:
    dgl.distributed.initialize(None, net_type="socket")
    try:
        yield dgl.distributed.DistGraph("toy", part_config=config)
    finally:
        dgl.distributed.exit_client()


@pytest.mark.parametrize("how", [{"prob": "w"}, {"mask": "kept"}, {"mask": "kept", "replace": True}], ids=str)
def test_edges_are_drawn_by_any_table_or_mask(tmp_path: Path, how: dict[str, Any]) -> None:
    """With all edges asked for the blocks are those of DGL's sampler; fewer are some of these, as many as DGL draws."""
    rng, whole, name = np.random.default_rng(5), real.rand_graph(60, 700), next(iter(how.values()))
    whole.edata["w"] = torch.from_numpy(np.where(rng.random(700) < 0.5, 0, rng.random(700)).astype(np.float32))
    whole.edata["kept"] = torch.from_numpy(rng.random(700) < 0.4)
    able, replace = whole.edata[name] > 0, how.get("replace", False)
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 60)
        tables = {name: rows.numpy() for name, rows in whole.edata.items()}
        out.add_edges("node__to__node", *(ends.numpy() for ends in whole.edges(order="eid")), tables=tables)
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=2, method="random")
    with opened(tmp_path / "parts") as g:
        for fan_out in (-1, 3):
            sampler = dgl.dataloading.NeighborSampler([fan_out], **how)
            for _, seeds, (block,) in dgl.dataloading.DistNodeDataLoader(g, torch.arange(60), sampler, batch_size=16):
                ids = block.edata[dgl.EID]
                assert able[ids].all()
                theirs = real.sampling.sample_neighbors(whole, seeds, fan_out, prob=name, replace=replace)
                assert torch.equal(theirs.in_degrees(seeds), block.in_degrees())
                if fan_out < 0:
                    assert set(ids.tolist()) == set(theirs.edata[real.EID].tolist())
        picked = dgl.distributed.sample_neighbors(g, [5, 9], 2, prob=name)
        assert able[picked.edata[dgl.EID]].all()
        with pytest.raises(atta.UnknownNameError, match="'wv'; did you mean 'w'"):
            len(dgl.dataloading.DistNodeDataLoader(g, [1], dgl.dataloading.NeighborSampler([1], prob="wv")))
        with pytest.raises(atta.ConfigError, match="exclude each other"):
            dgl.dataloading.NeighborSampler([1], prob="w", mask="kept")


def test_seeds_of_several_types_are_those_of_dgl(tmp_path: Path) -> None:
    """As DGL's loader over both types: every seed once, with its in-edges, and rows by the ids that a batch gives."""
    whole = typed(tmp_path / "folder").whole
    feat, labels = (whole.nodes["paper"].data[name] for name in ("feat", "label"))
    given = {"paper": torch.arange(0, 120, 3), "author": torch.arange(10, 31)}
    sampler = dgl.dataloading.NeighborSampler([-1, -1])
    with opened(tmp_path / "folder" / "toy.json") as g:
        for shuffle in (False, True):
            loader = dgl.dataloading.DistNodeDataLoader(g, given, sampler, batch_size=16, shuffle=shuffle)
            assert len(loader) == 4
            seen: dict[str, list[int]] = {ntype: [] for ntype in given}
            for _ in range(2):  # rows come along from the second epoch on
                for inputs, outputs, blocks in loader:
                    theirs = real.dataloading.NeighborSampler([-1, -1]).sample_blocks(whole, outputs)
                    known = {t: sorted(ids.tolist()) for t, ids in theirs[0].items()}
                    assert {t: sorted(ids.tolist()) for t, ids in inputs.items()} == known
                    assert theirs[1].keys() == outputs.keys()
                    for ntype, ids in outputs.items():
                        seen[ntype] += ids.tolist()
                        assert torch.equal(blocks[-1].dstnodes[ntype].data[dgl.NID], ids)
                    for mine, other in zip(blocks, theirs[2], strict=True):
                        drawn = [etype for etype in other.canonical_etypes if other.num_edges(etype)]
                        assert sorted(mine.canonical_etypes) == sorted(drawn)  # so it is with DistDGL
                        for etype in drawn:
                            assert edges_of(mine, etype) == edges_of(other, etype)
                    if "paper" in outputs:
                        found = g.nodes["paper"].data["label"][outputs["paper"]]
                        assert torch.equal(found, labels[outputs["paper"]])
                    assert torch.equal(g.nodes["paper"].data["feat"][inputs["paper"]], feat[inputs["paper"]])
            assert {t: sorted(v) for t, v in seen.items()} == {t: sorted(v.tolist() * 2) for t, v in given.items()}


def edges_of(block: Any, etype: tuple[str, str, str]) -> list[tuple[int, ...]]:
    src, dst = block.edges(etype=etype)
    ends = block.srcnodes[etype[0]].data[real.NID][src], block.dstnodes[etype[2]].data[real.NID][dst]
    return sorted(zip(*(e.tolist() for e in (*ends, block.edges[etype].data[real.EID])), strict=True))


@pytest.mark.parametrize(
    "relations", [[("user", "follows", "user")], [("_N", "knows", "_N"), ("_N", "likes", "_N")]], ids=["one", "two"]
)
def test_ids_are_tensors_and_blocks_have_the_names_of_the_graph(tmp_path: Path, relations: list[Any]) -> None:
    """Of graphs with one node type and named relations: knowledge graphs, social networks."""
    rng, ntype = np.random.default_rng(5), relations[0][0]
    ends = {r: tuple(torch.from_numpy(rng.integers(0, 80, 300)) for _ in range(2)) for r in relations}
    graph = real.heterograph(ends, num_nodes_dict={ntype: 80})
    graph.nodes[ntype].data["feat"] = torch.from_numpy(rng.random((80, 3), np.float32))
    whole = partitioned(graph, tmp_path, 2).whole
    layer = real.nn.HeteroGraphConv(
        {name: real.nn.GraphConv(3, 2, norm="right", allow_zero_in_degree=True) for _, name, _ in relations}
    )
    with opened(tmp_path / "toy.json") as g:
        assert g.canonical_etypes == whole.canonical_etypes
        sampler, theirs = dgl.dataloading.NeighborSampler([-1]), real.dataloading.NeighborSampler([-1])
        for at, (inputs, seeds, (block,)) in enumerate(
            dgl.dataloading.DistNodeDataLoader(g, torch.arange(40), sampler, batch_size=20)
        ):
            assert torch.equal(seeds, torch.arange(20 * at, 20 * at + 20))
            known, _, (expected,) = theirs.sample(whole, seeds)
            assert sorted(inputs.tolist()) == sorted(known.tolist())
            assert block.canonical_etypes == expected.canonical_etypes
            feat = g.ndata["feat"]
            found, wanted = (layer(b, {ntype: feat[ids]})[ntype] for b, ids in ((block, inputs), (expected, known)))
            assert torch.allclose(found, wanted, atol=1e-6)
        as_mapping = dgl.dataloading.DistNodeDataLoader(g, {ntype: torch.arange(40)}, sampler, batch_size=20)
        assert [list(seeds) for _, seeds, _ in as_mapping] == [[ntype], [ntype]]
        edges = dgl.dataloading.DistEdgeDataLoader(g, {relations[0]: torch.arange(30)}, sampler, batch_size=15)
        for inputs, pairs, (block,) in edges:
            assert torch.equal(inputs, block.srcnodes[ntype].data[real.NID])
            assert pairs.canonical_etypes == [relations[0]]
            nodes, (src, dst) = pairs.ndata[real.NID], pairs.edges()
            of_batch = whole.find_edges(pairs.edata[real.EID], etype=relations[0])
            assert torch.equal(torch.stack([nodes[src], nodes[dst]]), torch.stack(of_batch))
