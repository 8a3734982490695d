"""Copies in-edges of hot vertices of other partitions into the cache, in the background.

Nothing waits for it. The daemon asks the owners for the in-degrees of remote vertices and chooses whose in-edges to
keep (``atta.kvstore.cache.choice``). Then it asks for them piece by piece. Every piece is compared with the owner's
digests. Requests have age 0, so owners answer those of batches first. While batches are made, pieces come slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import structlog

from atta.daemon.peers.answers import AskedPeer
from atta.errors import AttaError, ConfigError, UnavailableError, WrongDatasetError
from atta.kvstore.cache.choice import MOST_DEGREE, Candidates, candidates, choose, edge_types_into
from atta.kvstore.cache.edges import EdgeCache
from atta.kvstore.cache.pieces import Piece, in_pieces
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.items import SampleItem
from atta.samplers.methods import Method
from atta.samplers.shard import Answer

__all__ = ["EdgeReplication", "ReplicatedPeer", "ReplicatedPeers", "ReplicationPace"]

_QUESTION = graph_pb2.ProbeRequest
log = structlog.get_logger("atta.replication")


class ReplicatedPeer(AskedPeer, Protocol):
    """A daemon whose vertices' in-edges are copied."""

    @property
    def connected(self) -> bool:
        """Whether a connection is there. If not, one is being made; nobody waits and nothing is logged."""
        ...


class ReplicatedPeers(Protocol):
    """The other daemons, by partition."""

    def __getitem__(self, part: int) -> ReplicatedPeer: ...


@dataclass(frozen=True, slots=True)
class ReplicationPace:
    """How fast in-edges come, and how long to wait for peers.

    Attributes:
        idle_bytes_s, busy_bytes_s: bytes per second while the daemon has no session, and while it has some.
        first_s, most_s: how long to wait before a peer that is away is looked for again: twice as long each time.
        patience_s: after about this time without a peer, its vertices are left out.
        attempts: how often a piece is asked for.
    """

    idle_bytes_s: float = 256e6
    busy_bytes_s: float = 16e6
    first_s: float = 0.2
    most_s: float = 30.0
    patience_s: float = 600.0
    attempts: int = 3


