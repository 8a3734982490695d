#!/usr/bin/env bash
# PyG 2.8.1: gcn_norm adds up parallel edges, but of several self-loops of a vertex it keeps the last one alone.
#
# Two parallel edges of weight 2 and 3 count as one of weight 5: degrees add them up, and both carry messages. Two self-loops
# of weight 2 and 3 count as one of weight 3, whichever came first is gone from the sum and from the degree. So GCNConv on a
# multigraph and on its coalesced form, which adds up weights, agree on edges between vertices and differ on self-loops,
# and the order of the edges decides the result.
#
# One would guess: a sum over in-edges does not depend on their order, and treats self-loops as it treats other edges.
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
from torch_geometric.utils import coalesce

torch.manual_seed(0)
x, layer = torch.randn(2, 3), GCNConv(3, 2)


def moved(edges, weights):
    """How far the layer's rows move when edges are put in reverse order, and when their weights are added up."""
    rows = layer(x, edges, weights)
    back = layer(x, edges.flip(1), weights.flip(0))
    merged = layer(x, *coalesce(edges, weights, reduce="sum"))
    return [(rows - other).abs().max().item() for other in (back, merged)]


weights = torch.tensor([2.0, 3.0, 1.0])
parallel = moved(torch.tensor([[0, 0, 1], [1, 1, 0]]), weights)
loops = moved(torch.tensor([[0, 0, 1], [0, 0, 0]]), weights)
print(f"torch_geometric {torch_geometric.__version__}: reversed and added up, parallel edges move rows by {parallel}, self-loops by {loops}")
sys.exit(max(parallel) > 1e-6 or min(loops) < 0.01)
PYTHON
