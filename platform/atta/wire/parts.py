"""What people write: which partitions a daemon serves, which of several equal processes this is, and TOML files. A
daemon serves consecutive partitions, so that the internal ids that it owns are one range of each node type."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, known_name, near_path

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
    or one set of replicas. Raises ConfigError: an address is named again for a partition further on."""
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

    Raises ConfigError: ``served`` does not exist, or the addresses are of other partitions or spread them in another
    way."""
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


AUTO = "auto"
"""What people write for a number that the environment tells."""
PART_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_PROCID", "SLURM_NODEID")
"""Where the number of a daemon stands. Slurm may run several daemons on one node."""
NODE_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_NODEID", "SLURM_PROCID")
"""Where the number of a machine stands."""
_LARGEST = 1 << 20


def own_number(environment: Mapping[str, str], host: str, variables: Sequence[str]) -> int:
    """The number of this process, from 0. It is the first of ``variables`` that is set in ``environment``. Otherwise it
    is the number that ends the first label of the host's name, such as 3 in ``atta-daemon-3`` or ``node3.example``.
    Raises ConfigError: neither tells a number, or a variable holds something else."""
    for name in variables:
        if text := environment.get(name, "").strip():
            return _number(text, f"{name}={text!r}")
    found = re.search(r"[0-9]+$", host.partition(".")[0])
    if found is None:
        raise ConfigError(f"auto: no number: set {', '.join(variables)}, or end the host name {host!r} with it")
    return _number(found[0], f"host name {host!r}")


def _number(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) > _LARGEST:
        raise ConfigError(f"auto: {where} is not a number from 0 to {_LARGEST}")
    return int(text)


def check_keys(where: str, given: Iterable[object], known: Collection[str]) -> None:
    """Raise UnknownNameError for a key that is none of the ``known`` ones."""
    for key in given:
        known_name(f"key {where}:", key, known)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The document in a file. Raises DataError: the file cannot be read, or is not TOML."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}{near_path(path)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(path, f"is not a TOML file: {error}") from error
    except RecursionError:
        raise DataError(path, "is not a TOML file that can be read: its values are nested too deeply") from None
