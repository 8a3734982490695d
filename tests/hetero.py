"""Typed models over all vertices at once, by PyG's modules or by plain sums: the oracle of sampled batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F


def over_all_vertices(model: Any, x: Mapping[str, torch.Tensor], edges: Mapping[Any, torch.Tensor]) -> torch.Tensor:
    """Scores of all vertices of the target type, with the weights of a ``TypedModel`` and without dropout."""
    scores: torch.Tensor = model.decoder(hidden_over_all_vertices(model, x, edges)[model.reach.target])
    return scores


def hidden_over_all_vertices(
    model: Any, x: Mapping[str, torch.Tensor], edges: Mapping[Any, torch.Tensor]
) -> dict[str, torch.Tensor]:
    h = {t: F.relu(model.encoders[t](rows)) if t in model.encoders else rows for t, rows in x.items()}
    for number, layer in enumerate(model.layers):
        used = {e: edges[e] for e in model.reach.edges(number)}
        if hasattr(layer.conv, "kqv_lin"):
            out = layer.conv({t: h[t] for t in model.reach.read(number)}, used)
            h = {t: h[t] if out.get(t) is None else out[t] for t in h}
            continue
        rows = {t: F.relu(_summed(layer, h, used, t)) for t in model.reach.computed(number)}
        h = {**h, **rows}
    return h


def _summed(layer: Any, h: Mapping[str, torch.Tensor], used: Mapping[Any, torch.Tensor], node_type: str) -> Any:
    """A type's own rows and those of its neighbours, before the activation."""
    relational, own = hasattr(layer.conv, "root"), h[node_type]
    total = own @ layer.conv.root + layer.conv.bias if relational else layer.own[node_type](own)
    for relation, (e, (source, target)) in enumerate(used.items()):
        if e[2] != node_type:
            continue
        if not relational and hasattr(layer.conv.convs[e], "att_src"):
            total = total + layer.conv.convs[e]((h[e[0]], own), used[e])
            continue
        mean = torch.zeros_like(own).index_add(0, target, h[e[0]][source])
        mean = mean / torch.bincount(target, minlength=len(own)).clamp(min=1)[:, None]
        total = total + (mean @ layer.conv.weight[relation] if relational else layer.conv.convs[e].lin_l(mean))
    return total
