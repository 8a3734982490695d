"""``atta.explain``: which edges and features a model's prediction for a vertex rests on, by PyG's Explainer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import atta
from atta.errors import ConfigError
from atta.train.settings.common import TYPED_MODELS
from atta.train.settings.minibatch import UNTABLED

if TYPE_CHECKING:
    import torch

MOST_EDGES = 40
"""Edges that a picture shows."""
MOST_VERTICES = 50_000
_MODES = {"labels": "binary_classification", "regression": "regression"}


@dataclass(frozen=True)
class VertexExplanation:
    """What a prediction rests on.

    Attributes:
        vertex: user id, a string where vertices have such.
        prediction: float32 [outputs], what the model says of the vertex on the whole graph.
        edges: user ids [2, e] of sources and targets of all edges that the prediction can depend on.
        edge_importance: float32 [e], 0 to 1. features: float32 [channels], the same of their columns, over all vertices.
        hops: for each vertex of ``edges`` its distance to the vertex, by user id.
    """

    vertex: int | str
    prediction: npt.NDArray[np.float32]
    edges: npt.NDArray[np.int64] | npt.NDArray[np.str_]
    edge_importance: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32]
    hops: dict[int | str, int]

    def top(self, count: int) -> npt.NDArray[np.int64]:
        """Positions of the ``count`` most important edges, most important first."""
        return np.argsort(-self.edge_importance, kind="stable")[:count]

    def to_svg(self, most: int = MOST_EDGES) -> str:
        """A picture of the vertex, in the middle, with its most important edges: the darker, the more important."""
        shown = self.top(most)
        ends = self.edges[:, shown]
        rings: dict[int, list[int | str]] = {}
        for name in sorted({self.vertex, *ends.reshape(-1).tolist()}):
            rings.setdefault(0 if name == self.vertex else max(1, self.hops[name]), []).append(name)
        at = {}
        for hop, names in rings.items():
            for number, name in enumerate(names):
                angle = 2 * math.pi * (number + hop / 3) / len(names)
                at[name] = 300 + 110 * hop * math.cos(angle), 300 + 110 * hop * math.sin(angle)
        reach = 110 * max(rings) + 50
        most_of_all = max(float(self.edge_importance.max(initial=0)), 1e-12)
        lines = []
        for edge in shown[::-1]:
            (x1, y1), (x2, y2) = (at[name] for name in self.edges[:, edge].tolist())
            share = float(self.edge_importance[edge]) / most_of_all
            lines.append(
                f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#1f4e79" '
                f'stroke-opacity="{0.1 + 0.9 * share:.2f}" stroke-width="{1 + 3 * share:.1f}"/>'
            )
        for name, (x, y) in at.items():
            colour = "#c0392b" if name == self.vertex else "#7f8c8d"
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{colour}"><title>{name}</title></circle>')
            lines.append(f'<text x="{x + 11:.1f}" y="{y + 4:.1f}" font-size="12">{escape(str(name))}</text>')
        box = f"{300 - reach} {300 - reach} {2 * reach} {2 * reach}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif">{"".join(lines)}</svg>'
        )


def explain(
    cluster: atta.Cluster,
    model: str | Path,
    vertex: int | str,
    *,
    epochs: int = 200,
    lr: float = 0.01,
    seed: int = 0,
    out: str | Path | None = None,
) -> VertexExplanation:
    """Explain what a model says of a vertex of the whole graph, by PyG's ``GNNExplainer`` (Ying et al., NeurIPS 2019).

    Args:
        cluster: from ``atta.connect`` or ``atta.local``, of a graph with one node type and one edge type.
        model: folder of ``atta train --checkpoint``, with a model that was trained for a table ``y``.
        vertex: user id, a number or a string.
        epochs, lr: how long and how fast the explainer learns its masks.
        seed: of its random start.
        out: file for a picture (SVG).

    Raises ConfigError: the model is one of typed graphs or of embeddings, or there is no such vertex, or too many around
    it; DataError: the checkpoint is missing or damaged, or of another graph.
    """
    import torch

    from atta.client.inference.task import feature_width
    from atta.train.checkpoint.files import load_model
    from atta.train.launching.predict import predicted_types
    from atta.train.models.layers import saved_model

    saved = load_model(model, cluster.schema)
    if saved.shape.get("model") in TYPED_MODELS:
        raise ConfigError(f"{saved.path}: explanations take models of graphs with one node type and one edge type")
    task = str(saved.shape.get("task", "classes"))
    if task in UNTABLED:
        raise ConfigError(f"{saved.path}: was trained for --task {task}: there is no prediction of a vertex to explain")
    (node_type,) = predicted_types(cluster.schema, saved)
    gnn = saved_model(saved, feature_width(cluster.schema, "x")).eval()
    number = int(cluster.ids.numbers([vertex], node_type)[0]) if isinstance(vertex, str) else vertex
    data = _around(cluster, node_type, number, int(saved.shape["depth"]))
    torch.manual_seed(seed)
    found = _masks(gnn, data, _MODES.get(task, "multiclass_classification"), epochs, lr)
    with torch.no_grad():
        prediction = gnn(data.x, data.edge_index)[0].numpy()
    names, strings = data.n_id.numpy(), cluster.ids.known(node_type)
    if strings:
        names = cluster.ids.strings(names, node_type)
    hops = np.repeat(np.arange(len(data.num_sampled_nodes)), data.num_sampled_nodes).tolist()
    explained = VertexExplanation(
        names[0].item(), prediction, names[data.edge_index.numpy()], found.edge_mask.numpy(),
        found.node_mask.mean(0).numpy(), dict(zip(names.tolist(), hops, strict=True)),
    )  # fmt: skip
    if out is not None:
        Path(out).write_text(explained.to_svg(), encoding="utf-8")
    return explained


def _around(cluster: atta.Cluster, node_type: str, vertex: int, depth: int) -> Any:
    """PyG's data of all that a prediction depends on, the vertex first."""
    fan_outs = [-1] * (depth + 1)  # a GCN needs in-degrees of what its first layer reads
    seeds = node_type, np.array([vertex])
    loader = atta.NeighborLoader(cluster, fan_outs, seeds, rank=0, world_size=1, tables=["x"])
    data = next(iter(loader)).to_pyg(plain=True)
    if data.num_nodes > MOST_VERTICES:
        raise ConfigError(f"{data.num_nodes} vertices lie within {depth + 1} hops: explanations take {MOST_VERTICES}")
    data.x = data.x.float().clone()
    return data


def _masks(gnn: torch.nn.Module, data: Any, mode: str, epochs: int, lr: float) -> Any:
    """The masks of edges [e] and of features [vertices, channels] that keep the prediction as it is."""
    from torch_geometric.explain import Explainer, GNNExplainer

    explainer = Explainer(
        gnn, GNNExplainer(epochs=epochs, lr=lr), explanation_type="model", node_mask_type="attributes",
        edge_mask_type="object", model_config={"mode": mode, "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    return explainer(data.x, data.edge_index, index=0)
