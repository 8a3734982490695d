"""Cut a graph folder into a partitioned dataset: one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.observe.progress import Progress, shown
from atta.partition.cutting.balance import missed_lines
from atta.partition.cutting.writer import check_parts, write_dataset
from atta.partition.dataset import MANIFEST
from atta.partition.deploy import local_graph, sent
from atta.partition.disk.staging import check_replaceable
from atta.partition.disk.store import is_url
from atta.partition.graph import Graph
from atta.partition.importers import refuse_unimported
from atta.partition.methods import bounds_of, check_balance, make_method
from atta.partition.schema import Schema

MOST_ROOM = 1 << 40
"""Of a type: more is a typing error."""


def partition_graph(
    src: str | Path,
    dst: str | Path,
    *,
    parts: int,
    method: str = "metis",
    options: Mapping[str, Any] | None = None,
    fallback: str | None = None,
    seed: int = 0,
    balance: Sequence[str] | None = None,
    room: str | int = 0,
    overwrite: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Partition the graph folder ``src`` into the dataset ``dst``; each may be a URL of object storage. ``dst`` appears
    complete or not at all.

    Args:
        parts: number of partitions, from 1 to that of vertices.
        method, options: a name in ``methods.METHODS``, and values of the fields of its class.
        fallback: the method to use if the first one fails or would not fit into memory.
        seed: seed of the method, 0 to 2**63 - 1.
        balance: every partition should get an equal share of these: ``nodes``, ``edges``, names of splits. None: what
            the method balances by itself (metis: nodes, edges, train).
        room: vertices that nobody uses yet, for ``atta update nodes``: how many of each node type, such as ``1000`` or
            ``"5%"``, or by type, ``"user=1000,film=5%"``. Every partition gets as many.
        verify: check the graph folder's checksums first.

    Returns what the dataset's manifest says of its making. With the ``fallback``, ``method`` is its name and ``failed``
    says why the first method is not. ``missed`` has a line for each bound of the balance that was missed. Raises
    ConfigError: an option is wrong, a method cannot balance what ``balance`` names, or ``dst`` may not be written;
    DataError: the graph folder is damaged."""
    check_seed(seed)
    chosen = make_method(method, options)
    second = None if fallback is None else make_method(fallback)
    for each in (chosen, second):
        check_balance(each, balance)
    progress = shown(progress)
    if is_url(dst):
        with sent(str(dst), MANIFEST, overwrite=overwrite, progress=progress) as made:
            again: dict[str, Any] = {"options": options, "fallback": fallback, "seed": seed, "balance": balance}
            again["room"] = room
            return partition_graph(src, made, parts=parts, method=method, verify=verify, progress=progress, **again)
    if not is_url(src):
        refuse_unimported(src)
    check_replaceable(dst, MANIFEST, overwrite=overwrite)
    graph = Graph.open(local_graph(src, progress=progress), verify=verify)
    check_parts(parts, graph)
    more = room_of(graph.schema, room)
    how = how_made(method, parts, seed, balance, options)
    try:
        owners = chosen.assign(graph, parts, seed=seed, balance=balance, progress=progress)
    except (ConfigError, UnknownNameError):
        raise
    except AttaError as error:
        if second is None:
            raise
        progress.stage(f"{method}: {error}; instead: {fallback}", None)
        how |= {"method": fallback, "options": {}, "failed": f"{method}: {error}"}
        chosen = second
        owners = second.assign(graph, parts, seed=seed, balance=balance, progress=progress)
    bounds = bounds_of(chosen, graph, balance)
    owners |= {t: np.append(owners[t], np.arange(count, dtype=np.int32) % parts) for t, count in more.items()}
    quality = write_dataset(
        graph.with_room(more), owners, dst, parts, bounds=bounds, provenance=how, overwrite=overwrite, progress=progress
    )
    return how | {"missed": missed_lines(quality)}


def room_of(schema: Schema, given: str | int) -> dict[str, int]:
    """By node type, how many vertices its room has: see ``partition_graph``. Raises ConfigError: this says no numbers;
    UnknownNameError: there is no such type."""
    found: dict[str, int] = {}
    for text in str(given).split(","):
        name, _, number = text.strip().rpartition("=")
        digits = number.removesuffix("%")
        if not (digits.isascii() and digits.isdigit()) or int(digits) > MOST_ROOM:
            raise ConfigError(f"--room {given}: give a number or a share such as 5%, or TYPE=NUMBER for some types")
        for node_type in [schema.check_node_type(name)] if name else schema.node_types:
            count = schema.node_counts[node_type]
            found[node_type] = -(-count * int(digits) // 100) if number.endswith("%") else int(digits)
    return {node_type: count for node_type, count in found.items() if count}


def check_seed(seed: int) -> None:
    """Raise ConfigError if not every method could begin with this seed."""
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed {seed}: must be 0 to 2**63 - 1")


def how_made(
    method: str, parts: int, seed: int, balance: Sequence[str] | None, options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a dataset's manifest says of its making."""
    about = {"command": "partition", "method": method, "parts": parts, "seed": seed}
    return about | {"balance": list(balance) if balance else None, "options": dict(options or {})}
