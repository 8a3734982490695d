"""Which daemon a request is meant for, and whether the daemon that gets it is that one. Pure.

An address may lead to the wrong daemon: a cluster file is wrong, two daemons have changed places, another dataset is
served there now, or the daemon has been restarted. It would answer with rows of other vertices, and nobody would
notice. So each request names its daemon in one header, ``atta-to: PART/DATASET/INCARNATION``, and daemons refuse
requests meant for another. What a caller does not know stays empty.
"""

from __future__ import annotations

import enum
import secrets
from dataclasses import dataclass, replace

from atta.errors import ConfigError, RestartedError, WrongDatasetError

__all__ = ["HEADER", "Bound", "Identity", "check", "new_incarnation"]

HEADER = "atta-to"


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
        if bound is Bound.NOTHING or self == Identity():
            return ()
        return ((HEADER, self.named(bound)),)

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
    """Refuse a request that is meant for ``meant`` but has reached ``found``, which listens at ``address``.

    Raises:
        WrongDatasetError: the request names another partition or dataset, or none.
        RestartedError: the request names another process, or none.
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
