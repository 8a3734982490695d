"""``atta inspect --sample``: the sampled neighbourhood of a vertex as a tree, with the owner of each vertex."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text
from rich.tree import Tree

import atta
from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta.partition.disk.store import path_here
from atta.partition.graph.strings import NAME, string_width

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
"""Of partitions, in turn."""
MOST_LINES = 200
"""A tree on a terminal ends after so many vertices; ``--json`` has all of them."""


@dataclass(frozen=True)
class SampledVertex:
    """A vertex of a sampled batch, ``hop`` steps from the seed. ``owner``: its partition."""

    label: str
    hop: int
    owner: int


@dataclass(frozen=True)
class DrawnTree:
    """A sampled neighbourhood. The first of ``vertices`` is the seed. ``edges``: (source, target), positions in
    ``vertices``; a target's sources are its children in the tree."""

    vertices: Sequence[SampledVertex]
    edges: Sequence[tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` writes."""
        return {"vertices": [asdict(vertex) for vertex in self.vertices], "edges": [list(edge) for edge in self.edges]}


def sample_tree(path: str | Path, vertex: str, num_neighbors: Sequence[int], seed: int = 0) -> DrawnTree:
    """Sample the neighbourhood of ``vertex`` (an id, or ``TYPE:ID``) from daemons that are started for it. Raises
    ConfigError: there is no such vertex. DataError: the dataset is damaged."""
    dataset = Dataset.open(path_here(path, "inspect"), parts=[], verify=False)
    node_type, user_id = _named(dataset, vertex)
    names = {t: [NAME] for t in dataset.schema.node_types if string_width(dataset.schema, t)}
    fan_outs: Any = {edge_type: list(num_neighbors) for edge_type in dataset.schema.edge_types}
    seeds = (node_type, [user_id])
    with atta.local(path, threads=1, daemons=1, verify=False) as cluster:
        batch = next(iter(atta.NeighborLoader(cluster, fan_outs, seeds, tables=names, seed=seed, rank=0, world_size=1)))
        return _drawn(dataset, batch, node_type)


def _named(dataset: Dataset, vertex: str) -> tuple[str, int | str]:
    types = dataset.schema.node_types
    named = max((t for t in types if vertex.startswith(f"{t}:")), key=len, default=None)  # names may have colons
    node_type, text = (types[0], vertex) if named is None else (named, vertex.removeprefix(f"{named}:"))
    if len(types) > 1 and text == vertex:
        raise ConfigError(
            f"--sample {vertex}: name a node type, as in {types[0]}:{vertex}; there are {', '.join(types)}"
        )
    if string_width(dataset.schema, node_type):
        return node_type, text
    try:
        return node_type, int(text)
    except ValueError:
        raise ConfigError(f"--sample {vertex}: ids of node type {node_type!r} are whole numbers") from None


def _drawn(dataset: Dataset, batch: atta.MiniBatch, seed_type: str) -> DrawnTree:
    vertices: list[SampledVertex] = []
    first: dict[str, int] = {}
    for t in sorted(batch.node_types, key=lambda name: name != seed_type):  # the seed comes first
        first[t] = len(vertices)
        ids = batch.n_id(t)
        owners = dataset.book.owner(t, dataset.to_internal(t, ids))
        labels = batch.strings(t) if string_width(dataset.schema, t) else ids
        hops = np.repeat(np.arange(len(batch.num_sampled_nodes(t))), batch.num_sampled_nodes(t))
        several = len(dataset.schema.node_types) > 1
        for label, hop, owner in zip(labels.tolist(), hops.tolist(), owners.tolist(), strict=True):
            vertices.append(SampledVertex(f"{t}:{label}" if several else str(label), hop, owner))
    edges = []
    for e in batch.edge_types:
        source, target = dataset.schema.endpoints(e)
        edges += [(first[source] + u, first[target] + v) for u, v in batch.edge_index(e).T.tolist()]
    return DrawnTree(vertices, edges)


def draw_tree(drawn: DrawnTree) -> Tree:
    """The tree for a terminal: children are sampled in-neighbours, colours are owners. A vertex that several others
    have drawn stands under each of them, its own children only once."""
    children: dict[int, list[int]] = defaultdict(list)
    for source, target in drawn.edges:
        children[target].append(source)
    root = Tree(_line(drawn.vertices[0], ""))
    open_, shown, expanded = [(root, 0)], 1, {0}
    while open_:
        branch, vertex = open_.pop(0)
        for child in children[vertex]:
            if shown == MOST_LINES:
                root.add(f"... and more: {len(drawn.vertices)} vertices, {len(drawn.edges)} edges")
                return root
            again = child in expanded
            node = branch.add(_line(drawn.vertices[child], " (see above)" if again and children[child] else ""))
            shown += 1
            if not again:
                expanded.add(child)
                open_.append((node, child))
    return root


def _line(vertex: SampledVertex, more: str) -> Text:
    return Text.assemble((vertex.label, COLOURS[vertex.owner % len(COLOURS)]), f"  part {vertex.owner}{more}")
