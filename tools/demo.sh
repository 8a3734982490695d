#!/bin/sh
# Shows all steps: generate a graph, cut it in two, serve each half by a daemon, train GraphSAGE with two trainers.
set -eu
cd "$(dirname "$0")/.."
graph=graphs/demo data=data/demo-2p
say() { printf '\n== %s\n' "$1"; }
if [ ! -e "$graph/graph.json" ]; then
  say "generating a graph of 120,000 vertices and 3 million edges in $graph"
  atta generate powerlaw "$graph" --nodes 120000 --edges 3000000 --features 64 --classes 16 --seed 1
fi
if [ ! -e "$data/manifest.json" ]; then
  say "cutting it into two partitions with METIS"
  atta partition "$graph" "$data" --parts 2 --method metis
fi
say "what came out"
atta inspect "$data"
say "training GraphSAGE: two sampler daemons, two trainers, fan-out 15,10,5"
atta train --data "$data" --model sage --trainers 2 --epochs 5 --num-neighbors 15,10,5 --batch-size 512 --hidden 64 --seed 1
