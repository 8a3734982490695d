"""GraphSAGE as DistDGL's users write it, on Atta's daemons: node classification, or without labels.

    python examples/distdgl_sage.py --part_config data/demo-2p
    python examples/distdgl_sage.py --part_config products/products.json --unsupervised
    torchrun --nproc-per-node 2 examples/distdgl_sage.py --ip_config cluster.toml

``--part_config`` is a partitioned dataset of Atta, or the ``.json`` of DistDGL's partitions; daemons are started for
it. With ``--ip_config`` running daemons are used. To run it on DistDGL, import ``dgl`` in place of ``atta.compat.dgl``.
Needs the extra ``atta[dgl]``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dgl.function as fn
import dgl.nn as dglnn
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from atta.compat import dgl  # for DistDGL: import dgl


class Sage(nn.Module):
    """GraphSAGE with mean aggregation."""

    def __init__(self, widths: list[int]) -> None:
        """``widths``: of the features, the hidden layers and the output."""
        super().__init__()
        self.widths = widths
        self.layers = nn.ModuleList(dglnn.SAGEConv(a, b, "mean") for a, b in itertools.pairwise(widths))

    def forward(self, blocks: list[Any], x: Tensor) -> Tensor:
        """Outputs of the last block's destinations."""
        for number, block in enumerate(blocks):
            x = self.layer(number, block, x)
        return x

    def layer(self, number: int, block: Any, x: Tensor) -> Tensor:
        """One layer; all but the last end with a ReLU."""
        x = self.layers[number](block, x)
        return x if number == len(self.layers) - 1 else F.relu(x)

    @torch.no_grad()
    def inference(self, g: Any, x: Any, batch_size: int) -> Any:
        """Outputs of all vertices, layer by layer, in a distributed tensor."""
        nodes = dgl.distributed.node_split(torch.ones(g.num_nodes(), dtype=torch.bool), g.get_partition_book())
        sampler = dgl.dataloading.NeighborSampler([-1])
        for number, width in enumerate(self.widths[1:]):
            y = dgl.distributed.DistTensor((g.num_nodes(), width), torch.float32, f"h{number}", persistent=True)
            for inputs, outputs, blocks in dgl.dataloading.DistNodeDataLoader(g, nodes, sampler, batch_size=batch_size):
                y[outputs] = self.layer(number, blocks[0], x[inputs])
            g.barrier()
            x = y
        return x


def train_classes(args: argparse.Namespace, g: Any, sampler: Any) -> None:
    """Learn the labels; print losses and the accuracy of validation and test vertices."""
    book = g.get_partition_book()
    train, val, test = (
        dgl.distributed.node_split(g.ndata[f"{name}_mask"], book, force_even=True) for name in ("train", "val", "test")
    )
    labels = g.ndata["labels"]
    classes = int(labels[np.arange(g.num_nodes())].max()) + 1
    model = Sage([g.ndata["features"].shape[1], *[args.num_hidden] * (args.layers - 1), classes])
    step = wrapped(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = dgl.dataloading.DistNodeDataLoader(g, train, sampler, batch_size=args.batch_size, shuffle=True)
    for epoch in range(args.num_epochs):
        started = time.perf_counter()
        with together(step):
            for inputs, seeds, blocks in loader:
                loss = F.cross_entropy(step(blocks, g.ndata["features"][inputs]), labels[seeds].long())
                learn(optimiser, loss)
        print(f"rank {g.rank()} epoch {epoch}: loss {loss.item():.4f}, {time.perf_counter() - started:.2f} s")
    found = model.inference(g, g.ndata["features"], args.batch_size)
    right = [int((found[ids].argmax(1) == labels[ids]).sum()) for ids in (val, test)]
    counts = torch.tensor([*right, len(val), len(test)])
    if dist.is_initialized():
        dist.all_reduce(counts)
    print(f"val {counts[0] / counts[2]:.4f}, test {counts[1] / counts[3]:.4f}")


def train_links(args: argparse.Namespace, g: Any, sampler: Any) -> None:
    """Learn to tell edges from other pairs, without labels; print losses."""
    every = torch.ones(g.num_edges(), dtype=torch.bool)
    edges = dgl.distributed.edge_split(every, g.get_partition_book(), force_even=True)
    loader = dgl.dataloading.DistEdgeDataLoader(
        g, edges, sampler, negative_sampler=dgl.dataloading.negative_sampler.Uniform(args.num_negs),
        exclude="reverse_id", reverse_eids=torch.arange(g.num_edges()), batch_size=args.batch_size, shuffle=True,
    )  # fmt: skip
    model = Sage([g.ndata["features"].shape[1], *[args.num_hidden] * args.layers])
    step = wrapped(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.num_epochs):
        started = time.perf_counter()
        with together(step):
            for inputs, pairs, others, blocks in loader:
                h = step(blocks, g.ndata["features"][inputs])
                scores = torch.cat([dot(pairs, h), dot(others, h)])
                wanted = torch.cat([torch.ones(pairs.num_edges()), torch.zeros(others.num_edges())])
                loss = F.binary_cross_entropy_with_logits(scores, wanted)
                learn(optimiser, loss)
        print(f"rank {g.rank()} epoch {epoch}: loss {loss.item():.4f}, {time.perf_counter() - started:.2f} s")


def dot(pairs: Any, h: Tensor) -> Tensor:
    """Scores of the edges of ``pairs``."""
    with pairs.local_scope():
        pairs.ndata["h"] = h
        pairs.apply_edges(fn.u_dot_v("h", "h", "score"))
        return pairs.edata["score"].reshape(-1)


def wrapped(model: nn.Module) -> nn.Module:
    """The model, its gradients averaged over the trainers."""
    return nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model


def together(model: nn.Module) -> AbstractContextManager[Any]:
    """An epoch in which some trainers may have a batch less than others."""
    return model.join() if isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext()


def learn(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def main() -> None:
    """Train as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph_name", default="graph")
    parser.add_argument("--ip_config", help="cluster file, or DGL's file of addresses, of running daemons")
    parser.add_argument("--part_config", help="dataset to start daemons for")
    parser.add_argument("--unsupervised", action="store_true")
    parser.add_argument("--fan_out", default="10,25")
    parser.add_argument("--num_hidden", type=int, default=64)
    parser.add_argument("--num_negs", type=int, default=1)
    parser.add_argument("--num_epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()
    fan_outs = [int(n) for n in args.fan_out.split(",")]
    args.layers = len(fan_outs)
    dgl.distributed.initialize(args.ip_config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    (train_links if args.unsupervised else train_classes)(args, g, dgl.dataloading.NeighborSampler(fan_outs))


if __name__ == "__main__":
    main()
