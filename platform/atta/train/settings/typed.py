"""What ``--num-neighbors-by-type`` says: fan-outs of some edge types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from atta.errors import ConfigError, UnknownNameError

__all__ = ["fan_outs_by_type", "parse_fan_outs"]

_ENTRY_END = re.compile(r"(?<=[0-9])[\s;]*;|^[\s;]+|[\s;]+$")
"""";" after a number: a name may have one, too."""


def parse_fan_outs(text: str, depth: int) -> dict[str, tuple[int, ...]]:
    """Read ``writes=10,5; paper__cites__paper=15,10``: fan-outs by edge type or relation. One number holds for all hops.

    Raises:
        ConfigError: the text has another form, or a list has another length than ``depth``.
    """
    found: dict[str, tuple[int, ...]] = {}
    for entry in filter(None, map(str.strip, _ENTRY_END.split(text))):
        name, equals, numbers = (part.strip() for part in entry.rpartition("="))
        try:
            hops = tuple(int(number) for number in numbers.split(","))
        except ValueError:
            hops = ()
        if not (name and equals and hops and min(hops) >= -1):
            raise ConfigError(
                f"--num-neighbors-by-type {entry!r}: give EDGE_TYPE=FAN_OUTS;..., such as writes=10,5; a fan-out is -1 "
                "(all), 0 (none) or more"
            )
        if len(hops) not in (1, depth):
            raise ConfigError(f"--num-neighbors-by-type {entry!r}: {len(hops)} hops for {depth} layers")
        if name in found:
            raise ConfigError(f"--num-neighbors-by-type: names {name} twice")
        found[name] = hops * depth if len(hops) == 1 else hops
    return found


def fan_outs_by_type(
    edge_types: Sequence[str], given: Mapping[str, tuple[int, ...]], others: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Fan-outs of every edge type; ``given``: those of some, by the edge type or its relation; ``others``: of the rest.

    Raises:
        UnknownNameError: a name is none of the graph's edge types or relations.
        ConfigError: several edge types have that relation, or a type is named twice.
    """
    from atta.partition.schema import split_edge_type  # settings are read without numpy

    found: dict[str, tuple[int, ...]] = {}
    for name, hops in given.items():
        meant = [e for e in edge_types if name in (e, "__".join(split_edge_type(e)), split_edge_type(e)[1])]
        if not meant:
            raise UnknownNameError.of("edge type", name, edge_types)
        if len(meant) > 1:
            raise ConfigError(f"--num-neighbors-by-type: {name} may be {' or '.join(meant)}: give the whole name")
        if meant[0] in found:
            raise ConfigError(f"--num-neighbors-by-type: names {meant[0]} twice")
        found[meant[0]] = hops
    return {e: found.get(e, others) for e in edge_types}
