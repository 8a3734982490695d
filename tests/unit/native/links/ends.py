"""Both ends of a link: a partition that is served, and a daemon that asks for its rows."""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta import _native
from atta.samplers import kernels
from atta.samplers.methods import Method, tables_for
from atta.samplers.methods.base import InEdges
from tests import waiting

PATIENCE_S = 60.0
"""How long a test waits before it fails, in seconds."""


def pairs(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        ends = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            near = socket.create_connection(listening.getsockname())
            ends = near, listening.accept()[0]
        for end in ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for end in ends:
        end.setblocking(False)
    return ends


def encrypted(near: socket.socket, far: socket.socket) -> tuple[_native.LinkTls, _native.LinkTls]:
    """The encryption of both ends of a connection, after they have shaken hands."""
    secret = bytes(range(32))
    asks, serves = _native.LinkTls(near.fileno(), secret, False), _native.LinkTls(far.fileno(), secret, True)
    with ThreadPoolExecutor(1) as other:
        told = other.submit(serves.shake_hands, 20_000)
        assert asks.shake_hands(20_000) == ""
        assert told.result() == ""
    return asks, serves


def eventually(what: Callable[[], Any]) -> None:
    waiting.eventually(what, PATIENCE_S)


@dataclass
class Edges:
    """In-edges of one type, and the methods that are prepared for them, by number."""

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray
    keys: np.ndarray
    weight: np.ndarray
    time: np.ndarray
    methods: dict[int, Any]

    @classmethod
    def random(cls, rng: np.random.Generator, rows: int, hub: int, ids: type, edge_ids: type) -> Edges:
        degrees = rng.integers(0, 40, rows)
        degrees[0] = hub
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        edges = int(indptr[-1])
        return cls(
            indptr,
            rng.integers(0, 2**31 - 1, edges).astype(ids),
            (rng.permutation(edges) + (2**40 if edge_ids is np.int64 else 0)).astype(edge_ids),
            rng.permutation(rows).astype(np.int64) * 7,
            rng.random(edges) + 0.01,
            times_of(rng, indptr),
            {Method.UNIFORM.number: None},
        )

    def prepare(self, method: Method) -> None:
        self.methods[method.number] = tables_for(
            method, InEdges(self.indptr, self.indices, weight=self.weight, time=self.time)
        )

    def expected(self, rows: np.ndarray, method: int = 0, **options: Any) -> tuple[np.ndarray, ...]:
        return kernels.sample_neighbors(
            self.indptr, self.indices, self.edge_ids, self.keys, rows, method=self.methods[method], **options
        )


def times_of(rng: np.random.Generator, indptr: np.ndarray) -> np.ndarray:
    return rng.integers(0, 100, int(indptr[-1])).astype(np.int64)


class Owner:
    """A partition of ``rows`` rows from internal id ``base`` on: three edge types, and tables of two node types. Sources
    and ids of the last edge type lie side by side."""

    def __init__(self, seed: int = 0, *, rows: int = 3000, hub: int = 2000, base: int = 0, threads: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.rows, self.base = rows, base
        self.edges = [
            Edges.random(rng, rows, hub, np.int32, np.int64),
            Edges.random(rng, rows, hub, np.int64, np.int32),
            Edges.random(rng, rows, hub, np.int32, np.int32),
        ]
        self.tables = [
            [rng.random((rows, 25), dtype=np.float32), rng.integers(0, 99, rows), rng.random((rows, 3)) < 0.5],
            [rng.random((rows, 16, 4)), rng.random(rows).astype(np.float16)],
        ]
        self.links = _native.Links(threads)
        for edges in self.edges:
            arrays = kernels.resident_beside(edges.indices, edges.edge_ids)
            number = self.links.add_edges(edges.indptr, *arrays, edges.keys)
            self.links.prepare(number, 0, None)
        for node_type, tables in enumerate(self.tables):
            for table in tables:
                self.links.add_table(node_type, table)

    def prepare(self, *methods: Method) -> None:
        for number, edges in enumerate(self.edges):
            for method in methods:
                edges.prepare(method)
                self.links.prepare(number, method.number, edges.methods[method.number])

    def link_to(self, me: _native.Links, owner: int = 1, kind: str = "unix") -> None:
        near, far = pairs("tcp" if kind == "tls" else kind)
        asks, serves = encrypted(near, far) if kind == "tls" else (None, None)
        self.links.serve(far.detach(), -1, serves)
        me.attach(owner, near.detach(), asks)


def linked(kind: str = "unix", base: int = 0, **of_owner: Any) -> tuple[Owner, _native.Links]:
    owner, me = Owner(base=base, **of_owner), _native.Links(1)
    owner.link_to(me, kind=kind)
    return owner, me


@contextlib.contextmanager
def unanswered() -> Iterator[tuple[_native.Links, socket.socket]]:
    """A daemon with a link to owner 1, of whom there is only the socket."""
    me, (near, far) = _native.Links(1), pairs("unix")
    with far:
        me.attach(1, near.detach())
        yield me, far


SAMPLING: dict[str, Any] = {"fan_out": 5, "replace": False, "stream_key": 9, "renewed": 0, "method": 0}
SAMPLING |= {"trees": None, "times": None, "most_edges": 1 << 20}


def sample(step: _native.Step, ids: np.ndarray, *owned: Any, edge_type: int = 0, **options: Any) -> int:
    """Adds rows to expand to a step. ``owned``, also by name: owners, starts, first ids; all rows are of owner 1."""
    owners = _owners(len(ids), *owned, **{name: options.pop(name) for name in ("starts", "firsts") if name in options})
    return step.sample(edge_type, ids, *owners, *{**SAMPLING, **options}.values())


def pull(
    step: _native.Step, ids: np.ndarray, outs: list[np.ndarray], *owned: Any, firsts: Any = None, **options: Any
) -> int:
    owners = _owners(len(ids), *owned) if owned else _owners(len(ids), firsts=firsts)
    given = {"node_type": 0, "tables": 1, "ids": ids, "positions": np.arange(len(ids)), **options}
    return step.pull(*given.values(), *owners, outs)


def _owners(rows: int, owners: Any = None, starts: Any = None, firsts: Any = None) -> list[np.ndarray]:
    owners = owners or [1]
    given = (owners, starts or [0, rows], [0] * len(owners) if firsts is None else firsts)
    return [np.array(numbers, dtype=np.int64) for numbers in given]


def ask(me: _native.Links, step: _native.Step, age_ms: int = 0) -> _native.Step:
    me.begin(step, age_ms)
    me.flush()
    return step


def done(me: _native.Links, step: _native.Step) -> _native.Step:
    until = time.monotonic() + PATIENCE_S
    while True:
        poll = select.poll()  # select() takes no descriptor beyond 1,023
        poll.register(me.fd, select.POLLIN)
        readable = poll.poll(1e3 * max(0.0, until - time.monotonic()))
        assert readable, "the step does not end"
        if step.number in me.finished():
            assert step.done
            return step


def sampled(me: _native.Links, ids: np.ndarray, **options: Any) -> _native.Step:
    step = me.step()
    sample(step, ids, **options)
    assert done(me, ask(me, step)).left() == []
    return step


class Relay:
    """Carries bytes between a daemon and an owner. ``flip`` and ``end`` are positions in the requests (``back`` is
    False) or in the answers, counted from the end of the handshake where the link is encrypted (``tls``)."""

    def __init__(
        self,
        owner: Owner,
        me: _native.Links,
        *,
        back: bool = True,
        end: int | None = None,
        flip: int | None = None,
        tls: bool = False,
    ) -> None:
        near, self._near = pairs("unix")
        self._far, far = pairs("unix")
        self._back = back
        self._end: int | None = None
        self._flip: int | None = None
        self.carried = {False: 0, True: 0}
        """Bytes of requests (False) and of answers (True)."""
        self._stop, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        asks, serves = encrypted(near, far) if tls else (None, None)
        shaken = self.carried[back]
        self._end = None if end is None else shaken + end
        self._flip = None if flip is None else shaken + flip
        owner.links.serve(far.detach(), -1, serves)
        me.attach(1, near.detach(), asks)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()
        self._stop.close()

    def _run(self) -> None:
        with self._near, self._far:
            while True:
                readable = self._readable()
                if self._stop in readable:
                    return
                for source in readable:
                    if not self._carry(source, back=source is self._far):
                        return

    def _readable(self) -> list[Any]:
        """Which ends have something to read, or have gone. select() takes no descriptor beyond 1,023."""
        with selectors.PollSelector() as ends:
            for end in (self._near, self._far, self._stop):
                ends.register(end, selectors.EVENT_READ)
            return [key.fileobj for key, _ in ends.select()]

    def _carry(self, source: socket.socket, *, back: bool) -> bool:
        try:
            data = bytearray(source.recv(1 << 16))
        except OSError:
            return False
        begin = self.carried[back]
        going = bool(data)
        if back == self._back:
            if self._flip is not None and begin <= self._flip < begin + len(data):
                data[self._flip - begin] ^= 1 << self._flip % 8
            if self._end is not None and begin + len(data) >= self._end:
                del data[self._end - begin :]
                going = False
        self.carried[back] += len(data)
        to = self._near if back else self._far
        writable = select.poll()  # unlike select, it tells of a socket that was shut down with unread bytes
        writable.register(to, select.POLLOUT)
        with contextlib.suppress(ConnectionError):
            while data:
                writable.poll()
                with contextlib.suppress(BlockingIOError):
                    del data[: to.send(data)]
        return going
