"""How rows of mutable tables travel: in messages, or by memory that clients on this machine lend, which is mapped once and
bounded.

A client names a descriptor of its own process and the secret with which the file begins: a caller from afar can have nothing
written anywhere (``atta.wire.memfiles.open_lent``). A client that writes to it meanwhile spoils its own answer or push only.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import mmap
import os
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.kvstore import codecs
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2
from atta.wire import memfiles
from atta.wire.bulk import ROWS_VALUES, ROWS_VERSIONS, as_array, prefix
from atta.wire.rpc import Bulk

MAX_FILES = 32
"""At most this many files are mapped. Each takes a descriptor."""
MAX_FILE_BYTES = 1 << 30
"""Largest file that is mapped."""
IN_ALL_BYTES = 1 << 30
"""At most this many bytes are lent at a time."""
PER_CLIENT_BYTES = 256 << 20
"""At most this many of them by one connection."""
IDLE_S = 30.0
"""How long a file stays mapped that is not used: its client may have died, and its memory with it if not for this."""
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class UnusableError(Exception):
    """What a client lends cannot be used here, now or later."""


class _LentFile:
    """One mapped file."""

    def __init__(self, pid: int, number: int, inode: int) -> None:
        fd = memfiles.open_lent(pid, number, inode)
        try:
            size = os.fstat(fd).st_size
            if size > MAX_FILE_BYTES:
                raise ValueError(f"{size} bytes")
            self.bytes = np.frombuffer(mmap.mmap(fd, size, flags=mmap.MAP_SHARED), dtype=np.uint8)
        finally:
            os.close(fd)
        self.users, self.used = 0, 0.0

    def knows(self, secret: bytes) -> bool:
        """Whether the caller knows what the file begins with."""
        return hmac.compare_digest(self.bytes[: memfiles.SECRET_BYTES].tobytes(), secret)


class LentFiles:
    """The files that clients lend, by process, descriptor and inode. Used on the event loop."""

    def __init__(self, in_all: int = IN_ALL_BYTES, per_client: int = PER_CLIENT_BYTES) -> None:
        self._in_all, self._per_client = in_all, per_client
        self._files: OrderedDict[tuple[int, int, int], _LentFile] = OrderedDict()  # the latest used last
        self._lent: Counter[str] = Counter()  # bytes in use by connection; positive

    def __len__(self) -> int:
        return len(self._files)

    @property
    def lent_bytes(self) -> int:
        """Bytes that are lent now."""
        return self._lent.total()

    @contextlib.contextmanager
    def taken(self, lent: Any, nbytes: int, client: str, now: float) -> Iterator[np.ndarray | None]:
        """The range that a message (``LentMemory``) names, uint8 [nbytes]; None where too much is lent already.
        ``client``: names the connection; ``now``: in seconds. Raises UnusableError: it is not there, too small, not
        made to be lent, or the secret is wrong."""
        if self._lent[client] + nbytes > self._per_client or self.lent_bytes + nbytes > self._in_all:
            yield None
            return
        file = self._file(lent)
        if file is None:
            yield None
            return
        start = lent.offset
        if not file.knows(lent.secret) or lent.nbytes != nbytes or start < memfiles.PAGE or start % memfiles.PAGE:
            raise UnusableError
        view = file.bytes[start : start + nbytes]
        if len(view) != nbytes:
            raise UnusableError
        file.users, file.used = file.users + 1, now
        self._lent[client] += nbytes
        try:
            yield view
        finally:
            file.users -= 1
            self._lent[client] -= nbytes
            self._lent += Counter()  # without zeros

    def _file(self, lent: Any) -> _LentFile | None:
        """The mapped file; None where no more can be mapped now."""
        key = lent.pid, lent.descriptor, lent.inode
        if key not in self._files:
            if len(self._files) >= MAX_FILES and not self._drop_one():
                return None
            try:
                self._files[key] = _LentFile(*key)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in _SCARCE:
                    return None
                raise UnusableError from error
        self._files.move_to_end(key)
        return self._files[key]

    def _drop_one(self) -> bool:
        """Let go of the file that has not been used for longest; False: all are in use."""
        idle = next((key for key, file in self._files.items() if not file.users), None)
        if idle is None:
            return False
        del self._files[idle]
        return True

    def expire(self, now: float) -> None:
        """Let go of files that have not been used for a while."""
        for key, file in list(self._files.items()):
            if not file.users and now - file.used > IDLE_S:
                del self._files[key]


LENT_STEP_BYTES = 8 << 20
"""So many bytes of values are written before the reader is told. It takes them over while the next ones are written."""


def message_of(table: MutableTable, first: int, rows: np.ndarray, request: table_pb2.PullRowsRequest) -> Bulk | bytes:
    """The message with ``rows`` of a pull, of which ``first`` is the first one's position in the request."""
    message, codec = table_pb2.RowsChunk(first_row=first, rows=len(rows)), request.codec
    if request.array:
        return Bulk(message, {ROWS_VALUES: _encoded(codec, table.pull(rows, request.array).values)})
    if request.HasField("version"):
        return Bulk(message, {ROWS_VALUES: _encoded(codec, table.pull_version(rows, request.version))})
    if not codec:
        head = prefix(message, ROWS_VALUES, len(rows) * table.spec.row_bytes)
        return table.pack(rows, head, prefix(table_pb2.RowsChunk(), ROWS_VERSIONS, 8 * len(rows)))
    found = table.pull(rows)
    payloads: dict[int, Any] = {} if found.versions is None else {ROWS_VERSIONS: found.versions}
    payloads[ROWS_VALUES] = _encoded(codec, found.values)
    return Bulk(message, payloads)


