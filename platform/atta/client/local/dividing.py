"""Divides this machine's memory among daemons that are about to be started together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from atta.errors import ConfigError
from atta.observe.machine.memory import available_bytes, claim, machine_room
from atta.observe.settings import SIZES, amount_of
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import MachineRoom, MemoryPlan, MemoryWish, Needs, needs_of, plan_memory
from atta.wire.parts import read_toml

log = logging.getLogger("atta.memory")


@contextmanager
def divided_memory(
    dataset: Dataset, groups: Sequence[range], options: Sequence[str], *, replicas: int = 1, readers: int = 1
) -> Iterator[list[str]]:
    """Options of ``atta serve`` for daemons of ``groups`` that share this machine, those that ``options`` lack.

    Within the block others know what these daemons are going to take; afterwards the daemons say it themselves. What was
    chosen is logged as ``atta.memory``: as a warning, which Python shows, where memory is short.

    Args:
        dataset: what they serve.
        groups: the partitions of each daemon.
        options: of all of them, as the user gives them. They stay as they are.
        replicas: number of daemons of the same group.
        readers: number of processes that are going to read batches on this machine.

    Raises:
        ConfigError: it cannot fit; the message has the figures.
        DataError: ``--config`` names a file that cannot be read.
    """
    joined = any(len(parts) > 1 for parts in groups)
    given = _given(options)
    wish = MemoryWish(
        "copy" if joined else str(given.get("memory", "auto")),
        cache=0 if _size(given, "cache-share") == 0 else _size(given, "cache"),
        buffer=_size(given, "buffer"),
        tables=_size(given, "tables"),
        replicas=replicas,
        readers=readers,
    )
    with machine_room() as (limit, free):
        plan = _planned(needs_of(dataset, groups), limit, free, wish)
        claim(plan.total)
    log.log(logging.WARNING if plan.short else logging.INFO, plan.line)
    try:
        yield memory_options(plan, given, joined=joined)
    finally:
        claim(0)


def _planned(needs: Sequence[Needs], limit: int, free: int, wish: MemoryWish) -> MemoryPlan:
    """The plan; where others have been promised all that is free and have not taken it, as little as possible.

    Raises:
        ConfigError: it does not fit into the memory that is free, whatever is promised.
    """
    try:
        return plan_memory(needs, MachineRoom(limit, free), wish)
    except ConfigError:
        little = replace(wish, memory="map" if wish.memory == "auto" else wish.memory, cache=wish.cache or 0)
        return plan_memory(needs, MachineRoom(limit, available_bytes()), little)


def memory_options(plan: MemoryPlan, given: Mapping[str, Any], *, joined: bool) -> list[str]:
    """``plan`` as options of ``atta serve``, without those that are ``given``."""
    memory = [] if joined or given.get("memory", "auto") != "auto" else ["--memory", plan.way]
    return memory + ([] if "cache" in given else ["--cache", str(plan.cache)])


def _given(options: Sequence[str]) -> dict[str, Any]:
    """The values of options by name, also those of a file that ``--config`` names."""
    found: dict[str, Any] = {}
    for word, following in zip_longest(options, options[1:], fillvalue=""):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            found[name] = value if equals else following
    return {**read_toml(found["config"]), **found} if "config" in found else found


def _size(given: Mapping[str, Any], name: str) -> int | None:
    """Bytes of an option; None: it is not given."""
    if name not in given:
        return None
    amount = amount_of(str(given[name]).removesuffix("%"), SIZES)
    if amount is None:
        raise ConfigError(f"--{name} {given[name]}: is not a size such as 4GiB")
    return int(amount)
