#!/usr/bin/env bash
# PyG 2.8.1: a vertex attribute called "knowledge" belongs to edges where there are as many edges as vertices.
#
# Data.is_edge_attr asks whether the first dimension fits the vertices or the edges. Where it fits both, a name that
# contains "edge" is an edge attribute: "knowledge", "pledged", "hedge_fund". So subgraph(vertices 0 and 1) of a ring of
# three keeps one value of "knowledge" for two vertices, and the other values silently go to the wrong owners. The same
# tensor called "skill" keeps two.
#
# One would guess: only the prefix edge_ makes an edge attribute.
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
from torch_geometric.data import Data

ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
data = Data(x=torch.zeros(3, 1), edge_index=ring, knowledge=torch.tensor([7, 8, 9]), skill=torch.tensor([7, 8, 9]))
part = data.subgraph(torch.tensor([0, 1]))
print(f"torch_geometric {torch_geometric.__version__}: of {part.num_nodes} vertices, knowledge {part.knowledge.tolist()}, "
      f"skill {part.skill.tolist()}")
sys.exit(part.knowledge.tolist() != [7] or part.skill.tolist() != [7, 8])
PYTHON
