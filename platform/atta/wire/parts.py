"""Which partitions a daemon serves: as people write them, and as a cluster file spreads them over daemons. Pure.

A daemon serves consecutive partitions, so that the internal ids that it owns are one range of each node type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from atta.errors import ConfigError

__all__ = ["Addresses", "as_parts", "groups_of", "parse_parts", "parts_text", "replicas_of", "spread"]

Addresses = str | tuple[str, ...]
"""Where the daemon of some partitions is, ``host:port``; several: its replicas, the preferred one first."""

_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_parts(text: str) -> range:
    """The partitions that ``0``, ``0,1,2`` or ``0-2`` names; raises ConfigError."""
    found: list[int] = []
    for entry in text.split(","):
        span = _SPAN.fullmatch(entry.strip())
        if span is None:
            raise ConfigError(f"{text!r} names no partitions: give one, as 0, or several, as 0-2 or 0,1,2")
        first = int(span[1])
        last = first if span[2] is None else int(span[2])
        if len(found) + last - first > 1 << 20:
            raise ConfigError(f"{text!r} names too many partitions")
        found += range(first, last + 1)
    return as_parts(found)


def as_parts(numbers: Iterable[int]) -> range:
    """Consecutive partitions as a range; raises ConfigError for others, and for none."""
    found = [*numbers]
    if not found or found != [*range(found[0], found[0] + len(found))]:
        raise ConfigError(
            f"partitions {', '.join(map(str, found)) or '(none)'}: a daemon serves consecutive partitions in ascending "
            "order, because the vertices that it owns are one range of ids; start another daemon for the others"
        )
    return range(found[0], found[-1] + 1)


def parts_text(parts: range) -> str:
    """``0`` or ``0-2``."""
    return str(parts.start) if len(parts) == 1 else f"{parts.start}-{parts.stop - 1}"


def replicas_of(addresses: Addresses) -> tuple[str, ...]:
    """The addresses one by one."""
    return (addresses,) if isinstance(addresses, str) else tuple(addresses)


def groups_of(addresses: Mapping[int, Addresses]) -> dict[range, Addresses]:
    """The daemons that serve the partitions at these addresses: consecutive partitions at one address have one daemon,
    or one set of replicas.

    Raises:
        ConfigError: an address is named again for a partition further on.
    """
    found: dict[range, Addresses] = {}
    named: set[str] = set()
    last: range | None = None
    for part in sorted(addresses):
        address = addresses[part]
        if last is not None and found[last] == address and last.stop == part:
            del found[last]
            last = range(last.start, part + 1)
        elif again := named & {*replicas_of(address)}:
            raise ConfigError(f"{min(again)} is named for partition {part} too, which does not follow its others")
        else:
            last = range(part, part + 1)
        found[last] = address
        named |= {*replicas_of(address)}
    return found


def spread(served: range, addresses: Mapping[int, Addresses], partitions: int) -> tuple[range, ...]:
    """The partitions of each daemon of a cluster, in order. Those without an address have a daemon each.

    Args:
        served: the partitions of the daemon that asks.
        addresses: of the daemons by partition; empty: only ``served`` is known.
        partitions: how many there are.

    Raises:
        ConfigError: ``served`` does not exist, or the addresses are of other partitions or spread them in another way.
    """
    if served.stop > partitions:
        raise ConfigError(f"partition {served.stop - 1} does not exist: there are {partitions}")
    groups = {*groups_of(addresses)} if addresses else {served}
    for group in groups:
        if group != served and {*group} & {*served}:
            raise ConfigError(
                f"the cluster file gives one daemon partition {parts_text(group)}, but this daemon is to serve "
                f"{parts_text(served)}"
            )
    groups.add(served)
    known = {part for group in groups for part in group}
    groups |= {range(part, part + 1) for part in range(partitions) if part not in known}
    found = tuple(sorted(groups, key=lambda group: group.start))
    if found[-1].stop > partitions:
        raise ConfigError(f"the cluster file names partition {found[-1].stop - 1}, the dataset has {partitions}")
    return found
