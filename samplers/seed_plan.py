"""Plan which seeds each rank gets in which batch (DistDGL §4.1, two-level split), the same on every daemon, and where
trainers are placed.

- GLOBAL: one permutation of all seeds per epoch, by the users' ids alone; batch g is its g-th slice and belongs to rank g
  mod W.
- LOCAL: the seeds in internal order are cut into W even ranges, so a trainer's seeds lie with the daemon that serves it.
  Trainers of one machine split the union of their ranges at random, once for all epochs. Each epoch permutes a rank's seeds.

Padding gives all ranks the same number of batches, none without seeds, and repeats as few seeds as possible. GLOBAL
spreads what is left for the last round evenly over the ranks; fewer than W seeds start again at the front. LOCAL, and
batches that the user has cut: a rank with one batch less repeats its first seed (or batch), one with nothing borrows. With
``drop_last`` all batches are full. How many batches a rank gets is a function of the number of seeds alone."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atta.errors import ConfigError
from atta.samplers.hashing import ascending, hash_string, permutation, stream_key

Ints = NDArray[np.int64]
Stored = NDArray[np.int64] | NDArray[np.int32]


class SeedPolicy(enum.Enum):
    """How seeds are divided among ranks: near their owners, or by one permutation that ignores partitions."""

    LOCAL = 0
    GLOBAL = 1


@dataclass(frozen=True)
class SeedPlan:
    """The seeds of one rank in one epoch, batch after batch."""

    seeds: Stored  # [S] internal ids
    input_id: Stored  # [S] position of each seed in the user's input
    batch_size: int
    batches: int  # of this rank
    rank: int
    world: int
    starts: Ints | None = None  # [batches + 1] where batches begin in ``seeds``, if their sizes are given

    def narrowed(self) -> SeedPlan:
        """The same plan, in half the memory where its numbers are small. A session of all vertices keeps it long."""
        most = max((int(array.max(initial=0)) for array in (self.seeds, self.input_id)), default=0)
        if most > np.iinfo(np.int32).max:
            return self
        return dataclasses.replace(self, seeds=self.seeds.astype(np.int32), input_id=self.input_id.astype(np.int32))

    def batch_slice(self, index: int) -> slice:
        """Where this rank's ``index``-th batch lies in ``seeds``. Raises IndexError outside 0..batches-1."""
        if not 0 <= index < self.batches:
            raise IndexError(f"batch {index} of {self.batches}")
        if self.starts is not None:
            return slice(int(self.starts[index]), int(self.starts[index + 1]))
        start = index * self.batch_size
        return slice(start, min(start + self.batch_size, len(self.seeds)))

    def batch_id(self, index: int) -> int:
        """Global id of this rank's ``index``-th batch."""
        return index * self.world + self.rank

    def batch_ids(self, first: int = 0) -> range:
        """Global ids of this rank's batches, from its ``first``-th batch on."""
        return range(self.batch_id(first), self.batch_id(self.batches), self.world)

    def index_of(self, batch_id: int) -> int:
        """The inverse of ``batch_id``."""
        return batch_id // self.world


def home_of(rank: int, world: int, parts: int) -> int:
    """The partition whose daemon serves ``rank``: contiguous ranks share a home."""
    return rank * parts // world


def local_count(seeds: int, rank: int, world: int) -> int:
    """How many of ``seeds`` a rank has under the policy LOCAL, before padding."""
    return seeds * (rank + 1) // world - seeds * rank // world


def local_counts(seeds: int, world: int) -> list[int]:
    """``local_count`` of each of ``world`` ranks: [W]. The counts differ by at most one."""
    return [local_count(seeds, rank, world) for rank in range(world)]


