"""What may make a model give the same on a batch as on the graph: each remedy is tried, none is known by a layer's name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch

from atta.train.models.forms import ModelInput, SmallGraph

_NORMS = ("both", "right", "left")


@dataclass(frozen=True)
class Remedy:
    """A change of a model, of its batches, or of both. settings: of any module, (name, from, to); more_hops: that
    batches get; in_order: edges stand in the user's order; norm: edges get weights from degrees, see ``weighted``;
    unbiased: drawn edges weigh more, see ``unbiased``."""

    settings: tuple[tuple[str, object, object], ...] = ()
    more_hops: int = 0
    in_order: bool = False
    norm: str | None = None
    unbiased: bool = False

    def changed(self, model: torch.nn.Module) -> torch.nn.Module | None:
        """A copy of the model with the settings; None if it has none of them."""
        own = copy.deepcopy(model)
        held = [*self._held(own)]
        for module, name, to in held:
            setattr(module, name, to)
        return own if held or not self.settings else None

    def told(self, model: torch.nn.Module) -> str:
        """What the user of ``model`` does."""
        settings = {f"{type(module).__name__}({name.lstrip('_')}={to!r})" for module, name, to in self._held(model)}
        parts = {
            f'edge_norm="{self.norm}"': self.norm,
            "unbiased=True": self.unbiased,
            'edge_order="file"': self.in_order,
            "one hop more" if self.more_hops == 1 else f"{self.more_hops} hops more": self.more_hops,
        }
        told = *sorted(settings), *(part for part, there in parts.items() if there)
        return " and ".join(told).replace("'", '"')

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
            self.unbiased or other.unbiased,
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
_NO_LOOPS = REMEDIES[-1]
BIAS_REMEDIES = (
    Remedy(unbiased=True),
    *(Remedy(_OWN_NORM, norm=norm, unbiased=True) for norm in ("gcn", "both", "row")),
    _NO_LOOPS,
    _NO_LOOPS + Remedy(unbiased=True),
)
"""What may make the first layer's mean over draws its value with all neighbours."""


def remedies_for(
    model: torch.nn.Module,
    works: Callable[[Remedy, torch.nn.Module], bool],
    likely: Sequence[Remedy] = (),
    *,
    pairs: bool = True,
) -> list[Remedy]:
    """What ``works`` alone on the model that it has changed; if nothing does, the first of ``pairs`` that does. If some
    of ``likely`` work, no others are tried."""
    if found := [remedy for remedy in likely if _helps(remedy, model, works)]:
        return found
    for remedy in REMEDIES:
        if any(remedy.more_hops and other.more_hops for other in found):
            continue  # one hop more is enough
        if _helps(remedy, model, works):
            found.append(remedy)
    if found or not pairs:
        return found
    able = combinations([remedy for remedy in REMEDIES if remedy.changed(model) is not None], 2)
    both = (a + b for a, b in able if not (a.norm and b.norm) and not (a.more_hops and b.more_hops))
    return next(([pair] for pair in both if _helps(pair, model, works)), [])


def _helps(remedy: Remedy, model: torch.nn.Module, works: Callable[[Remedy, torch.nn.Module], bool]) -> bool:
    own = remedy.changed(model)
    return own is not None and works(remedy, own)


def weighted(graph: SmallGraph, norm: str) -> SmallGraph:
    """The graph with ``edge_weight`` of degrees: ``"gcn"``: 1 / sqrt(d of source * d of target), in-degrees with a
    self-loop for each vertex; ``"both"``: with the out-degree of the source; ``"row"``: 1 / in-degree of the target."""
    graph = _looped(graph) if norm == "gcn" else graph
    weight = _weights(graph) * _scale(graph, norm, *graph.edge_index)
    return SmallGraph(graph.x, graph.edge_index, {**graph.edge, "edge_weight": weight.nan_to_num(0, 0, 0)})


def unbiased(graph: SmallGraph, sample: ModelInput, norm: str | None) -> ModelInput:
    """The sample with ``edge_weight`` so that sums over drawn edges are, on average, those over all edges of the graph.
    ``norm``: as for ``weighted``; the self-loops of ``"gcn"`` are not drawn."""
    read = _looped(graph) if norm == "gcn" else graph
    source, target = sample.n_id[sample.edge_index]
    drawn = torch.bincount(sample.edge_index[1], minlength=len(sample.x))[sample.edge_index[1]]
    given = sample.edge.get("edge_weight", torch.ones(len(source), dtype=sample.x.dtype))
    weight = given * graph.in_degrees[target] / drawn
    if norm is not None:
        weight = weight * _scale(read, norm, source, target)
    if norm != "gcn":
        return replace(sample, edge={**sample.edge, "edge_weight": weight})
    own = torch.arange(sample.nodes[-2])
    places = sample.n_id[own]
    loops = _weights(read)[-graph.num_nodes :][places] * _scale(read, norm, places, places)
    weights = torch.cat([weight.masked_fill(source == target, 0), loops])
    edge_index = torch.cat([sample.edge_index, torch.stack([own, own])], dim=1)
    return replace(sample, edge_index=edge_index, edge={"edge_weight": weights})


def _scale(graph: SmallGraph, norm: str, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What a norm multiplies the weights of some edges with."""
    weight = _weights(graph)
    into, out_of = (torch.zeros(graph.num_nodes, dtype=weight.dtype).index_add_(0, ends, weight)
                    for ends in reversed(graph.edge_index))  # fmt: skip
    if norm == "row":
        return 1 / into[target]
    return 1 / ((into if norm == "gcn" else out_of)[source] * into[target]).sqrt()


def _weights(graph: SmallGraph) -> torch.Tensor:
    found = graph.edge.get("edge_weight")
    return torch.ones(graph.edge_index.shape[1], dtype=graph.x.dtype) if found is None else found


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
