"""What DGL's samplers draw by and from: edge tables, masks and seeds of several types, on one and two partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.partition import GraphWriter, partition_graph

real = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

from atta.compat import dgl  # noqa: E402 - after DGL is known to be there
from tests.system.distdgl_folders import typed  # noqa: E402


@pytest.mark.parametrize("how", [{"prob": "w"}, {"mask": "kept"}, {"mask": "kept", "replace": True}], ids=str)
def test_edges_are_drawn_by_any_table_or_mask(tmp_path: Path, how: dict[str, Any]) -> None:
    """With all edges asked for the blocks are those of DGL's sampler; fewer are some of these, as many as DGL draws."""
    rng, whole = np.random.default_rng(5), real.rand_graph(60, 700)
    whole.edata["w"] = torch.from_numpy(np.where(rng.random(700) < 0.5, 0, rng.random(700)).astype(np.float32))
    whole.edata["kept"] = torch.from_numpy(rng.random(700) < 0.4)
    able = whole.edata["w"] > 0 if "prob" in how else whole.edata["kept"]
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 60)
        tables = {name: rows.numpy() for name, rows in whole.edata.items()}
        out.add_edges("node__to__node", *(ends.numpy() for ends in whole.edges(order="eid")), tables=tables)
    for parts in (1, 2):
        partition_graph(tmp_path / "graph", tmp_path / f"parts-{parts}", parts=parts, method="random")
        dgl.distributed.initialize(None, net_type="socket")
        try:
            g = dgl.distributed.DistGraph("drawn", part_config=tmp_path / f"parts-{parts}")
            for fan_out in (-1, 3):
                sampler = dgl.dataloading.NeighborSampler([fan_out], **how)
                for _, seeds, (block,) in dgl.dataloading.DistNodeDataLoader(
                    g, torch.arange(60), sampler, batch_size=16
                ):
                    ids = block.edata[dgl.EID]
                    assert able[ids].all()
                    theirs = real.sampling.sample_neighbors(
                        whole, seeds, fan_out, prob=next(iter(n for n in how.values() if isinstance(n, str))),
                        replace=how.get("replace", False),
                    )  # fmt: skip
                    assert torch.equal(theirs.in_degrees(seeds), block.in_degrees())
                    if fan_out < 0:
                        assert set(ids.tolist()) == set(theirs.edata[real.EID].tolist())
            picked = dgl.distributed.sample_neighbors(g, [5, 9], 2, prob=next(iter(how.values())))
            assert able[picked.edata[dgl.EID]].all()
            with pytest.raises(atta.UnknownNameError, match="'wv'; did you mean 'w'"):
                len(dgl.dataloading.DistNodeDataLoader(g, [1], dgl.dataloading.NeighborSampler([1], prob="wv")))
            with pytest.raises(atta.ConfigError, match="exclude each other"):
                dgl.dataloading.NeighborSampler([1], prob="w", mask="kept")
        finally:
            dgl.distributed.exit_client()


def test_seeds_of_several_types_are_those_of_dgl(tmp_path: Path) -> None:
    """As DGL's loader over both types: every seed once, with its in-edges, and rows by the ids that a batch gives."""
    whole = typed(tmp_path / "folder").whole
    given = {"paper": torch.arange(0, 120, 3), "author": torch.arange(10, 31)}
    sampler = dgl.dataloading.NeighborSampler([-1, -1])
    dgl.distributed.initialize(None, net_type="socket")
    try:
        g = dgl.distributed.DistGraph("typed", part_config=tmp_path / "folder" / "toy.json")
        for shuffle in (False, True):
            loader = dgl.dataloading.DistNodeDataLoader(g, given, sampler, batch_size=16, shuffle=shuffle)
            assert len(loader) == 4
            seen: dict[str, list[int]] = {ntype: [] for ntype in given}
            for _ in range(2):  # rows come along from the second epoch on
                for inputs, outputs, blocks in loader:
                    theirs = real.dataloading.NeighborSampler([-1, -1]).sample_blocks(whole, outputs)
                    assert {t: set(ids.tolist()) for t, ids in inputs.items()} == {
                        t: set(ids.tolist()) for t, ids in theirs[0].items()
                    }
                    assert theirs[1].keys() == outputs.keys()
                    for ntype, ids in outputs.items():
                        seen[ntype] += ids.tolist()
                        assert torch.equal(blocks[-1].dstnodes[ntype].data[dgl.NID], ids)
                    for mine, other in zip(blocks, theirs[2], strict=True):
                        for etype in other.canonical_etypes:
                            if other.num_edges(etype):
                                there = {b: set(b.edges[etype].data[dgl.EID].tolist()) for b in (mine, other)}
                                assert there[mine] == there[other]
                    label = g.nodes["paper"].data["label"]
                    if "paper" in outputs:
                        assert torch.equal(
                            label[outputs["paper"]], whole.nodes["paper"].data["label"][outputs["paper"]]
                        )
                    feat = whole.nodes["paper"].data["feat"]
                    assert torch.equal(g.nodes["paper"].data["feat"][inputs["paper"]], feat[inputs["paper"]])
            assert {t: sorted(ids) for t, ids in seen.items()} == {
                t: sorted(ids.tolist() * 2) for t, ids in given.items()
            }
    finally:
        dgl.distributed.exit_client()