def count_batches(
    seeds: int,
    *,
    batch_size: int,
    policy: SeedPolicy = SeedPolicy.LOCAL,
    rank: int = 0,
    world: int = 1,
    drop_last: bool = False,
    pad: bool = True,
) -> int:
    """How many batches ``plan_seeds`` gives ``rank`` of ``world`` in every epoch. Raises the errors of
    ``plan_seeds``."""
    if seeds == 0:
        raise ConfigError("no seeds: the list of ids is empty")
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}, must be at least 1")
    _check_rank(rank, world)
    local = policy is SeedPolicy.LOCAL
    mine, fewest, most = local_count(seeds, rank, world), seeds // world, -(-seeds // world)
    if drop_last:
        richest = fewest if pad else most if local else seeds  # number of seeds that a batch can be filled from
        if richest < batch_size:
            raise ConfigError(
                f"drop_last leaves no batch: {seeds} seeds for {world} trainers do not fill batches of {batch_size}; "
                "use drop_last=False" + (f" or a batch size of at most {richest}" if richest else "")
            )
        if pad:
            return fewest // batch_size
        return mine // batch_size if local else _dealt(seeds // batch_size, rank, world)
    if pad:
        return -(-most // batch_size)
    return -(-mine // batch_size) if local else _dealt(-(-seeds // batch_size), rank, world)


def count_sized(batches: int, *, rank: int, world: int, pad: bool = True) -> int:
    """How many of ``batches`` ``plan_sized`` gives ``rank`` of ``world``."""
    return -(-batches // world) if pad else _dealt(batches, rank, world)


def plan_seeds(
    internal: Ints,
    user_ids: Ints,
    *,
    batch_size: int,
    parts: int,
    policy: SeedPolicy = SeedPolicy.LOCAL,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    pad: bool = True,
    position: Ints | None = None,
) -> SeedPlan:
    """Plan one epoch of one rank; the module docstring has the rules.

    internal: [n] int64 internal ids of the chosen seeds, in any order. user_ids: [n] int64 their user ids. position:
    [n] int64 where each seed stands in the user's input; None for a named split, which is in ascending order of user
    ids. Without ``shuffle`` a rank's seeds come in that order. ``parts`` is the number of partitions.

    Raises ConfigError if there are no seeds, if ``drop_last`` leaves no rank a batch, and for arguments out of range.
    Without padding a rank that has no seeds has no batch."""
    n = len(internal)
    if len(user_ids) != n or (position is not None and len(position) != n):
        raise ConfigError("internal ids, user ids and positions of the seeds differ in number")
    if parts < 1:
        raise ConfigError(f"parts is {parts}, must be at least 1")
    batches = count_batches(
        n, batch_size=batch_size, policy=policy, rank=rank, world=world, drop_last=drop_last, pad=pad
    )
    # The input order breaks ties of the hash (a seed given twice). It is the same for any partitioning.
    order = ascending(user_ids if position is None else position)
    internal, user_ids = internal[order], user_ids[order]
    key = stream_key(seed, epoch, 0, 0, hash_string("seed order"))
    if policy is SeedPolicy.GLOBAL:
        dealt = permutation(user_ids, key) if shuffle else np.arange(n, dtype=np.int64)
        chosen = _dealt_share(dealt, batch_size, rank, world, batches=batches, pad=pad)
    else:
        chosen = np.sort(
            _local_share(internal, user_ids, rank, world, parts=parts, seed=seed, borrow=pad and not drop_last)
        )
        chosen = chosen[permutation(user_ids[chosen], key)] if shuffle else chosen  # else in the user's order
        if drop_last:
            chosen = chosen[: batches * batch_size]
        elif pad and len(chosen) <= (batches - 1) * batch_size:  # the last batch would be empty
            chosen = np.concatenate([chosen, chosen[:1]])
    places = np.arange(n, dtype=np.int64) if position is None else np.asarray(position, np.int64)[order]
    return SeedPlan(internal[chosen], places[chosen], batch_size, batches, rank, world)


def plan_unseeded(batches: int, *, rank: int, world: int, pad: bool = True) -> SeedPlan:
    """Plan ``batches`` without seeds, for operators that need no seeds. The plan takes no memory per batch. Rank r of W
    gets batches r, r + W, r + 2W, ... With ``pad`` an incomplete last round is filled up, so that all ranks have
    equally many. Raises ConfigError if there is no batch, and for a rank that does not exist."""
    if batches < 1:
        raise ConfigError(f"{batches} batches: must be at least 1")
    _check_rank(rank, world)
    nothing = np.empty(0, dtype=np.int64)
    return SeedPlan(nothing, nothing, 0, count_sized(batches, rank=rank, world=world, pad=pad), rank, world)


def plan_sized(internal: Ints, sizes: Ints, *, rank: int, world: int, pad: bool = True) -> SeedPlan:
    """Plan batches of given ``sizes`` [B], which cut ``internal`` [n] in order. Rank r of W gets batches r, r + W, ...
    With ``pad`` all ranks have equally many batches: a rank that misses one in the last round repeats its own first
    batch, or, if it has none, takes batch r mod B. Sizes of 0 are for operators that need no seeds. Raises ConfigError
    if the sizes do not add up to n, and if there is no batch."""
    count = len(sizes)
    outside = (sizes < 0) | (sizes > len(internal))  # negative or huge sizes can have the right sum
    if count == 0 or outside.any() or int(sizes.sum()) != len(internal):
        raise ConfigError(f"sizes of batches: {count} of them for {len(internal)} seeds do not add up")
    _check_rank(rank, world)
    mine = np.arange(rank, rank + world * count_sized(count, rank=rank, world=world, pad=pad), world)
    mine[mine >= count] = rank % count
    starts = np.concatenate([[0], np.cumsum(sizes[mine])])
    firsts = (np.cumsum(sizes) - sizes)[mine]  # where each batch begins in ``internal``
    chosen = np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], sizes[mine])
    return SeedPlan(internal[chosen], chosen, int(sizes.max()), len(mine), rank, world, starts)


def _check_rank(rank: int, world: int) -> None:
    if world < 1 or not 0 <= rank < world:
        raise ConfigError(f"rank {rank} does not exist among {world} trainers")


def _dealt(batches: int, rank: int, world: int) -> int:
    return max(0, -(-(batches - rank) // world))


def _dealt_share(order: Ints, size: int, rank: int, world: int, *, batches: int, pad: bool) -> Ints:
    """The rank's part of ``order``, of which batches of ``size`` are dealt out in turn."""
    rounds = len(order) // (world * size)  # rounds in which every rank has a full batch
    split = rounds * world * size
    full, rest = order[:split].reshape(rounds, world, size)[:, rank].reshape(-1), order[split:]
    if batches == rounds:
        return full
    if not pad:
        last = rest[rank * size : (rank + 1) * size]
    elif 0 < len(rest) < world:  # one each; further ranks start again at the front
        last = rest[rank : rank + 1] if rank < len(rest) else order[[(rank - len(rest)) % len(order)]]
    else:
        last = rest[len(rest) * rank // world : len(rest) * (rank + 1) // world]
    return np.concatenate([full, last])


def _local_share(internal: Ints, user_ids: Ints, rank: int, world: int, *, parts: int, seed: int, borrow: bool) -> Ints:
    """Positions of the seeds that the rank draws from; ``borrow``: one of another rank, if it has none."""
    n, by_place = len(internal), ascending(internal)
    home = home_of(rank, world, parts)
    first, stop = -(-home * world // parts), -(-(home + 1) * world // parts)  # the ranks of this home
    start = n * first // world
    together = by_place[start : n * stop // world]
    if stop - first > 1:
        key = stream_key(seed, 0, 0, 0, hash_string("trainer split"))
        together = together[permutation(user_ids[together], key)]
    mine = together[n * rank // world - start : n * (rank + 1) // world - start]
    return by_place[n * rank // world :][:1] if borrow and not len(mine) else mine


MOST_TRAINERS = 1024
"""At most this many trainers per server. A higher number is treated as a typing error."""


@dataclass(frozen=True)
class TrainerPlace:
    """A trainer: its rank among all trainers, and how many training vertices it has with mini-batches (``--seed-policy
    local``)."""

    rank: int
    training_vertices: int


@dataclass(frozen=True)
class ServerPlace:
    """A server. Server s has partition s: its numbers of vertices, in-edges, training vertices and HALO vertices, and
    the server's trainers."""

    server: int
    vertices: int
    in_edges: int
    training_vertices: int
    halo: int
    trainers: tuple[TrainerPlace, ...]


def placement(parts: Sequence[Mapping[str, Any]], trainers_per_server: int = 1) -> list[ServerPlace]:
    """The servers of a dataset, if every ``trainers_per_server`` consecutive ranks share a server. parts: counts of
    each partition, as in ``quality["parts"]`` of ``describe``; types are added up. A trainer's training vertices are
    counted before padding. All trainers get equally many, so with uneven partitions some belong to another server.
    Raises ConfigError: fewer than one trainer per server, or more than 1024."""
    if not 1 <= trainers_per_server <= MOST_TRAINERS:
        raise ConfigError(f"--trainers-per-server {trainers_per_server}: must be 1 to {MOST_TRAINERS}")
    world = len(parts) * trainers_per_server
    training = [{t: sizes.get("train", 0) for t, sizes in part["splits"].items()} for part in parts]
    by_type = [local_counts(sum(part[t] for part in training), world) for t in (training[0] if training else ())]
    trainers = [TrainerPlace(rank, sum(counts[rank] for counts in by_type)) for rank in range(world)]
    return [
        ServerPlace(
            server=server,
            vertices=sum(part["nodes"].values()),
            in_edges=sum(part["edges"].values()),
            training_vertices=sum(training[server].values()),
            halo=sum(part["halo"].values()),
            trainers=tuple(t for t in trainers if home_of(t.rank, world, len(parts)) == server),
        )
        for server, part in enumerate(parts)
    ]
