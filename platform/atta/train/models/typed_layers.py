"""A model of a typed graph from a checkpoint, layer by layer and type by type, for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from atta.client.cluster import Cluster
from atta.client.inference.block import Doubles, Floats, SummedLayer, TypedBlock
from atta.client.inference.stages import Stage, Targets, TypedLayer, typed_stages
from atta.client.inference.task import INNER_PRODUCTS, PairScore
from atta.errors import ConfigError, DataError
from atta.partition.names import join_edge_type, split_edge_type
from atta.train.checkpoint.files import NO_EMBEDDINGS, SavedModel, fill
from atta.train.models.layers import digest_of, saved_settings
from atta.train.models.links import UNFIT, saved_decoder, scorer
from atta.train.models.typed import TypedLayers, TypedLinkModel, TypedModel
from atta.train.settings.minibatch import EDGE_CLASSES, LINK
from atta.train.tasks.types import EdgeTriple, TypeReach


def types_of(saved: SavedModel) -> tuple[str, ...]:
    """The node types that a model of typed graphs is about: the target, or those of both ends of pairs. Raises DataError."""
    name = "edge_type" if saved.shape.get("task") in (LINK, EDGE_CLASSES) else "target"
    said = saved.shape.get(name)
    if not isinstance(said, str):
        raise DataError(saved.path, f"does not say its {name}: it was not written by atta train of this version")
    return split_edge_type(said)[::2] if name == "edge_type" else (said,)


@dataclass(frozen=True)
class SavedTypedModel:
    """A model of a checkpoint with its weights, for one graph. asked: by node type, what turns rows of the last layer
    into those that are written, if something does; rows: learnt rows of node types, float32 [vertices,
    hidden], in the order of the cluster's tables; score: of pairs."""

    model: TypedLayers
    asked: Mapping[str, torch.nn.Linear | None]
    rows: dict[str, torch.Tensor]
    score: PairScore
    device: torch.device

    @classmethod
    def of(
        cls, saved: SavedModel, cluster: Cluster, device: torch.device, *, types: Sequence[str], hidden: bool
    ) -> SavedTypedModel:
        """Take the weights of a checkpoint. types: those of ``types_of`` that are asked for; hidden: the rows that the
        decoder of a model of one type reads, not scores. Raises ConfigError: no edges end at the target type;
        DataError: the graph is of other types, features or vertices."""
        schema = cluster.schema
        kind, about = saved.shape["model"], types_of(saved)
        decoder = saved_decoder(saved) if len(about) == 2 else None
        try:
            settings = saved_settings(saved)
            for node_type in about:
                schema.check_node_type(node_type)
            reach = TypeReach.of(schema, about[-1], settings.depth, about[:-1], embed=saved.embeddings.rows)
            model: TypedModel | TypedLinkModel
            if decoder is None:
                model = TypedModel(settings, reach, len(saved.weights["decoder.bias"]))
            else:
                model = TypedLinkModel(settings, reach, (about[0], about[1]), decoder)
            fill(model, saved.weights, saved.path)
        except UNFIT as error:
            cause = f"{kind} does not fit the types of this graph, or this version: {' '.join(str(error).split())}"
            raise DataError(saved.path, cause) from error
        rows = _rows_in_tables(saved, cluster, dict.fromkeys(reach.learnt, settings.hidden))
        model.eval().to(device)
        if isinstance(model, TypedLinkModel):
            asked: dict[str, torch.nn.Linear | None] = {t: model.outputs[t] for t in types}
        else:
            asked = dict.fromkeys(types, None if hidden else model.decoder)
        score = INNER_PRODUCTS if decoder is None else scorer(decoder.cpu())
        return cls(model, asked, rows, score, device)

    @property
    def digest(self) -> str:
        """Of all that results depend on."""
        learnt = torch.nn.Module()
        for number, node_type in enumerate(sorted(self.rows)):
            learnt.register_buffer(f"rows{number}", self.rows[node_type])
        return digest_of([self.model, learnt])

    @property
    def width(self) -> int:
        """Numbers per row that is written."""
        last = next(iter(self.asked.values()))
        return self.model.hidden_width if last is None else last.out_features

    def stages(
        self, nodes: Mapping[str, Targets], fan_outs: Sequence[int] | None, ends: tuple[str, str] | None
    ) -> list[Stage]:
        """The stages that compute some vertices of each type that is asked for, or score pairs with these ``ends``. fan_outs:
        one per layer, from the vertices outwards, or one for all; None: exactly. Raises ConfigError: their number.
        """
        depth = self.model.reach.depth
        if fan_outs is None:
            widths = [self.model.hidden_width] * depth + [self.width]
            layers = [[self._layer(number, t) for t in self._needed(number + 1)] for number in range(depth)]
            return typed_stages(layers, self._embeddings(self._needed(0)), widths, nodes, ends=ends)
        fan_outs = list(fan_outs) * depth if len(fan_outs) == 1 else fan_outs
        if len(fan_outs) != depth:
            raise ConfigError(f"{len(fan_outs)} fan-outs for {depth} layers that are computed: give one for each")
        reach = self.model.reach
        models = [
            TypedLayer(t, reach.read(0), tuple(join_edge_type(*e) for e in reach.edges(0)), partial(self._through, t))
            for t in self.asked
        ]
        widths_of = (self.model.hidden_width, self.width)
        return typed_stages([models], self._embeddings(reach.read(0)), widths_of, nodes, ends=ends, fan_outs=fan_outs)

    def _embeddings(self, read: Sequence[str]) -> list[TypedLayer]:
        """What gives the learnt rows of the types that are read."""
        return [
            TypedLayer(t, (), (), partial(_learnt, rows.numpy())) for t, rows in sorted(self.rows.items()) if t in read
        ]

    def _needed(self, layers: int) -> list[str]:
        """The types whose rows after so many layers are needed for what is asked for: links know of more."""
        found, reach = set(self.asked), self.model.reach
        for number in range(reach.depth - 1, layers - 1, -1):
            found |= {e[0] for e in reach.edges(number) if e[2] in found}
        return sorted(found)

    def _layer(self, number: int, node_type: str) -> TypedLayer:
        edges = [e for e in self.model.reach.edges(number) if e[2] == node_type]
        reads = tuple(sorted({node_type, *(e[0] for e in edges)}))
        names = tuple(join_edge_type(*e) for e in edges)
        sums = None
        if names and hasattr(self.model.layers[number], "of_means"):
            widths = dict.fromkeys(names, self.model.hidden_width + 1)  # the last number counts edges
            sums = SummedLayer(
                widths, partial(self._message, number), partial(self._of_means, number, node_type, names)
            )
        return TypedLayer(node_type, reads, names, partial(self._compute, number, node_type), sums)

    @torch.no_grad()
    def _message(self, number: int, edge_type: str, rows: Floats, _: Floats | None) -> Doubles:
        x, source = self._moved(rows).double(), split_edge_type(edge_type)[0]
        if number == 0 and source in self.model.encoders:
            encoder = self.model.encoders[source]
            x = F.relu(F.linear(x, encoder.weight.double(), encoder.bias.double()))
        return np.asarray(torch.cat([x, torch.ones(len(x), 1).to(x)], 1).cpu().numpy())

    @torch.no_grad()
    def _of_means(
        self, number: int, node_type: str, names: Sequence[str], rows: Floats, totals: Doubles, _: Floats | None
    ) -> Floats:
        x, parts = self._encoded(number, node_type, rows), self._moved(totals).split(self.model.hidden_width + 1, 1)
        means = {
            name: (part[:, :-1] / part[:, -1:].clamp(min=1)).to(x) for name, part in zip(names, parts, strict=True)
        }
        out = cast("Any", self.model.layers[number]).of_means(x, means)
        return self._written(node_type, out) if number == self.model.reach.depth - 1 else _on_cpu(out)

    @torch.no_grad()
    def _compute(self, number: int, node_type: str, block: TypedBlock) -> Floats:
        """Rows of one type. Layers are called with all types that they know; the others have no rows here."""
        reach = self.model.reach
        nothing = torch.zeros(0, self.model.hidden_width, device=self.device)
        x = {t: self._encoded(number, t, block.x[t]) if t in block.x else nothing for t in reach.read(number)}
        computed = {t: block.targets if t == node_type else 0 for t in reach.computed(number)}
        edges = {e: self._edges(e, block, node_type) for e in reach.edges(number)}
        out: torch.Tensor = self.model.layers[number](x, computed, edges)[node_type]
        return self._written(node_type, out) if number == reach.depth - 1 else _on_cpu(out)

    @torch.no_grad()
    def _through(self, node_type: str, block: TypedBlock) -> Floats:
        """All layers on a sampled neighbourhood."""
        reach = self.model.reach
        x = {t: self._moved(block.x[t]) for t in reach.read(0)}
        edges = {e: self._moved(block.edges[join_edge_type(*e)]) for e in reach.edges(0)}
        per_hop = {e: block.edges_per_hop[join_edge_type(*e)] for e in reach.edges(0)}
        return self._written(node_type, self.model.hidden(x, edges, block.nodes_per_hop, per_hop)[node_type])

    def _written(self, node_type: str, rows: torch.Tensor) -> Floats:
        last = self.asked[node_type]
        return _on_cpu(rows if last is None else last(rows))

    def _moved(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.require(np.ascontiguousarray(array), requirements="W")).to(self.device)

    def _encoded(self, number: int, node_type: str, x: Floats) -> torch.Tensor:
        rows = self._moved(x)
        encodes = number == 0 and node_type in self.model.encoders
        return F.relu(self.model.encoders[node_type](rows)) if encodes else rows

    def _edges(self, edge_type: EdgeTriple, block: TypedBlock, node_type: str) -> torch.Tensor:
        if edge_type[2] != node_type:
            return torch.zeros(2, 0, dtype=torch.int64, device=self.device)
        return self._moved(block.edges[join_edge_type(*edge_type)])


def _rows_in_tables(saved: SavedModel, cluster: Cluster, widths: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """The embeddings of a checkpoint by node type, in the order of the cluster's tables."""
    found = saved.embeddings.rows
    if widths and not found:
        raise DataError(saved.path, NO_EMBEDDINGS)
    if {t: tuple(rows.shape[1:]) for t, rows in found.items()} != {t: (width,) for t, width in widths.items()}:
        kind = saved.shape["model"]
        raise DataError(saved.path, f"{kind} does not fit this graph: it has other embeddings, or none")
    ordered = {t: torch.empty_like(rows) for t, rows in found.items()}
    for node_type, rows in found.items():
        ordered[node_type][torch.from_numpy(saved.embeddings.places(cluster, node_type))] = rows
    return ordered


def _learnt(rows: Floats, block: TypedBlock) -> Floats:
    return rows[block.places]


def _on_cpu(rows: torch.Tensor) -> Floats:
    return rows.float().cpu().numpy()
