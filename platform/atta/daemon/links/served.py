"""What a daemon serves over links, and how edge types, node types and tables are numbered there."""

from __future__ import annotations

from collections.abc import Sequence

from atta import _native
from atta.kvstore.store import Store
from atta.partition.schema import Schema
from atta.samplers.kernels.arrays import as_bytes, beside
from atta.samplers.methods import Method
from atta.samplers.methods.base import Tables
from atta.samplers.shard import Shard

__all__ = ["Numbers", "register"]

MOST_TABLES = 63
"""Most tables of a node type that links carry. Rows of others travel by messages."""


class Numbers:
    """The numbers of a schema's names in frames. Daemons of one dataset have the same schema, so they agree on them."""

    def __init__(self, schema: Schema) -> None:
        self.edge_types = {name: number for number, name in enumerate(sorted(schema.edge_types))}
        self.node_types = {name: number for number, name in enumerate(sorted(schema.node_types))}
        self.tables = {node_type: sorted(tables)[:MOST_TABLES] for node_type, tables in schema.node_tables.items()}

    def bits(self, node_type: str, tables: Sequence[str]) -> int:
        """A bit for each of ``tables``; 0: links do not carry one of them, or one is named twice."""
        known, bits = self.tables[node_type], 0
        for name in tables:
            if name not in known or bits & (bit := 1 << known.index(name)):
                return 0
            bits |= bit
        return bits


def register(links: _native.Links, numbers: Numbers, shard: Shard, store: Store) -> None:
    """Hand the partition to the links. Methods that need tables follow when they are first prepared."""
    for edge_type in numbers.edge_types:  # in the order of their numbers
        csc, target = shard.drawn(edge_type), shard.dataset.schema.endpoints(edge_type)[1]
        indices, edge_ids = beside(csc.indices, csc.edge_ids)
        assert edge_ids is not None
        number = links.add_edges(csc.indptr, indices, edge_ids, shard.keys(target))
        links.prepare(number, Method.UNIFORM.number, None)
    for node_type, number in numbers.node_types.items():
        for name in numbers.tables[node_type]:
            links.add_table(number, as_bytes(store.table(node_type, name).data))

    def prepared(edge_type: str, method: Method, tables: Tables | None) -> None:
        if tables is None or isinstance(tables, _native.Method):
            links.prepare(numbers.edge_types[edge_type], method.number, tables)

    shard.on_prepared = prepared
