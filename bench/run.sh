#!/bin/sh
# Measures all that bench/results records, on this machine: `make bench`. RUNS=5 rounds; DistDGL as a peer needs root.
# The machine must be quiet: rounds pair the systems, but nothing corrects for other programs that take the cores.
set -eu
cd "$(dirname "$0")/.."
runs=${RUNS:-5}
graph=data/powerlaw-245k
results=bench/results
say() { printf '\n== %s\n' "$1"; }
say "do the peers run at all?"
python -m pytest -q -m peer
if [ ! -e "$graph/graph.json" ]; then
  say "generating a power-law graph of 245,000 vertices and 12 million edges in $graph"
  atta generate powerlaw "$graph" --nodes 245000 --edges 12000000 --features 100 --classes 47 --seed 0
fi
if [ ! -e "$graph-2p/manifest.json" ]; then
  say "cutting it into two partitions with METIS"
  atta partition "$graph" "$graph-2p" --parts 2 --method metis
fi
say "loader: two daemons and two consumers, DistDGL beside them"
bench="atta bench loader --data $graph-2p --num-neighbors 15,10,5 --batch-size 1024 --warm-up 30 --vs dgl --runs $runs"
$bench --work data/peers --json "$results/loader.json" --plot "$results/loader.png"
python -m bench.record "$results/loader.json" --command "$bench"
if [ "$(id -u)" -eq 0 ]; then
  say "loader over links of 1 Gbit/s, with the default cache"
  for cache in ""; do
    name=$results/loader-1gbit${cache:+-$cache}
    bench="atta bench loader --data $graph-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --link 1gbit"
    bench="$bench${cache:+ --cache-share $cache} --runs $runs"
    $bench --work data/peers --json "$name.json"
    python -m bench.record "$name.json" --command "$bench"
  done
fi
say "processor time of a seed over the number of partitions (long: 5 numbers of partitions)"
bench="atta bench scale --parts 1,2,4,8,16 --graph $graph --vs dgl --rounds $runs"
$bench --work data/peers --json "$results/scale.json" --plot "$results/scale.png"
python -m bench.record "$results/scale.json" --command "$bench"
say "launch policies: bound by latency, then by a link of 1 Gbit/s"
bench="atta bench scheduler --data $graph-2p --num-neighbors 10,10 --batch-size 128 --rtt 10ms --depths 1,2,4,8 --runs $runs"
$bench --json "$results/scheduler-latency.json" --plot "$results/scheduler-latency.png"
python -m bench.record "$results/scheduler-latency.json" --command "$bench"
if [ "$(id -u)" -eq 0 ]; then
  bench="atta bench scheduler --data $graph-2p --link 1gbit --cache-share 0 --vs dgl --runs $runs"
  $bench --work data/peers --json "$results/scheduler-1gbit.json" --plot "$results/scheduler-1gbit.png"
  python -m bench.record "$results/scheduler-1gbit.json" --command "$bench"
fi
if [ "$(id -u)" -eq 0 ]; then
  say "the busiest resource under every policy (long: 12 settings, 5 systems each)"
  python -m bench.scheduling.roofline --data "$graph-2p" --depths 2,4,8 --vs dgl --work data/peers
  if [ ! -e "$graph-4p/manifest.json" ]; then
    atta partition "$graph" "$graph-4p" --parts 4 --method metis
  fi
  if [ ! -e "$graph-8p/manifest.json" ]; then
    atta partition "$graph" "$graph-8p" --parts 8 --method metis
  fi
  say "the simulator beside real daemons"
  python -m bench.scheduling.simulated --data "$graph-2p" --data4 "$graph-4p" --data8 "$graph-8p"
