"""Who may take over the tables of a partition: one daemon for each epoch of a store, if a majority of all daemons agrees.

A primary acknowledges nothing without its backup, so a backup that takes over has all that was acknowledged. The
majority is there so that a daemon which is cut off from the others does not become a second holder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atta.errors import DataError
from atta.kvstore.durable.logfile import force
from atta.partition.disk.files import read_sealed, write_sealed
from atta.partition.disk.staging import disk_full

__all__ = ["LEAST", "Ballot", "VoteBook", "is_majority"]

LEAST = 3
"""Fewer daemons have no majority: two that do not hear each other cannot know which one is cut off."""
MOST_STORES = 4096
"""Votes for so many stores are kept."""
FORMAT, VERSION = "atta-votes", 1


@dataclass(frozen=True)
class Ballot:
    """What is voted on: ``candidate`` (an address) takes over the store from whoever holds it in this epoch."""

    store: bytes
    epoch: int
    candidate: str


def is_majority(votes: int, daemons: int) -> bool:
    """Whether so many votes suffice among so many daemons, those included that do not answer."""
    return daemons >= LEAST and 2 * votes > daemons


class VoteBook:
    """The votes that one daemon has given. They survive it. One thread uses it at a time."""

    def __init__(self, path: Path) -> None:
        """``path``: a file of this daemon alone."""
        self._path = path
        self._given: dict[str, tuple[int, str]] | None = None

    def give(self, ballot: Ballot) -> str:
        """Vote for ``ballot``; returns "" or why not. The same question gets the same answer.

        Raises:
            DataError: the votes cannot be read or written. Then none was given.
        """
        given = self._read()
        epoch, candidate = given.get(ballot.store.hex(), (-1, ""))
        if ballot.epoch < epoch:
            return f"voted for epoch {epoch} of these tables already"
        if ballot.epoch == epoch:
            return "" if candidate == ballot.candidate else f"voted for {candidate} already"
        if len(given) >= MOST_STORES and ballot.store.hex() not in given:
            return f"has votes for {len(given)} stores of tables"
        now = {**given, ballot.store.hex(): (ballot.epoch, ballot.candidate)}
        begun = self._path.with_name(f"{self._path.name}.begun")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(begun, {"format": FORMAT, "version": VERSION, "given": now})
            begun.replace(self._path)
            force(self._path.parent)  # else a power cut may bring the votes of before back
        except OSError as error:
            raise disk_full(self._path, error) or DataError(
                self._path, f"cannot be written: {error.strerror}"
            ) from None
        self._given = now
        return ""

    def _read(self) -> dict[str, tuple[int, str]]:
        if self._given is None:
            self._given = {}
            if self._path.exists():
                value = read_sealed(self._path, "votes", FORMAT, VERSION)
                try:
                    self._given = {str(store): (int(e), str(c)) for store, (e, c) in dict(value["given"]).items()}
                except (KeyError, TypeError, ValueError):
                    raise DataError(self._path, "is malformed") from None
        return self._given
