"""What a loader iterates over, as the message that opens a session: vertices, edges, or batches that need no seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atta.errors import ConfigError, UnknownNameError
from atta.partition.schema import Schema
from atta.protos.v1 import session_pb2

__all__ = ["InputNodes", "as_ids", "edge_type_name", "link_seeds", "node_seeds", "part_seeds", "sized_seeds", "typed"]

InputNodes = str | ArrayLike | tuple[str, str | ArrayLike | None] | None


def typed(schema: Schema, input_nodes: InputNodes) -> tuple[str, str | ArrayLike | None]:
    """(node type, split or ids): the only node type unless ``input_nodes`` names one."""
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    return schema.node_types[0], input_nodes


def node_seeds(schema: Schema, input_nodes: InputNodes, input_time: Any = None) -> session_pb2.Seeds:
    """Vertices: a split's name, user ids (and their times for temporal sampling), or None for all of the type."""
    node_type, source = typed(schema, input_nodes)
    if node_type not in schema.node_types:
        raise UnknownNameError.of("node type", node_type, schema.node_types)
    if (source is None or isinstance(source, str)) and input_time is not None:
        raise ConfigError("input_time: goes with ids, the vertices of a split have no order")
    if source is None:
        return session_pb2.Seeds(node_type=node_type, all=True)
    if isinstance(source, str):
        if source not in schema.splits.get(node_type, {}):
            raise UnknownNameError.of("split", source, schema.splits.get(node_type, {}))
        return session_pb2.Seeds(node_type=node_type, split=source)
    ids = as_ids("input_nodes", source)
    message = session_pb2.Seeds(node_type=node_type, ids=ids.tobytes())
    message.times = _times("input_time", input_time, len(ids))
    return message


def sized_seeds(schema: Schema, node_type: str | None, batches: Sequence[ArrayLike] | int) -> session_pb2.Seeds:
    """Batches cut by the user: the ids of each, or only how many there are."""
    name = schema.node_types[0] if node_type is None else schema.check_node_type(node_type)
    if isinstance(batches, int):
        if batches < 1:
            raise ConfigError(f"batches {batches}: must be at least 1")
        return session_pb2.Seeds(node_type=name, batches=batches)
    ids = [as_ids("batches", batch) for batch in batches]
    if not ids:
        raise ConfigError("batches: there are none")
    sizes = np.array([len(batch) for batch in ids], dtype=np.int64)
    return session_pb2.Seeds(node_type=name, ids=np.concatenate(ids).tobytes(), sizes=sizes.tobytes())


def part_seeds(node_type: str, part: int) -> session_pb2.Seeds:
    """One batch: the vertices of a type that belong to partition ``part``, by ascending user id."""
    return session_pb2.Seeds(node_type=node_type, part=part)


def link_seeds(
    schema: Schema, edge_type: str, ends: Any, times: Any, *, exclude: bool, exclude_reverse: str | None
) -> session_pb2.Seeds:
    """Edges ``ends`` [2, E] (user ids, sources first) of ``edge_type``."""
    index = np.asarray(ends)
    if index.ndim != 2 or index.shape[0] != 2 or not np.issubdtype(index.dtype, np.integer):
        raise ConfigError(f"edge_label_index: must be integers [2, E], not {index.dtype} of shape {index.shape}")
    pair = np.ascontiguousarray(index, dtype=np.int64)
    message = session_pb2.Seeds(node_type=schema.endpoints(edge_type)[1])
    message.links.edge_type = edge_type
    message.links.sources, message.links.targets = pair[0].tobytes(), pair[1].tobytes()
    message.links.exclude, message.links.exclude_reverse = exclude, exclude_reverse or ""
    message.times = _times("edge_label_time", times, pair.shape[1])
    return message


def edge_type_name(schema: Schema, edge_type: Any) -> str:
    """``"src__rel__dst"`` of a name, a triple, or None where there is one edge type."""
    if edge_type is None:
        if len(schema.edge_types) != 1:
            raise ConfigError(f"name an edge type: {', '.join(schema.edge_types)}")
        return schema.edge_types[0]
    return schema.check_edge_type(edge_type if isinstance(edge_type, str) else "__".join(edge_type))


def as_ids(what: str, source: Any) -> np.ndarray:
    """``source`` as int64 [n]."""
    ids = np.asarray(source)
    if ids.dtype == np.bool_:
        raise ConfigError(f"{what}: give ids or the name of a split, not a mask (masks depend on an order of vertices)")
    if ids.ndim != 1 or not (np.issubdtype(ids.dtype, np.integer) or ids.size == 0):
        raise ConfigError(f"{what}: ids must be a 1-D integer array, not {ids.dtype} of shape {ids.shape}")
    return np.ascontiguousarray(ids, dtype=np.int64)


def _times(what: str, times: Any, count: int) -> bytes:
    if times is None:
        return b""
    array = np.asarray(times)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(f"{what}: must be {count} integers, not {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array, dtype=np.int64).tobytes()
