"""Where torch's launcher and the trainers of one machine meet."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

BACKEND = "atta-here"
"""The name by which the launcher is told to meet here."""
WAIT_S = 60
ADDRESS = "127.0.0.1"


class _Here(StaticTCPRendezvous):
    """A store of torch's at a free port.

    torch's own meeting at a free port keeps its state in the store, pickled, and reads it again and again. The store
    listens on all addresses of the machine, so that whoever reaches the port would run code in the launcher.
    """

    def get_backend(self) -> str:
        """See ``RendezvousHandler``."""
        return BACKEND

    def next_rendezvous(self) -> Any:
        """See ``RendezvousHandler``."""
        if self._store is None:
            store = dist.TCPStore(self.master_addr, 0, self.world_size, True, self.timeout)  # type: ignore[attr-defined]
            self._store, self.master_port = store, store.port
        return super().next_rendezvous()


def _here(params: RendezvousParameters) -> _Here:
    return _Here(ADDRESS, 0, 0, 1, params.run_id, WAIT_S)


rendezvous_handler_registry.register(BACKEND, _here)
