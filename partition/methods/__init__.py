"""Partitioning methods: one file each, found by name. A method is a frozen dataclass of its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, known_name
from atta.observe.plugins import OpenRegistry
from atta.observe.progress import Progress
from atta.partition.cutting.balance import known_balance
from atta.partition.graph import Graph
from atta.partition.methods.block import Block
from atta.partition.methods.given import Given
from atta.partition.methods.metis import Metis
from atta.partition.methods.random import Random
from atta.partition.methods.streaming import Extend, Fennel, Ldg

__all__ = ["METHODS", "PartitionMethod", "bounds_of", "check_balance", "make_method"]


class PartitionMethod(Protocol):
    """Assigns every vertex to a partition."""

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        """Return the partition of each row per node type, int32 [n]. Each partition should get an equal share of
        everything in ``balance`` (``atta.partition.cutting.balance``). None leaves it to the method. A method may
        balance more. One that cannot balance everything refuses the rest by a function ``check_balance(balance)``,
        which raises ConfigError. One that promises bounds says them by a function ``bounds(names)``: by how much, as a
        fraction, a partition may exceed its even share of each thing."""


METHODS: OpenRegistry[type] = OpenRegistry(
    "partition method",
    "atta.partition_methods",
    {"metis": Metis, "block": Block, "ldg": Ldg, "fennel": Fennel, "random": Random, "given": Given, "extend": Extend},
    "a dataclass with assign",
    lambda part: dataclasses.is_dataclass(part) and hasattr(part, "assign"),
)


def make_method(name: str, options: Mapping[str, Any] | None = None) -> PartitionMethod:
    """The method ``name`` with ``options``. Strings are converted to the types of the options. Raises UnknownNameError:
    no such method or option; ConfigError: a value is of the wrong type, out of range, or missing."""
    kind, given = METHODS[name], dict(options or {})
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key, value in given.items():
        known_name(f"option of the method {name}", key, fields)
        given[key] = _converted(name, key, value, fields[key].type)
    missing = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in given]
    if missing:
        raise ConfigError(f"the method {name} needs the option {', '.join(missing)}")
    method: PartitionMethod = kind(**given)
    return method


def check_balance(method: PartitionMethod | None, balance: Sequence[str] | None) -> None:
    """Raise ConfigError if the method refuses to balance these, whatever the graph is."""
    if balance is not None and (check := getattr(method, "check_balance", None)) is not None:
        check(balance)


def bounds_of(method: PartitionMethod, graph: Graph, balance: Sequence[str] | None) -> dict[str, float]:
    """The bounds that the method promises when it balances these; none: {}."""
    promised = getattr(method, "bounds", None)
    return {} if promised is None else dict(promised(known_balance(graph, balance)))


def _converted(method: str, key: str, value: Any, kind: Any) -> Any:
    types: dict[Any, type] = {"int": int, "float": float, "str": str}
    wanted = types.get(kind, kind)  # a class whose module does not postpone annotations has types
    try:
        if isinstance(value, str) or (wanted is float and isinstance(value, int)):
            return wanted(value)
    except ValueError:
        pass
    else:
        if isinstance(value, wanted) and not isinstance(value, bool):
            return value
    raise ConfigError(f"option {key} of the method {method}: {value!r} is not of type {wanted.__name__}")
