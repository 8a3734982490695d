"""Asks every daemon of a cluster the same question. Daemons that do not answer are part of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from atta.client.control import Connection, Description
from atta.errors import AttaError, ConfigError, NotAllowedError, NotAuthenticatedError, RemoteError, WrongDatasetError
from atta.wire.credentials import Credentials
from atta.wire.identity import check_contract
from atta.wire.parts import Addresses, parts_text, replicas_of

T = TypeVar("T")
AT_A_TIME = 32
"""Number of daemons that are asked at a time."""


@dataclass(frozen=True)
class DaemonAnswer(Generic[T]):
    """What one daemon answered (``value``), or why there is no answer (``error``)."""

    part: int
    address: str
    value: T | None = None
    error: AttaError | None = None

    @property
    def reason(self) -> str:
        """The error without the address; empty if there is an answer."""
        return "" if self.error is None else str(self.error).removeprefix(f"{self.address}: ")


Ask = Callable[[Callable[[Connection], Any]], list[DaemonAnswer[Any]]]


@contextmanager
def asking(
    addresses: Mapping[int, Addresses], *, deadline_s: float, credentials: Credentials | None = None
) -> Iterator[Ask]:
    """Connections to all daemons of ``addresses``: gives what a question returns for each, by partition, replicas in their
    order. All are asked at once. Raises DataError: a file of ``credentials`` is bad."""
    places = [
        (part, Connection(address, deadline_s, part=part, credentials=credentials))
        for part, address in each_daemon(addresses)
    ]

    def one(question: Callable[[Connection], Any], place: tuple[int, Connection]) -> DaemonAnswer[Any]:
        part, connection = place
        try:
            return DaemonAnswer(part, connection.address, value=question(connection))
        except AttaError as error:
            return DaemonAnswer(part, connection.address, error=error)

    with ThreadPoolExecutor(min(AT_A_TIME, len(places))) as threads:
        try:
            yield lambda question: list(threads.map(partial(one, question), places))
        finally:
            for _, connection in places:
                connection.close()


def ask_all(
    addresses: Mapping[int, Addresses], question: Callable[[Connection], T], **how: Any
) -> list[DaemonAnswer[T]]:
    """What ``question`` returns for each daemon, on connections that end with it. ``how``: as of ``asking``."""
    with asking(addresses, **how) as ask:
        return ask(question)


def each_daemon(addresses: Mapping[int, Addresses]) -> list[tuple[int, str]]:
    """First partition and address of every daemon, also of replicas, in the order of the partitions."""
    return [(part, address) for part in sorted(addresses) for address in replicas_of(addresses[part])]


def check_together(answers: Sequence[DaemonAnswer[Description]]) -> list[DaemonAnswer[Description]]:
    """The same answers, but errors for daemons that serve another dataset than the first, or another partition than
    their own, would draw other batches, or whose files have changed. Raises ConfigError: the daemons that are named
    do not serve all partitions of the dataset, each once or by replicas."""
    known = [(answer.value, answer.address) for answer in answers if answer.value is not None]
    if not known:
        return list(answers)
    of_part: dict[int, Description | None] = {}
    for answer in answers:
        of_part[answer.part] = of_part.get(answer.part) or answer.value
    check_complete([*of_part.values()])
    return [_checked(answer, *known[0]) for answer in answers]


def _checked(answer: DaemonAnswer[Description], first: Description, other: str) -> DaemonAnswer[Description]:
    """``other``: the address of ``first``."""
    if (found := answer.value) is None:
        return answer
    try:
        check_member(found, answer.address, answer.part, first, other)
        if found.broken:
            raise RemoteError(answer.address, f"does not serve: {found.files}")
    except AttaError as error:
        return DaemonAnswer(answer.part, answer.address, found, error)
    return answer


def check_member(found: Description, address: str, part: int, first: Description, other: str) -> None:
    """Refuse the daemon at ``address``, which should serve ``part`` first, beside the first daemon of its cluster at ``other``.
    Raises WrongDatasetError: it serves another dataset, or another partition. SamplingContractError: it draws otherwise."""
    if found.dataset_id != first.dataset_id:
        raise WrongDatasetError(address, f"serves dataset {found.dataset_id}, but {other} serves {first.dataset_id}")
    if found.parts.start != part:
        hint = "" if len(found.parts) == 1 else "; a list names a daemon once for each of its partitions"
        raise WrongDatasetError(address, f"serves partition {parts_text(found.parts)}, not {part}{hint}")
    check_contract(found.contract, address, first.contract, other)


def check_complete(found: Sequence[Description | None]) -> None:
    """Refuse daemons that do not serve all partitions of their dataset together. None: a daemon that did not answer.
    Raises ConfigError: partitions are missing or too many."""
    known = [description for description in found if description is not None]
    partitions, served = known[0].num_parts, sum(len(description.parts) for description in known)
    silent = len(found) - len(known)
    if served + silent > partitions or (not silent and served < partitions):
        have = f"{len(found)} daemons are named" + (f", they serve {served} partitions" if served != len(found) else "")
        raise ConfigError(f"{have}, the dataset has {partitions} partitions")


def check_operator(addresses: Mapping[int, Addresses], *, deadline_s: float, credentials: Credentials | None) -> None:
    """Refuse to begin what only operators may do, at the first daemon that would refuse it. Those that do not answer do
    not count. Raises NotAllowedError, NotAuthenticatedError: of that daemon."""
    for answer in ask_all(addresses, Connection.check_operator, deadline_s=deadline_s, credentials=credentials):
        if isinstance(answer.error, NotAllowedError | NotAuthenticatedError):
            told = f"{answer.error.cause}; no daemon of the cluster was asked"
            raise type(answer.error)(answer.address, told)


def down(answers: Sequence[DaemonAnswer[T]]) -> RemoteError | None:
    """One error that names every daemon of which there is an error, and each cause once; None if there is none."""
    places: dict[str, list[str]] = {}
    for answer in answers:
        if answer.error is not None:
            places.setdefault(answer.reason, []).append(f"part {answer.part} at {answer.address}")
    if not places:
        return None
    told = "; ".join(f"{', '.join(found)}: {cause}" for cause, found in places.items())
    return RemoteError(f"{sum(map(len, places.values()))} of {len(answers)} daemons failed", told)
