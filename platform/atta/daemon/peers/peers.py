"""The other daemons: what a DAG asks of other partitions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from atta.daemon.peers.answers import PulledRows, SampledRows
from atta.daemon.peers.chunks import sampled_rows
from atta.daemon.peers.hedges import Hedges
from atta.daemon.peers.link import CONNECT_S, RETRY_S, Alike, Link, PeerLink
from atta.daemon.peers.remaining import Remaining, RequestPlace, rest_of
from atta.errors import AttaError, ConfigError, NotAuthenticatedError, RemoteError, UnavailableError
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2, kv_pb2, link_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.shard import Answer, spec_of_drawn
from atta.wire import rpc
from atta.wire.contract import Contract
from atta.wire.identity import Identity
from atta.wire.messages.bulk import PULL_DATA, SAMPLE_COUNTS, SAMPLE_EDGE_IDS, SAMPLE_NEIGHBORS, SAMPLE_TABLES
from atta.wire.parts import Addresses, parts_text, replicas_of
from atta.wire.retries import LONGEST_PAUSE_S, RetryBudget
from atta.wire.security.credentials import Credentials

__all__ = ["Peer", "Peers", "as_array", "rows_to_wire"]

PROBE_ROWS = 1 << 17
"""Largest number of rows of one probe: messages of one to two MiB."""
ATTEMPTS = 3
"""How often a request is made without any answer before it fails. Every answer restarts the count."""
RETRIES_AT_ONCE = 100
"""Requests under way that may be repeated soon when a peer is lost; see ``RetryBudget``."""
REACH_S = 1.0
"""How long ``unreached`` waits for a peer."""
_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_INT32_MAX = np.iinfo(np.int32).max


def rows_to_wire(rows: np.ndarray) -> tuple[bytes, bool]:
    """Row positions as bytes, int32 when they fit, and whether they are wide (int64)."""
    wide = bool(len(rows)) and int(rows.max()) > _INT32_MAX
    return rows.astype(np.int64 if wide else np.int32, copy=False).tobytes(), wide


def as_array(data: Any, *, wide: bool) -> np.ndarray:
    """Ids from the wire as a read-only int64 (``wide``) or int32 array, without a copy.

    Raises:
        ConfigError: the bytes are not a whole number of ids.
    """
    dtype = np.dtype(np.int64 if wide else np.int32)
    if len(data) % dtype.itemsize:
        raise ConfigError(f"malformed message: {len(data)} bytes are no whole number of {dtype.itemsize}-byte ids")
    return np.frombuffer(data, dtype=dtype)


class Peer:
    """The daemon of one partition, or its replicas, of which one is asked. Every call has a deadline, and a late one is made twice.

    If the connection breaks, the rows without an answer are asked for again. All methods raise UnavailableError if the
    peer does not come back in time, WrongDatasetError if another daemon answers at its address, and the error with
    which a peer refuses.
    """

    def __init__(
        self,
        part: int,
        addresses: Addresses,
        dataset: Dataset,
        deadline_s: float,
        *,
        delay_s: float = 0.0,
        connect_s: float = CONNECT_S,
        credentials: Credentials | None = None,
        alike: Alike | None = None,
        moved: Callable[[range], Addresses | None] | None = None,
    ) -> None:
        """``delay_s``: how long every request waits first; ``connect_s``: how long to wait for a peer that is away;
        ``credentials``: for TLS; ``addresses``, ``alike``, ``moved``: see ``PeerLink``.
        """
        self.part, self._deadline_s, self._delay_s = part, deadline_s, delay_s
        self._schema = dataset.schema
        parts = dataset.groups[part]
        meant = Identity(parts.start, dataset.dataset_id)
        self._link = PeerLink(
            addresses,
            meant,
            deadline_s,
            connect_s=connect_s,
            parts=parts,
            credentials=credentials,
            alike=alike,
            moved=moved,
        )
        self.hedges = Hedges()
        self._budget = RetryBudget(RETRIES_AT_ONCE)

    @property
    def address(self) -> str:
        """Where the daemon is that is asked now; it changes when a replica takes over."""
        return self._link.address

    @property
    def changes(self) -> int:
        """How often another replica was taken."""
        return self._link.changes

    async def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> AsyncIterator[SampledRows]:
        """Expand ``items``, chunk by chunk.

        ``age_ms``: how long ago their batch was begun. Peers serve the oldest first; 0: in order of arrival.
        """
        left = Remaining([len(item.rows) for item in items])

        def rest(item: int, row: int) -> tuple[str, Any]:
            wanted = rest_of(items, item, row)
            method = "GraphService.SampleOnce" if self._is_one_chunk(wanted) else "GraphService.Sample"
            return method, self._sample_request(wanted, age_ms)

        async for bulk in self._answers(left, rest):
            chunk, counts = bulk.message, as_array(bulk.payloads.get(SAMPLE_COUNTS, b""), wide=False)
            index, first_row = self._taken(left, chunk.edge_type, chunk.first_row, len(counts))
            answer = Answer(
                counts,
                as_array(bulk.payloads.get(SAMPLE_NEIGHBORS, b""), wide=chunk.wide_neighbors),
                as_array(bulk.payloads.get(SAMPLE_EDGE_IDS, b""), wide=chunk.wide_edge_ids),
            )
            answer = self._with_tables(answer, items[index], bulk.payloads.get(SAMPLE_TABLES, b""))
            nbytes = sum(len(view) for view in bulk.payloads.values())
            yield SampledRows(items[index], first_row, answer, nbytes)

    def _sample_request(self, items: Sequence[SampleItem], age_ms: int) -> Any:
        request = graph_pb2.SampleRequest(age_ms=age_ms)
        for item in items:
            rows, wide = rows_to_wire(item.rows)
            request.edge_types.add(
                edge_type=item.edge_type,
                fan_out=item.fan_out,
                replace=item.replace,
                method=item.method.number,
                trees=b"" if item.trees is None else item.trees.astype(np.int32, copy=False).tobytes(),
                times=b"" if item.times is None else item.times.astype(np.int64, copy=False).tobytes(),
                tables=item.tables,
                stream_key=item.stream_key,
                rows=rows,
                wide_rows=wide,
                version=item.version,
                by=item.by,
            )
        return request

    def _taken(self, left: Remaining, index: int, first_row: int, rows: int) -> RequestPlace:
        try:
            return left.take(index, first_row, rows)
        except ValueError as error:
            raise RemoteError(self.address, str(error)) from error

    def _is_one_chunk(self, items: Sequence[SampleItem]) -> bool:
        """Whether the peer is going to answer with one message."""
        if len(items) != 1 or items[0].fan_out < 0 or not items[0].method.bounded:
            return False
        specs = [spec_of_drawn(self._schema, items[0].edge_type, name) for name in items[0].tables]
        return len(items[0].rows) <= sampled_rows(items[0].fan_out, sum(spec.row_bytes for spec in specs))

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

    async def probe(
        self, edge_type: str, question: Any, rows: np.ndarray, operands: np.ndarray | None = None, *, version: int = 0
    ) -> np.ndarray:
        """int64 [rows]: one number per core row of the peer (``ProbeRequest.Question``).

        ``operands`` int64 or uint64 [rows].
        """
        answers = []
        for at in range(0, max(1, len(rows)), PROBE_ROWS):
            part = slice(at, at + PROBE_ROWS)
            request = graph_pb2.ProbeRequest(
                edge_type=edge_type,
                question=question,
                rows=rows[part].astype(np.int64, copy=False).tobytes(),
                operands=b"" if operands is None else operands[part].tobytes(),
                version=version,
            )
            reply = await self._answer("GraphService.Probe", request)
            answers.append(as_array(reply.values, wide=True))
            if len(answers[-1]) != len(rows[part]):
                raise RemoteError(self.address, f"answers {len(answers[-1])} rows of {len(rows[part])}")
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    async def pair(
        self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int, version: int = 0
    ) -> np.ndarray:
        """As ``Shard.pair`` of the peer's partition."""
        request = graph_pb2.PairRequest(
            edge_type=edge_type,
            count=count,
            negative=negative,
            stream_key=stream_key,
            rows=rows.astype(np.int64, copy=False).tobytes(),
            version=version,
        )
        reply = await self._answer("GraphService.Pair", request)
        ids = as_array(reply.ids, wide=True)
        if len(ids) != len(rows) * count:
            raise RemoteError(self.address, f"answers {len(ids)} pairs for {len(rows)} x {count}")
        return ids

    async def pull(
        self, items: Sequence[FeatureItem], codec: str = "", *, age_ms: int = 0
    ) -> AsyncIterator[PulledRows]:
        """Pull rows, float32 ones in ``codec``, chunk by chunk; ``age_ms`` as for ``sample``."""
        left = Remaining([len(item.rows) for item in items])

        def rest(item: int, row: int) -> tuple[str, Any]:
            return "KvService.Pull", self._pull_request(rest_of(items, item, row), codec, age_ms)

        async for bulk in self._answers(left, rest):
            chunk = bulk.message
            index, first_row = self._taken(left, chunk.pull, chunk.first_row, chunk.rows)
            yield PulledRows(index, first_row, chunk.rows, bulk.payloads.get(PULL_DATA, b""))

    def _pull_request(self, items: Sequence[FeatureItem], codec: str, age_ms: int) -> Any:
        request = kv_pb2.PullRequest(age_ms=age_ms)
        for item in items:
            rows, wide = rows_to_wire(item.rows)
            request.pulls.add(
                node_type=item.node_type,
                tables=item.tables,
                rows=rows,
                wide_rows=wide,
                codec=codec,
                version=item.version,
            )
        return request

    async def attach(self, request: link_pb2.AttachRequest) -> link_pb2.AttachReply:
        """Ask for a link (``LinkService.Attach``)."""
        reply: link_pb2.AttachReply = await self._answer("LinkService.Attach", request)
        return reply

    async def _answer(self, method: str, request: Any) -> Any:
        """The answer to a request that has a single one."""
        (reply,) = [reply async for reply in self._answers(Remaining([1]), lambda _item, _row: (method, request))]
        return reply

    async def _answers(self, left: Remaining, rest: Callable[[int, int], tuple[str, Any]]) -> AsyncIterator[Any]:
        """The answers to a request, which the caller notes in ``left``.

        ``rest``: the method and the request for the rows from an item and a row on. It is called again when the
        connection breaks.
        """
        failures = 0
        while True:
            await self._connected()
            method, request = rest(*left.ask())
            self._budget.asked()
            call, coming = None, None
            address, silences, used = self.address, self._link.watch.silences, self._link.usual
            try:
                call, message = await self._first(method, request)
                while message is not _END:
                    # gRPC reads a message only when asked to: so the next one comes while this one is put into place.
                    coming = self._watched(call.read()) if rpc.METHODS[method].streams else None
                    yield rpc.answered(address, message)
                    message = await coming if coming is not None else _END
                return
            except grpc.aio.AioRpcError as failure:
                error = rpc.error_from(self.address, failure, self._deadline_s)
                if left.done:
                    return
                failures = 1 if left.progressed else failures + 1
                renewed = isinstance(error, NotAuthenticatedError) and self._link.renewed(used)
                if failures == ATTEMPTS or not (renewed or isinstance(error, UnavailableError)):
                    raise await self._link.explained(error) from failure
                if not renewed:
                    self._link.broke(error)
            except (asyncio.CancelledError, grpc.aio.UsageError) as ended:
                if not self._was_left(ended, silences):
                    raise
                failures = 1 if left.progressed else failures + 1
                if failures == ATTEMPTS:
                    raise UnavailableError(address, "owes an answer and does not answer a question") from None
            finally:
                if coming is not None:
                    coming.cancel()  # nobody waits for its failure either
                if call is not None:
                    call.cancel()
            await asyncio.sleep(RETRY_S * failures if self._budget.take() else LONGEST_PAUSE_S)

    def _was_left(self, ended: BaseException, silences: int) -> bool:
        """Whether a call has ended because the peer was silent; ``silences``: their number when it began."""
        if isinstance(ended, grpc.aio.UsageError):
            return True  # another connection has taken the place of the one that it was to use
        waiting = asyncio.current_task()
        return self._link.watch.silences > silences and not (waiting is not None and waiting.cancelling())

    async def _first(self, method: str, request: Any) -> tuple[Any, Any]:
        """The call and its first answer (EOF: there is none). If it is late, the first of two calls to answer."""
        started = time.monotonic()
        calls = [self._call(self._link.usual, method, request)]
        try:
            late = self.hedges.patience(method)
            if late is not None:
                await asyncio.wait({calls[0][1]}, timeout=late)
                if not calls[0][1].done() and self.hedges.take():
                    calls.append(self._call(self._link.spare, method, request))
            call, answer = await _sooner(calls)
            rpc.answered(self.address, answer)
        finally:
            for other, reading in calls:
                if not reading.done():
                    other.cancel()
                    reading.cancel()
        self.hedges.answered(method, time.monotonic() - started)
        self.hedges.won += call is not calls[0][0]
        return call, answer

    def _call(self, link: Link, method: str, request: Any) -> tuple[Any, asyncio.Future[Any]]:
        call = link.ask(method, request, self._deadline_s)
        first: Awaitable[Any] = call.read() if rpc.METHODS[method].streams else call
        return call, self._watched(first)

    def _watched(self, answer: Awaitable[Any]) -> asyncio.Future[Any]:
        awaited: asyncio.Future[Any] = asyncio.ensure_future(answer)
        self._link.watch.awaits(awaited)
        return awaited

    async def _connected(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._link.ready()

    async def reached(self) -> bool:
        """See ``PeerLink.reached``."""
        return await self._link.reached()

    async def answers(self) -> bool:
        """See ``PeerWatch.answers``."""
        return await self._link.watch.answers()

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()


async def _sooner(calls: Sequence[tuple[Any, asyncio.Future[Any]]]) -> tuple[Any, Any]:
    """The call that answers first and its answer. An error counts only if no other call can answer any more.

    Raises AioRpcError: that of the first call, if all have failed.
    """
    if len(calls) > 1:
        waiting = {reading for _, reading in calls}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(reading.exception() is None for reading in done):
                break
    good = [(call, reading) for call, reading in calls if reading.done() and reading.exception() is None]
    call, reading = (good or calls)[0]
    return call, await reading


class Peers:
    """All other daemons of the cluster, by the parts of the dataset that they own."""

    def __init__(
        self,
        addresses: Mapping[int, Addresses],
        dataset: Dataset,
        deadline_s: float,
        delay_s: float = 0.0,
        credentials: Credentials | None = None,
        *,
        contract: Contract | None = None,
        own: str = "this daemon",
        moved: Callable[[range], Addresses | None] | None = None,
    ) -> None:
        """``contract``: of this daemon, whose address is ``own``; peers must have the same. None: they may have any.
        ``moved``: see ``PeerLink``."""
        self._credentials, self._moved = credentials, moved
        self._own, self._alike = own, None if contract is None else Alike(contract, own)
        self._addresses, self._dataset, self._deadline_s, self._delay_s = dict(addresses), dataset, deadline_s, delay_s
        self._peers: dict[int, Peer] = {}

    def __getitem__(self, part: int) -> Peer:
        """The peer that owns ``part``; connected on first use. ConfigError when its address is not known."""
        peer = self._peers.get(part)
        if peer is None:
            address = self._addresses.get(part)
            if address is None:
                served = parts_text(self._dataset.groups[part])
                raise ConfigError(f"no address is known for the daemon of partition {served}: give it with --peers")
            settings: dict[str, Any] = {
                "delay_s": self._delay_s,
                "credentials": self._credentials,
                "alike": self._alike,
                "moved": self._moved,
            }
            peer = self._peers[part] = Peer(part, address, self._dataset, self._deadline_s, **settings)
        return peer

    async def reached(self, part: int) -> bool:
        """See ``PeerLink.reached``."""
        return await self[part].reached()

    async def unreached(self, within_s: float = REACH_S) -> list[str]:
        """Connect all peers, also those that nobody has needed yet; the addresses of those that do not answer in time."""

        async def missing(part: int) -> list[str]:
            until = time.monotonic() + within_s
            while time.monotonic() < until:
                with contextlib.suppress(AttaError):
                    if await self.reached(part):
                        return []
                await asyncio.sleep(RETRY_S)
            return [self[part].address]

        others = [part for part, there in self._addresses.items() if self._own not in replicas_of(there)]
        return sum(await asyncio.gather(*map(missing, sorted(others))), list[str]())

    def stats(self) -> dict[str, float]:
        """Counters."""
        hedges = [peer.hedges for peer in self._peers.values()]
        return {
            "hedged_total": float(sum(h.sent for h in hedges)),
            "hedges_won_total": float(sum(h.won for h in hedges)),
            "replica_changes_total": float(sum(peer.changes for peer in self._peers.values())),
        }

    async def close(self) -> None:
        """Close all channels."""
        for peer in self._peers.values():
            await peer.close()
