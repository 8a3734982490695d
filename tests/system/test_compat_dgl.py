"""DGL's distributed interface on daemons, beside DGL's own results on the same graph in memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta

real = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

import atta.compat.dgl as dgl  # noqa: E402 - after DGL is known to be there
from tests.system.distdgl_folders import Folder, plain  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return plain(tmp_path_factory.mktemp("distdgl"))


@pytest.fixture(scope="module")
def g(folder: Folder) -> Iterator[Any]:
    dgl.distributed.initialize(None, net_type="socket")
    yield dgl.distributed.DistGraph("toy", part_config=folder.config)
    dgl.distributed.exit_client()
    assert not dgl.distributed.is_initialized()


def loader_of(g: Any, ids: Any, fan_outs: list[int], **options: Any) -> Any:
    return dgl.dataloading.DistNodeDataLoader(g, ids, dgl.dataloading.NeighborSampler(fan_outs), **options)


def test_shares_follow_the_trainers_of_vertices(g: Any, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six trainers are named and three are there, so two at a time are joined. The third has too many vertices."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    book, everyone = g.get_partition_book(), torch.ones(400)
    named = torch.from_numpy(np.random.default_rng(3).permutation(np.repeat(np.arange(6), [66, 67, 60, 50, 80, 77])))
    split = partial(dgl.distributed.node_split, everyone, book, node_trainer_ids=named)
    shares = [split(rank=rank) for rank in range(3)]
    assert [len(share) for share in shares] == [133, 133, 134]
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(400))
    assert set(named[shares[0]].tolist()) == {0, 1}
    assert (named[shares[1]] < 4).sum() == 60 + 50
    assert set(named[shares[2]].tolist()) == {4, 5}
    edges = dgl.distributed.edge_split(torch.ones(4000), book, rank=1, edge_trainer_ids=torch.arange(4000) % 3)
    assert (edges % 3 == 1).sum() >= len(edges) - 1


def test_the_graph_is_that_of_the_folder(g: Any, folder: Folder) -> None:
    whole = folder.whole
    assert (g.num_nodes(), g.num_edges()) == (whole.num_nodes(), whole.num_edges())
    assert (g.ntypes, g.etypes, g.canonical_etypes) == (whole.ntypes, whole.etypes, whole.canonical_etypes)
    assert g.rank() == 0
    for name in ("features", "labels", "train_mask", "val_mask", "test_mask"):
        assert name in g.ndata
        assert torch.equal(g.ndata[name][torch.arange(400)], whole.ndata[name])
        assert g.ndata[name].shape == tuple(whole.ndata[name].shape)
        assert g.ndata[name].dtype == whole.ndata[name].dtype
    assert torch.equal(g.edata["w"][np.array([7, 7, 3])], whole.edata["w"][[7, 7, 3]])
    assert torch.equal(g.in_degrees(), whole.in_degrees())
    assert g.in_degrees(5) == whole.in_degrees(5)
    assert torch.equal(g.out_degrees(), whole.out_degrees())
    assert g.out_degrees(5) == whole.out_degrees(5)
    assert torch.equal(g.out_degrees([7, 7, 3]), whole.out_degrees([7, 7, 3]))
    src, dst = whole.edges(order="eid")
    edges = torch.tensor([0, 3999, 17])
    assert torch.equal(torch.stack(g.find_edges(edges)), torch.stack([src[edges], dst[edges]]))
    assert "nothing" not in g.ndata
    with pytest.raises(atta.UnknownNameError, match="nothing"):
        g.ndata["nothing"]
    with pytest.raises(atta.ConfigError, match="read-only"):
        g.ndata["features"][[0]] = torch.zeros(1, 4)
    with pytest.raises(atta.ConfigError, match="numbers the nodes of a type from 0 to 399"):
        g.get_partition_book().nid2partid([400])


def test_the_parts_are_those_of_distdgl(g: Any, folder: Folder) -> None:
    book = g.get_partition_book()
    assert book.num_partitions() == 2
    assert np.array_equal(book.nid2partid(torch.arange(400)), folder.parts)
    for part in range(2):
        assert np.array_equal(book.partid2nids(part), np.flatnonzero(folder.parts == part))
    _, dst = folder.whole.edges(order="eid")
    assert np.array_equal(book.eid2partid(torch.arange(g.num_edges())), folder.parts[dst])
    assert g.get_node_partition_policy("_N").get_part_size() == (folder.parts == 0).sum()


@pytest.mark.parametrize("force_even", [True, False])
def test_shares_are_all_of_the_mask(g: Any, folder: Folder, monkeypatch: pytest.MonkeyPatch, force_even: bool) -> None:
    book = g.get_partition_book()
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    mask = folder.whole.ndata["train_mask"]
    for given in (g.ndata["train_mask"], mask, mask.numpy()):
        shares = [dgl.distributed.node_split(given, book, rank=rank, force_even=force_even) for rank in range(3)]
        assert torch.equal(torch.cat(shares).sort().values, mask.nonzero().reshape(-1))
        if force_even:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    shares = [dgl.distributed.edge_split(torch.ones(4000), book, rank=rank, force_even=force_even) for rank in range(3)]
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(4000))
    with pytest.raises(atta.ConfigError, match="trainer ids of 3 for the 400 nodes"):
        dgl.distributed.node_split(mask, book, node_trainer_ids=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(atta.ConfigError, match="a mask of 3 for the 400 nodes"):
        dgl.distributed.node_split(mask[:3], book)


def test_fan_outs_count_from_the_input_side_and_draw_distinct_edges_of_the_graph(g: Any, folder: Folder) -> None:
    whole = folder.whole
    for _, _, blocks in loader_of(g, torch.arange(60), [3, 6], batch_size=60):
        for block, fan_out in zip(blocks, (3, 6), strict=True):
            assert torch.equal(block.in_degrees(), whole.in_degrees(block.dstdata[real.NID]).clamp(max=fan_out))
            (src, dst), eids = block.edges(), block.edata[real.EID]
            assert len(eids.unique()) == len(eids)
            ends = torch.stack([block.srcdata[real.NID][src], block.dstdata[real.NID][dst]])
            assert torch.equal(ends, torch.stack(whole.find_edges(eids)))
        assert torch.equal(blocks[0].dstdata[real.NID], blocks[1].srcdata[real.NID])


def test_rows_that_are_asked_for_come_with_later_batches_and_no_batch_is_lost(g: Any, folder: Folder) -> None:
    train = dgl.distributed.node_split(g.ndata["train_mask"])
    torch.manual_seed(1)
    loader = loader_of(g, train, [5], batch_size=32, shuffle=True)
    orders = []
    for _ in range(2):
        order = []
        for inputs, seeds, _ in loader:
            assert torch.equal(g.ndata["features"][inputs], folder.whole.ndata["features"][inputs])
            assert torch.equal(g.ndata["labels"][seeds], folder.whole.ndata["labels"][seeds])
            order += seeds.tolist()
        assert sorted(order) == train.tolist()
        orders.append(order)
    assert orders[0] != orders[1]
    assert loader._wanted.state() == ({("node", "features")}, {("node", "y")})
    known = [of.tables.batch for of in g.recent._ids.values()]
    assert len(known) == 2  # the vertices and the seeds of the last batch; those of the others have gone
    assert known[0] is known[1]
    assert set(known[0].tables["node"]) == {"features", "y"}


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_a_script_writes_into_rows_does_not_show_in_later_reads(g: Any, folder: Folder, *, shuffle: bool) -> None:
    loader = loader_of(g, torch.arange(200), [4], batch_size=50, shuffle=shuffle)
    wanted = folder.whole.ndata["features"]
    for _ in range(2):
        for inputs, seeds, _ in loader:
            for _ in range(3):
                rows = g.ndata["features"][inputs]
                assert torch.equal(rows, wanted[inputs])
                rows[::2] = 0
            labels = g.ndata["labels"][seeds].add_(1)
            assert torch.equal(labels, folder.whole.ndata["labels"][seeds] + 1)
            assert torch.equal(g.ndata["features"][seeds], wanted[seeds])
            assert torch.equal(g.ndata["labels"][inputs], folder.whole.ndata["labels"][inputs])


def test_rows_follow_ids_that_a_script_has_put_in_another_order(g: Any, folder: Folder) -> None:
    loader = loader_of(g, torch.arange(200), [4], batch_size=50)
    for inputs, _, _ in loader:
        assert torch.equal(g.ndata["features"][inputs], folder.whole.ndata["features"][inputs])
        inputs.copy_(inputs.flip(0))
        assert torch.equal(g.ndata["features"][inputs], folder.whole.ndata["features"][inputs])
    with torch.inference_mode():
        for inputs, _, _ in loader:
            assert torch.equal(g.ndata["features"][inputs], folder.whole.ndata["features"][inputs])


@pytest.mark.parametrize(("count", "drop_last"), [(0, False), (3, True)])
def test_a_share_that_fills_no_batch_has_none(g: Any, count: int, *, drop_last: bool) -> None:
    sampler = dgl.dataloading.NeighborSampler([2])
    for kind in (dgl.dataloading.DistNodeDataLoader, dgl.dataloading.DistEdgeDataLoader):
        for share in (torch.arange(count), {("_N" if "Node" in kind.__name__ else "_E"): torch.arange(count)}):
            loader = kind(g, share, sampler, batch_size=9, drop_last=drop_last)
            assert len(loader) == 0
            assert list(loader) == []


def test_a_loader_is_its_own_iterator_as_well(g: Any) -> None:
    loader = loader_of(g, torch.arange(20), [2], batch_size=10)
    for _ in range(2):
        assert next(loader)[1].tolist() + next(loader)[1].tolist() == list(range(20))
        with pytest.raises(StopIteration):
            next(loader)


@pytest.mark.parametrize(("frame", "name"), [("ndata", "features"), ("ndata", "train_mask"), ("edata", "w")])
def test_ids_out_of_range_are_refused(g: Any, frame: str, name: str) -> None:
    rows = getattr(g, frame)[name]
    for wrong in ([-1], [len(rows)], [0, 10**7], np.ones(5, bool)):
        with pytest.raises(atta.ConfigError):
            rows[wrong]


def test_a_sampled_graph_has_edges_of_the_graph(g: Any, folder: Folder) -> None:
    whole, nodes = folder.whole, torch.tensor([5, 80, 5, 390])
    some = dgl.distributed.sample_neighbors(g, nodes, 2)
    assert torch.equal(some.in_degrees(nodes), whole.in_degrees(nodes).clamp(max=2))
    assert torch.equal(torch.stack(some.edges()), torch.stack(whole.find_edges(some.edata[real.EID])))
    block = real.to_block(some, nodes.unique())
    assert block.num_dst_nodes() == 3
    with pytest.raises(atta.ConfigError, match="edge_dir='out'"):
        dgl.distributed.sample_neighbors(g, nodes, 2, edge_dir="out")


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_sampler_of_ones_own_makes_blocks_of_ids(g: Any, folder: Folder, drop_last: bool) -> None:
    def sample(seeds: Any) -> Any:
        frontier = dgl.distributed.sample_neighbors(g, seeds, 5)
        return real.to_block(frontier, seeds), frontier.edata[real.EID]

    loader = dgl.distributed.DistDataLoader(
        dataset=torch.arange(202), batch_size=32, collate_fn=sample, shuffle=True, drop_last=drop_last
    )
    for _ in range(2):
        seen: list[int] = []
        for block, eids in loader:
            seen += block.dstdata[real.NID].tolist()
            ends = torch.stack([block.srcdata[real.NID][block.edges()[0]], block.dstdata[real.NID][block.edges()[1]]])
            assert torch.equal(ends, torch.stack(folder.whole.find_edges(eids)))
        assert len(seen) == len({*seen}) == (192 if drop_last else 202)
        assert {*seen} <= {*range(202)}
        assert len(loader) == (6 if drop_last else 7)


@pytest.mark.parametrize("edges", [False, True])
def test_several_loaders_take_turns(g: Any, edges: bool) -> None:
    ids = torch.arange(300)
    of = dgl.dataloading.DistEdgeDataLoader if edges else dgl.dataloading.DistNodeDataLoader
    loaders = [iter(of(g, ids, dgl.dataloading.NeighborSampler([-1]), batch_size=50)) for _ in range(4)]
    seen: list[list[int]] = [[] for _ in loaders]
    for turn in (0, 1, 2, 3, 3, 1, 0, 2) * 3:
        _, found, _ = next(loaders[turn])
        seen[turn] += (found.edata[real.EID] if edges else found).tolist()
    assert seen == [ids.tolist()] * 4


def test_what_is_not_offered_says_so(g: Any) -> None:
    sampler = dgl.dataloading.NeighborSampler([2])
    with pytest.raises(atta.ConfigError, match="object: daemons sample"):
        dgl.dataloading.DistNodeDataLoader(g, [1], object())
    with pytest.raises(atta.ConfigError, match="function: daemons sample"):
        dgl.dataloading.DistEdgeDataLoader(g, [1], sampler, negative_sampler=lambda g, e: None)
    with pytest.raises(atta.ConfigError, match="cuda"):
        dgl.dataloading.DistNodeDataLoader(g, [1], sampler, device="cuda")
    with pytest.raises(TypeError, match="'shufle'"):
        dgl.dataloading.DistNodeDataLoader(g, [1], sampler, shufle=True)
    assert g.local_partition is None
    with pytest.raises(atta.UnknownNameError, match="adj_external"):
        _ = g.adj_external
    with pytest.raises(atta.UnknownNameError, match="'reverse'; it offers"):
        dgl.dataloading.DistEdgeDataLoader(g, [1], sampler, exclude="reverse")
    with pytest.raises(atta.ConfigError, match="called before"):
        dgl.distributed.initialize(None)
    with pytest.raises(atta.ConfigError, match="store_ids"):
        g.edge_subgraph([1], store_ids=False)


def test_a_folder_is_converted_once(g: Any, folder: Folder, tmp_path: Path) -> None:
    from atta.compat.dgl.job import dataset_of

    made = folder.config.with_suffix(".atta")
    before = (made / "manifest.json").stat().st_mtime_ns
    assert dataset_of(folder.config) == made
    assert dataset_of(made) == made
    assert (made / "manifest.json").stat().st_mtime_ns == before
    copied = Path(shutil.copytree(folder.config.parent, tmp_path / "copied"))
    config, of_copy = copied / folder.config.name, copied / made.name / "manifest.json"
    kept = of_copy.stat().st_mtime_ns
    assert dataset_of(config) == copied / made.name
    assert of_copy.stat().st_mtime_ns == kept
    other = copied / "part0" / "node_feat.dgl"  # replaced by one with an older date, as by `cp -p` and `rsync -a`
    tensors = real.data.utils.load_tensors(str(other))
    real.data.utils.save_tensors(str(other), {name: rows.flip(0) for name, rows in tensors.items()})
    os.utime(other, (0, 0))
    assert dataset_of(config) == copied / made.name
    assert of_copy.stat().st_mtime_ns != kept
    kept = of_copy.stat().st_mtime_ns
    (copied / made.name / "made-of.txt").unlink()  # as of a dataset that was made by hand
    dataset_of(config)
    shutil.rmtree(copied / "part0"), shutil.rmtree(copied / "part1")
    dataset_of(config)
    assert of_copy.stat().st_mtime_ns == kept
    with pytest.raises(atta.DataError, match="neither"):
        dataset_of(tmp_path / "nothing.json")
