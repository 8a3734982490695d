#!/usr/bin/env bash
# igraph 1.0.0 writes 0.00001 into GML as 1e-05, and networkx 3.6.1 reads it as the integer 1 and an attribute e of -5.
#
# The tokenizer of networkx.read_gml wants a decimal point in a real number. Of 1e-05 it takes the integer 1, then the
# key e, then the integer -5. Nothing is said: an edge of weight 0.00001 becomes one of weight 1. 2.5 and 1.5e-05 come
# through. igraph reads its own file right.
#
# One would guess: a number that one library writes is the same number in the other, or an error.
# Ends with 0 as long as both behave so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q networkx==3.6.1 igraph==1.0.0
"$folder/venv/bin/python" - "$folder/graph.gml" <<'PYTHON'
import sys

import igraph
import networkx

path = sys.argv[1]
graph = igraph.Graph(edges=[(0, 1), (1, 2), (2, 0)], directed=True)
graph.vs["label"] = ["a", "b", "c"]
graph.es["weight"] = [0.00001, 2.5, 0.000015]
graph.write_gml(path)
here, there = igraph.Graph.Read_GML(path).es["weight"], [d for _, _, d in networkx.read_gml(path).edges(data=True)]
print(f"igraph {igraph.__version__} reads {here}; networkx {networkx.__version__} reads {there}")
same = here == [0.00001, 2.5, 0.000015]
sys.exit(not same or there != [{"weight": 1, "e": -5}, {"weight": 2.5}, {"weight": 1.5e-05}])
PYTHON
