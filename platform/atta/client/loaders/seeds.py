"""Turns what a loader iterates over (vertices, edges, or a number of batches) into the message that opens a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atta.client.tables.string_ids import StringIds
from atta.errors import ConfigError, UnknownNameError
from atta.partition.graph.strings import as_strings
from atta.partition.schema import Schema
from atta.protos.v1 import session_pb2
from atta.samplers.arguments import integers, names, whole
from atta.samplers.seed_plan import SeedPolicy, count_batches, count_sized

MAX_BATCHES = 1 << 31
"""Most batches per epoch of an operator that draws them by itself."""

InputNodes = str | ArrayLike | tuple[str, str | ArrayLike | None] | Mapping[str, ArrayLike] | None


def typed(schema: Schema, input_nodes: InputNodes) -> tuple[str, str | ArrayLike | None]:
    """Node type and source (the name of a split, user ids, or None for all): the type that ``input_nodes`` names, the
    only one, or the only one that has such a split. Raises ConfigError: there are several types and none is named.
    Ids mean other vertices in each type."""
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        return input_nodes
    if isinstance(input_nodes, Mapping):
        raise ConfigError("input_nodes: only NeighborLoader takes seeds of several node types")
    types: Sequence[str] = schema.node_types
    if len(types) > 1 and isinstance(input_nodes, str):
        types = [t for t in types if input_nodes in schema.splits[t]]
        if not types:
            raise UnknownNameError.of("split", input_nodes, {name for t in schema.splits.values() for name in t})
    if len(types) != 1:
        raise ConfigError(f"input_nodes: name a node type, as in ({types[0]!r}, ...); there are {', '.join(types)}")
    return types[0], input_nodes


def user_ids(ids: StringIds, what: str, node_type: str, given: Any) -> np.ndarray:
    """int64 [n]: ``given``, with numbers in place of string ids. Daemons are asked only where there are strings. Raises
    UnknownNameError: no vertex has one of the string ids. ConfigError: as of ``as_ids``."""
    strings = as_strings(what, given)
    return as_ids(what, given) if strings is None else ids.numbers(strings, node_type)


def edge_ends(ids: StringIds, edge_type: str, ends: Any) -> np.ndarray:
    """``ends`` of edges as int64 [2, E], with numbers in place of string ids. Each end is of its own node type. Raises
    ConfigError: there are not two rows of whole numbers; UnknownNameError: no vertex has one of the string ids."""
    shape: Any = getattr(ends, "shape", (len(ends), 0) if isinstance(ends, list | tuple) else ())
    if len(shape) == 2 and shape[0] == 2 and any(as_strings("edge_label_index", row) is not None for row in ends):
        types = ids.schema.endpoints(edge_type)
        numbers = [ids.numbers(row, node_type) for row, node_type in zip(ends, types, strict=True)]
        if len({row.shape for row in numbers}) != 1:
            raise ConfigError(f"edge_label_index: {len(numbers[0])} sources for {len(numbers[1])} targets")
        return np.stack(numbers)
    found = integers("edge_label_index", ends)
    if found.ndim != 2 or found.shape[0] != 2:
        raise ConfigError(f"edge_label_index: must be integers [2, E], not of shape {list(found.shape)}")
    return found


def node_seeds(ids: StringIds, input_nodes: InputNodes, input_time: Any = None) -> session_pb2.Seeds:
    """The vertices of a split, user ids, or None for all of the type; and their times for temporal sampling."""
    schema = ids.schema
    node_type, source = typed(schema, input_nodes)
    schema.check_node_type(node_type)
    message = session_pb2.Seeds(node_type=node_type)
    if source is None:
        count, message.all = schema.in_use(node_type), True
    elif isinstance(source, str):
        known = schema.splits.get(node_type, {})
        if known and source not in known:
            raise UnknownNameError.of("split", source, known)
        count, message.split = schema.split_size(node_type, source), source
    else:
        found = user_ids(ids, "input_nodes", node_type, source)
        count, message.ids = len(found), found.tobytes()
    message.times = _times("input_time", input_time, count)
    return message


def ids_by_type(ids: StringIds, input_nodes: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """The user ids of seeds of several types, int64 [n] each, numbers in place of string ids. Types without ids are
    left out, but for the first one if there are none at all. Raises ConfigError: no type is named, or ids are none.
    UnknownNameError: a type or a vertex does not exist."""
    found = {}
    for node_type, given in input_nodes.items():
        ids.schema.check_node_type(node_type)
        if given is None or isinstance(given, str):
            raise ConfigError(f"input_nodes of {node_type!r}: seeds of several types are given by ids, not {given!r}")
        found[node_type] = user_ids(ids, f"input_nodes of {node_type!r}", node_type, given)
    if not found:
        raise ConfigError("input_nodes: the mapping names no node type")
    return {t: some for t, some in found.items() if len(some)} or dict([*found.items()][:1])


def typed_seeds(schema: Schema, by_type: Mapping[str, np.ndarray]) -> session_pb2.Seeds:
    """Vertices of several types, in the order of ``by_type``."""
    numbers = [np.full(len(ids), schema.node_types.index(t), np.int32) for t, ids in by_type.items()]
    message = session_pb2.Seeds(node_type=next(iter(by_type)), ids=np.concatenate([*by_type.values()]).tobytes())
    if len(by_type) > 1:
        message.types = np.concatenate(numbers).tobytes()
    return message


def sized_seeds(ids: StringIds, node_type: str, batches: Any) -> session_pb2.Seeds:
    """Batches cut by the user: the ids of each, or only their number. String ids of all are looked up at once. Raises
    ConfigError: some batches have strings and some have numbers. UnknownNameError: no vertex has one of the strings."""
    if isinstance(batches, int | float | str | np.generic):
        return session_pb2.Seeds(node_type=node_type, batches=whole("batches", batches, 1, MAX_BATCHES))
    given = [*batches]
    if not given:
        raise ConfigError("batches: there are none")
    found = [as_strings("batches", batch) for batch in given]
    strings = [batch for batch in found if batch is not None]
    if strings and any(batch is None and len(one) for batch, one in zip(found, given, strict=True)):
        raise ConfigError("batches: some have string ids, others have numbers")
    numbers = [ids.numbers(np.concatenate(strings), node_type)] if strings else [as_ids("batches", b) for b in given]
    sizes = np.array([len(batch) for batch in (given if strings else numbers)], dtype=np.int64)
    return session_pb2.Seeds(node_type=node_type, ids=np.concatenate(numbers).tobytes(), sizes=sizes.tobytes())


def part_seeds(node_type: str, part: int) -> session_pb2.Seeds:
    """One batch: the vertices of a type that belong to partition ``part``, by ascending user id."""
    return session_pb2.Seeds(node_type=node_type, part=part)


def link_seeds(
    schema: Schema, edge_type: str, ends: Any, times: Any, *, exclude: bool, exclude_reverse: str | None
) -> session_pb2.Seeds:
    """Edges ``ends`` [2, E] (user ids, sources first) of ``edge_type``."""
    pair = integers("edge_label_index", ends)
    message = session_pb2.Seeds(node_type=schema.endpoints(edge_type)[1])
    message.links.edge_type = edge_type
    message.links.sources, message.links.targets = pair[0].tobytes(), pair[1].tobytes()
    message.links.exclude, message.links.exclude_reverse = exclude, exclude_reverse or ""
    message.times = _times("edge_label_time", times, pair.shape[1])
    return message


def batches_of(schema: Schema, request: session_pb2.OpenRequest) -> int:
    """Number of batches per epoch of the session that ``request`` opens; raises ConfigError where the daemon would."""
    seeds, rank, world = request.seeds, request.rank, request.world_size
    source = seeds.WhichOneof("source")
    if source == "part":
        return 1
    if source == "batches" or seeds.sizes:
        count = seeds.batches if source == "batches" else len(seeds.sizes) // 8
        return count_sized(count, rank=rank, world=world, pad=request.pad)
    match source:
        case "split":
            found = schema.split_size(seeds.node_type, seeds.split)
        case "all":
            found = schema.in_use(schema.check_node_type(seeds.node_type))
        case "links":
            found = len(seeds.links.sources) // 8
        case _:
            found = len(seeds.ids) // 8
    return count_batches(
        found, batch_size=request.batch_size, policy=SeedPolicy(request.policy), rank=rank, world=world,
        drop_last=request.drop_last, pad=request.pad,
    )  # fmt: skip


def tables_by_type(
    given: Mapping[str, Sequence[str] | str] | Sequence[str] | str | None, node_types: Iterable[str]
) -> dict[str, list[str]] | None:
    """Names of node tables by node type. A list or a single name stands for ``node_types``; None: all tables."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {t: names(f"tables of node type {t!r}", of_type) for t, of_type in given.items()}
    return {t: names("tables", given) for t in node_types}


