"""Seed plans: every seed in its place, equal counts, the same batches for any partitioning."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from atta.errors import ConfigError
from atta.samplers.hashing import ascending, mix64, permutation
from atta.samplers.seed_plan import (
    SeedPlan,
    SeedPolicy,
    count_batches,
    count_sized,
    home_of,
    plan_seeds,
    plan_sized,
    plan_unseeded,
)

LOCAL, GLOBAL = SeedPolicy.LOCAL, SeedPolicy.GLOBAL
policies = st.sampled_from([LOCAL, GLOBAL])


def split(n: int, seed: int = 0, scale: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """A named split: ascending internal ids and the (unordered) user ids behind them."""
    rng = np.random.default_rng(seed)
    internal = np.sort(rng.choice(scale * n + 1, n, replace=False)).astype(np.int64)
    user_ids = rng.permutation(10 * n + 1)[:n].astype(np.int64) * 7 - 5
    return internal, user_ids


def ranks(internal: np.ndarray, user_ids: np.ndarray, world: int, **options: object) -> list[SeedPlan]:
    arguments: dict[str, Any] = {"batch_size": 4, "parts": 2} | options
    return [plan_seeds(internal, user_ids, rank=r, world=world, **arguments) for r in range(world)]


def batches(plan: SeedPlan) -> list[list[int]]:
    return [plan.seeds[plan.batch_slice(i)].tolist() for i in range(plan.batches)]


@settings(max_examples=300)
@given(
    n=st.integers(1, 200),
    world=st.integers(1, 9),
    parts=st.integers(1, 5),
    size=st.integers(1, 40),
    policy=policies,
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_padding_gives_equal_counts_and_fewest_repeats(
    n: int, world: int, parts: int, size: int, policy: SeedPolicy, shuffle: bool, epoch: int
) -> None:
    internal, user_ids = split(n)
    plans = ranks(internal, user_ids, world, parts=parts, batch_size=size, policy=policy, shuffle=shuffle, epoch=epoch)
    assert len({p.batches for p in plans}) == 1
    rounds = -(-n // (world * size))  # no smaller number of equal counts could hold all seeds
    assert plans[0].batches == rounds
    seen = Counter(s for p in plans for s in p.seeds.tolist())
    assert set(seen) == set(internal.tolist())
    parts_ = [b for p in plans for b in batches(p)]
    assert all(1 <= len(b) <= size for b in parts_)
    assert [s for p in plans for b in batches(p) for s in b] == [s for p in plans for s in p.seeds.tolist()]
    repeats = sum(seen.values()) - n
    # A batch needs at least one seed, and the earlier rounds are full. No plan of this kind repeats fewer seeds.
    if policy is GLOBAL:
        assert repeats == max(0, world - (n - (rounds - 1) * world * size))
    else:
        per_rank = [n * (r + 1) // world - n * r // world for r in range(world)]
        assert repeats == sum(max(0, (rounds - 1) * size + 1 - m) for m in per_rank)
    ids = [p.batch_id(i) for p in plans for i in range(p.batches)]
    assert sorted(ids) == list(range(world * rounds))
    assert all(p.index_of(p.batch_id(i)) == i for p in plans for i in range(p.batches))


@settings(max_examples=400)
@given(
    n=st.integers(1, 150),
    world=st.integers(1, 7),
    parts=st.integers(1, 4),
    size=st.integers(1, 30),
    policy=policies,
    shuffle=st.booleans(),
    pad=st.booleans(),
    drop_last=st.booleans(),
)
def test_counts_and_sizes_of_batches(
    n: int, world: int, parts: int, size: int, policy: SeedPolicy, shuffle: bool, pad: bool, drop_last: bool
) -> None:
    internal, user_ids = split(n, seed=1)
    options: dict[str, Any] = {"batch_size": size, "policy": policy, "pad": pad, "drop_last": drop_last}
    richest = n // world if pad else n if policy is GLOBAL else -(-n // world)  # most seeds that one batch can get
    if drop_last and richest < size:
        for rank in range(world):  # all ranks agree that there is nothing to do
            with pytest.raises(ConfigError, match="drop_last leaves no batch"):
                count_batches(n, rank=rank, world=world, **options)
            with pytest.raises(ConfigError, match="drop_last leaves no batch"):
                plan_seeds(internal, user_ids, parts=parts, rank=rank, world=world, **options)
        return
    plans = ranks(internal, user_ids, world, parts=parts, shuffle=shuffle, **options)
    flat = [s for p in plans for s in p.seeds.tolist()]
    counts = [count_batches(n, rank=rank, world=world, **options) for rank in range(world)]
    assert counts == [len(batches(p)) for p in plans]
    assert all(b for p in plans for b in batches(p))
    assert [s for p in plans for b in batches(p) for s in b] == flat
    if drop_last:
        assert all(len(b) == size for p in plans for b in batches(p))
        assert len(flat) == len(set(flat)) > 0
        if pad:
            assert counts == [n // world // size if policy is LOCAL else n // (world * size)] * world
        return
    if not pad:  # ranks partition the seeds
        assert all(len(b) == size for p in plans for b in batches(p)[:-1])
        assert sorted(flat) == internal.tolist()
        assert max(counts) - min(counts) <= 1
        sizes = [len(p.seeds) for p in plans]
        assert policy is GLOBAL or max(sizes) - min(sizes) <= 1


@settings(max_examples=100)
@given(n=st.integers(1, 120), world=st.integers(1, 5), shuffle=st.booleans(), pad=st.booleans(), seed=st.integers(0, 5))
def test_global_batches_do_not_depend_on_partitions(n: int, world: int, shuffle: bool, pad: bool, seed: int) -> None:
    """Two partitionings, with different relabellings and numbers of parts, give the same batches in user ids."""
    internal, user_ids = split(n, seed)
    rng = np.random.default_rng(seed + 100)
    other = rng.permutation(n)
    relabelled = np.sort(rng.choice(5 * n, n, replace=False))  # the vertices other[0], other[1], ... in internal order
    user_of = dict(zip(internal.tolist(), user_ids.tolist(), strict=True))
    user_of_other = dict(zip(relabelled.tolist(), user_ids[other].tolist(), strict=True))
    options = {"policy": GLOBAL, "shuffle": shuffle, "pad": pad, "seed": seed, "epoch": 1}
    for a, b in zip(
        ranks(internal, user_ids, world, parts=2, **options),
        ranks(relabelled, user_ids[other], world, parts=4, **options),
        strict=True,
    ):
        assert [[user_of[s] for s in x] for x in batches(a)] == [[user_of_other[s] for s in x] for x in batches(b)]
        assert a.input_id.tolist() == b.input_id.tolist()


def test_global_batches_are_slices_of_one_permutation_for_any_world() -> None:
    internal, user_ids = split(96)
    (alone,) = ranks(internal, user_ids, 1, policy=GLOBAL, seed=3, epoch=2)
    for world in (2, 3, 4):
        by_id = {
            p.batch_id(i): b
            for p in ranks(internal, user_ids, world, policy=GLOBAL, seed=3, epoch=2)
            for i, b in enumerate(batches(p))
        }
        assert [by_id[g] for g in sorted(by_id)] == batches(alone)


def test_input_ids_point_into_the_users_input() -> None:
    internal, user_ids = split(50)
    for policy in (LOCAL, GLOBAL):
        for p in ranks(internal, user_ids, 3, policy=policy):  # a named split: positions in ascending user ids
            ascending = np.sort(user_ids)
            user_of = dict(zip(internal.tolist(), user_ids.tolist(), strict=True))
            assert ascending[p.input_id].tolist() == [user_of[s] for s in p.seeds.tolist()]
        given_order = np.random.default_rng(5).permutation(50)
        for p in ranks(internal[given_order], user_ids[given_order], 3, policy=policy, position=np.arange(50)):
            assert internal[given_order][p.input_id].tolist() == p.seeds.tolist()


def test_without_shuffle_the_users_order_is_kept() -> None:
    internal, user_ids = split(40)
    order = np.random.default_rng(1).permutation(40)
    for policy in (LOCAL, GLOBAL):
        (alone,) = ranks(internal[order], user_ids[order], 1, policy=policy, shuffle=False, position=np.arange(40))
        assert alone.seeds.tolist() == internal[order].tolist()
        assert alone.input_id.tolist() == list(range(40))
        for p in ranks(internal, user_ids, 3, policy=policy, shuffle=False, pad=False):
            assert np.all(np.diff(p.input_id) > 0)


def test_a_seed_given_twice_stays_twice() -> None:
    internal, user_ids = np.array([4, 9, 4, 1]), np.array([40, 90, 40, 10])
    for policy in (LOCAL, GLOBAL):
        (alone,) = ranks(internal, user_ids, 1, policy=policy, position=np.arange(4), batch_size=3)
        assert sorted(alone.input_id.tolist()) == [0, 1, 2, 3]
        assert internal[alone.input_id].tolist() == alone.seeds.tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=60), st.integers(0, 2**64 - 1))
def test_equal_keys_stay_in_the_given_order(keys: list[int], key: int) -> None:
    ids = np.array(keys, dtype=np.int64)
    assert ascending(ids).tolist() == sorted(range(len(keys)), key=lambda i: (keys[i], i))
    # By hash, then by id, then as given: different ids have different hashes, so the second rule never decides.
    hashes = mix64(mix64(ids.view(np.uint64)) ^ np.uint64(key)).tolist()
    assert permutation(ids, key).tolist() == sorted(range(len(keys)), key=lambda i: (hashes[i], keys[i], i))


def test_many_keys_of_which_two_are_equal_stay_in_order() -> None:
    keys = np.random.default_rng(1).permutation(50_000)
    keys[[7, 40_000]] = keys[20_000]
    order = ascending(keys)
    assert (order == np.argsort(keys, kind="stable")).all()
    assert order[keys[order] == keys[7]].tolist() == [7, 20_000, 40_000]


def test_local_shares_lie_near_home_and_stay_for_all_epochs() -> None:
    parts, world, n = 4, 8, 4000
    internal = np.arange(n, dtype=np.int64)  # all partitions have the same number of seeds
    user_ids = np.random.default_rng(0).permutation(n).astype(np.int64)
    first = ranks(internal, user_ids, world, parts=parts, epoch=0)
    later = ranks(internal, user_ids, world, parts=parts, epoch=1)
    for a, b in zip(first, later, strict=True):
        owners = a.seeds // (n // parts)
        assert set(owners.tolist()) == {home_of(a.rank, world, parts)}
        assert set(a.seeds.tolist()) == set(b.seeds.tolist())
        assert a.seeds.tolist() != b.seeds.tolist()
    # Within a machine the split is random: each trainer has about half of every range of ids.
    for stretch in range(0, n, 250):
        mine = np.count_nonzero((first[2 * (stretch // 1000)].seeds // 250) == stretch // 250)
        assert 75 < mine < 175


@pytest.mark.parametrize(("world", "parts"), [(1, 1), (4, 2), (3, 2), (2, 4), (8, 3), (5, 5)])
def test_homes_are_balanced_and_contiguous(world: int, parts: int) -> None:
    homes = [home_of(r, world, parts) for r in range(world)]
    assert homes == sorted(homes)
    assert all(0 <= h < parts for h in homes)
    if world >= parts:
        counts = [homes.count(h) for h in range(parts)]
        assert max(counts) - min(counts) <= 1


def test_epochs_and_seeds_differ_and_repeat() -> None:
    runs = [(seed, epoch) for seed in range(3) for epoch in range(3)] * 2
    orders = [ranks(*split(64), 1, policy=GLOBAL, seed=s, epoch=e)[0].seeds.tolist() for s, e in runs]
    assert orders[:9] == orders[9:]
    assert len(set(map(tuple, orders))) == 9


@pytest.mark.parametrize("policy", [LOCAL, GLOBAL])
def test_permutations_are_uniform(policy: SeedPolicy) -> None:
    n, epochs = 12, 3000
    internal, user_ids = split(n)
    counts = np.zeros((n, n))
    for epoch in range(epochs):
        plan = plan_seeds(internal, user_ids, batch_size=n, parts=1, policy=policy, seed=9, epoch=epoch)
        counts[np.searchsorted(internal, plan.seeds), np.arange(n)] += 1
    statistic = chisquare(counts.ravel(), ddof=2 * n - 2)  # rows and columns sum to `epochs`
    assert statistic.pvalue > 1e-4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rank": 2, "world": 2}, "rank 2 does not exist among 2"),
        ({"world": 0}, "rank 0 does not exist"),
        ({"parts": 0}, "parts is 0"),
        ({"position": np.arange(3)}, "differ in number"),
        ({"drop_last": True, "batch_size": 9}, "drop_last leaves no batch.*at most 8"),
        ({"drop_last": True, "world": 4, "batch_size": 3}, "drop_last leaves no batch.*at most 2"),
        ({"drop_last": True, "world": 9, "batch_size": 1}, "drop_last leaves no batch"),
    ],
)
def test_faults_are_named(options: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"batch_size": 4, "parts": 2} | options
    for policy in (LOCAL, GLOBAL):
        with pytest.raises(ConfigError, match=words):
            plan_seeds(*split(8), policy=policy, **arguments)


@pytest.mark.parametrize("sizes", [[], [-1, 4], [4], [2**63 - 1, 2**63 - 1, 5], [2**62] * 4 + [3]])
def test_sizes_that_do_not_add_up(sizes: list[int]) -> None:
    with pytest.raises(ConfigError, match="do not add up"):
        plan_sized(np.arange(3), np.array(sizes, dtype=np.int64), rank=0, world=1)


def test_what_does_not_exist() -> None:
    empty = np.empty(0, dtype=np.int64)
    with pytest.raises(ConfigError, match="no seeds"):
        plan_seeds(empty, empty, batch_size=4, parts=1)
    with pytest.raises(IndexError):
        ranks(*split(8), 1)[0].batch_slice(2)
    for count, rank, world in ((0, 0, 1), (1, 1, 1), (1, 0, 0)):
        with pytest.raises(ConfigError):
            plan_unseeded(count, rank=rank, world=world)


@settings(max_examples=200)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=12), world=st.integers(1, 8), pad=st.booleans())
def test_given_batches_go_round_the_ranks(sizes: list[int], world: int, pad: bool) -> None:
    cuts = np.cumsum([0, *sizes])
    given_batches = [list(range(100 + a, 100 + b)) for a, b in itertools.pairwise(cuts)]
    internal = np.arange(100, 100 + cuts[-1])
    for rank in range(world):
        plan = plan_sized(internal, np.array(sizes), rank=rank, world=world, pad=pad)
        own = given_batches[rank::world]
        assert plan.batches == count_sized(len(sizes), rank=rank, world=world, pad=pad)
        assert batches(plan)[: len(own)] == own
        repeated = batches(plan)[len(own) :]
        assert plan.batches == (-(-len(sizes) // world) if pad else len(own))
        assert repeated in ([], [own[0] if own else given_batches[rank % len(sizes)]])
        assert [int(internal[i]) for i in plan.input_id] == plan.seeds.tolist()
        assert list(plan.batch_ids()) == [plan.batch_id(i) for i in range(plan.batches)]
        assert list(plan.batch_ids(first=plan.batches)) == []


@given(count=st.integers(1, 50), world=st.integers(1, 60), data=st.data())
def test_batches_without_seeds_are_those_of_size_0(count: int, world: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world - 1))
    few = plan_unseeded(count, rank=rank, world=world)
    listed = plan_sized(np.empty(0, np.int64), np.zeros(count, np.int64), rank=rank, world=world)
    assert (few.batches, few.batch_size) == (listed.batches, listed.batch_size)
    assert batches(few) == batches(listed)
    assert list(few.batch_ids(1)) == list(listed.batch_ids(1))


def test_very_many_batches_and_ranks_take_no_memory() -> None:
    internal, user_ids = split(5)
    tracemalloc.start()
    try:
        plan = plan_unseeded(1 << 31, rank=1, world=3)
        assert (plan.batches, len(plan.batch_ids(7))) == (715_827_883, 715_827_876)
        assert plan.seeds[plan.batch_slice(plan.batches - 1)].tolist() == []
        last = (1 << 32) - 1
        one = plan_seeds(internal, user_ids, batch_size=4, parts=2, policy=GLOBAL, rank=last - 1, world=last)
        assert (one.batches, len(one.seeds)) == (1, 1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
