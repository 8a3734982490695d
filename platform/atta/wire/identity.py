"""Which daemon a request means, and whether the one that gets it is that one. Pure.

An address may lead elsewhere: a cluster file is wrong, two daemons have changed places, another dataset is served there now, a
daemon has been started anew. Such a daemon would answer with rows of other vertices, and nobody would notice. So requests say in
one header, ``atta-to: PART/DATASET/INCARNATION``, whom they mean, and daemons refuse what is meant for another. What a caller does
not know stays empty.
"""

from __future__ import annotations

import enum
import secrets
from dataclasses import dataclass, replace

from atta.errors import ConfigError, RestartedError, WrongDatasetError

__all__ = ["HEADER", "Bound", "Identity", "check", "new_incarnation"]

HEADER = "atta-to"


class Bound(enum.Enum):
    """What the answers of a method depend on, and so what its requests must say."""

    NOTHING = "nothing"
    """Any daemon may answer: this is how one learns who is there."""
    NAMED = "named"
    """Figures and orders for operators, who may know no more than an address: what a request names must be right."""
    DATA = "data"
    """A partition of a dataset: any process that serves it answers alike, or, of mutable tables, says what it does not have."""
    PROCESS = "process"
    """Sessions, which one process holds in memory: they are gone when the daemon is started anew."""


def new_incarnation() -> str:
    """A random name for a daemon's process."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Identity:
    """A daemon, as far as it is known: None and "" stand for what is not."""

    part: int | None = None
    dataset_id: str = ""
    incarnation: str = ""

    def header(self, bound: Bound) -> tuple[tuple[str, str], ...]:
        """gRPC metadata by which a request of a method that is ``bound`` so names this daemon."""
        if bound is Bound.NOTHING or self == Identity():
            return ()
        return ((HEADER, self.named(bound)),)

    def named(self, bound: Bound) -> str:
        """The value of the header."""
        part = "" if self.part is None else str(self.part)
        return f"{part}/{self.dataset_id}/{self.incarnation if bound is Bound.PROCESS else ''}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        """What a header names; raises ConfigError."""
        part, *rest = text.split("/")
        if len(rest) != 2 or not (part == "" or (part.isascii() and part.isdecimal() and len(part) < 10)):
            raise ConfigError(f"{HEADER}: {text[:100]!r} is not PART/DATASET/INCARNATION")
        return cls(int(part) if part else None, *rest)

    def __str__(self) -> str:
        part = "any partition" if self.part is None else f"partition {self.part}"
        process = f", incarnation {self.incarnation}" if self.incarnation else ""
        return f"{part} of dataset {self.dataset_id or '(none named)'}{process}"


def check(found: Identity, meant: Identity, bound: Bound, address: str) -> None:
    """Refuse a request for ``meant`` that has reached ``found``, which listens at ``address``.

    Raises:
        WrongDatasetError: another partition or dataset is meant, or the request does not say which.
        RestartedError: another process is meant, or the request does not say which.
    """
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
            address,
            f"has been started anew (it is incarnation {found.incarnation} of the daemon of partition {found.part}, not "
            f"{meant.incarnation or '(none named)'}): the sessions of before are gone",
        )
