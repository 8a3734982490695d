"""Where peers are: what the cluster file says, read again when it has changed."""

from __future__ import annotations

import os
from collections.abc import Mapping

import structlog

from atta.errors import AttaError
from atta.wire.clusterfile import ended_daemon, read_cluster
from atta.wire.parts import Addresses, groups_of, replicas_of

__all__ = ["PeerAddresses"]

log = structlog.get_logger("atta.peers")


class PeerAddresses:
    """Addresses of the daemons of a cluster by the partitions that each serves, also after some have moved."""

    def __init__(self, known: Mapping[int, Addresses], file: str = "") -> None:
        """``known``: addresses by partition, as in ``file``; without a file they stay."""
        self._known, self._file = groups_of(known), file
        self._stamp: tuple[int, ...] | None = None  # it may have changed since it was read: loading takes minutes

    def now(self, parts: range) -> Addresses | None:
        """Where ``parts`` are served; None: nobody has said so.

        Reads the file if it has changed, which may be slow: not for the event loop. A file that cannot be read changes
        nothing. Where it no longer names ``parts`` together, their address of before stays.
        """
        stamp = self._stamp_now()
        if stamp is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._known = {**self._known, **groups_of(read_cluster(self._file))}
            except AttaError as error:
                log.warning("cluster file not read again", error=str(error))
        found = self._known.get(parts)
        if found is not None and self._file and (gone := ended_daemon(self._file, replicas_of(found)[0])) is not None:
            raise gone
        return found

    def _stamp_now(self) -> tuple[int, ...] | None:
        if not self._file:
            return None
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
