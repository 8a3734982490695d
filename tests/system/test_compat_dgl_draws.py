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
        out.add_edges("node__to__node", *(ends.numpy() for ends in whole.edges(order="eid")), **tables)
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
