"""Point queries: rows of a few vertices, or their best targets, now. ``QueryQueue`` decides which callers share a
computation and when it begins; it is pure. ``QueryService`` has a thread compute, and ``query_apps`` takes the same
queries as JSON over HTTP."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
import structlog

from atta.daemon.config import WHAT
from atta.daemon.peers.peers import Peer
from atta.daemon.services.handling import Context, check_named, shortened
from atta.errors import (
    AttaError,
    ConfigError,
    DeadlineError,
    DrainingError,
    QuotaExceededError,
    RemoteError,
    StaleRowError,
    UnavailableError,
    UnknownNameError,
    blaming,
)
from atta.observe.answering import App, json_answer, refusal
from atta.observe.machine.threads import aside
from atta.partition.dataset import Dataset
from atta.protos.v1 import query_pb2
from atta.samplers.arguments import whole
from atta.wire.bulk import UnseenVertices, given_ids, ids_of, vertex_ids
from atta.wire.credentials import Credentials
from atta.wire.parts import parts_text

TARGETS = "targets"
"""What is asked of vertices beside rows: the targets with the best scores."""
MOST_TOGETHER = 4096
"""Vertices of callers that share a computation. One call may name as many."""
MOST_WAITING = 4 * MOST_TOGETHER
"""Vertices of all callers that wait."""
MOST_TARGETS = 1 << 20
"""Targets that one call may ask for, of all its vertices."""
MOST_BYTES = 1 << 20
"""Of string ids of a call, and of the body of one over HTTP."""
DEADLINE_S, LONGEST_S = 10.0, 600.0
"""How long a query may take whose caller does not say, and the most that one may say, in seconds."""
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Of the histogram of times from a query's arrival to its answer, in seconds."""
LOOK_S = 2.0  # how long a computation may take before, again and again, it is looked whether all peers answer
NO_MODEL = "this daemon has no model to ask: start it with atta serve --model"

log = structlog.get_logger("atta.daemon")
T = TypeVar("T")


