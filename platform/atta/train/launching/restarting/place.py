"""The store in which trainers of all machines meet, and the machines tell each other how they fare."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from atta.errors import AttaError
from atta.observe.printable import first_line
from atta.train.launching.nodes import Nodes
from atta.train.meeting.notes import Notes

_SILENT_S = 60.0
"""A machine that is silent for so long has gone."""
_SIGN_S = 2.0
_MOST_BYTES = 1 << 20


class MeetingPlace:
    """The store is in the process of node 0, on loopback if there is no other node.

    Attributes:
        address: ``host:port``, for trainers.
        run: a name that no other run has.
    """

    def __init__(self, nodes: Nodes, wait_s: float) -> None:
        """Wait at most ``wait_s`` seconds for node 0. Raises AttaError if it does not come."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._nodes, self._signs, self._next = nodes, 0, 0.0
        self._heard = {rank: (0, time.monotonic()) for rank in range(nodes.count) if rank != nodes.rank}
        timeout = timedelta(seconds=wait_s)
        try:
            if nodes.endpoint is None:
                with socket.socket() as listening:
                    listening.bind(("127.0.0.1", 0))
                    listening.listen(1024)
                    port = listening.getsockname()[1]
                    self._store: Any = TCPStore(
                        "127.0.0.1", port, None, True, timeout, wait_for_workers=False,
                        master_listen_fd=listening.detach(),
                    )  # fmt: skip
                self.address = f"127.0.0.1:{port}"
            else:
                host, _, port_text = nodes.endpoint.rpartition(":")
                first = nodes.rank == 0
                self._store = TCPStore(host.strip("[]"), int(port_text), None, first, timeout, wait_for_workers=False)
                self.address = nodes.endpoint
            notes = self._notes = Notes(self._store).below("nodes")
            if nodes.rank == 0:
                notes.put("run", secrets.token_hex(8).encode())
            self.run = notes.get("run", most=_MOST_BYTES, within_s=wait_s).decode()
        except (RuntimeError, AttaError) as error:
            raise AttaError(f"{nodes}: the others did not come or went away: {first_line(error)}") from None

    def look(self) -> None:
        """Give a sign of life now and then, and look for those of other machines.

        Raises:
            AttaError: another machine has failed, or gives no sign of life.
        """
        if self._nodes.count == 1 or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SIGN_S
        self._signs += 1
        try:
            self._store.set(f"sign/{self._nodes.rank}", str(self._signs))
            for rank, (signs, since) in self._heard.items():
                if self._notes.has(f"failed/{rank}"):
                    raise AttaError(f"{self._nodes}: node {rank} has failed: the cause is reported there")
                found = int(self._store.get(f"sign/{rank}")) if self._store.check([f"sign/{rank}"]) else 0
                if found > signs:
                    self._heard[rank] = found, time.monotonic()
                elif time.monotonic() - since > _SILENT_S and not self._notes.has(f"ended/{rank}"):
                    raise AttaError(f"{self._nodes}: node {rank} did not come or went away")
        except RuntimeError as error:
            raise AttaError(f"{self._nodes}: node 0 went away: {first_line(error)}") from None

    def fail(self) -> None:
        """Tell the other machines that trainers of this one have failed."""
        try:
            self._notes.put(f"failed/{self._nodes.rank}", b"")
        except RuntimeError:  # node 0 has gone: the others know
            return

    def all_ended(self, restarts: Mapping[int, int], wait_s: float) -> list[int]:
        """When the trainers of this machine have ended: those of all machines; returns their restarts, by rank.

        Raises AttaError if another machine does not end within ``wait_s`` seconds.
        """
        ranks = range(self._nodes.count)
        try:
            text = ",".join(f"{rank}:{number}" for rank, number in restarts.items())
            self._notes.put(f"ended/{self._nodes.rank}", text.encode())
            texts = [self._notes.get(f"ended/{rank}", most=_MOST_BYTES, within_s=wait_s).decode() for rank in ranks]
            self._notes.put(f"heard/{self._nodes.rank}", b"")
            if self._nodes.rank == 0:  # the store ends with this process
                self._notes.wait([f"heard/{rank}" for rank in ranks], wait_s)
        except RuntimeError as error:
            raise AttaError(f"{self._nodes}: node 0 went away: {first_line(error)}") from None
        pairs = (pair.split(":") for text in texts for pair in text.split(","))
        return [number for _, number in sorted((int(rank), int(number)) for rank, number in pairs)]
