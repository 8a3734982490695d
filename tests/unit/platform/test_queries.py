"""Which callers share a computation, when it begins, and what JSON says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.services import queries
from atta.daemon.services.queries import (
    BOUNDS_S,
    MOST_TOGETHER,
    TARGETS,
    PointAnswer,
    PointQuery,
    QueryFigures,
    QueryQueue,
    QueryService,
    WaitingQuery,
    answer_as_json,
    query_of_json,
)
from atta.errors import AttaError, ConfigError, QuotaExceededError, UnavailableError, UnknownNameError
from atta.protos.v1 import query_pb2
from atta.wire.bulk import UnseenVertices


def waiting(since: float, vertices: int = 1, what: str = "scores", until: float = 100.0) -> WaitingQuery:
    return WaitingQuery(PointQuery(what, np.arange(vertices)), since, until)


def test_the_oldest_decides_what_is_computed_and_others_of_its_kind_join() -> None:
    queue = QueryQueue(wait_s=2.0, most_together=10)
    first, other, joins, late = waiting(0), waiting(0.5, what="classes"), waiting(1, 4), waiting(1, until=1.5)
    assert queue.pause_s(0) is None
    assert [queue.add(one) for one in (first, other, joins, late)] == [True, False, False, False]
    assert queue.pause_s(0.5) == 1.5
    assert queue.pause_s(3.0) == 0
    assert queue.take(3.0) == [first, joins]
    assert (len(queue), queue.vertices) == (1, 1), "who is late has gone without an answer"
    assert queue.pause_s(3.0) == 0, "the next one has waited long enough"
    assert queue.take(3.0) == [other]
    assert queue.pause_s(3.0) is None


def test_a_full_computation_does_not_wait_and_nobody_overtakes() -> None:
    queue = QueryQueue(wait_s=2.0, most_together=10)
    few, many, more = waiting(0, 4), waiting(0, 7), waiting(0, 1)
    for one in (few, many, more):
        queue.add(one)
    assert queue.pause_s(0) == 2.0, "the two that fit together are not full"
    assert queue.take(0) == [few]
    assert queue.take(0) == [many, more]
    huge = waiting(0, 30)
    assert queue.add(huge)
    assert queue.pause_s(0) == 0
    assert queue.take(0) == [huge], "a single one may be larger"


def test_the_queue_is_bounded_and_leaving_makes_room() -> None:
    queue = QueryQueue(wait_s=0, most_together=10, most_waiting=5)
    one = waiting(0, 4)
    queue.add(one)
    with pytest.raises(QuotaExceededError, match="4 vertices wait, at most 5"):
        queue.add(waiting(0, 2))
    queue.drop(one)
    queue.drop(one)
    assert queue.vertices == 0
    queue.add(waiting(0, 5))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6), st.sampled_from(("scores", "classes")),
                          st.integers(1, 30)), max_size=25))  # fmt: skip
def test_everybody_in_time_is_taken_once_in_the_order_of_a_kind(calls: list[tuple[int, int, str, int]]) -> None:
    queue, now = QueryQueue(wait_s=3.0, most_together=8, most_waiting=1000), 0.0
    callers = [waiting(since, n, what, since + life) for since, n, what, life in sorted(calls)]
    coming, taken = list(callers), list[WaitingQuery]()
    while coming or len(queue):
        while coming and coming[0].since <= now:
            queue.add(coming.pop(0))
        if queue.pause_s(now) == 0:
            together = queue.take(now)
            assert len({one.query.kind for one in together}) <= 1
            assert sum(len(one.query.ids) for one in together) <= 8
            assert all(one.until > now for one in together)
            taken += together
        now += 0.5
    assert len(set(taken)) == len(taken)
    for what in ("scores", "classes"):
        mine = [one for one in taken if one.query.what == what]
        assert mine == [one for one in callers if one in mine]
    assert all(one in taken for one in callers if one.until > one.since + 3 + 0.5 * len(callers) + 1)
    assert queue.vertices == 0


def test_the_histogram_counts_answers_within_each_bound() -> None:
    figures, seconds = QueryFigures(), [0.0005, 0.001, 0.003, 0.2, 60.0]
    for s in seconds:
        figures.count(waiting(0, 2), s)
    stats = figures.stats()
    for bound in BOUNDS_S:
        assert stats[f"query_seconds_le_{bound:g}"] == sum(s <= bound for s in seconds)
    assert stats["query_seconds_le_+Inf"] == stats["queries_answered"] == 5
    assert stats["query_vertices"] == 10
    assert stats["query_seconds"] == pytest.approx(sum(seconds))


@pytest.mark.parametrize(
    ("path", "text", "error", "cause"),
    [
        ("/predict", "{", ConfigError, "not JSON"),
        ("/predict", "[" * 100_000, ConfigError, "not JSON"),
        ("/predict", "[5]", ConfigError, "an object with a list of vertices"),
        ("/predict", '{"ids": 5}', ConfigError, "an object with a list of vertices"),
        ("/predict", '{"ids": []}', ConfigError, "at least one"),
        ("/predict", '{"ids": [[1]]}', ConfigError, "must be a list"),
        ("/predict", '{"ids": [1.5]}', ConfigError, "must be integers"),
        ("/predict", '{"ids": [true]}', ConfigError, "must be integers"),
        ("/predict", '{"ids": [1, "a"]}', ConfigError, "some ids are strings, others are int"),
        ("/predict", '{"ids": [9223372036854775808]}', ConfigError, "9223372036854775808"),
        ("/predict", json.dumps({"ids": [0] * (MOST_TOGETHER + 1)}), ConfigError, "4097 vertices .* at most 4096"),
        ("/predict", '{"ids": [1], "what": "score"}', UnknownNameError, "did you mean 'scores'"),
        ("/predict", '{"ids": [1], "what": 5}', ConfigError, "what: must be a text"),
        ("/predict", '{"ids": [1], "node_type": 5}', ConfigError, "node_type: must be a text"),
        ("/predict", '{"ids": [1], "wat": "scores"}', UnknownNameError, "unknown field 'wat'; did you mean 'what'"),
        ("/predict", '{"ids": [1], "deadline_s": 0}', ConfigError, "deadline_s"),
        ("/predict", '{"ids": [1], "deadline_s": NaN}', ConfigError, "deadline_s"),
        ("/predict", '{"ids": [1], "deadline_s": true}', ConfigError, "deadline_s"),
        ("/recommend", '{"ids": [1], "k": 0}', ConfigError, "k 0: must be"),
        ("/recommend", '{"ids": [1], "k": 2.5}', ConfigError, "k 2.5: must be"),
        ("/recommend", '{"ids": [1, 2], "k": 524289}', QuotaExceededError, "at most 1048576 in all"),
        ("/recommend", '{"ids": [1], "node_type": "user"}', UnknownNameError, "unknown field 'node_type'"),
        ("/recommend", '{"ids": [1], "what": "scores"}', UnknownNameError, "unknown field 'what'"),
    ],
)
def test_bad_json_is_refused(path: str, text: str, error: type[AttaError], cause: str) -> None:
    with pytest.raises(error, match=cause):
        query_of_json(path, text.encode())


@pytest.mark.parametrize(
    ("ids", "new", "error", "cause"),
    [
        (["a"], 5, ConfigError, "new: must have features"),
        (["a"], {"x": [[1]], "edges": [1]}, ConfigError, "new: must have features"),
        (["a"], {"x": [[1]], "edge": {}}, UnknownNameError, "'edge'; did you mean 'edges'"),
        (["a"], {}, ConfigError, "x: must be a row of features for each of 1 ids"),
        (["a"], {"x": [[1], [2]]}, ConfigError, r"each of 1 ids, not of shape \[2, 1\]"),
        (["a", "a"], {"x": [[1], [2]]}, ConfigError, "two are equal"),
        (["a"], {"x": [["b"]]}, ConfigError, "x: must be numbers"),
        (["a"], {"x": {"y": 1}}, ConfigError, "x: must be numbers"),
        (["a"], {"x": [[1e300]]}, ConfigError, "x: must be finite"),
        (["a"], {"x": [[1]], "edges": {"to": [[1, 2]]}}, ConfigError, "edges to: must be two lists"),
        (["a"], {"x": [[1]], "edges": {"to": [[1, 2], ["a"]]}}, ConfigError, "edges to: 2 sources for 1 targets"),
        (["a"], {"x": [[1]], "edges": {"to": [[1], ["b"]]}}, ConfigError, "lead to 'b', which is none of the ids"),
        (["a"], {"x": [[1]], "edges": {"to": [[1.5], ["a"]]}}, ConfigError, "edges to: must be integers"),
        (["a"], {"x": [[1]], "edges": {"to": [[5] * 4097, ["a"] * 4097]}}, ConfigError, "4097 .* at most 4096"),
    ],
)
def test_new_vertices_that_make_no_sense_are_refused(ids: Any, new: Any, error: type[AttaError], cause: str) -> None:
    with pytest.raises(error, match=cause):
        query_of_json("/predict", json.dumps({"ids": ids, "new": new}).encode())


def test_new_vertices_cross_the_wire_and_count_with_what_their_edges_come_from() -> None:
    told = {"x": [[1, 2], [3, 4]], "edges": {"r": [["ä", "b"], [9, 8]], "s": [[7], [8]], "t": [[], []]}}
    query, _ = query_of_json("/recommend", json.dumps({"ids": [8, 9], "new": told}).encode())
    new = query.new
    assert new is not None
    assert (query.size, query.kind) == (5, (TARGETS, 10, "", True, ""))
    request = query_pb2.PredictRequest(new=new.message())
    found = UnseenVertices.parse(request, 2, 100)
    assert found is not None
    assert found.x.tolist() == told["x"]
    assert {name: [end.tolist() for end in ends] for name, ends in found.edges.items()} == {
        "r": [["ä", "b"], [1, 0]], "s": [[7], [0]], "t": [[], []],
    }  # fmt: skip
    assert UnseenVertices.parse(query_pb2.PredictRequest(), 2, 100) is None
    for count, cause in (
        (0, "no features of 0"),
        (3, "16 bytes are no features of 3"),
        (1, "more than 1 new vertices"),
    ):
        with pytest.raises(ConfigError, match=cause):
            UnseenVertices.parse(request, count, 100)
    with pytest.raises(QuotaExceededError, match="4 bytes of string ids"):
        UnseenVertices.parse(request, 2, 3)


@pytest.mark.parametrize(
    ("path", "given", "what", "ids"),
    [
        ("/predict", {"ids": [5, 17, 5]}, "embeddings", [5, 17, 5]),
        ("/predict", {"ids": ["ä", "b"], "what": "classes", "deadline_s": 2}, "classes", ["ä", "b"]),
        ("/predict", {"ids": [5], "node_type": "user"}, "embeddings", [5]),
        ("/recommend", {"ids": ["a"], "k": 3, "relation": "buys"}, TARGETS, ["a"]),
    ],
)
def test_json_becomes_a_query(path: str, given: dict[str, Any], what: str, ids: list[Any]) -> None:
    query, within_s = query_of_json(path, json.dumps(given).encode())
    assert (query.what, query.ids.tolist(), within_s) == (what, ids, given.get("deadline_s"))
    assert (query.count, query.relation) == (given.get("k", 0), given.get("relation", ""))
    assert query.node_type == given.get("node_type", "")


def test_answers_become_plain_values() -> None:
    of = PointQuery(TARGETS, np.array(["a", "b", "c"]), 2)
    flat = PointAnswer(np.array([3, 2, 1], np.float32), -1, np.array([2, 0, 1], np.int32), np.array([7, 8, 9]))
    assert answer_as_json(of, flat) == {
        "ids": ["a", "b", "c"], "version": None, "targets": [[7, 8], [], [9]], "scores": [[3.0, 2.0], [], [1.0]],
    }  # fmt: skip
    rows = PointAnswer(np.array([[1, 2]], np.float32), 3)
    query = PointQuery("scores", np.array([5]))
    assert answer_as_json(query, rows) == {"ids": [5], "version": 3, "what": "scores", "values": [[1.0, 2.0]]}
    classes = answer_as_json(query, PointAnswer(np.array([1, 0, 2]), 3, names=["plain", "gold"]))
    assert (classes["values"], classes["names"]) == ([1, 0, 2], ["gold", "plain", None])


class Unprepared:
    """An answerer whose first steps fail."""

    def begin(self, *_: Any) -> None: ...

    def prepare(self) -> None:
        raise RuntimeError("no memory for a model")

    def answer(self, queries: Any) -> list[PointAnswer | AttaError]:
        return [PointAnswer(2 * query.ids, 7) for query in queries]


async def test_a_model_that_could_not_be_prepared_is_asked_all_the_same() -> None:
    service = QueryService(Unprepared(), "here:1", 0.0, AsyncMock(return_value=[]))
    (chore,) = service.chores().values()
    task = asyncio.create_task(chore)
    found = await service.ask(PointQuery("classes", np.arange(3)), 20.0)
    assert (found.values.tolist(), found.version) == ([0, 2, 4], 7)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class Stuck(Unprepared):
    """An answerer that waits until it is freed."""

    def __init__(self) -> None:
        self.freed = threading.Event()

    def prepare(self) -> None: ...

    def answer(self, queries: Any) -> list[PointAnswer | AttaError]:
        self.freed.wait(30)
        return super().answer(queries)


async def test_who_waits_for_a_peer_in_vain_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "LOOK_S", 0.01)
    unreached, answerer = AsyncMock(return_value=[]), Stuck()
    service = QueryService(answerer, "here:1", 0.0, unreached)
    (chore,) = service.chores().values()
    task = asyncio.create_task(chore)
    asked = [asyncio.create_task(service.ask(PointQuery(what, np.arange(3)), 20.0)) for what in ("classes", "scores")]
    await asyncio.sleep(0.1)
    assert unreached.await_count > 1
    assert not any(one.done() for one in asked), "a computation may take long"
    unreached.return_value = [SimpleNamespace(address="c:3", parts=range(2, 4))]
    for one in asked:  # the one that is computed, and the next one
        with pytest.raises(UnavailableError, match=r"^c:3: no daemon answers for partition 2-3$"):
            await one
    answerer.freed.set()
    assert (await service.ask(PointQuery("classes", np.arange(2)), 20.0)).values.tolist() == [0, 2]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
