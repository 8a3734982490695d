#!/usr/bin/env bash
# NetworKit 11.3: its GraphML is refused by networkx, and its GML has lost the weights, without a word.
#
# writeGraph(G, ..., Format.GraphML) names the namespace of GraphML in an attribute `xmlnsi` in place of `xmlns`. NetworKit,
# igraph 1.0 and readers that do not look at namespaces read the file; networkx 3.6 finds no graph in it and says "file not
# successfully read as graphml". writeGraph(G, ..., Format.GML) of a weighted graph writes sources and targets alone, and so
# does Format.GraphToolBinary; what NetworKit reads back from them has weights of 1. Format.METIS keeps weights, but as 2.5,
# where METIS wants whole numbers.
#
# One would guess: a standard format that NetworKit writes is one that others read, and weights are kept or refused.
# Atta imports the GraphML with its weights; from the GML it cannot.
# Ends with 0 as long as they behave so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q networkit==11.3 networkx==3.6.1 igraph==1.0.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import igraph
import networkit as nk
import networkx

graph, folder = nk.Graph(3, weighted=True), sys.argv[1]
graph.addEdge(0, 1, 2.5)
graph.addEdge(1, 2, 4)
found = {}
for name in ("GraphML", "GML", "GraphToolBinary", "METIS"):
    path, kind = f"{folder}/g.{name}", getattr(nk.Format, name)
    nk.writeGraph(graph, path, kind)
    found[name] = sorted(weight for *_, weight in nk.readGraph(path, kind).iterEdgesWeights())
    print(f"{name}, read by NetworKit: weights {found[name]}")
try:
    print(networkx.read_graphml(f"{folder}/g.GraphML").edges(data=True))
    refused = ""
except networkx.NetworkXError as error:
    refused = str(error)
print(f"GraphML, read by networkx: {refused}")
others = sorted(igraph.Graph.Read_GraphML(f"{folder}/g.GraphML").es["weight"])
print(f"GraphML, read by igraph: weights {others}")
kept, lost = [2.5, 4.0], [1.0, 1.0]
as_said = found == {"GraphML": kept, "GML": lost, "GraphToolBinary": lost, "METIS": kept} and others == kept
sys.exit(not (as_said and refused == "file not successfully read as graphml"))
PYTHON
