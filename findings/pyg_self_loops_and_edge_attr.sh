#!/usr/bin/env bash
# PyG 2.8.1: AddSelfLoops leaves edge_attr with a row per old edge beside an edge_index with the self-loops.
#
# The transform extends one attribute, attr="edge_weight" by default. An edge_attr that is there stays as it is, without
# a word: 3 rows for 6 edges. A layer that reads edge_attr then fails far away, or a table of rows is joined to the wrong
# edges. The transform's attr="edge_attr" extends it. ToUndirected carries all edge attributes along.
#
# One would guess: a transform that changes the edges keeps all edge attributes in step, or refuses.
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
import torch_geometric.transforms as T
from torch_geometric.data import Data


def shapes(transform):
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    data = transform(Data(x=torch.zeros(3, 1), edge_index=ring, edge_attr=torch.ones(3, 2)))
    return data.num_edges, len(data.edge_attr)


found = {"AddSelfLoops()": shapes(T.AddSelfLoops()), 'AddSelfLoops("edge_attr")': shapes(T.AddSelfLoops("edge_attr")),
         "ToUndirected()": shapes(T.ToUndirected())}
print(f"torch_geometric {torch_geometric.__version__}: edges and rows of edge_attr {found}")
sys.exit(list(found.values()) != [(6, 3), (6, 6), (6, 6)])
PYTHON
