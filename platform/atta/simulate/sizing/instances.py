"""Kinds of machines that can be had, with their prices.

[[instance]]
name = "m7i.8xlarge"
cores = 16                     # what the scheduler may count on
memory = "128GiB"
link = "12.5gbit"              # each way
price = 1.6128                 # of an hour, in any currency
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError

__all__ = ["Instance", "instances_of"]

_KEYS = ("name", "cores", "memory", "link", "price")


@dataclass(frozen=True)
class Instance:
    """One kind of machine.

    Attributes:
        name: what its provider calls it.
        cores: of a machine.
        memory: bytes.
        link: bytes per second, each way.
        price: of an hour.
    """

    name: str
    cores: int
    memory: int
    link: float
    price: float


def instances_of(
    found: Mapping[str, Any], source: str, *, size: Callable[[str], int], rate: Callable[[str], float]
) -> list[Instance]:
    """The kinds of machines that a TOML document lists.

    Args:
        found: the document.
        source: names it in errors.
        size, rate: read ``"128GiB"`` and ``"10gbit"``; they raise ValueError for anything else.

    Raises:
        ConfigError: a key is unknown or missing, or a value makes no sense; names it.
    """
    listed = found.get("instance")
    if found.keys() != {"instance"} or not isinstance(listed, list) or not listed:
        raise ConfigError(f"{source}: needs a table [[instance]] for each kind of machine, and nothing else")
    made = [_instance(entry, f"{source}: instance {at + 1}", size, rate) for at, entry in enumerate(listed)]
    names = [one.name for one in made]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{source}: instance {name} is listed twice")
    return made


def _instance(entry: Any, where: str, size: Callable[[str], int], rate: Callable[[str], float]) -> Instance:
    if not isinstance(entry, dict) or entry.keys() != set(_KEYS):
        raise ConfigError(f"{where}: needs {', '.join(_KEYS)}, and nothing else")
    name, cores, price = entry["name"], entry["cores"], entry["price"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: name is {name!r}, must be a word")
    if not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
        raise ConfigError(f"{where}: cores is {cores!r}, must be a whole number of at least 1")
    if not isinstance(price, int | float) or isinstance(price, bool) or not 0 <= price < math.inf:
        raise ConfigError(f"{where}: price is {price!r}, must be a number of at least 0")
    values: dict[str, Any] = {}
    for key, read in (("memory", size), ("link", rate)):
        try:
            values[key] = read(str(entry[key]))
        except ValueError as error:
            raise ConfigError(f"{where}: {key}: {error}") from None
    return Instance(name, cores, values["memory"], values["link"], float(price))