@dataclass(frozen=True)
class PointQuery:
    """What a caller asks of vertices ``ids``, int64 or str [n]. ``count``, ``relation``: of ``TARGETS``. ``new``: what they
    are, if the graph does not have them. ``node_type``: of the model's, whose vertices they are; empty: the usual one."""

    what: str
    ids: npt.NDArray[Any]
    count: int = 0
    relation: str = ""
    new: UnseenVertices | None = None
    node_type: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigError, QuotaExceededError: it makes no sense, or asks for too much."""
        if self.what not in (*WHAT, TARGETS):
            raise UnknownNameError.of("kind of prediction", self.what, WHAT)
        if self.ids.ndim != 1 or not len(self.ids):
            raise ConfigError("ids: must be a list of vertices, at least one")
        check_named("vertices", len(self.ids))
        if self.what == TARGETS and whole("k", self.count, 1) * len(self.ids) > MOST_TARGETS:
            raise QuotaExceededError(f"{self.count} targets of {len(self.ids)} vertices: at most {MOST_TARGETS} in all")

    @property
    def kind(self) -> tuple[str, int, str, bool, str]:
        """Queries of one kind may share a computation."""
        return self.what, self.count, self.relation, self.new is not None, self.node_type

    @property
    def size(self) -> int:
        """How many vertices it is about: those asked for, and those that edges of new ones come from."""
        return len(self.ids) + sum(len(sources) for sources, _ in (self.new.edges.values() if self.new else ()))


@dataclass(frozen=True)
class PointAnswer:
    """Of a query's vertices [n] the rows float32 [n, width] or classes int64 [n], in its order. Of ``TARGETS`` the scores
    float32 [r], with ``counts`` [n] and user ids ``targets`` [r]. ``version``: of the dataset's tables; -1: from a
    mutable table. ``names``: of classes, by their numbers; empty: they have none."""

    values: npt.NDArray[Any]
    version: int
    counts: npt.NDArray[np.int32] | None = None
    targets: npt.NDArray[Any] | None = None
    names: Sequence[str] = ()


class Answerer(Protocol):
    """Computes answers, one call after another, each on a thread of its own."""

    def begin(self, dataset: Callable[[], Dataset], address: str, credentials: Credentials | None) -> None:
        """The daemon serves ``dataset``, its newest version, at ``address`` from now on. ``credentials``: what it brings to
        daemons."""

    def prepare(self) -> None:
        """Do what the first answers need. Raises AttaError: it cannot be done yet."""

    def answer(self, queries: Sequence[PointQuery]) -> list[PointAnswer | AttaError]:
        """Answers of queries of one kind. Raises AttaError: why none can be answered."""


@dataclass(eq=False)
class WaitingQuery:
    """A query that has come at ``since`` and is given up at ``until``. ``answer``: where its caller waits."""

    query: PointQuery
    since: float
    until: float
    answer: Any = None


class QueryQueue:
    """Callers that wait, in the order of their arrival. The oldest one decides what is computed next: its kind, and when,
    ``wait_s`` after it has come or as soon as ``most_together`` vertices are there. Others of its kind join."""

    def __init__(self, wait_s: float, most_together: int = MOST_TOGETHER, most_waiting: int = MOST_WAITING) -> None:
        self._wait_s, self._most_together, self._most_waiting = wait_s, most_together, most_waiting
        self._waiting: dict[WaitingQuery, None] = {}  # in the order of arrival
        self.vertices = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[WaitingQuery]:
        return iter(self._waiting)

    def add(self, one: WaitingQuery) -> bool:
        """Let a caller wait; returns whether that may change when the next computation begins. Raises
        QuotaExceededError: too many vertices wait already."""
        if self.vertices + one.query.size > self._most_waiting:
            raise QuotaExceededError(f"{self.vertices} vertices wait, at most {self._most_waiting}: ask later")
        self._waiting[one] = None
        self.vertices += one.query.size
        return len(self._waiting) == 1 or self.vertices >= self._most_together

    def drop(self, one: WaitingQuery) -> None:
        """A caller waits no more."""
        if one in self._waiting:
            del self._waiting[one]
            self.vertices -= one.query.size

    def pause_s(self, now: float) -> float | None:
        """How long the next computation has to wait; 0: not at all; None: for a caller."""
        if not self._waiting:
            return None
        if sum(one.query.size for one in self._joined(now)) >= self._most_together:
            return 0.0
        return max(0.0, next(iter(self._waiting)).since + self._wait_s - now)

    def take(self, now: float) -> list[WaitingQuery]:
        """Who is answered next, together. Callers whose time is over leave without an answer."""
        joined = self._joined(now)
        for one in (*joined, *[one for one in self._waiting if one.until <= now]):
            self.drop(one)
        return joined

    def _joined(self, now: float) -> list[WaitingQuery]:
        alive = [one for one in self._waiting if one.until > now]
        joined: list[WaitingQuery] = []
        vertices = 0
        for one in alive:
            if one.query.kind != alive[0].query.kind:
                continue
            vertices += one.query.size
            if joined and vertices > self._most_together:
                break  # whoever comes later must not overtake
            joined.append(one)
        return joined


@dataclass
class QueryFigures:
    """What has been answered so far. ``buckets``: answers by ``BOUNDS_S``, the last one those above all bounds."""

    answers: int = 0
    refused: int = 0
    vertices: int = 0
    computed: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def count(self, one: WaitingQuery, now: float) -> None:
        """Count an answer that goes out now."""
        self.answers += 1
        self.vertices += one.query.size
        self.seconds += now - one.since
        self.buckets[bisect_left(BOUNDS_S, now - one.since)] += 1

    def stats(self) -> dict[str, float]:
        """By the names of the daemon's figures."""
        below = np.cumsum(self.buckets).tolist()
        bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
        return {
            "queries_answered": float(self.answers),
            "queries_refused": float(self.refused),
            "query_vertices": float(self.vertices),
            "query_computations": float(self.computed),
            "query_seconds": self.seconds,
            **{f"query_seconds_le_{bound}": float(n) for bound, n in zip(bounds, below, strict=True)},
        }


