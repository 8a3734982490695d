"""Asks every daemon of a cluster the same, whichever of them answer: for commands whose result is one per daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from atta.client.control import Connection, Description
from atta.errors import AttaError, ConfigError, WrongDatasetError

__all__ = ["DaemonAnswer", "ask_all", "check_together", "down"]

T = TypeVar("T")
AT_A_TIME = 32
"""Daemons that are asked at a time."""


@dataclass(frozen=True)
class DaemonAnswer(Generic[T]):
    """What one daemon answered (``value``), or why there is no answer (``error``)."""

    part: int
    address: str
    value: T | None = None
    error: AttaError | None = None

    @property
    def reason(self) -> str:
        """The error without the address; empty: there is an answer."""
        return "" if self.error is None else str(self.error).removeprefix(f"{self.address}: ")


def ask_all(
    addresses: Mapping[int, str], ask: Callable[[Connection], T], *, deadline_s: float
) -> list[DaemonAnswer[T]]:
    """What ``ask`` returns for each daemon of ``addresses``, by partition; all are asked at once."""

    def one(place: tuple[int, str]) -> DaemonAnswer[T]:
        part, address = place
        connection = Connection(address, deadline_s, part=part)
        try:
            return DaemonAnswer(part, address, value=ask(connection))
        except AttaError as error:
            return DaemonAnswer(part, address, error=error)
        finally:
            connection.close()

    with ThreadPoolExecutor(min(AT_A_TIME, len(addresses))) as threads:
        return list(threads.map(one, sorted(addresses.items())))


def check_together(answers: Sequence[DaemonAnswer[Description]]) -> list[DaemonAnswer[Description]]:
    """The same answers; those of daemons that do not belong to the first one's cluster, at their place, became errors.

    Raises:
        ConfigError: not as many daemons are named as the dataset has partitions.
    """
    first = next((answer.value for answer in answers if answer.value is not None), None)
    if first is None:
        return list(answers)
    if len(answers) != first.num_parts:
        raise ConfigError(f"{len(answers)} daemons are named, the dataset has {first.num_parts} partitions")
    return [_checked(answer, first) for answer in answers]


def _checked(answer: DaemonAnswer[Description], first: Description) -> DaemonAnswer[Description]:
    found = answer.value
    if found is None:
        return answer
    wrong = ""
    if found.dataset_id != first.dataset_id:
        wrong = f"serves dataset {found.dataset_id}, the others {first.dataset_id}"
    elif found.part != answer.part:
        wrong = f"serves partition {found.part}, not {answer.part}"
    return (
        DaemonAnswer(answer.part, answer.address, found, WrongDatasetError(answer.address, wrong)) if wrong else answer
    )


def down(answers: Sequence[DaemonAnswer[T]]) -> AttaError | None:
    """One error that names every daemon without an answer; None: all have answered."""
    silent = [answer for answer in answers if answer.error is not None]
    if not silent:
        return None
    told = "; ".join(f"part {a.part} at {a.address}: {a.reason}" for a in silent)
    return AttaError(f"{len(silent)} of {len(answers)} daemons failed to answer: {told}")
