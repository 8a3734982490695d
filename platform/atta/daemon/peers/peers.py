"""The other daemons, as one asks them by messages: what links (``atta.daemon.peers.links``) do not carry or did not answer, and
small questions."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections.abc import AsyncIterator, Mapping
from itertools import count
from math import prod
from typing import Any

import grpc
import numpy as np

from atta.daemon.peers.connection import RETRY_S, Channel, PeerConnection, PeerSettings
from atta.daemon.peers.watching import Hedges
from atta.errors import AttaError, ConfigError, NotAuthenticatedError, RemoteError, UnavailableError
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2, kv_pb2, link_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem, SumItem
from atta.samplers.shard import Answer, spec_of_drawn
from atta.wire import rpc
from atta.wire.bulk import (
    PULL_DATA,
    SAMPLE_COUNTS,
    SAMPLE_EDGE_IDS,
    SAMPLE_NEIGHBORS,
    SAMPLE_TABLES,
    as_array,
    rows_to_wire,
)
from atta.wire.identity import Identity
from atta.wire.parts import Addresses, parts_text
from atta.wire.retries import LONGEST_PAUSE_S, RetryBudget

CHUNK_BYTES = 4 << 20
"""About the largest answer: large enough for gRPC's best throughput, small enough that copying one overlaps with sending
another."""
TableName = tuple[str, str]  # node type, table
PULL_BYTES = 2 << 20
"""The same for rows of tables. They are copied several times on their way, and smaller messages stay within the caches."""
SMALL_BYTES = 128 << 10
"""Largest number of bytes that the event loop handles itself, as handing them to a thread takes longer."""
PULLS_AT_ONCE = 2
"""Most pulls of a peer under way: one is made while the other one is sent. More would share the connection evenly, and
come late together."""
PROBE_ROWS = 1 << 17
"""Largest number of rows of one probe: messages of one to two MiB."""
ATTEMPTS = 3
"""How often a request is made without an answer before it fails."""
RETRIES_AT_ONCE = 100
"""Requests under way that may be repeated soon when a peer is lost; see ``RetryBudget``."""
REACH_S, REPLY_S = 1.0, 3.0
"""How long ``unreached`` waits for a connection to a peer, and for its answer: who is stopped has one all the same."""
MEET_S = 5.0  # peers that start together may take so long


def moved_at_once(threads: int) -> int:
    """Largest number of bytes of rows that the event loop moves itself, in a daemon with ``threads`` workers. With one
    worker, its core and that of the event loop are all that the daemon has. A further thread would only take turns with
    them (bench/results/kv.md says what that costs)."""
    return PULL_BYTES if threads == 1 else SMALL_BYTES


class RequestTurns:
    """Turns of large requests to one peer: at most ``width`` are under way, and the oldest batch's is next. If all
    answers shared the connection evenly, all batches would be finished late and none early."""

    def __init__(self, width: int) -> None:
        self._free = width
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap, only while no turn is free
        self._arrivals = count()

    @contextlib.asynccontextmanager
    async def turn(self, since: float) -> AsyncIterator[None]:
        """Wait for a turn, which ends with the block. ``since``: when the batch was begun."""
        if self._free:
            self._free -= 1
        else:
            mine = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (since, next(self._arrivals), mine))
            try:
                await mine  # a request that ends hands its turn over
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._end()
                raise
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        while self._waiting:
            _, _, following = heapq.heappop(self._waiting)
            if not following.done():
                following.set_result(None)
                return
        self._free += 1


class Peer:
    """The daemon of one partition, or its replicas, of which one is asked. Every call has a deadline, and a late one is made
    twice. If the connection breaks, the request is made again. All methods raise UnavailableError if the peer does not come
    back in time, WrongDatasetError if another daemon answers at its address, and the error with which a peer refuses."""

    def __init__(self, part: int, addresses: Addresses, dataset: Dataset, settings: PeerSettings) -> None:
        """``addresses``: as for ``PeerConnection``."""
        self.part, self._deadline_s, self._delay_s = part, settings.deadline_s, settings.delay_s
        self._schema, self.parts = dataset.schema, dataset.groups[part]
        meant = Identity(self.parts.start, dataset.dataset_id)
        self.connection = PeerConnection(addresses, meant, settings, parts=self.parts)
        self.hedges = Hedges()
        self._turns = RequestTurns(PULLS_AT_ONCE)
        self._budget = RetryBudget(RETRIES_AT_ONCE)

    @property
    def address(self) -> str:
        """Where the daemon is that is asked now; it changes when a replica takes over."""
        return self.connection.address

    async def sample(self, item: SampleItem, *, age_ms: int = 0) -> tuple[Answer, int]:
        """Sampled edges of the first rows of ``item``, as many as make a message, and the bytes that came. ``age_ms``: how long
        ago the batch was begun, as peers answer the oldest one first; 0: in order of arrival."""
        rows, wide = rows_to_wire(item.rows)
        request = graph_pb2.SampleRequest(
            edge_type=item.edge_type, fan_out=item.fan_out, replace=item.replace, method=item.method.number,
            method_name=item.method.sent_name,
            trees=b"" if item.trees is None else item.trees.astype(np.int32, copy=False).tobytes(),
            times=b"" if item.times is None else item.times.astype(np.int64, copy=False).tobytes(), tables=item.tables,
            stream_key=item.stream_key, renewed=item.renewed, rows=rows, wide_rows=wide, version=item.version,
            by=item.by, age_ms=age_ms,
        )  # fmt: skip
        bulk = await self._answer("GraphService.Sample", request)
        answer = Answer(
            as_array(bulk.payloads.get(SAMPLE_COUNTS, b""), wide=False),
            as_array(bulk.payloads.get(SAMPLE_NEIGHBORS, b""), wide=bulk.message.wide_neighbors),
            as_array(bulk.payloads.get(SAMPLE_EDGE_IDS, b""), wide=bulk.message.wide_edge_ids),
        )
        answer = self._with_tables(answer, item, bulk.payloads.get(SAMPLE_TABLES, b""))
        return answer, sum(len(view) for view in bulk.payloads.values())

    def _with_tables(self, answer: Answer, item: SampleItem, data: Any) -> Answer:
        """``answer`` with the rows of edge tables that came as ``data``, table after table."""
        if not item.tables:
            return answer
        tables, at, received = {}, 0, np.frombuffer(data, dtype=np.uint8)
        for name in item.tables:
            spec = spec_of_drawn(self._schema, item.edge_type, name)
            nbytes = len(answer.neighbors) * spec.row_bytes
            block = received[at : at + nbytes]
            if len(block) != nbytes:
                raise RemoteError(self.address, f"sends {len(received)} bytes of edge tables, too few")
            tables[name] = block.view(np.dtype(spec.dtype)).reshape(len(answer.neighbors), *spec.row_shape)
            at += nbytes
        return Answer(answer.counts, answer.neighbors, answer.edge_ids, tables)

    async def pull(self, item: FeatureItem, codec: str = "", *, age_ms: int = 0) -> Any:
        """Table rows of ``item``, which make one message: their bytes, table by table; float32 ones in ``codec``."""
        rows, wide = rows_to_wire(item.rows)
        request = kv_pb2.PullRequest(
            node_type=item.node_type, tables=item.tables, rows=rows, wide_rows=wide, codec=codec, version=item.version,
            age_ms=age_ms,
        )  # fmt: skip
        bulk = await self._answer("KvService.Pull", request, since=time.monotonic() - age_ms / 1e3)
        return bulk.payloads.get(PULL_DATA, b"")

    async def sum(self, item: SumItem, *, age_ms: int = 0) -> Any:
        """The sums of ``item``, which make one message: their bytes."""
        rows, wide = rows_to_wire(item.rows)
        weights = b"" if item.weights is None else item.weights.tobytes()
        counts, shifts = item.counts.tobytes(), item.shifts.tobytes()
        sums = kv_pb2.Sums(counts=counts, weights=weights, shifts=shifts, width=item.width)
        request = kv_pb2.PullRequest(
            node_type=item.node_type, tables=[item.table], rows=rows, wide_rows=wide, version=item.version,
            age_ms=age_ms, sums=sums,
        )  # fmt: skip
        bulk = await self._answer("KvService.Pull", request, since=time.monotonic() - age_ms / 1e3)
        return bulk.payloads.get(PULL_DATA, b"")

    async def largest(self, table: TableName | None = None, version: int = 0) -> dict[TableName, np.ndarray]:
        """By table of float32, or of ``table`` alone, the largest absolute values of the columns of the peer's rows."""
        node_type, name = table or ("", "")
        asked = kv_pb2.ListTablesRequest(largest=True, node_type=node_type, table=name, version=version)
        reply = await self._answer("KvService.ListTables", asked)
        found = {(t.node_type, t.name): np.array(t.largest, np.float32) for t in reply.tables if t.dtype == "<f4"}
        specs = {(t, n): spec for t, tables in self._schema.node_tables.items() for n, spec in tables.items()}
        for key in [table] if table else [*specs]:
            if specs[key].dtype == "<f4" and len(found.get(key, ())) != prod(specs[key].row_shape):
                raise RemoteError(self.address, f"says the largest numbers of other columns than {'/'.join(key)} has")
        return found

    async def probe(
        self, edge_type: str, question: Any, rows: np.ndarray, operands: np.ndarray | None = None, *, version: int = 0
    ) -> np.ndarray:
        """int64 [rows]: one number per core row of the peer (``ProbeRequest.Question``); ``version``: as for
        ``SampleItem``. ``operands`` int64 or uint64 [rows]."""
        answers = []
        for at in range(0, max(1, len(rows)), PROBE_ROWS):
            part = slice(at, at + PROBE_ROWS)
            request = graph_pb2.ProbeRequest(
                edge_type=edge_type, question=question, rows=rows[part].astype(np.int64, copy=False).tobytes(),
                operands=b"" if operands is None else operands[part].tobytes(), version=version,
            )  # fmt: skip
            reply = await self._answer("GraphService.Probe", request)
            answers.append(as_array(reply.values, wide=True))
            if len(answers[-1]) != len(rows[part]):
                raise RemoteError(self.address, f"answers {len(answers[-1])} rows of {len(rows[part])}")
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    async def pair(
        self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int, version: int = 0
    ) -> np.ndarray:
        """As ``Shard.pair`` of the peer's partition; ``version``: as for ``SampleItem``."""
        request = graph_pb2.PairRequest(
            edge_type=edge_type, count=count, negative=negative, stream_key=stream_key,
            rows=rows.astype(np.int64, copy=False).tobytes(), version=version,
        )  # fmt: skip
        reply = await self._answer("GraphService.Pair", request)
        ids = as_array(reply.ids, wide=True)
        if len(ids) != len(rows) * count:
            raise RemoteError(self.address, f"answers {len(ids)} pairs for {len(rows)} x {count}")
        return ids

    async def attach(self, request: link_pb2.AttachRequest) -> link_pb2.AttachReply:
        """Ask for a link (``LinkService.Attach``)."""
        return await self._answer("LinkService.Attach", request)  # type: ignore[no-any-return]

    async def _answer(self, method: str, request: Any, since: float | None = None) -> Any:
        """The answer to a request, which is made again when the connection breaks. A large one has its turn by when its batch
        was begun; while the peer is away, nobody has a turn, so that all who wait fail together."""
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        for failures in range(1, ATTEMPTS + 1):
            await self.connection.ready()
            self._budget.asked()
            address, silences, used = self.address, self.connection.watch.silences, self.connection.usual
            try:
                async with contextlib.nullcontext() if since is None else self._turns.turn(since):
                    return await self._sooner(method, request)
            except grpc.aio.AioRpcError as failure:
                error = rpc.error_from(self.address, failure, self._deadline_s)
                renewed = isinstance(error, NotAuthenticatedError) and self.connection.renewed(used)
                if failures == ATTEMPTS or not (renewed or isinstance(error, UnavailableError)):
                    raise await self.connection.explained(error) from failure
                if not renewed:
                    self.connection.broke(error)
            except (asyncio.CancelledError, grpc.aio.UsageError) as ended:
                if not self._was_left(ended, silences):
                    raise
            await asyncio.sleep(RETRY_S * failures if self._budget.take() else LONGEST_PAUSE_S)
        raise UnavailableError(address, "owes an answer and does not answer a question")

    def _was_left(self, ended: BaseException, silences: int) -> bool:
        """Whether a call has ended because the peer was silent; ``silences``: their number when it began."""
        if isinstance(ended, grpc.aio.UsageError):
            return True  # another connection has taken the place of the one that it was to use
        waiting = asyncio.current_task()
        return self.connection.watch.silences > silences and not (waiting is not None and waiting.cancelling())

    async def _sooner(self, method: str, request: Any) -> Any:
        """The answer to a call. If it is late, the first one of two calls. An error counts only if no other call can answer
        any more."""
        started = time.monotonic()
        calls = [self._call(self.connection.usual, method, request)]
        try:
            if (late := self.hedges.patience(method)) is not None:
                await asyncio.wait(calls, timeout=late)
                if not calls[0].done() and self.hedges.take():
                    calls.append(self._call(self.connection.spare, method, request))
            waiting = set(calls)
            while waiting and not any(_has_answer(call) for call in calls):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()
        first = next(filter(_has_answer, calls), calls[0])
        reply = rpc.answered(self.address, await first)
        self.hedges.answered(method, time.monotonic() - started)
        self.hedges.won += first is not calls[0]
        return reply

    def _call(self, channel: Channel, method: str, request: Any) -> asyncio.Future[Any]:
        awaited: asyncio.Future[Any] = asyncio.ensure_future(channel.ask(method, request, self._deadline_s))
        self.connection.watch.awaits(awaited)
        return awaited


