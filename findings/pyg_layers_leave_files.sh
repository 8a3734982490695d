#!/usr/bin/env bash
# PyG 2.8.1: every process that makes layers leaves files in the temporary folder, and every Sequential stays in memory.
#
# A layer's propagate and a Sequential's forward are written to a file in the temporary folder, which is imported and
# never removed: one file for each kind of layer in each process, and one for each Sequential, of equal structure or not.
# The module of a Sequential also stays in sys.modules when the model is gone. A trainer that is started again for weeks,
# a search over settings that makes thousands of models in one process: files and modules only become more.
#
# One would guess: what a library writes for itself goes with the object, or at least with the process.
# Ends with 0 as long as PyG behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 torch_geometric==2.8.1
mkdir "$folder/temporary"
cat > "$folder/models.py" <<'PYTHON'
import gc
import os
import sys
import tempfile


def main():
    import torch_geometric
    from torch_geometric.nn import GCNConv, Sequential

    for _ in range(20):
        Sequential("x, edge_index", [(GCNConv(2, 2), "x, edge_index -> x")])  # nobody keeps it
    gc.collect()
    modules = [name for name in sys.modules if name.startswith("torch_geometric.nn.sequential_Sequential_")]
    print(f"torch_geometric {torch_geometric.__version__}: {len(modules)} modules of 20 models that are gone")


if __name__ == "__main__":
    main()
PYTHON
cd "$folder"
for process in 1 2 3; do
  TMPDIR="$folder/temporary" "$folder/venv/bin/python" models.py 2>/dev/null | tee said
  grep -q ": 20 modules of 20 models" said
done
of_layers=$(find temporary -name 'torch_geometric.nn.conv.gcn_conv_GCNConv_*.py' | wc -l)
of_models=$(find temporary -name 'torch_geometric.nn.sequential_Sequential_*.py' | wc -l)
echo "after three processes: $of_layers files of one kind of layer, $of_models files of models"
[ "$of_layers" = 3 ]
[ "$of_models" = 60 ]
