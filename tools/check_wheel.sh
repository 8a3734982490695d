#!/bin/sh
# Tries an installed wheel in an empty folder: generates and partitions a graph, and reads a batch of it from a daemon.
# Where torch and PyG are installed (the extra `train`), it also runs `atta demo` and predicts all classes.
# No compiler may be found meanwhile: commands come from the environment's bin, and these few.
set -eu
python=${PYTHON:-$(command -v python)}
rm=$(command -v rm)
folder=$(mktemp -d)
trap '"$rm" -rf "$folder"' EXIT
mkdir "$folder/bin"
for tool in sh uname; do
  found=$(command -v "$tool" || true)
  if [ -n "$found" ]; then ln -s "$found" "$folder/bin/$tool"; fi
done
rm=$(command -v rm)
trap '"$rm" -rf "$folder"' EXIT
PATH="$(dirname "$python"):$folder/bin"
export PATH
for compiler in cc gcc g++ c++ clang clang++ nvcc; do
  if command -v "$compiler" >/dev/null; then echo "$compiler is in the PATH" >&2; exit 1; fi
done
cd "$folder"
atta --version
"$python" -c '
import atta, importlib.metadata, pathlib

tag = importlib.metadata.distribution("atta").read_text("WHEEL")
assert "-manylinux" in tag, f"the wheel has no manylinux tag: {tag}"
assert "site-packages" in pathlib.Path(atta.__file__).parts, f"not the wheel: {atta.__file__}"
'
atta generate sbm graph --nodes 400 --edges 4000 --features 4 --classes 3
atta partition graph small --parts 2 --method ldg
"$python" -c '
import atta

with atta.local("small", threads=1) as cluster:
    batch = next(iter(atta.NeighborLoader(cluster, [3, 2], "train", batch_size=8)))
    assert batch.batch_size == 8 and batch.table("x").shape == (batch.num_nodes, 4)
'
if "$python" -c 'import torch, torch_geometric' 2>/dev/null; then
  atta demo
  atta predict --data data/demo-2p --checkpoint runs/demo --what classes --format npy --out predictions
  "$python" -c '
import pathlib

import numpy as np

found = np.concatenate([np.load(file) for file in sorted(pathlib.Path("predictions").glob("part-*.npy"))])
assert sorted(found["id"]) == list(range(120_000)), found
assert set(found["class"]) == set(range(16)), found
'
  echo "the wheel works, with training"
else
  echo "the wheel works"
fi
