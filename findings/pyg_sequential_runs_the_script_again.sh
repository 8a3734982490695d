#!/usr/bin/env bash
# PyG 2.8.1: a script that makes a torch_geometric.nn.Sequential runs twice.
#
# Sequential generates a module whose first lines import everything from a module with the name of the caller's file. A
# script that Python runs is known as __main__, not by that name, so the import runs its text once more, from the first
# line to the last, before the constructor returns: data are loaded twice, processes are started twice, a training loop
# below runs twice. With "if __name__ == '__main__':" around it the second run does nothing, and nothing shows.
#
# One would guess: to make a module imports no file of the caller.
# Ends with 0 as long as PyG behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 torch_geometric==2.8.1
cat > "$folder/experiment.py" <<'PYTHON'
import torch
import torch_geometric
from torch_geometric.nn import GCNConv, Sequential

print(f"torch_geometric {torch_geometric.__version__}: the script begins as {__name__}")
model = Sequential("x, edge_index", [(GCNConv(2, 2), "x, edge_index -> x"), torch.nn.ReLU()])
print(f"{__name__} trains its model")
PYTHON
cd "$folder"
"$folder/venv/bin/python" experiment.py 2>/dev/null | tee said
grep -q "experiment trains its model" said
grep -q "__main__ trains its model" said
