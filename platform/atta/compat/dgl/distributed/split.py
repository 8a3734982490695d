"""``node_split`` and ``edge_split``: the share of the vertices or edges that each trainer works on."""

from __future__ import annotations

from typing import Any

import numpy as np

from atta.compat.dgl.distributed.book import GraphPartitionBook, PartitionPolicy, tensor
from atta.compat.dgl.distributed.tensor import DistRows, pieces
from atta.errors import ConfigError
from atta.samplers.arguments import integers, whole


def node_split(  # noqa: PLR0917 - as in DGL
    nodes: Any,
    partition_book: GraphPartitionBook | None = None,
    ntype: str = "_N",
    rank: int | None = None,
    force_even: bool = True,
    node_trainer_ids: Any = None,
) -> Any:
    """The ids of this trainer's share of the vertices, int64.

    Args:
        nodes: mask over the vertices of the type: a tensor, an array, or one of ``g.ndata``. As in DGL, any number but
            0 counts, so ``np.arange(g.num_nodes())`` leaves vertex 0 out.
        partition_book: of the graph; may be left out if ``nodes`` is one of ``g.ndata``.
        ntype, rank: their type, and whose share; default: this trainer's.
        force_even: all trainers get equally many, give or take one, in the order of the parts, so most are near. False:
            the vertices of the trainer's part, divided among the trainers of the part.
        node_trainer_ids: the trainer of each vertex of the type, such as ``g.ndata["trainer_id"]``. With ``force_even``
            shares follow it as far as they stay even. With more trainers than there are, neighbours are joined.
    """
    book = _book(nodes, partition_book)
    policy = book.nodes(_type_of(nodes, ntype, book.types.node_type))
    return tensor(_share(_chosen(nodes, policy), policy, rank, node_trainer_ids, force_even=force_even))


def edge_split(  # noqa: PLR0917 - as in DGL
    edges: Any,
    partition_book: GraphPartitionBook | None = None,
    etype: Any = "_E",
    rank: int | None = None,
    force_even: bool = True,
    edge_trainer_ids: Any = None,
) -> Any:
    """The ids of this trainer's share of the edges, int64; see ``node_split``. An edge is near its destination."""
    book = _book(edges, partition_book)
    policy = book.edges(_type_of(edges, etype, book.types.edge_type))
    return tensor(_share(_chosen(edges, policy), policy, rank, edge_trainer_ids, force_even=force_even))


def share(places: np.ndarray, rank: int, world: int) -> slice:
    """Which of ``places`` elements, in the order of the parts, a rank gets: shares differ by at most one."""
    return slice(len(places) * rank // world, len(places) * (rank + 1) // world)


def _book(chosen: Any, given: GraphPartitionBook | None) -> GraphPartitionBook:
    if given is None and isinstance(chosen, DistRows):
        return chosen.part_policy.partition_book
    if not isinstance(given, GraphPartitionBook):
        raise ConfigError("give the partition_book of the graph: g.get_partition_book()")
    return given


def _type_of(chosen: Any, name: Any, by_name: Any) -> str:
    plain = name in ("_N", "_E")
    return str(chosen.part_policy.type_name if plain and isinstance(chosen, DistRows) else by_name(name))


def _chosen(mask: Any, policy: PartitionPolicy) -> np.ndarray:
    _check_length("a mask", mask, policy)
    if not isinstance(mask, DistRows):
        return np.flatnonzero(_values(mask))
    if (members := getattr(mask, "members", None)) is not None:
        return np.asarray(members())
    return np.concatenate([np.flatnonzero(mask[piece].numpy()) + piece.start for piece in pieces(len(mask), 1 << 20)])


def _check_length(what: str, given: Any, policy: PartitionPolicy) -> None:
    if len(given) != (count := policy.get_size()):
        raise ConfigError(f"{what} of {len(given)} for the {count} {policy.kind} of {policy.type_name}")


def _values(given: Any) -> np.ndarray:
    return np.asarray(given.detach().cpu().numpy() if hasattr(given, "detach") else given)


def _trainers(given: Any, ids: np.ndarray, policy: PartitionPolicy, world: int) -> np.ndarray:
    """int64 [n]: the trainer that each of ``ids`` is given to; zeros if nobody says it."""
    if given is None:
        return np.zeros(len(ids), np.int64)
    _check_length("trainer ids", given, policy)
    found = integers("trainer ids", _values(given[ids]))
    return found * world // max(world, int(found.max(initial=0)) + 1)


def _share(
    ids: np.ndarray, policy: PartitionPolicy, rank: int | None, trainers_of: Any, *, force_even: bool
) -> np.ndarray:
    book = policy.partition_book
    world = book.job.world
    rank = book.job.rank if rank is None else whole("rank", rank, 0, world - 1)
    order = policy.order(ids)
    if force_even:
        near = np.lexsort((order, _trainers(trainers_of, ids, policy, world)))
        return np.sort(ids[near[share(near, rank, world)]])
    bounds, mine = policy.bounds, []
    for part in range(book.num_partitions()):
        if rank in (trainers := book.trainers(part)):
            held = ids[(order >= bounds[part]) & (order < bounds[part + 1])]
            mine.append(held[share(held, trainers.index(rank), len(trainers))])
    return np.sort(np.concatenate(mine)) if mine else np.empty(0, np.int64)
