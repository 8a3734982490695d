#!/bin/sh
# Tries an installed wheel in an empty folder: generates and partitions a graph, and reads a batch of it from a daemon.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
atta --version
atta generate sbm graph --nodes 400 --edges 4000 --features 4 --classes 3
atta partition graph data --parts 2 --method ldg
python -c '
import atta

with atta.local("data", threads=1) as cluster:
    batch = next(iter(atta.NeighborLoader(cluster, [3, 2], "train", batch_size=8)))
    assert batch.batch_size == 8 and batch.table("x").shape == (batch.num_nodes, 4)
'
echo "the wheel works"
