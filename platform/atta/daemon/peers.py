"""The other daemons: what a DAG asks of the partitions that are not its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from atta import rpc
from atta.daemon.chunks import sampled_rows
from atta.daemon.hedges import Hedges
from atta.errors import ConfigError, RemoteError, UnavailableError
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.samplers.batch import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.samplers.resolve import METHODS
from atta.samplers.shard import Answer

__all__ = ["Peer", "Peers", "as_array", "rows_to_wire"]

PROBE_ROWS = 1 << 17
"""Rows of one probe: messages of one to two MiB."""
CONNECT_S = 15.0
"""A peer that is starting, or restarting, is waited for so long; one that stays away fails the batch, not the deadline."""
ATTEMPTS = 3
_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_INT32_MAX = np.iinfo(np.int32).max


def rows_to_wire(rows: np.ndarray) -> tuple[bytes, bool]:
    """Row positions as bytes, int32 when they fit, and whether they are wide (int64)."""
    wide = bool(len(rows)) and int(rows.max()) > _INT32_MAX
    return rows.astype(np.int64 if wide else np.int32, copy=False).tobytes(), wide


def as_array(data: Any, *, wide: bool) -> np.ndarray:
    """Ids from the wire as a read-only int64 (``wide``) or int32 array, without a copy.

    Raises:
        ConfigError: the bytes are no whole number of ids.
    """
    dtype = np.dtype(np.int64 if wide else np.int32)
    if len(data) % dtype.itemsize:
        raise ConfigError(f"malformed message: {len(data)} bytes are no whole number of {dtype.itemsize}-byte ids")
    return np.frombuffer(data, dtype=dtype)


class _Link:
    """One connection to a daemon, and what can be asked over it."""

    def __init__(self, address: str) -> None:
        # Channels to one address would share their connection.
        self.channel = grpc.aio.insecure_channel(
            address, options=[*rpc.channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        )
        self._stubs: dict[str, Any] = {}

    def __getitem__(self, method: str) -> Any:
        if method not in self._stubs:
            self._stubs[method] = rpc.stub(self.channel, method)
        return self._stubs[method]


class Peer:
    """The daemon of one partition. Channels reconnect by themselves; every call has a deadline, and a late one is made twice."""

    def __init__(self, part: int, address: str, dataset: Dataset, deadline_s: float, *, delay_s: float = 0.0) -> None:
        """``delay_s``: every request waits so long first."""
        self.part, self.address, self._deadline_s, self._delay_s = part, address, deadline_s, delay_s
        self._dataset_id, self._edge_tables = dataset.dataset_id, dataset.schema.edge_tables
        self._link = _Link(address)
        self._spare: _Link | None = None
        self.hedges = Hedges()

    async def sample(
        self, items: Sequence[SampleItem], *, age_ms: int = 0
    ) -> AsyncIterator[tuple[SampleItem, int, Answer, int]]:
        """Expand ``items``; yields (item, first row, answer, bytes received) chunk by chunk.

        ``age_ms``: since the batch was begun that they are for; peers serve the oldest first. 0: in order of arrival.
        """
        request = graph_pb2.SampleRequest(dataset_id=self._dataset_id, age_ms=age_ms)
        for item in items:
            rows, wide = rows_to_wire(item.rows)
            request.edge_types.add(
                edge_type=item.edge_type,
                fan_out=item.fan_out,
                replace=item.replace,
                method=METHODS[item.method],
                trees=b"" if item.trees is None else item.trees.astype(np.int32, copy=False).tobytes(),
                times=b"" if item.times is None else item.times.astype(np.int64, copy=False).tobytes(),
                tables=item.tables,
                stream_key=item.stream_key,
                rows=rows,
                wide_rows=wide,
            )
        method = "GraphService.SampleOnce" if self._is_one_chunk(items) else "GraphService.Sample"
        async for bulk in self._answers(method, request):
            chunk = bulk.message
            if chunk.edge_type >= len(items):
                raise RemoteError(self.address, f"answers edge type {chunk.edge_type} of {len(items)}")
            answer = Answer(
                as_array(bulk.payloads.get(3, b""), wide=False),
                as_array(bulk.payloads.get(4, b""), wide=chunk.wide_neighbors),
                as_array(bulk.payloads.get(5, b""), wide=chunk.wide_edge_ids),
            )
            answer = self._with_tables(answer, items[chunk.edge_type], bulk.payloads.get(8, b""))
            nbytes = sum(len(view) for view in bulk.payloads.values())
            yield items[chunk.edge_type], chunk.first_row, answer, nbytes

    def _is_one_chunk(self, items: Sequence[SampleItem]) -> bool:
        """Whether the peer is going to answer with one message."""
        if len(items) != 1 or items[0].fan_out < 0 or items[0].method is Method.LABOR:
            return False
        tables = self._edge_tables[items[0].edge_type]
        return len(items[0].rows) <= sampled_rows(items[0].fan_out, sum(tables[n].row_bytes for n in items[0].tables))

    def _with_tables(self, answer: Answer, item: SampleItem, data: Any) -> Answer:
        """``answer`` with the rows of edge tables that came as ``data``, table after table."""
        if not item.tables:
            return answer
        tables, at, received = {}, 0, np.frombuffer(data, dtype=np.uint8)
        for name in item.tables:
            spec = self._edge_tables[item.edge_type][name]
            nbytes = len(answer.neighbors) * spec.row_bytes
            block = received[at : at + nbytes]
            if len(block) != nbytes:
                raise RemoteError(self.address, f"sends {len(received)} bytes of edge tables, too few")
            tables[name] = block.view(np.dtype(spec.dtype)).reshape(len(answer.neighbors), *spec.row_shape)
            at += nbytes
        return Answer(answer.counts, answer.neighbors, answer.edge_ids, tables)

    async def probe(
        self, edge_type: str, question: Any, rows: np.ndarray, operands: np.ndarray | None = None
    ) -> np.ndarray:
        """int64 [rows]: one number per core row of the peer (``ProbeRequest.Question``); ``operands`` int64 or uint64 [rows]."""
        await self._connected()
        answers = []
        for at in range(0, max(1, len(rows)), PROBE_ROWS):
            part = slice(at, at + PROBE_ROWS)
            request = graph_pb2.ProbeRequest(
                dataset_id=self._dataset_id,
                edge_type=edge_type,
                question=question,
                rows=rows[part].astype(np.int64, copy=False).tobytes(),
                operands=b"" if operands is None else operands[part].tobytes(),
            )
            try:
                reply = await self._link["GraphService.Probe"](request, timeout=self._deadline_s)
            except grpc.aio.AioRpcError as error:
                raise rpc.error_from(self.address, error) from error
            answers.append(as_array(reply.values, wide=True))
            if len(answers[-1]) != len(rows[part]):
                raise RemoteError(self.address, f"answers {len(answers[-1])} rows of {len(rows[part])}")
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    async def pair(
        self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int
    ) -> np.ndarray:
        """As ``Shard.pair`` of the peer's partition."""
        request = graph_pb2.PairRequest(
            dataset_id=self._dataset_id,
            edge_type=edge_type,
            count=count,
            negative=negative,
            stream_key=stream_key,
            rows=rows.astype(np.int64, copy=False).tobytes(),
        )
        await self._connected()
        try:
            reply = await self._link["GraphService.Pair"](request, timeout=self._deadline_s)
        except grpc.aio.AioRpcError as error:
            raise rpc.error_from(self.address, error) from error
        ids = as_array(reply.ids, wide=True)
        if len(ids) != len(rows) * count:
            raise RemoteError(self.address, f"answers {len(ids)} pairs for {len(rows)} x {count}")
        return ids

    async def pull(
        self, items: Sequence[FeatureItem], codec: str = "", *, age_ms: int = 0
    ) -> AsyncIterator[tuple[int, int, int, Any]]:
        """Pull rows, float32 ones in ``codec``, chunk by chunk; ``age_ms`` as for ``sample``.

        Yields (index of the item, first row, number of rows, their bytes table by table).
        """
        request = kv_pb2.PullRequest(dataset_id=self._dataset_id, age_ms=age_ms)
        for item in items:
            rows, wide = rows_to_wire(item.rows)
            request.pulls.add(node_type=item.node_type, tables=item.tables, rows=rows, wide_rows=wide, codec=codec)
        async for bulk in self._answers("KvService.Pull", request):
            chunk = bulk.message
            if chunk.pull >= len(items):
                raise RemoteError(self.address, f"answers pull {chunk.pull} of {len(items)}")
            item = items[chunk.pull]
            if chunk.first_row + chunk.rows > len(item.rows):
                raise RemoteError(self.address, f"answers more than {len(item.rows)} rows")
            yield chunk.pull, chunk.first_row, chunk.rows, bulk.payloads.get(4, b"")

    async def _answers(self, method: str, request: Any) -> AsyncIterator[Any]:
        """The answers to a request; it is made again where the connection breaks before the first one has come."""
        for attempt in range(ATTEMPTS):
            await self._connected()
            call, begun, coming = None, False, None
            try:
                call, message = await self._first(method, request)
                while message is not _END:
                    begun = True
                    # gRPC takes a message in when it is asked to: the next one comes while this one is put into place.
                    coming = asyncio.ensure_future(call.read()) if rpc.METHODS[method].streams else None
                    yield message
                    message = await coming if coming is not None else _END
                return
            except grpc.aio.AioRpcError as failure:
                error = rpc.error_from(self.address, failure)
                if begun or attempt == ATTEMPTS - 1 or not isinstance(error, UnavailableError):
                    raise error from failure
            finally:
                if coming is not None:
                    coming.cancel()  # its failure, too, is nobody's any more
                if call is not None:
                    call.cancel()

    async def _first(self, method: str, request: Any) -> tuple[Any, Any]:
        """The call and its first answer (EOF: there is none); when it is late, whichever of two calls answers first."""
        started = time.monotonic()
        calls = [self._call(self._link, method, request)]
        try:
            late = self.hedges.patience(method)
            if late is not None:
                await asyncio.wait({calls[0][1]}, timeout=late)
                if not calls[0][1].done() and self.hedges.take():
                    self._spare = self._spare or _Link(self.address)
                    calls.append(self._call(self._spare, method, request))
            call, answer = await _sooner(calls)
        finally:
            for other, reading in calls:
                if not reading.done():
                    other.cancel()
                    reading.cancel()
        self.hedges.answered(method, time.monotonic() - started)
        self.hedges.won += call is not calls[0][0]
        return call, answer

    def _call(self, link: _Link, method: str, request: Any) -> tuple[Any, asyncio.Future[Any]]:
        call = link[method](request, timeout=self._deadline_s)
        first: Awaitable[Any] = call.read() if rpc.METHODS[method].streams else call
        return call, asyncio.ensure_future(first)

    async def _connected(self) -> None:
        """Wait for the peer to answer; UnavailableError when it does not within ``CONNECT_S`` (and the deadline)."""
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if self._link.channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY:
            return
        patience = min(CONNECT_S, self._deadline_s)
        try:
            await asyncio.wait_for(self._link.channel.channel_ready(), patience)
        except TimeoutError:
            raise UnavailableError(self.address, f"no daemon answers (waited {patience:g} s)") from None

    async def close(self) -> None:
        """Close the connections."""
        for link in (self._link, self._spare):
            if link is not None:
                await link.channel.close(grace=None)


