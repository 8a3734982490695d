"""One process of a DistDGL run; DGL_ROLE says whether it serves or consumes. Settings come as JSON in ATTA_BENCH.

A consumer prints "ready", waits for a line on standard input, then prints one JSON line per epoch.
"""

from __future__ import annotations

import json
import os
import sys
import time

import dgl
import torch
import torch.distributed as dist

settings = json.loads(os.environ["ATTA_BENCH"])
torch.set_num_threads(settings["threads"])
dgl.distributed.initialize(settings["hosts"])
if os.environ["DGL_ROLE"] == "server":
    sys.exit(0)

rank, world = settings["rank"], settings["world"]
dist.init_process_group("gloo", rank=rank, world_size=world, init_method=settings["rendezvous"])
graph = dgl.distributed.DistGraph("bench", part_config=settings["parts"])
seeds = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book(), force_even=True)
# DGL names fan-outs from the input side to the seeds.
sampler = dgl.dataloading.NeighborSampler(list(reversed(settings["num_neighbors"])))
loader = dgl.dataloading.DistNodeDataLoader(
    graph, seeds, sampler, batch_size=settings["batch_size"], shuffle=True, drop_last=False
)
features, labels = graph.ndata["feat"], graph.ndata["label"]
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(settings["epochs"]):
    dist.barrier()
    totals = {"seeds": 0, "edges": 0, "nodes": 0, "feature_bytes": 0, "sample_s": 0.0, "fetch_s": 0.0}
    start = mark = time.perf_counter()
    for inputs, outputs, blocks in loader:
        sampled = time.perf_counter()
        x, _ = features[inputs], labels[outputs]
        fetched = time.perf_counter()
        totals["seeds"] += len(outputs)
        totals["nodes"] += len(inputs)
        totals["edges"] += sum(block.num_edges() for block in blocks)
        totals["feature_bytes"] += x.numel() * x.element_size()
        totals["sample_s"] += sampled - mark
        totals["fetch_s"] += fetched - sampled
        mark = time.perf_counter()
    print(json.dumps({"epoch": epoch, "seconds": time.perf_counter() - start, **totals}), flush=True)
dist.barrier()