class QueryService:
    """``QueryService`` of a daemon. ``draining``: it takes no further queries."""

    def __init__(
        self, answerer: Answerer | None, address: str, wait_s: float, unreached: Callable[[], Awaitable[Sequence[Peer]]]
    ) -> None:
        """``answerer``: None: the daemon has no model, and refuses all queries. ``unreached``: peers that do not answer."""
        self._answerer, self._address, self._figures, self._unreached = answerer, address, QueryFigures(), unreached
        self._queue, self._came, self.draining = QueryQueue(wait_s), asyncio.Event(), False

    def __len__(self) -> int:
        return len(self._queue)

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {} if self._answerer is None else {"answer_queries": self._answer_queries(self._answerer)}

    def stats(self) -> dict[str, float]:
        if self._answerer is None:
            return {}
        return {"queries_waiting": float(len(self._queue)), **self._figures.stats()}

    async def predict(self, request: query_pb2.PredictRequest, context: Context) -> query_pb2.PredictReply:
        ids = ids_of(request.ids, MOST_BYTES)
        new = UnseenVertices.parse(request, len(ids), MOST_BYTES)
        found = await self._asked(PointQuery(request.what, ids, new=new, node_type=request.node_type), context)
        width = 0 if found.values.ndim == 1 else found.values.shape[1]
        return query_pb2.PredictReply(values=found.values.tobytes(), width=width, version=found.version)

    async def recommend(self, request: query_pb2.RecommendRequest, context: Context) -> query_pb2.RecommendReply:
        ids = ids_of(request.ids, MOST_BYTES)
        new = UnseenVertices.parse(request, len(ids), MOST_BYTES)
        found = await self._asked(PointQuery(TARGETS, ids, request.count, request.relation, new), context)
        assert found.counts is not None, "an answer of targets has their counts"
        assert found.targets is not None, "and the targets"
        return query_pb2.RecommendReply(
            counts=found.counts.tobytes(), targets=vertex_ids(found.targets), scores=found.values.tobytes(),
            version=found.version,
        )  # fmt: skip

    async def _asked(self, query: PointQuery, context: Context) -> PointAnswer:
        try:
            return await self.ask(query, context.time_remaining())
        except DeadlineError as error:  # as gRPC itself ends a call whose time is over
            if error.peer != self._address:
                raise
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, error.cause)

    async def ask(self, query: PointQuery, within_s: float | None) -> PointAnswer:
        """Answer a query, perhaps together with others. Raises DeadlineError: there is no answer within ``within_s``;
        QuotaExceededError: too many wait; ConfigError: the daemon has no model; DrainingError: it stops; UnavailableError: a
        peer is away. Also what the answerer raises, such as UnknownNameError for an unknown vertex."""
        loop = asyncio.get_running_loop()
        since, within_s = loop.time(), min(LONGEST_S, DEADLINE_S if within_s is None else within_s)
        one = WaitingQuery(query, since, since + within_s, loop.create_future())
        try:
            if self._answerer is None:
                raise ConfigError(NO_MODEL)
            if self.draining:
                raise DrainingError(self._address)
            if self._queue.add(one):
                self._came.set()
            async with asyncio.timeout(within_s):
                answer: PointAnswer = await one.answer
        except TimeoutError:
            self._figures.refused += 1
            raise DeadlineError(self._address, f"no answer within {within_s:g} s") from None
        except AttaError:
            self._figures.refused += 1
            raise
        finally:
            self._queue.drop(one)
        self._figures.count(one, loop.time())
        return answer

    async def _answer_queries(self, answerer: Answerer) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._watched((), answerer.prepare)
        except Exception as error:  # the first query tries again, and its caller is told
            log.warning("model not prepared", error=shortened(str(error)))
        while True:
            self._came.clear()
            if (pause := self._queue.pause_s(loop.time())) != 0:
                await asyncio.wait({waking := loop.create_task(self._came.wait())}, timeout=pause)
                waking.cancel()
                continue
            if together := self._queue.take(loop.time()):
                self._figures.computed += 1
                await self._answer(answerer, together)

    async def _answer(self, answerer: Answerer, together: Sequence[WaitingQuery]) -> None:
        queries = [one.query for one in together]
        found: Sequence[PointAnswer | AttaError]
        try:
            found = await self._watched(together, answerer.answer, queries)
        except AttaError as error:
            log.warning("queries not answered", callers=len(together), error=shortened(str(error)))
            found = [error] * len(together)
        except Exception as error:
            log.error("queries failed", callers=len(together), exc_info=error)
            found = [AttaError(f"the query failed: {type(error).__name__}: {error}")] * len(together)
        for one, answer in zip(together, found, strict=True):
            _tell(one, answer)

    async def _watched(self, together: Iterable[WaitingQuery], compute: Callable[..., T], *args: Any) -> T:
        # If it waits for peers in vain, callers are told, and so is whoever is next.
        computing = asyncio.ensure_future(aside(compute, *args))
        try:
            while not (await asyncio.wait({computing}, timeout=LOOK_S))[0]:
                if lost := await self._unreached():
                    addresses, parts = zip(*((peer.address, parts_text(peer.parts)) for peer in lost), strict=True)
                    why = f"no daemon answers for partition {', '.join(parts)}"
                    error = UnavailableError(", ".join(addresses), why)
                    for one in (*together, *self._queue):
                        _tell(one, error)
            return computing.result()
        finally:
            computing.cancel()


def _tell(one: WaitingQuery, answer: PointAnswer | AttaError) -> None:
    if one.answer.done():
        return  # its caller has gone, or knows already
    if isinstance(answer, AttaError):
        one.answer.set_exception(answer)
    else:
        one.answer.set_result(answer)


