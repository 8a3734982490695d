"""The links of one daemon: what it serves over them, and how it asks its peers."""

from __future__ import annotations

import asyncio

from atta import _native
from atta.daemon.config import DaemonConfig
from atta.daemon.links.attaching import Attaching
from atta.daemon.links.listening import LinkService
from atta.daemon.links.owners import LinkedOwners
from atta.daemon.links.served import Numbers, register
from atta.daemon.links.steps import LinkSteps
from atta.daemon.peers.answers import AskedOwners
from atta.daemon.peers.peers import Peers
from atta.kvstore.store import Store
from atta.observe.recording import ServedSpan
from atta.partition.dataset import Dataset
from atta.samplers.shard import Shard
from atta.scheduler.config import link_threads

__all__ = ["DaemonLinks"]


class DaemonLinks:
    """``listen``, then ``close``. All of it runs on the event loop; native threads serve the links."""

    def __init__(
        self,
        config: DaemonConfig,
        dataset: Dataset,
        shard: Shard,
        store: Store,
        peers: Peers,
        *,
        encrypted: bool = False,
    ) -> None:
        """``encrypted``: links to other machines speak TLS."""
        threads = link_threads(config.threads)
        self._native = _native.Links(threads)
        register(self._native, Numbers(dataset.schema), shard, store)
        self._native.keep_served(config.trace_events)
        self._dataset, self._config = dataset, config
        self.service = LinkService(self._native, config.listen, config.link_port, encrypted=encrypted)
        self._steps = LinkSteps(self._native, config.peer_deadline_s, self._end_silent, delay_s=config.peer_delay_s)
        self._peers, others = peers, [owner for owner in range(dataset.num_parts) if owner != shard.part]
        # One connection is served by one thread, so a pair of large daemons has several.
        first, width = config.parts.start, max(1, threads // 2)
        self._attaching = Attaching(self._native, first, peers.__getitem__, others, width=width)

    def owners(self, messages: AskedOwners) -> AskedOwners:
        """Asks over links, and by ``messages`` what links do not answer."""
        return LinkedOwners(self._native, self._steps, self._attaching, messages, self._dataset)

    async def attach(self, part: int) -> None:
        """Attach to the owner of ``part`` unless there is a link. The first batches need not wait for it then."""
        if part in self._attaching.missing:
            await self._attaching.ready([part])

    async def _end_silent(self, parts: list[int]) -> None:
        """End the links to those of ``parts`` that do not answer. What they owe is then asked for by messages.

        A replica may be asked by messages already, and answer. It says nothing about the daemon that the link leads to.
        """
        there = await asyncio.gather(*(self._peers[part].answers() for part in parts))
        for part, answers in zip(parts, there, strict=True):
            if not answers or self._attaching.leads_elsewhere(part):
                self._native.detach(part)
                self._attaching.lost(part)

    def listen(self) -> None:
        """Open the sockets. ``service.accept`` must follow.

        Raises:
            ConfigError: the port is in use.
        """
        self.service.listen()
        self._steps.open()

    def served(self) -> list[ServedSpan]:
        """The last requests of peers, for traces."""
        return [
            ServedSpan(ended, came, f"{'Pull' if pulls else 'Sample'} by link, asked by {peer}", nbytes)
            for ended, came, peer, pulls, nbytes in self._native.served()
        ]

    def stats(self) -> dict[str, float]:
        """Counters."""
        hedges = self._steps.hedges
        return {
            **self._native.stats(),
            "links_missing": float(len(self._attaching.missing)),
            "late_steps": float(hedges.sent),
        }

    async def close(self) -> None:
        """End all links. Steps under way must have ended."""
        await self._attaching.close()
        self._steps.close()
        self.service.close()
        self._native.close()
