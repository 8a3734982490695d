"""The other daemons of the cluster file, as those that keep tables together ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc

from atta.daemon.peers.connection import Channel
from atta.errors import AttaError
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.identity import Identity
from atta.wire.parts import Addresses, groups_of, replicas_of
from atta.wire.security.credentials import Credentials

__all__ = ["Neighbours"]

ANSWER_S = 2.0
"""How long a daemon may take to say whether it holds tables."""


class Neighbours:
    """All daemons of the cluster file, as this one reaches them."""

    def __init__(
        self, peers: Mapping[int, Addresses], dataset_id: str, own: str, credentials: Credentials | None
    ) -> None:
        self._parts = {a: parts for parts, at in groups_of(peers).items() for a in replicas_of(at)}
        self._dataset_id, self._own, self._credentials = dataset_id, own, credentials

    def __len__(self) -> int:
        """How many there are, this one included."""
        return len(self._parts)

    @property
    def others(self) -> list[str]:
        """Addresses of all but this one."""
        return [address for address in self._parts if address != self._own]

    async def hold_tables(self, part: int, *, but: str) -> bool:
        """Whether one of the daemons of a partition, but one, answers and holds tables. This daemon is not asked."""
        asked = [address for address in self.others if part in self._parts[address] and address != but]
        return any(await asyncio.gather(*map(self._epoch, asked)))

    async def _epoch(self, address: str) -> int:
        try:
            reply = await self.ask(address, "ControlService.Describe", control_pb2.DescribeRequest(), ANSWER_S)
        except AttaError:
            return 0
        return int(reply.tables_epoch)

    async def ask(self, address: str, method: str, request: Any, timeout: float) -> Any:
        """A daemon's answer.

        Raises:
            AttaError: it does not answer, or refuses.
        """
        link = Channel(address, Identity(self._parts[address].start, self._dataset_id), self._credentials)
        try:
            return await link.ask(method, request, timeout)
        except grpc.aio.AioRpcError as failure:
            raise rpc.error_from(address, failure, timeout) from failure
        finally:
            await link.channel.close(grace=None)
