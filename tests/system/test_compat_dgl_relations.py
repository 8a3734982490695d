"""DGL's distributed loaders on graphs with one node type and named relations: knowledge graphs, social networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

real = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

from atta.compat import dgl  # noqa: E402 - after DGL is known to be there
from tests.system.distdgl_folders import partitioned  # noqa: E402


@pytest.mark.parametrize(
    "relations", [[("user", "follows", "user")], [("_N", "knows", "_N"), ("_N", "likes", "_N")]], ids=["one", "two"]
)
def test_ids_are_tensors_and_blocks_have_the_names_of_the_graph(tmp_path: Path, relations: list[Any]) -> None:
    rng, ntype = np.random.default_rng(5), relations[0][0]
    ends = {r: tuple(torch.from_numpy(rng.integers(0, 80, 300)) for _ in range(2)) for r in relations}
    graph = real.heterograph(ends, num_nodes_dict={ntype: 80})
    graph.nodes[ntype].data["feat"] = torch.from_numpy(rng.random((80, 3), np.float32))
    whole = partitioned(graph, tmp_path, 2).whole
    layer = real.nn.HeteroGraphConv(
        {name: real.nn.GraphConv(3, 2, norm="right", allow_zero_in_degree=True) for _, name, _ in relations}
    )
    dgl.distributed.initialize(None)
    try:
        g = dgl.distributed.DistGraph("named", part_config=tmp_path / "toy.json")
        assert g.canonical_etypes == whole.canonical_etypes
        sampler, theirs = dgl.dataloading.NeighborSampler([-1]), real.dataloading.NeighborSampler([-1])
        for inputs, seeds, (block,) in dgl.dataloading.DistNodeDataLoader(g, torch.arange(40), sampler, batch_size=20):
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
    finally:
        dgl.distributed.exit_client()
