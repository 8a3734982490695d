"""``cluster.ids``: between the users' string ids of vertices and their numbers. All daemons are asked, and each answers
for the vertices that it owns."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from atta.client.control import Connection
from atta.errors import ConfigError, RemoteError, UnknownNameError
from atta.partition.graph.strings import as_strings, string_width, to_rows, to_strings
from atta.partition.schema import Schema
from atta.protos.v1 import ids_pb2
from atta.samplers.arguments import integers
from atta.wire import rpc

PIECE_BYTES = 4 << 20
"""Most bytes of strings in one request or answer."""
AT_A_TIME = 32
"""Number of daemons that are asked at a time."""
_SHOWN = 3

Numbers = npt.NDArray[np.int64]
Strings = npt.NDArray[np.str_]


class StringIds:
    """The users' string ids. Arrays of any length are looked up at once. Threads may share it. numbers =
    cluster.ids.numbers(["alice", "bob"]) names = cluster.ids.strings(batch.n_id())"""

    def __init__(self, schema: Schema, connections: Sequence[Connection]) -> None:
        """``connections``: to all daemons; the list may change later."""
        self.schema, self._connections = schema, connections

    def known(self, node_type: str | None = None) -> bool:
        """Whether the vertices of a type have string ids (the table ``name``). Asks no daemon."""
        return string_width(self.schema, self._type(node_type)) is not None

    def numbers(self, strings: ArrayLike, node_type: str | None = None) -> Numbers:
        """int64: the numbers of the vertices with these string ids, in the shape of ``strings``.

        ``node_type`` may be left out if there is one. Numbers in place of strings stay as they are.

        Raises:
            UnknownNameError: there are no such vertices; names the first few.
            ConfigError: the vertices have no string ids.
            RemoteError: a daemon does not answer.
        """
        given = as_strings("string ids", strings)
        if given is None:
            return integers("ids", strings)
        name = self._type(node_type)
        if string_width(self.schema, name) is None:
            raise ConfigError(f"the vertices of node type {name!r} have no string ids: their ids are integers")
        flat = given.reshape(-1)
        found = np.empty(len(flat), np.int64)
        step = max(1, PIECE_BYTES // max(1, flat.dtype.itemsize))
        missing: list[Strings] = []
        for first in range(0, len(flat), step):
            piece = flat[first : first + step]
            numbers, known = self._numbers(name, piece)
            found[first : first + step] = numbers
            missing.append(piece[~known])
        if unknown := sum(map(len, missing)):
            raise _unknown(name, np.concatenate(missing), unknown, len(flat))
        return found.reshape(given.shape)

    def strings(self, numbers: ArrayLike, node_type: str | None = None) -> Strings:
        """The string ids of the vertices with these ``numbers``, in the same shape. Raises ConfigError: there is no
        such vertex, or the vertices have no string ids; RemoteError: a daemon does not answer."""
        name = self._type(node_type)
        width = string_width(self.schema, name)
        if width is None:
            raise ConfigError(f"the vertices of node type {name!r} have no string ids: their ids are integers")
        wanted = integers("ids", numbers)
        flat = wanted.reshape(-1)
        rows = np.zeros((len(flat), width), np.uint8)
        step = max(1, PIECE_BYTES // width)
        for first in range(0, len(flat), step):
            self._strings(name, flat[first : first + step], rows[first : first + step])
        return to_strings(rows).reshape(wanted.shape)

    def _type(self, node_type: str | None) -> str:
        if node_type is not None:
            return self.schema.check_node_type(node_type)
        if len(self.schema.node_types) != 1:
            raise ConfigError(f"name a node type: {', '.join(self.schema.node_types)}")
        return self.schema.node_types[0]

    def _numbers(self, node_type: str, strings: Strings) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Numbers [n], and which of them are known."""
        rows = to_rows(strings)
        request = ids_pb2.NumbersRequest(node_type=node_type, width=rows.shape[1], strings=rows.tobytes())
        found, known = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
        for connection, reply in self._ask("IdService.Numbers", request):
            at = _places(connection, reply, len(rows))
            with rpc.understanding(connection.address):
                numbers = np.frombuffer(reply.numbers, np.int64)
            if len(at) != len(numbers):
                raise RemoteError(connection.address, f"{len(numbers)} numbers for {len(at)} string ids")
            if known[at].any():
                name = strings[at[known[at]][0]]
                raise ConfigError(f"two vertices of node type {node_type!r} have the string id {str(name)!r}")
            found[at], known[at] = numbers, True
        return found, known

    def _strings(self, node_type: str, numbers: Numbers, out: npt.NDArray[np.uint8]) -> None:
        """Write the rows of strings into ``out``."""
        request = ids_pb2.StringsRequest(node_type=node_type, numbers=numbers.tobytes())
        left = len(numbers)
        for connection, reply in self._ask("IdService.Strings", request):
            at = _places(connection, reply, len(numbers))
            if len(reply.strings) != len(at) * out.shape[1]:
                raise RemoteError(connection.address, f"{len(reply.strings)} bytes for {len(at)} string ids")
            out[at] = np.frombuffer(reply.strings, np.uint8).reshape(len(at), out.shape[1])
            left -= len(at)
        if left:
            raise RemoteError(f"node type {node_type}", f"no daemon owns {left} of {len(numbers)} vertices")

    def _ask(self, method: str, request: Any) -> list[tuple[Connection, Any]]:
        daemons = [*self._connections]
        with ThreadPoolExecutor(min(AT_A_TIME, len(daemons)), thread_name_prefix="atta-ids") as threads:
            replies = threads.map(lambda connection: connection.call(method, request), daemons)
            return list(zip(daemons, replies, strict=True))


def _places(connection: Connection, reply: Any, count: int) -> npt.NDArray[np.int32]:
    with rpc.understanding(connection.address):
        at = np.frombuffer(reply.at, np.int32)
    if len(at) and not 0 <= at.min() <= at.max() < count:
        raise RemoteError(connection.address, f"answers for string ids outside the {count} of the request")
    return at


def _unknown(node_type: str, missing: Strings, unknown: int, asked: int) -> UnknownNameError:
    shown = ", ".join(repr(str(name)) for name in missing[:_SHOWN])
    more = f" and {unknown - _SHOWN} more" if unknown > _SHOWN else ""
    return UnknownNameError(
        f"no vertex of node type {node_type!r} has the string id {shown}{more} (of {asked} asked for)"
    )