class EdgeReplication:
    """Fills an ``EdgeCache``, once."""

    def __init__(
        self,
        dataset: Dataset,
        cache: EdgeCache,
        peers: ReplicatedPeers,
        *,
        share: float | None,
        rank: str,
        fan_outs: Sequence[int],
        busy: Callable[[], bool],
        pace: ReplicationPace | None = None,
    ) -> None:
        """``share``, ``rank`` and ``fan_outs`` as for ``candidates``. ``busy``: whether batches are being made."""
        self._dataset, self._cache, self._peers, self._busy = dataset, cache, peers, busy
        self._pace = pace or ReplicationPace()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="atta-edges")
        self._ask_for = partial(
            candidates, dataset, cache.part, limit_bytes=cache.limit_bytes, share=share, rank=rank, fan_outs=fan_outs
        )
        self._refusing: set[int] = set()  # partitions without an address, or with another dataset there

    async def run(self) -> None:
        """Fill the cache, then wait until cancelled. The daemon works without it, so a failure is only logged."""
        try:
            if self._cache.limit_bytes > 0:
                await self.fill()
        except Exception as error:
            log.exception("edges not kept", exc_info=error)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().create_future()

    async def fill(self) -> None:
        """Fill the cache. Peers that are away are waited for; what fails too often is left out."""
        asked: list[Candidates] = await self._work(self._ask_for)
        degrees = [await self._degrees(of_type) for of_type in asked]
        hot = await self._work(choose, self._dataset, self._cache.part, asked, degrees, self._cache.limit_bytes)
        ordered, pieces = [], []
        for of_type in hot:
            reordered, cut = await self._work(in_pieces, of_type, self._dataset.book.offsets[of_type.node_type])
            ordered.append(reordered)
            pieces += cut
        await self._work(self._cache.reserve, ordered)
        ids = {of_type.node_type: of_type.ids for of_type in ordered}
        left = await self._take(sorted(pieces, key=lambda piece: (piece.tier, piece.node_type, piece.first)), ids)
        self._cache.completed()
        figures = self._cache.stats()
        log.info(
            "edges kept",
            vertices=int(figures["edge_cache_rows"]),
            mbytes=self._cache.nbytes // 1_000_000,
            left_out=left,
            refused=int(figures["edge_cache_refused"]),
        )

    async def _take(self, pieces: Sequence[Piece], ids: dict[str, np.ndarray]) -> int:
        """Ask for all pieces. What fails, and what belongs to a peer that is away, comes after the others. Returns how
        many never came."""
        queue = deque((piece, 1) for piece in pieces)
        left = passed = 0
        waits = self._waits()
        while queue:
            piece, attempt = queue.popleft()
            if piece.owner in self._refusing:
                left += 1
            elif not self._peers[piece.owner].connected:
                queue.append((piece, attempt))
                passed += 1
                if passed < len(queue):
                    continue
                wait, passed = next(waits, None), 0  # all that are left are away
                if wait is None:
                    return left + len(queue)
                await asyncio.sleep(wait)
            else:
                outcome = await self._tried(piece, ids[piece.node_type][piece.first : piece.stop])
                again = outcome is None and attempt < self._pace.attempts
                if again:
                    queue.append((piece, attempt + 1))
                left += not (outcome or again)
                waits, passed = self._waits(), 0
        return left

    def _waits(self) -> Iterator[float]:
        """How long to wait for a peer, again and again, until it is given up."""
        wait, total = self._pace.first_s, 0.0
        while total < self._pace.patience_s:
            yield wait
            total += wait
            wait = min(2 * wait, self._pace.most_s)

    async def _tried(self, piece: Piece, ids: np.ndarray) -> bool | None:
        """Whether a piece is kept; None: its owner does not answer."""
        try:
            kept = await self._one(piece, ids)
            await asyncio.sleep(piece.nbytes / self._rate())
        except (ConfigError, WrongDatasetError) as error:
            self._refuse(piece.owner, error)
            return False
        except AttaError as error:
            log.debug("in-edges did not come", part=piece.owner, error=str(error))
            await asyncio.sleep(self._pace.first_s)
            return None
        return kept

    def _refuse(self, owner: int, error: AttaError) -> None:
        """Ask this owner for nothing more."""
        self._refusing.add(owner)
        log.warning("no in-edges from a peer", part=owner, error=str(error))

    def _rate(self) -> float:
        return self._pace.busy_bytes_s if self._busy() else self._pace.idle_bytes_s

    async def _one(self, piece: Piece, ids: np.ndarray) -> bool:
        """Take one piece; False: it was not what the owner has."""
        peer = self._peers[piece.owner]
        rows = ids - self._dataset.book.offsets[piece.node_type][piece.owner]
        types = edge_types_into(self._dataset.schema, piece.node_type)
        items = [SampleItem(e, rows, np.arange(len(rows)), -1, False, Method.UNIFORM, 0) for e in types]
        parts: dict[int, list[Answer]] = {id(item): [] for item in items}
        async for item, _, answer, _ in peer.sample(items):
            parts[id(item)].append(answer)
        digests = [await peer.probe(e, _QUESTION.DIGEST, rows) for e in types]
        answers = [_joined(parts[id(item)]) for item in items]
        return bool(await self._work(self._cache.keep, piece.node_type, piece.first, answers, digests))

    async def _degrees(self, of_type: Candidates) -> np.ndarray:
        """int64 [candidates, edge types]: in-degrees, from the owners. Vertices of an owner that refuses count as too
        large to keep."""
        types = edge_types_into(self._dataset.schema, of_type.node_type)
        offsets = self._dataset.book.offsets[of_type.node_type]
        owners = np.searchsorted(offsets, of_type.ids, side="right") - 1
        found = np.full((len(of_type.ids), len(types)), MOST_DEGREE + 1)
        for owner in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == owner)
            rows = of_type.ids[mine] - offsets[owner]
            try:
                found[mine] = np.stack([await self._degree(owner, e, rows) for e in types], axis=1)
            except AttaError as error:
                self._refuse(owner, error)
        return found

    async def _degree(self, owner: int, edge_type: str, rows: np.ndarray) -> np.ndarray:
        """Ask until the owner answers. Its daemon may start later than this one."""
        peer = self._peers[owner]
        for wait in itertools.chain([0.0], self._waits()):
            await asyncio.sleep(wait)
            if peer.connected:
                with contextlib.suppress(UnavailableError):
                    return await peer.probe(edge_type, _QUESTION.DEGREE, rows)
        raise UnavailableError(peer.address, "no daemon answers")

    async def _work(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)


def _joined(parts: Sequence[Answer]) -> Answer:
    """Consecutive answers as one."""
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, dtype=np.int32)
    counts, neighbors, edge_ids = (
        np.concatenate([empty, *(getattr(part, name) for part in parts)])
        for name in ("counts", "neighbors", "edge_ids")
    )
    return Answer(counts, neighbors, edge_ids)
