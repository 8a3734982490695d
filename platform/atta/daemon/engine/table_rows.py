"""How rows of mutable tables travel: in messages, or by memory that the reader lends; as they are, or in a codec."""

from __future__ import annotations

from typing import Any

import numpy as np

from atta.daemon.engine.lent import UnusableError
from atta.errors import ConfigError
from atta.kvstore import codecs
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2
from atta.wire import memfiles
from atta.wire.messages.bulk import ROWS_VALUES, ROWS_VERSIONS, as_array, prefix
from atta.wire.rpc import Bulk

__all__ = ["LENT_STEP_BYTES", "lent_values", "message_of", "plain_values", "put"]

LENT_STEP_BYTES = 8 << 20
"""So many bytes of values are written before the reader is told. It takes them over while the next ones are written."""


def message_of(table: MutableTable, first: int, rows: np.ndarray, request: table_pb2.PullRowsRequest) -> Bulk | bytes:
    """The message with ``rows`` of a pull, of which ``first`` is the first one's position in the request."""
    message, codec = table_pb2.RowsChunk(first_row=first, rows=len(rows)), request.codec
    if request.array:
        return Bulk(message, {ROWS_VALUES: _encoded(codec, table.pull(rows, request.array).values)})
    if request.HasField("version"):
        values = table.pull_version(rows, request.version)
        return Bulk(message, {ROWS_VALUES: _encoded(codec, values)})
    if not codec:
        head = prefix(message, ROWS_VALUES, len(rows) * table.spec.row_bytes)
        middle = prefix(table_pb2.RowsChunk(), ROWS_VERSIONS, 8 * len(rows))
        return table.pack(rows, head, middle)
    found = table.pull(rows)
    payloads: dict[int, Any] = {} if found.versions is None else {ROWS_VERSIONS: found.versions}
    payloads[ROWS_VALUES] = _encoded(codec, found.values)
    return Bulk(message, payloads)


def put(
    table: MutableTable, first: int, rows: np.ndarray, request: table_pb2.PullRowsRequest, lent: Pulled
) -> Bulk | bytes:
    """Write ``rows`` of a pull into memory that the reader lends, and give the message that says so.

    ``lent``: values as they travel, uint8 [n, row bytes], and versions, if the answer has them. See ``message_of``.
    """
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

    ``keep``: they must stay the same from now on, as a log and a table get them. The pusher may change its memory at any
    time, so then they are copied. So are truth values, which are checked before they are used.

    Raises:
        UnusableError: a page of it cannot be had. To touch it would end this process.
    """
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
