#!/usr/bin/env bash
# PyG 2.8.1: GCNConv(improved=True) is GCNConv() unless edges have weights.
#
# improved=True is documented to compute with A + 2I: self-loops of weight 2. gcn_norm hands the 2 to the function that adds
# self-loops, together with the weights of edges. Where there are none, that function has nothing to fill, and all edges,
# self-loops too, get weight 1 afterwards. With weights of 1, which mean the same, results differ by a third.
#
# One would guess: improved=True changes the result, and edges without weights are edges of weight 1.
# Ends with 0 as long as PyG behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 torch_geometric==2.8.1
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys

import torch
import torch_geometric
from torch_geometric.nn import GCNConv

torch.manual_seed(0)
x, path, ones = torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.ones(3)
plain, improved = GCNConv(3, 2), GCNConv(3, 2, improved=True)
improved.load_state_dict(plain.state_dict())
bare = (plain(x, path) - improved(x, path)).abs().max().item()
weighed = (plain(x, path, ones) - improved(x, path, ones)).abs().max().item()
print(f"torch_geometric {torch_geometric.__version__}: improved differs by {bare} without weights, by {weighed:.3f} with ones")
sys.exit(bare != 0 or weighed < 0.1)
PYTHON