async def _sooner(calls: Sequence[tuple[Any, asyncio.Future[Any]]]) -> tuple[Any, Any]:
    """The call that answers first and its answer; an error counts only when no other call can answer any more.

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
    """All other daemons of the cluster, by partition."""

    def __init__(self, addresses: Mapping[int, str], dataset: Dataset, deadline_s: float, delay_s: float = 0.0) -> None:
        self._addresses, self._dataset, self._deadline_s, self._delay_s = dict(addresses), dataset, deadline_s, delay_s
        self._peers: dict[int, Peer] = {}

    def __getitem__(self, part: int) -> Peer:
        """The peer that owns ``part``; connected on first use. ConfigError when its address is not known."""
        peer = self._peers.get(part)
        if peer is None:
            address = self._addresses.get(part)
            if address is None:
                raise ConfigError(f"no address is known for the daemon of partition {part}: give it with --peers")
            peer = self._peers[part] = Peer(part, address, self._dataset, self._deadline_s, delay_s=self._delay_s)
        return peer

    def stats(self) -> dict[str, float]:
        """Counters."""
        hedges = [peer.hedges for peer in self._peers.values()]
        return {
            "hedged_total": float(sum(h.sent for h in hedges)),
            "hedges_won_total": float(sum(h.won for h in hedges)),
        }

    async def close(self) -> None:
        """Close all channels."""
        for peer in self._peers.values():
            await peer.close()
