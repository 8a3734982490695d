#!/usr/bin/env bash
# rustworkx 0.18.1 with networkx 3.6.1: a GraphML file gives vertices the names and types of edges' attributes.
#
# rustworkx.write_graphml counts the ids of its <key> elements from d1 for vertices, and again from d1 for edges.
# networkx.read_graphml keeps one key for an id, the last. So the years of vertices come back as "weight", the name of
# what edges have, without a word; where the types differ it fails ("invalid literal for int"). igraph 1.0.0 and
# rustworkx itself keep keys of vertices and of edges apart and read the file as it was meant.
#
# One would guess: ids of keys differ in a file that a library writes, as GraphML wants it, or readers refuse the
# second. Atta reads both kinds of keys apart.
# Ends with 0 as long as all three behave so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q rustworkx==0.18.1 networkx==3.6.1 igraph==1.0.0
"$folder/venv/bin/python" - "$folder/graph.graphml" <<'PYTHON'
import sys
import xml.etree.ElementTree as ET

import igraph
import networkx
import rustworkx

path = sys.argv[1]
graph = rustworkx.PyDiGraph()
source, target = graph.add_node({"year": 1999}), graph.add_node({"year": 2001})
graph.add_edge(source, target, {"weight": 7})
rustworkx.write_graphml(graph, path)

keys = [(key.get("for"), key.get("attr.name"), key.get("id")) for key in ET.parse(path).iter() if key.tag.endswith("key")]
print("keys of the file:", keys)
assert keys == [("node", "year", "d1"), ("edge", "weight", "d1")], keys

read = networkx.read_graphml(path)
print("networkx:", dict(read.nodes(data=True)), list(read.edges(data=True)))
assert dict(read.nodes(data=True)) == {"n0": {"weight": 1999}, "n1": {"weight": 2001}}

other = igraph.Graph.Read_GraphML(path)
print("igraph:", other.vs["year"], other.es["weight"])
assert (other.vs["year"], other.es["weight"]) == ([1999.0, 2001.0], [7.0])

(again,) = rustworkx.read_graphml(path)
print("rustworkx:", again.nodes())
assert [node["year"] for node in again.nodes()] == [1999, 2001]
PYTHON
