"""What may make a model give the same on a batch as on the graph: each remedy is tried, none is known by a layer's name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from atta.train.models.forms import SmallGraph

__all__ = ["REMEDIES", "Remedy", "remedies_for", "weighted"]

_NORMS = ("both", "right", "left")


@dataclass(frozen=True)
class Remedy:
    """A change of a model, of its batches, or of both.

    Attributes:
        settings: values of modules' settings that are replaced, wherever a module has one: (name, from, to).
        more_hops: hops that batches get beyond those that the model reads.
        in_order: the edges of a vertex stand in the user's order.
        norm: edges get weights from the degrees of the whole graph, see ``weighted``.
    """

    settings: tuple[tuple[str, object, object], ...] = ()
    more_hops: int = 0
    in_order: bool = False
    norm: str | None = None

    def changed(self, model: torch.nn.Module) -> torch.nn.Module | None:
        """A copy of the model with the settings; None if it has none of them."""
        own = copy.deepcopy(model)
        held = [*self._held(own)]
        for module, name, to in held:
            setattr(module, name, to)
        return own if held or not self.settings else None

    def told(self, model: torch.nn.Module) -> str:
        """What the user of ``model`` does."""
        parts = sorted({f"{type(module).__name__}({name}={to!r})" for module, name, to in self._held(model)})
        if self.norm:
            parts.append(f'edge_norm="{self.norm}"')
        if self.in_order:
            parts.append('edge_order="file"')
        if self.more_hops:
            parts.append("one hop more" if self.more_hops == 1 else f"{self.more_hops} hops more")
        return " and ".join(parts).replace("'", '"')

    def _held(self, model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, object]]:
        for module in model.modules():
            for name, before, to in self.settings:
                found = vars(module).get(name)
                if type(before) is type(found) and found == before:
                    yield module, name, to

    def __add__(self, other: Remedy) -> Remedy:
        return Remedy(
            self.settings + other.settings,
            self.more_hops + other.more_hops,
            self.in_order or other.in_order,
            self.norm or other.norm,
        )


_OWN_NORM = (("normalize", True, False), *((name, norm, "none") for name in ("norm", "_norm") for norm in _NORMS))
REMEDIES = (
    Remedy((("cached", True, False),)),
    Remedy(more_hops=1),
    Remedy(more_hops=2),
    *(Remedy(_OWN_NORM, norm=norm) for norm in ("gcn", "both", "row")),
    Remedy(in_order=True),
    Remedy((("mode", "graph", "node"),)),
    Remedy((("add_self_loops", True, False),)),
)
"""In the order in which they are tried."""


def remedies_for(
    model: torch.nn.Module, works: Callable[[Remedy, torch.nn.Module], bool], likely: Sequence[Remedy] = ()
) -> list[Remedy]:
    """What works alone; if nothing does, the first pair that does together.

    works: tries a remedy on the model that it has changed. likely: if these work, no others are tried.
    """
    if found := [remedy for remedy in likely if _helps(remedy, model, works)]:
        return found
    for remedy in REMEDIES:
        if any(remedy.more_hops and other.more_hops for other in found):
            continue  # one hop more is enough
        if _helps(remedy, model, works):
            found.append(remedy)
    if found:
        return found
    able = [remedy for remedy in REMEDIES if remedy.changed(model) is not None]
    pairs = (first + second for first, second in combinations(able, 2) if not _overlap(first, second))
    return next(([pair] for pair in pairs if _helps(pair, model, works)), [])


def _helps(remedy: Remedy, model: torch.nn.Module, works: Callable[[Remedy, torch.nn.Module], bool]) -> bool:
    own = remedy.changed(model)
    return own is not None and works(remedy, own)


def _overlap(first: Remedy, second: Remedy) -> bool:
    return bool((first.norm and second.norm) or (first.more_hops and second.more_hops))


def weighted(graph: SmallGraph, norm: str) -> SmallGraph:
    """The graph with ``edge_weight`` made from the degrees of all its vertices.

    norm: ``"gcn"``: 1 / sqrt(d of source * d of target), in-degrees with one self-loop for each vertex, as PyG adds them;
        ``"both"``: 1 / sqrt(out-degree of source * in-degree of target); ``"row"``: 1 / in-degree of the target.
    """
    given = graph.edge.get("edge_weight")
    if norm == "gcn":
        graph = _looped(graph)
    source, target = graph.edge_index
    weight = torch.ones(len(source), dtype=graph.x.dtype) if given is None else graph.edge["edge_weight"]
    into = torch.zeros(graph.num_nodes, dtype=weight.dtype).index_add_(0, target, weight)
    out_of = torch.zeros(graph.num_nodes, dtype=weight.dtype).index_add_(0, source, weight)
    if norm == "row":
        weight = weight / into[target]
    else:
        weight = weight / ((into if norm == "gcn" else out_of)[source] * into[target]).sqrt()
    return SmallGraph(graph.x, graph.edge_index, {**graph.edge, "edge_weight": weight.nan_to_num(0, 0, 0)})


def _looped(graph: SmallGraph) -> SmallGraph:
    """The graph with one self-loop for each vertex, of weight 1 or that of the last one that it had."""
    source, target = graph.edge_index
    loops = torch.arange(graph.num_nodes)
    other = (source != target).nonzero()[:, 0]
    had = (source == target).nonzero()[:, 0]
    edge = {}
    for name, rows in graph.edge.items():
        own = torch.ones((graph.num_nodes, *rows.shape[1:]), dtype=rows.dtype)
        own[source[had]] = rows[had]
        edge[name] = torch.cat([rows[other], own])
    return SmallGraph(graph.x, torch.cat([graph.edge_index[:, other], torch.stack([loops, loops])], dim=1), edge)
