"""``UpdateService``: publishes new versions of the dataset, and tells which there are."""

from __future__ import annotations

from atta.daemon.live.versions import LiveVersions
from atta.daemon.services.handling import Context, Handler
from atta.errors import ConfigError
from atta.protos.v1 import update_pb2

__all__ = ["UpdateService"]

MOST_NUMBER = 10**9
"""Numbers of versions are below this: their folders have names of at most nine digits."""


class UpdateService:
    """The versions that one daemon serves."""

    def __init__(self, versions: LiveVersions) -> None:
        self._versions = versions

    def methods(self) -> dict[str, Handler]:
        """The handlers by their names in ``update.proto``."""
        return {"Publish": self.publish, "Versions": self.versions}

    async def publish(self, request: update_pb2.PublishRequest, context: Context) -> update_pb2.PublishReply:
        """``UpdateService.Publish``."""
        if not 0 < request.number < MOST_NUMBER:
            raise ConfigError(f"version {request.number}: must be 1 to {MOST_NUMBER - 1}")
        match request.phase:
            case update_pb2.PublishRequest.PREPARE:
                await self._versions.prepare(request.number, request.id)
            case update_pb2.PublishRequest.COMMIT:
                await self._versions.commit(request.number)
            case update_pb2.PublishRequest.ABORT:
                self._versions.abort(request.number)
            case _:
                raise ConfigError(f"phase {request.phase}: there is none of this number")
        return update_pb2.PublishReply(newest=self._versions.book.newest, bytes=self._versions.nbytes)

    async def versions(self, request: update_pb2.VersionsRequest, context: Context) -> update_pb2.VersionsReply:
        """``UpdateService.Versions``."""
        book = self._versions.book
        return update_pb2.VersionsReply(newest=book.newest, versions=sorted(book.known), in_use=book.in_use())