def put(
    table: MutableTable, first: int, rows: np.ndarray, request: table_pb2.PullRowsRequest, lent: Pulled
) -> Bulk | bytes:
    """Write ``rows`` of a pull into memory that the reader lends, and give the message that says so. ``lent``: values
    as they travel, uint8 [n, row bytes], and versions, if the answer has them. See ``message_of``."""
    values, versions = lent.values, lent.versions
    if not all(memfiles.populate(part.ctypes.data, part.nbytes) for part in (values, versions) if part is not None):
        return message_of(table, first, rows, request)  # a page that cannot be had would end this process
    spec, codec = table.spec, request.codec
    out = None if codec else Pulled(values.view(spec.dtype).reshape(len(rows), *spec.row_shape), versions)
    if request.HasField("version"):
        found = table.pull_version(rows, request.version, out=None if out is None else out.values)
    else:
        pulled = table.pull(rows, request.array, out=out)
        found = pulled.values
        if codec and versions is not None and pulled.versions is not None:
            versions[:] = pulled.versions
    if codec:
        values[:] = _encoded(codec, found)
    return Bulk(table_pb2.RowsChunk(first_row=first, rows=len(rows), lent=True))


def _encoded(codec: str, values: np.ndarray) -> np.ndarray:
    flat = values.reshape(len(values), -1)
    return codecs.encode(codec, flat) if codec else flat.view(np.uint8)


def lent_values(spec: MutableSpec, codec: str, memory: np.ndarray, *, keep: bool) -> np.ndarray:
    """Values of a push in memory that the pusher lends (uint8 [bytes]), as ``plain_values`` takes them.

    ``keep``: they must stay the same from now on, as a log and a table get them. The pusher may change its memory at
    any time, so then they are copied. So are truth values, which are checked before they are used. Raises
    UnusableError: a page of it cannot be had. To touch it would end this process."""
    if not memfiles.populate(memory.ctypes.data, memory.nbytes):
        raise UnusableError
    if codec:
        return memory  # they are decoded into other memory
    values = memory.view(spec.dtype).reshape(-1, *spec.row_shape)
    return values.copy() if keep or spec.dtype == "|b1" else values


def plain_values(spec: MutableSpec, message: table_pb2.PushRowsRequest, rows: Any, values: Any) -> Any:
    """The values of a push without their codec."""
    return _decoded(spec, len(as_array(rows, wide=True)), message.codec, values) if message.codec else values


def _decoded(spec: MutableSpec, rows: int, codec: str, values: Any) -> np.ndarray:
    codecs.check_codec(spec, codec)
    columns = spec.row_bytes // 4
    encoded = np.frombuffer(values, dtype=np.uint8)
    if len(encoded) != rows * codecs.encoded_bytes(codec, columns):
        raise ConfigError(f"table {spec.name}: {len(encoded)} bytes are not {rows} rows in {codec}")
    out = np.empty((rows, columns), dtype=np.float32)
    codecs.decode(codec, encoded.reshape(rows, codecs.encoded_bytes(codec, columns)), out)
    return out.reshape(rows, *spec.row_shape)