fi
say "a consumer that changes its speed"
python -m bench.scheduling.step --data "$graph-2p"
say "processor time of scheduling"
python -m bench.scheduling.overhead
say "training: two daemons and two trainers, DistDGL training the same model beside them"
bench="atta bench train --data $graph-2p --num-neighbors 15,10,5 --batch-size 1024 --warm-up 10 --vs dgl --runs $runs"
$bench --work data/peers --json "$results/train.json" --plot "$results/train.png"
python -m bench.record "$results/train.json" --command "$bench"
say "memory per trainer: mini-batches beside cooperative batches of the same vertices"
python -m bench.training.memory
say "inference layer by layer, mini-batches of all neighbours, and PyG's inference"
python -m bench.training.inference --rounds "$runs"
if [ "$(id -u)" -eq 0 ] && [ -n "${DATA_ROOT:-}" ]; then
  say "strategies over links that take 65 % of exact full-graph training, on real graphs from $DATA_ROOT"
  strategies() { # graph, options of the import, name of the record, options of the benchmark
    if [ ! -e "data/$1-2p/manifest.json" ]; then
      atta import npz "$DATA_ROOT/$1" "data/$1" $2 --overwrite
      atta partition "data/$1" "data/$1-2p" --parts 2 --method metis
    fi
    bench="atta bench strategies --data data/$1-2p --strategies cooperative,full,preload,minibatch --vs dgl"
    bench="$bench --layers 3 --hidden 64 $4 --eas 1,15 --external-share 0.65 --warm-up 2 --epochs 100 --eval-every 5 --runs 3"
    $bench --work data/peers --json "$results/strategies-$3.json" --plot "$results/strategies-$3.png"
    python -m bench.record "$results/strategies-$3.json" --command "$bench"
  }
  strategies amazon_computers "--undirected --normalize-features" amazon "--dropout 0.5 --target 0.65"
  strategies tolokers --undirected tolokers "--dropout 0.3"
fi
products=data/powerlaw-2m
if [ ! -e "$products-1p/manifest.json" ]; then
  say "generating a power-law graph of 2.45 million vertices and 123 million edges in $products (3 minutes)"
  atta generate powerlaw "$products" --nodes 2450000 --edges 123000000 --features 4 --classes 47 --seed 0
  atta partition "$products" "$products-1p" --parts 1 --method random
fi
for fan_outs in 15,10,5; do
  say "sampling: fan-out $fan_outs, one and two threads, DGL beside it"
  name=$results/sampling-$(echo "$fan_outs" | tr , -)
  bench="atta bench sampling --dataset $products-1p --num-neighbors $fan_outs --batches 120 --vs dgl --runs $runs"
  $bench --json "$name.json"
  python -m bench.record "$name.json" --command "$bench"
done
say "sampling: other ways to draw, one thread"
name=$results/sampling-methods
variants=weighted,temporal,last,labor,disjoint,untyped,hetero,hetero-16
bench="atta bench sampling --dataset $products-1p --num-neighbors 15,10,5 --batches 60 --threads 1 --variants $variants --runs $runs"
$bench --json "$name.json"
python -m bench.record "$name.json" --command "$bench"
methods=metis,metis:tame=no,ldg,fennel,block,random
say "partitioning: time, memory and cut, DGL beside it on the smaller graph"
bench="atta bench partition --graph $graph --parts 4 --methods $methods --vs dgl --runs 3"
$bench --json "$results/partition-245k.json"
python -m bench.record "$results/partition-245k.json" --command "$bench"
bench="atta bench partition --graph $products --parts 4 --methods $methods --runs 1"
$bench --json "$results/partition-2m.json"
python -m bench.record "$results/partition-2m.json" --command "$bench"
say "table rows: gathered, pulled, pushed"
link=
[ "$(id -u)" -ne 0 ] || link=" --link 1gbit"
bench="atta bench kv --vs dgl$link --runs $runs"
$bench --work data/kv --json "$results/kv.json" --plot "$results/kv.png"
python -m bench.record "$results/kv.json" --command "$bench"
say "hit rate of the cache of remote rows"
atta bench cache --data "$graph-2p" --json "$results/cache.json" --plot "$results/cache.png"
say "training without barriers: a straggler, slow workers"
if [ "$(id -u)" -eq 0 ]; then
    python -m bench.training.asynchronous --straggler --seeds 5 --keep data/asynchronous
    python -m bench.training.asynchronous --dorylus --keep data/asynchronous
fi
say "trainers that are killed, and all start again"
python -m bench.training.killed
say "see $results"
