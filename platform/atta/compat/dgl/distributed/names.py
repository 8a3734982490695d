"""DGL's names of the types and tensors of a dataset."""

from __future__ import annotations

from typing import Any

from atta.errors import ConfigError, UnknownNameError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE
from atta.partition.schema import Schema, split_edge_type

_TABLES = {"feat": "x", "features": "x", "label": "y", "labels": "y"}
_MASK = "_mask"


class TypeBook:
    """Types by DGL's names: ``_N`` and ``_E`` where there is one plain type, otherwise the dataset's own names."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._plain_nodes = schema.node_types == (NODE_TYPE,)
        self._plain_edges = self._plain_nodes and schema.edge_types == (EDGE_TYPE,)

    def ntypes(self) -> list[str]:
        """Node types, in the order of their numbers."""
        return [self.ntype(t) for t in self.schema.node_types]

    def canonical_etypes(self) -> list[tuple[str, str, str]]:
        """Edge types, in the order of their numbers."""
        return [self.canonical(e) for e in self.schema.edge_types]

    def ntype(self, node_type: str) -> str:
        """DGL's name of a node type."""
        return "_N" if self._plain_nodes else node_type

    def canonical(self, edge_type: str) -> tuple[str, str, str]:
        """DGL's triple of an edge type."""
        source, relation, target = split_edge_type(edge_type)
        return self.ntype(source), "_E" if self._plain_edges else relation, self.ntype(target)

    def node_type(self, ntype: str | None) -> str:
        """The node type of DGL's name; None: the only one. Raises ConfigError and UnknownNameError."""
        known = self.schema.node_types
        if ntype is None or (ntype == "_N" and len(known) == 1):
            if len(known) > 1:
                raise ConfigError(f"name a node type: {', '.join(known)}")
            return known[0]
        return self.schema.check_node_type(ntype)

    def edge_type(self, etype: Any) -> str:
        """The edge type of DGL's name, triple or relation; None: the only one. Raises ConfigError and UnknownNameError."""
        known = self.schema.edge_types
        if etype is None or (etype == "_E" and len(known) == 1):
            if len(known) != 1:
                raise ConfigError(f"name an edge type: {', '.join(known)}")
            return known[0]
        if isinstance(etype, str):
            found = [e for e in known if etype in (e, split_edge_type(e)[1], ":".join(self.canonical(e)))]
        else:
            found = [e for e in known if tuple(etype) in (self.canonical(e), split_edge_type(e))]
        if len(found) > 1:
            raise ConfigError(f"etype {etype!r}: several edge types have this relation: {', '.join(found)}")
        if not found:
            raise UnknownNameError.of("edge type", etype, known)
        return found[0]

    def table(self, node_type: str, name: str) -> str | None:
        """The node table that holds the tensor ``name``; None: there is none."""
        tables = self.schema.node_tables[node_type]
        found = name if name in tables else _TABLES.get(name)
        return found if found in tables else None

    def split(self, node_type: str, name: str) -> str | None:
        """The split that the mask ``name`` marks; None: there is none."""
        split = name.removesuffix(_MASK)
        return split if name.endswith(_MASK) and split in self.schema.splits[node_type] else None

    def ndata(self, node_type: str) -> list[str]:
        """Names of the tensors of a node type."""
        schema = self.schema
        return [*schema.node_tables[node_type], *(f"{split}{_MASK}" for split in schema.splits[node_type])]
