"""What links answer is what the kernels and numpy say."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from atta import _native
from atta.daemon.peers.links import LinkedOwners, LinkSteps
from atta.partition.schema import Schema, TableSpec
from atta.samplers.batch.items import SumItem
from atta.samplers.kernels.sums import NARROW, WIDE, pack_sums
from atta.samplers.methods import Method
from tests.unit.native.links.ends import Owner, ask, done, eventually, linked, pairs, pull, sample

TLS = pytest.param("tls", marks=pytest.mark.skipif(not _native.link_tls, reason="built without OpenSSL"))
KINDS = pytest.mark.parametrize("kind", ["unix", "tcp", TLS])


def same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert len(found) == len(expected) == 3
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def joined(step: Any, item: int = 0) -> tuple[Any, ...]:
    """The arrays of all requests of an item, which follow each other from its first row on."""
    answers = step.answers(item)
    firsts = [0, *np.cumsum([len(counts) for _, counts, *_ in answers]).tolist()]
    assert [first for first, *_ in answers] == firsts[:-1]
    return tuple(np.concatenate(parts) for parts in zip(*(arrays for _, *arrays in answers), strict=True))


@KINDS
@pytest.mark.parametrize("edge_type", [0, 1, 2])
@pytest.mark.parametrize(
    ("fan_out", "replace"), [(-1, False), (0, False), (1, False), (7, False), (7, True), (2500, False)]
)
def test_samples_are_the_kernels(kind: str, edge_type: int, fan_out: int, replace: bool) -> None:
    (owner, me), rng = linked(kind, base=10**10), np.random.default_rng(1)
    for rows in (np.zeros(1, np.int64), rng.integers(0, owner.rows, 5000)):
        for trees in (None, rng.integers(-1, 5, len(rows)).astype(np.int32)):
            step, options = me.step(), {"fan_out": fan_out, "replace": replace, "stream_key": 2**64 - 5, "trees": trees}
            sample(step, rows + owner.base, firsts=[owner.base], edge_type=edge_type, **options)
            done(me, ask(me, step))
            assert step.left() == []
            ((first, *found),) = step.answers(0)
            assert first == 0
            same(tuple(found), owner.edges[edge_type].expected(rows, **options))
            assert step.nbytes() == sum(array.nbytes for array in found)


@pytest.mark.parametrize("method", [Method.WEIGHTED, Method.TEMPORAL, Method.LAST, Method.LABOR])
@pytest.mark.parametrize("fan_out", [-1, 3, 30])
def test_every_method_with_trees_and_times(method: Method, fan_out: int) -> None:
    (owner, me), rng = linked(), np.random.default_rng(2)
    owner.prepare(method)
    rows = rng.integers(0, owner.rows, 4000)
    trees, times = rng.integers(0, 9, len(rows)).astype(np.int32), rng.integers(0, 120, len(rows))
    options: dict[str, Any] = {"fan_out": fan_out, "replace": False, "stream_key": 5}
    if method is not Method.LABOR:
        options["trees"] = trees
    if method.rules.temporal:
        options["times"] = times
    step = me.step()
    for edge_type in (0, 1, 2):  # all in one step
        sample(step, rows, edge_type=edge_type, method=method.number, **options)
    done(me, ask(me, step))
    assert step.left() == []
    for edge_type in (0, 1, 2):
        ((_, *found),) = step.answers(edge_type)
        same(tuple(found), owner.edges[edge_type].expected(rows, method=method.number, **options))


@KINDS
def test_pulls_are_the_tables(kind: str) -> None:
    (owner, me), rng = linked(kind, base=77), np.random.default_rng(3)
    for node_type, tables in enumerate(owner.tables):
        for bits in range(1, 1 << len(tables)):
            chosen = [table for t, table in enumerate(tables) if bits >> t & 1]
            for count in (1, 9000):
                rows, positions = rng.integers(0, owner.rows, count), rng.permutation(count + 5)[:count]
                outs = [np.zeros((count + 5, *table.shape[1:]), table.dtype) for table in chosen]
                expected = [out.copy() for out in outs]
                for out, table in zip(expected, chosen, strict=True):
                    out[positions] = table[rows]
                step, base = me.step(), [owner.base]
                pull(step, rows + 77, outs, firsts=base, node_type=node_type, tables=bits, positions=positions)
                done(me, ask(me, step))
                assert step.left() == []
                for out, wanted in zip(outs, expected, strict=True):
                    np.testing.assert_array_equal(out, wanted)
                assert step.nbytes() == sum(table[rows].nbytes for table in chosen)


def test_one_step_asks_several_owners_and_some_of_them_nothing() -> None:
    owners = [Owner(seed, rows=500 + seed, base=1000 * seed) for seed in range(4)]
    me, rng = _native.Links(2), np.random.default_rng(4)
    for number, owner in enumerate(owners):
        for _ in range(2):
            owner.link_to(me, number)
    firsts = [owner.base for owner in owners]
    for sizes in ([0, 7, 0, 900], [1, 0, 0, 0], [3000, 1, 2, 3], [0, 0, 0, 0]):
        groups = [rng.integers(0, owner.rows, size) for owner, size in zip(owners, sizes, strict=True)]
        ids = np.concatenate([rows + owner.base for owner, rows in zip(owners, groups, strict=True)])
        owned = ([0, 1, 2, 3], [0, *np.cumsum(sizes).tolist()], firsts)
        out, step = np.zeros((len(ids), 25), np.float32), me.step()
        sample(step, ids, *owned, edge_type=1)
        pull(step, ids, [out], *owned)
        done(me, ask(me, step))
        assert step.left() == []
        expected = [
            owner.edges[1].expected(rows, fan_out=5, replace=False, stream_key=9)
            for owner, rows in zip(owners, groups, strict=True)
        ]
        assert len(step.answers(0)) == (1 if len(ids) else 0), "small ones are joined"
        if len(ids):
            same(joined(step), tuple(np.concatenate(parts) for parts in zip(*expected, strict=True)))
        rows_of = [owner.tables[0][0][rows] for owner, rows in zip(owners, groups, strict=True)]
        np.testing.assert_array_equal(out, np.concatenate(rows_of))


def test_a_large_request_is_cut_into_several() -> None:
    (owner, me), rng = linked(), np.random.default_rng(5)
    rows = rng.integers(0, owner.rows, (1 << 21) + 3)
    out, step = np.zeros(len(rows), np.float16), me.step()
    sample(step, rows, fan_out=1, most_edges=1)
    pull(step, rows, [out], node_type=1, tables=2)
    done(me, ask(me, step))
    assert step.left() == []
    assert me.stats()["link_requests_asked"] == 6
    np.testing.assert_array_equal(out, owner.tables[1][1][rows])
    answers = step.answers(0)
    assert [first for first, *_ in answers] == [0, 1 << 20, 1 << 21]
    del step, me  # the arrays keep their memory
    found = tuple(np.concatenate(parts) for parts in zip(*(arrays for _, *arrays in answers), strict=True))
    same(found, owner.edges[0].expected(rows, fan_out=1, replace=False, stream_key=9))


def test_a_row_with_many_edges_is_one_answer_even_when_nobody_wants_it_any_more() -> None:
    owner, me = linked(hub=500_000)  # 6 MB
    wanted, in_time = np.zeros(1, np.int64), 0
    for _ in range(5):
        given_up, step = me.step(), me.step()
        for one in (given_up, step):
            sample(one, wanted, fan_out=-1)
            me.begin(one, 0)
        me.flush()
        given_up.give_up("not wanted")
        assert given_up.done
        if left := given_up.left():
            assert [item[4:] for item in left] == [(False, "not wanted")]
            in_time += 1
        else:  # on a busy machine the answer was there before
            assert len(given_up.answers(0)) == 1
        done(me, step)
        assert step.left() == []
    assert in_time
    ((_, *found),) = step.answers(0)
    same(tuple(found), owner.edges[0].expected(wanted, fan_out=-1, replace=False, stream_key=9))
    assert me.attached(1) == 1


def test_refusals_say_why() -> None:
    owner, me = linked()
    owner.prepare(Method.LABOR)
    one, outside, outs = np.zeros(1, np.int64), np.array([0, owner.rows, 1]), [np.zeros((3, 25), np.float32)]
    steps = [me.step() for _ in range(8)]
    sample(steps[0], outside)
    pull(steps[1], outside, outs)
    sample(steps[2], one, method=15)
    sample(steps[3], one, method=99)
    sample(steps[4], one, edge_type=3)
    pull(steps[5], one, [np.zeros((1, 25), np.float32)], node_type=2)
    pull(steps[6], one, [np.zeros((1, 25), np.float32)], tables=8)
    sample(steps[7], one, method=Method.LABOR.number, replace=True)
    reasons = []
    for step in steps:
        done(me, ask(me, step))
        ((item, asked, first, _, refused, why),) = step.left()
        assert (item, asked, first, refused) == (0, 1, 0, True)
        assert step.answers(0) == []
        reasons.append(why)
    assert reasons == [
        f"rows: row {owner.rows} is outside 0..{owner.rows - 1}",
        f"rows: row {owner.rows} is outside 0..{owner.rows - 1}",
        "the neighbour method is not prepared",
        "the neighbour method is not prepared",
        "no such edge type",
        "no such node type",
        "no such table",
        "replace: this method draws no edge twice",
    ]
    assert me.stats()["link_requests_refused"] == 8
    assert me.attached(1) == 1  # the link goes on
    wide = me.step()  # rows that need 64 bits
    sample(wide, np.array([2**40, 3]))
    done(me, ask(me, wide))
    assert wide.left()[0][5] == f"rows: row {2**40} is outside 0..{owner.rows - 1}"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"starts": [1, 0]}, "starts"),
        ({"starts": [0, 9]}, "starts"),
        ({"starts": [-1, 1]}, "starts"),
        ({"starts": [0]}, "starts"),
        ({"firsts": [5]}, "ids"),
        ({"firsts": [-5]}, "firsts"),
        ({"fan_out": -2}, "fan_out"),
        ({"fan_out": 1 << 21}, "fan_out"),
        ({"edge_type": 1 << 16}, "edge_type"),
        ({"trees": np.zeros(2, np.int32)}, "trees"),
        ({"times": np.zeros(4, np.int64)}, "times"),
        ({"most_edges": 1 << 40}, "most_edges"),
    ],
)
def test_wrong_questions_are_refused_before_they_are_sent(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}"):
        sample(_native.Links(1).step(), np.arange(3), **change)


def test_positions_outside_an_output_are_refused() -> None:
    step, out = _native.Links(1).step(), np.zeros((3, 25), np.float32)
    for positions in (np.array([0, 1, 3]), np.array([0, -1, 2])):
        with pytest.raises(ValueError, match=r"^positions"):
            pull(step, np.arange(3), [out], positions=positions)
    with pytest.raises(ValueError, match=r"^tables"):
        pull(step, np.arange(3), [out], tables=3)


@KINDS
def test_more_bytes_than_a_link_takes_in_one_turn(kind: str) -> None:
    owner, me = linked(kind)
    rows = np.random.default_rng(3).integers(0, owner.rows, 150_000)
    outs = [np.zeros((len(rows), 25), np.float32) for _ in range(2)]
    steps = [me.step() for _ in outs]
    for step, out in zip(steps, outs, strict=True):
        pull(step, rows, [out])
        ask(me, step)
    eventually(lambda: all(step.done for step in steps))
    for step, out in zip(steps, outs, strict=True):
        assert step.left() == []
        np.testing.assert_array_equal(out, owner.tables[0][0][rows])


@pytest.mark.parametrize("kinds", [("unix", "tcp", "unix"), pytest.param(("tls", "tls"), marks=TLS.marks)])
def test_many_threads_ask_at_once(kinds: tuple[str, ...]) -> None:
    owner, me = Owner(threads=2), _native.Links(2)
    for kind in kinds:
        owner.link_to(me, kind=kind)
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(40):
                rows = rng.integers(0, owner.rows, int(rng.integers(1, 3000)))
                out, step = np.zeros((len(rows), 25), np.float32), me.step()
                sample(step, rows, stream_key=seed)
                pull(step, rows, [out])
                ask(me, step)
                eventually(lambda step=step: step.done)
                assert step.left() == []
                ((_, *found),) = step.answers(0)
                same(tuple(found), owner.edges[0].expected(rows, fan_out=5, replace=False, stream_key=seed))
                np.testing.assert_array_equal(out, owner.tables[0][0][rows])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(me.finished()) == 240


def test_an_owner_notes_the_last_requests_that_it_has_served() -> None:
    owner, me = Owner(), _native.Links(1)
    owner.links.keep_served(3)
    near, far = pairs("unix")
    owner.links.serve(far.detach(), 7)
    me.attach(1, near.detach())
    rows, began = np.arange(100), time.monotonic()
    for turn in range(5):
        step = me.step()
        if turn % 2 == 0:
            sample(step, rows)
        else:
            pull(step, rows, [np.zeros((100, 25), np.float32)])
        done(me, ask(me, step))
        assert step.left() == []
        eventually(lambda turn=turn: owner.links.stats()["link_requests_served"] == turn + 1)  # type: ignore[misc]
    served = owner.links.served()
    assert [(peer, pulls) for _, _, peer, pulls, _ in served] == [(7, False), (7, True), (7, False)]
    assert served[1][4] == 64 + rows.size * 100  # a header, and rows of 25 float32
    times = [moment for ended, came, *_ in served for moment in (came, ended)]
    assert began - 1e-3 <= times[0]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic()
    silent, other = linked()
    step = other.step()
    sample(step, rows)
    done(other, ask(other, step))
    assert silent.links.served() == [], "it was not told to note them"


class ByMessages:
    """A peer that is asked for sums by messages."""

    def __init__(self, owner: Owner) -> None:
        self._owner, self.asked = owner, 0

    async def sum(self, item: SumItem, **_: Any) -> bytes:
        self.asked += len(item.counts)
        table = self._owner.tables[0][0]
        return pack_sums(b"", [table], item.rows, item.counts, item.weights, shifts=item.shifts, width=item.width)


class Attached:
    """Nothing that is missing could be attached now."""

    missing: frozenset[int] = frozenset()
    gone: ClassVar[list[int]] = []

    def lost(self, owner: int) -> None:
        self.gone.append(owner)


@pytest.mark.parametrize("width", [NARROW, WIDE])
async def test_sums_come_over_links_and_what_links_lack_by_messages(width: int) -> None:
    """Three owners: of the first nothing is asked, the second one's link answers, the third one has no link."""
    owners = [Owner(seed, rows=400 + seed, base=1000 * seed) for seed in range(3)]
    rng, me = np.random.default_rng(5), _native.Links(1)
    shifts = rng.integers(18, 22, 25).astype(np.int16)
    owners[1].link_to(me, owner=1)
    counts = rng.integers(1, 30, 9000).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(counts)])
    rows = np.concatenate([rng.integers(0, 400, ends[5000]) + 1000, rng.integers(0, 400, ends[-1] - ends[5000]) + 2000])
    weights = rng.random(len(rows)).astype(np.float32) if width == WIDE else None
    tables = {"a": TableSpec("<f4", (25,)), "b": TableSpec("<i8"), "c": TableSpec("|b1", (3,))}
    schema = Schema(("node",), (), {"node": 3000}, {}, node_tables={"node": tables})
    offsets = {"node": np.array([0, 1000, 2000, 3000])}
    dataset: Any = SimpleNamespace(schema=schema, num_parts=3, book=SimpleNamespace(offsets=offsets))
    peers: Any = [ByMessages(owner) for owner in owners]
    given = rows, counts, np.arange(9000), weights, np.array([0, 0, 5000, 9000]), shifts, width
    item, out = SumItem("e", "node", "a", *given), np.zeros((9000, 25 * width), np.uint8)
    steps = LinkSteps(me, 30.0, peers)
    steps.open()
    with ThreadPoolExecutor(1) as pool:
        attaching: Any = Attached()
        asks = LinkedOwners(me, steps, attaching, peers=peers, dataset=dataset, pool=pool)
        received = await asks.sum([item], [out])
    steps.close()
    me.close()
    assert received == out.nbytes
    assert [peer.asked for peer in peers] == [0, 0, 4000]
    assert attaching.gone == [2] * len(attaching.gone)
    for number, at in ((1, slice(0, 5000)), (2, slice(5000, 9000))):
        of = slice(ends[at.start], ends[at.stop])
        some, table = None if weights is None else weights[of], owners[number].tables[0][0]
        wanted = pack_sums(b"", [table], rows[of] - 1000 * number, counts[at], some, shifts=shifts, width=width)
        assert out[at].tobytes() == wanted


def test_sums_that_do_not_fit_are_refused_before_they_are_sent() -> None:
    step, ids, one = _native.Links(1).step(), np.arange(4), np.array([0, 1])
    good: dict[str, Any] = {
        "node_type": 0, "table": 1, "ids": ids, "counts": np.array([1, 3], np.int32), "weights": None, "owners": one[:1],
        "starts": np.array([0, 2]), "firsts": one[:1], "shifts": np.zeros(1, np.int16), "width": 5,
        "out": np.zeros((2, 5), np.uint8),
    }  # fmt: skip
    for wrong, name in (
        ({"table": 3}, "table"),
        ({"counts": np.array([1, 2], np.int32)}, "counts"),
        ({"counts": np.array([0, 4], np.int32)}, "counts"),
        ({"weights": np.ones(3, np.float32)}, "weights"),
        ({"starts": np.array([0, 3])}, "starts"),
        ({"firsts": np.array([1])}, "ids"),
        ({"out": np.zeros((3, 5), np.uint8)}, "out"),
        ({"shifts": np.zeros(2, np.int16)}, "shifts"),
    ):
        with pytest.raises(ValueError, match=f"{name}: "):
            step.sum(**{**good, **wrong})
