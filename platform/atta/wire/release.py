"""Which releases work together: the range of protocols that a process speaks. Pure.

A protocol is a number. It grows when messages change so that an older release would misread them. A release speaks its
own protocol and the one of the release before. So daemons can be upgraded one by one, while their peers and clients run.
"""

from __future__ import annotations

from dataclasses import dataclass

from atta.errors import ProtocolError
from atta.observe.version import __version__
from atta.protos.v1 import control_pb2

__all__ = ["OWN", "Release", "check_release", "release_of"]


@dataclass(frozen=True, slots=True)
class Release:
    """What a process speaks.

    Attributes:
        version: of Atta; for messages alone.
        oldest, newest: the range of protocols.
    """

    version: str
    oldest: int
    newest: int

    def __str__(self) -> str:
        some = f"protocol {self.oldest}" if self.oldest == self.newest else f"protocols {self.oldest} to {self.newest}"
        return f"{some} (Atta {self.version or 'of an unknown version'})"


OWN = Release(__version__, 2, 2)


def release_of(reply: control_pb2.DescribeReply) -> Release:
    """What a daemon has told of its release."""
    return Release(reply.version, reply.oldest_protocol, reply.newest_protocol)


def check_release(found: Release, address: str, own: Release = OWN) -> None:
    """Refuse the daemon at ``address`` if it and ``own`` have no protocol in common.

    Raises:
        ProtocolError: names both ranges, and who has to be upgraded.
    """
    if max(found.oldest, own.oldest) <= min(found.newest, own.newest) and found.oldest <= found.newest:
        return
    older = "the daemon" if found.newest < own.oldest else "this process"
    raise ProtocolError(address, f"speaks {found}, this process {own}: upgrade {older}, one release at a time")
