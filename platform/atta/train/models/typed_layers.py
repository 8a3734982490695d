"""A model of a typed graph from a checkpoint, layer by layer and type by type, for inference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from atta.client.inference.block import Floats, TypedBlock
from atta.client.inference.stages import TypedLayer
from atta.errors import DataError
from atta.partition.schema import Schema
from atta.train.checkpoint import SavedModel
from atta.train.models.layers import digest_of
from atta.train.models.typed import TypedModel
from atta.train.settings import TrainSettings
from atta.train.tasks.reach import EdgeTriple, TypeReach

__all__ = ["SavedTypedModel"]


@dataclass(frozen=True)
class SavedTypedModel:
    """A model of a checkpoint with its weights, for one graph.

    Attributes:
        model: in evaluation mode, on the device that it computes on.
        rows: learnt rows of each type without features, float32 [vertices, hidden], in the order of the tables.
        hidden: whether embeddings are wanted, the rows that the decoder reads; otherwise scores.
        device: of the model.
    """

    model: TypedModel
    rows: dict[str, torch.Tensor]
    hidden: bool
    device: torch.device

    @classmethod
    def of(
        cls, saved: SavedModel, schema: Schema, dataset_id: str, device: torch.device, *, hidden: bool
    ) -> SavedTypedModel:
        """Take the weights of a checkpoint.

        Raises:
            ConfigError: the graph has no edges into the target type.
            DataError: the model was trained on a graph of other types or features, or its embeddings are those of
                another partitioned dataset.
        """
        kind = saved.shape["model"]
        try:
            depth, width, heads = (int(saved.shape[name]) for name in ("depth", "hidden", "heads"))
            target = str(saved.shape["target"])
            schema.check_node_type(target)
            reach = TypeReach.of(schema, target, depth)
            settings = TrainSettings(model=kind, hidden=width, heads=heads, layers=depth)
            model = TypedModel(settings, reach, len(saved.weights["decoder.bias"]))
            model.load_state_dict(dict(saved.weights))
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            cause = " ".join(str(error).split())
            raise DataError(
                saved.path, f"{kind} does not fit the types of this graph, or this version: {cause}"
            ) from error
        shapes = {t: (schema.node_counts[t], width) for t in reach.without_features}
        if {t: tuple(rows.shape) for t, rows in saved.embeddings.items()} != shapes:
            raise DataError(saved.path, f"{kind} does not fit this graph: it has other embeddings, or none")
        if shapes and saved.dataset_id != dataset_id:
            raise DataError(saved.path, "the embeddings in it are those of another partitioned dataset")
        return cls(model.eval().to(device), dict(saved.embeddings), hidden, device)

    @property
    def digest(self) -> str:
        """Of all that results depend on."""
        learnt = torch.nn.Module()
        for number, node_type in enumerate(sorted(self.rows)):
            learnt.register_buffer(f"rows{number}", self.rows[node_type])
        return digest_of([self.model, learnt])

    @property
    def widths(self) -> list[int]:
        """Numbers per row before the first layer and after each."""
        decoder = self.model.decoder
        inside = [decoder.in_features] * (self.model.reach.depth + 1)
        return inside if self.hidden else [*inside[:-1], decoder.out_features]

    @property
    def embeddings(self) -> list[TypedLayer]:
        """What gives the learnt rows."""
        return [TypedLayer(t, (), (), partial(_learnt, rows.numpy())) for t, rows in sorted(self.rows.items())]

    @property
    def layers(self) -> list[list[TypedLayer]]:
        """For each layer the types that it computes."""
        reach = self.model.reach
        return [[self._layer(number, t) for t in reach.computed(number)] for number in range(reach.depth)]

    def _layer(self, number: int, node_type: str) -> TypedLayer:
        edges = [e for e in self.model.reach.edges(number) if e[2] == node_type]
        reads = tuple(sorted({node_type, *(e[0] for e in edges)}))
        return TypedLayer(node_type, reads, tuple(map("__".join, edges)), partial(self._compute, number, node_type))

    @torch.no_grad()
    def _compute(self, number: int, node_type: str, block: TypedBlock) -> Floats:
        """Rows of one type. Layers are called with all types that they know; the others have no rows here."""
        reach = self.model.reach
        nothing = torch.zeros(0, self.model.decoder.in_features, device=self.device)
        x = {t: self._rows(number, t, block) if t in block.x else nothing for t in reach.read(number)}
        computed = {t: block.targets if t == node_type else 0 for t in reach.computed(number)}
        edges = {e: self._edges(e, block, node_type) for e in reach.edges(number)}
        out: torch.Tensor = self.model.layers[number](x, computed, edges)[node_type]
        if number == reach.depth - 1 and not self.hidden:
            out = self.model.decoder(out)
        found: Floats = out.float().cpu().numpy()
        return found

    def _rows(self, number: int, node_type: str, block: TypedBlock) -> torch.Tensor:
        rows = torch.from_numpy(np.require(block.x[node_type], requirements="W")).to(self.device)
        encodes = number == 0 and node_type in self.model.encoders
        return F.relu(self.model.encoders[node_type](rows)) if encodes else rows

    def _edges(self, edge_type: EdgeTriple, block: TypedBlock, node_type: str) -> torch.Tensor:
        if edge_type[2] != node_type:
            return torch.zeros(2, 0, dtype=torch.int64, device=self.device)
        ends = block.edges["__".join(edge_type)]
        return torch.from_numpy(np.ascontiguousarray(ends)).to(self.device)


def _learnt(rows: Floats, block: TypedBlock) -> Floats:
    return rows[block.places]
