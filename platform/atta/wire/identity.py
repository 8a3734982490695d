"""Which daemon a request is meant for, whether the daemon that gets it is that one, draws alike, and speaks the same
protocol. Pure. An address may lead to the wrong daemon. So each request names its daemon in one header, ``atta-to:
PART/DATASET/INCARNATION``, and daemons refuse requests meant for another. What a caller does not know stays empty."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from atta.errors import ConfigError, ProtocolError, RestartedError, SamplingContractError, WrongDatasetError
from atta.observe.packages import __version__
from atta.protos.v1 import control_pb2

HEADER = "atta-to"
_TOLD = 3
"""How many differences a message names."""


class Bound(enum.Enum):
    """What the answers of a method depend on. Its requests must name that."""

    NOTHING = "nothing"
    """Any daemon may answer: this is how a client learns which daemon it talks to."""
    NAMED = "named"
    """Figures and commands for operators, who may know only an address. A name that a request gives must be right."""
    DATA = "data"
    """A partition of a dataset. Every process that serves it answers alike, or says which mutable table it lacks."""
    PROCESS = "process"
    """Sessions, and weights of jobs. One process holds them in memory, and they end when the daemon is restarted."""


def new_incarnation() -> str:
    """A random name for the process of a daemon."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Identity:
    """The known facts of a daemon; None and "" are unknown."""

    part: int | None = None
    dataset_id: str = ""
    incarnation: str = ""

    def header(self, bound: Bound) -> tuple[tuple[str, str], ...]:
        """gRPC metadata with which a request names this daemon, for a method of this ``bound``."""
        return () if bound is Bound.NOTHING or self == Identity() else ((HEADER, self.named(bound)),)

    def named(self, bound: Bound) -> str:
        """The value of the header."""
        part = "" if self.part is None else str(self.part)
        return f"{part}/{self.dataset_id}/{self.incarnation if bound is Bound.PROCESS else ''}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        """The daemon that a header names; raises ConfigError where the header is malformed."""
        part, *rest = text.split("/")
        if len(rest) != 2 or not (part == "" or (part.isascii() and part.isdecimal() and len(part) < 10)):
            raise ConfigError(f"{HEADER}: {text[:100]!r} is not PART/DATASET/INCARNATION")
        return cls(int(part) if part else None, *rest)

    def __str__(self) -> str:
        part = "any partition" if self.part is None else f"partition {self.part}"
        process = f", incarnation {self.incarnation}" if self.incarnation else ""
        return f"{part} of dataset {self.dataset_id or '(none named)'}{process}"


def check(found: Identity, meant: Identity, bound: Bound, address: str) -> None:
    """Refuse a request for ``meant`` that has reached ``found`` at ``address``. Raises WrongDatasetError: it names another
    partition or dataset, or none; RestartedError: another process, or none."""
    if bound is Bound.NOTHING:
        return
    incomplete = meant.part is None or not meant.dataset_id
    if incomplete and bound is not Bound.NAMED:
        raise WrongDatasetError(address, f"serves {found}; the request does not say whom it means ({meant})")
    if meant.part not in {None, found.part} or meant.dataset_id not in {"", found.dataset_id}:
        meant = replace(meant, dataset_id=meant.dataset_id or found.dataset_id)
        raise WrongDatasetError(address, f"serves {found}, not {meant}")
    if bound is Bound.PROCESS and meant.incarnation != found.incarnation:
        raise RestartedError(
            address, f"has been started anew: the daemon of partition {found.part} knows no sessions of before"
        )


def check_contract(found: Mapping[str, str], address: str, meant: Mapping[str, str], other: str) -> None:
    """Refuse the daemon at ``address`` if it may answer differently from ``other``, whose contract is ``meant``. Contracts
    are those of ``atta.samplers.local.contract``. Raises SamplingContractError: names both, and the parts that differ."""
    if names := sorted(name for name in {*found, *meant} if found.get(name) != meant.get(name)):
        told = [f"{name}: {found.get(name, 'missing')}, there {meant.get(name, 'missing')}" for name in names[:_TOLD]]
        more = [f"and {len(names) - _TOLD} more"] if len(names) > _TOLD else []
        raise SamplingContractError(
            address,
            f"would draw other batches than {other} ({'; '.join(told + more)}): run the same release with the same "
            "operators and neighbour methods on both (atta plugins lists them)",
        )


@dataclass(frozen=True, slots=True)
class Release:
    """What a process speaks: a range of protocols. ``version``: of Atta, for messages alone."""

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
    """Refuse the daemon at ``address`` if it and ``own`` have no protocol in common. Raises ProtocolError: names both
    ranges, and who has to be upgraded."""
    if max(found.oldest, own.oldest) <= min(found.newest, own.newest) and found.oldest <= found.newest:
        return
    older = "the daemon" if found.newest < own.oldest else "this process"
    raise ProtocolError(address, f"speaks {found}, this process {own}: upgrade {older}, one release at a time")