def _has_answer(call: asyncio.Future[Any]) -> bool:
    return call.done() and not call.cancelled() and call.exception() is None


class Peers:
    """All other daemons of the cluster, by the parts of the dataset that they own."""

    def __init__(
        self, addresses: Mapping[int, Addresses], dataset: Dataset, settings: PeerSettings, own: int | None = None
    ) -> None:
        """``own``: the part of this daemon."""
        self._addresses, self._dataset, self._settings = dict(addresses), dataset, settings
        self._others = sorted(self._addresses.keys() - {own})
        self._peers: dict[int, Peer] = {}

    def __getitem__(self, part: int) -> Peer:
        """The peer that owns ``part``; connected on first use. ConfigError when its address is not known."""
        peer = self._peers.get(part)
        if peer is None:
            address = self._addresses.get(part)
            if address is None:
                served = parts_text(self._dataset.groups[part])
                raise ConfigError(f"no address is known for the daemon of partition {served}: give it with --peers")
            peer = self._peers[part] = Peer(part, address, self._dataset, self._settings)
        return peer

    async def unreached(self) -> list[Peer]:
        """Connect all peers, also those that nobody has needed yet; those that do not answer in time."""

        async def is_there(peer: Peer) -> bool:
            until = time.monotonic() + REACH_S
            while time.monotonic() < until:
                with contextlib.suppress(AttaError, TimeoutError):
                    async with asyncio.timeout(REPLY_S):
                        if await peer.connection.reached() and await peer.connection.watch.answers():
                            return True
                await asyncio.sleep(RETRY_S)
            peer.connection.broke(UnavailableError(peer.address, "no daemon answers"))  # which the log says once
            return False

        others = [self[part] for part in self._others]
        found = await asyncio.gather(*map(is_there, others))
        return [peer for peer, there in zip(others, found, strict=True) if not there]

    async def meet(self) -> None:
        """Connect all peers some seconds after the start, and those that do not answer again and again. It never ends."""
        await asyncio.sleep(MEET_S)
        while await self.unreached():
            await asyncio.sleep(MEET_S)
        await asyncio.Event().wait()

    def stats(self) -> dict[str, float]:
        hedges = [peer.hedges for peer in self._peers.values()]
        return {
            "hedged_total": float(sum(h.sent for h in hedges)),
            "hedges_won_total": float(sum(h.won for h in hedges)),
            "replica_changes_total": float(sum(peer.connection.changes for peer in self._peers.values())),
        }

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.connection.close()