def edge_type_name(schema: Schema, edge_type: Any) -> str:
    """``"src__rel__dst"`` from such a name, a triple, or None if there is one edge type."""
    if edge_type is None:
        if len(schema.edge_types) != 1:
            raise ConfigError(f"name an edge type: {', '.join(schema.edge_types)}")
        return schema.edge_types[0]
    if not isinstance(edge_type, str | tuple | list) or not all(isinstance(part, str) for part in edge_type):
        raise ConfigError(f"edge type {edge_type!r}: must be 'src__rel__dst' or a triple of names")
    return schema.find_edge_type(edge_type)


def as_ids(what: str, source: Any) -> np.ndarray:
    """``source`` as int64 [n]. Raises ConfigError: it is a mask or has another shape, or a number is not whole or does
    not fit into int64."""
    if "bool" in str(getattr(source, "dtype", "")):  # of numpy or torch
        raise ConfigError(f"{what}: give ids or the name of a split, not a mask (masks depend on an order of vertices)")
    ids = integers(what, source)
    if ids.ndim != 1:
        raise ConfigError(f"{what}: ids must be a 1-D integer array, not of shape {list(ids.shape)}")
    return ids


def _times(what: str, times: Any, count: int) -> bytes:
    if times is None:
        return b""
    array = integers(what, times)
    if array.shape != (count,):
        raise ConfigError(f"{what}: must be {count} integers, not of shape {list(array.shape)}")
    return array.tobytes()