PATHS = {"/predict": "atta.v1.QueryService/Predict", "/recommend": "atta.v1.QueryService/Recommend"}
"""The methods of gRPC that do the same as paths of HTTP: callers need the same roles."""
_STATUS: tuple[tuple[type[AttaError], HTTPStatus], ...] = (
    (UnknownNameError, HTTPStatus.NOT_FOUND),
    (ConfigError, HTTPStatus.BAD_REQUEST),
    (QuotaExceededError, HTTPStatus.TOO_MANY_REQUESTS),
    (DrainingError, HTTPStatus.SERVICE_UNAVAILABLE),
    (StaleRowError, HTTPStatus.SERVICE_UNAVAILABLE),
    (DeadlineError, HTTPStatus.GATEWAY_TIMEOUT),
    (RemoteError, HTTPStatus.BAD_GATEWAY),
    (AttaError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


def query_apps(service: QueryService, loop: asyncio.AbstractEventLoop) -> dict[str, tuple[str, App]]:
    """By path of HTTP the method of gRPC that does the same, and what answers. The service runs on ``loop``."""
    return {path: (method, partial(_answered, service, loop, path)) for path, method in PATHS.items()}


def _answered(
    service: QueryService,
    loop: asyncio.AbstractEventLoop,
    path: str,
    environ: Mapping[str, Any],
    start_response: Callable[..., Any],
) -> Iterable[bytes]:
    """A WSGI application, on the thread of a connection."""
    try:
        with blaming(ConfigError, of=UnknownNameError):  # of a field or a kind; 404 is for vertices
            query, within_s = query_of_json(path, _body(environ))
        found = asyncio.run_coroutine_threadsafe(service.ask(query, within_s), loop).result()
        return json_answer(start_response, HTTPStatus.OK, answer_as_json(query, found))
    except (AttaError, ValueError) as error:
        known = error if isinstance(error, AttaError) else AttaError("the answer has an infinity or NaN")
        status = next(status for kind, status in _STATUS if isinstance(known, kind))
        return json_answer(start_response, status, refusal(type(known), shortened(str(known))))


def _body(environ: Mapping[str, Any]) -> bytes:
    if environ.get("REQUEST_METHOD") != "POST":
        raise ConfigError("queries are sent with POST, as JSON")
    length = str(environ.get("CONTENT_LENGTH") or "")
    if not (length.isascii() and length.isdigit()):
        raise ConfigError("the header Content-Length must say how long the query is")
    # A caller who is still sending would not read an answer: some more than may come is read, too.
    body: bytes = environ["wsgi.input"].read(min(int(length), 4 * MOST_BYTES))
    if int(length) > MOST_BYTES:
        raise QuotaExceededError(f"a query of {length} bytes: at most {MOST_BYTES} are possible")
    return body


def query_of_json(path: str, body: bytes) -> tuple[PointQuery, float | None]:
    """The query that JSON says, and how long its answer may take, in seconds. Raises ConfigError: it is none."""
    with blaming(ConfigError, "the query is not JSON", of=(ValueError, RecursionError)):
        given = json.loads(body)
    known = {"ids", "new", "deadline_s", *(("what", "node_type") if path == "/predict" else ("k", "relation"))}
    if not isinstance(given, dict) or not isinstance(given.get("ids"), list):
        raise ConfigError('the query must be an object with a list of vertices, such as {"ids": [5, 17]}')
    if other := sorted(given.keys() - known):
        raise UnknownNameError.of("field", other[0], known)
    check_named("vertices", len(given["ids"]))
    ids = given_ids("ids", given["ids"])
    new = None if (told := given.get("new")) is None else UnseenVertices.of(ids, told)
    within_s = given.get("deadline_s")
    if within_s is not None and not (type(within_s) in (int, float) and 0 < within_s <= LONGEST_S):
        raise ConfigError(f"deadline_s: must be a number of seconds, at most {LONGEST_S:g}")
    texts = {name: given.get(name, WHAT[0] if name == "what" else "") for name in ("what", "node_type", "relation")}
    if wrong := next((name for name, text in texts.items() if not isinstance(text, str)), None):
        raise ConfigError(f"{wrong}: must be a text")
    if path == "/predict":
        return PointQuery(texts["what"], ids, new=new, node_type=texts["node_type"]), within_s
    return PointQuery(TARGETS, ids, whole("k", given.get("k", 10), 1), texts["relation"], new), within_s


def answer_as_json(query: PointQuery, found: PointAnswer) -> dict[str, Any]:
    """An answer in plain values, in the order of the query's ids; targets are lists, the best first."""
    about = {"ids": query.ids.tolist(), "version": None if found.version < 0 else found.version}
    if found.counts is None or found.targets is None:
        known = dict(enumerate(found.names))  # there may be more classes than names
        names = {"names": [known.get(number) for number in found.values.tolist()]} if known else {}
        return {**about, "what": query.what, "values": found.values.tolist(), **names}
    cuts = np.cumsum(found.counts)[:-1]
    pieces = {"targets": found.targets, "scores": found.values}
    return about | {name: [piece.tolist() for piece in np.split(flat, cuts)] for name, flat in pieces.items()}
