"""The value of a run: its performance per unit of money, 1 / (time x cost), and the prices that its cost follows from.

Source: Dorylus (Thorpe et al., OSDI 2021), section 7.

    instance = "c5n.2xlarge"       # what a server is; may be left out where one instance is named

    [instances]                    # price of an hour
    "c5n.2xlarge" = 0.432

    [worker]                       # what stateless workers cost, those of --strategy dorylus
    per_ms = 3.125e-9              # a worker that computes for a millisecond
    per_request = 2e-7             # a task that is handed to a worker
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, UnknownNameError
from atta.wire.parts import read_toml

_HOUR_S = 3600.0
_KEYS = ("instance", "instances", "worker")


@dataclass(frozen=True)
class WorkerPrice:
    """What workers cost: a millisecond of one, and a task that is handed to one."""

    per_ms: float = 0.0
    per_request: float = 0.0

    def cost(self, seconds: float, requests: float) -> float:
        """The cost of workers that computed for ``seconds`` in all, and were given ``requests`` tasks."""
        return 1e3 * seconds * self.per_ms + requests * self.per_request


@dataclass(frozen=True)
class PriceList:
    """Prices in any one currency.

    Attributes:
        instances: name of a kind of machine -> its price per hour.
        instance: the kind that servers are of.
        worker: what workers cost; nothing if the list does not say.
    """

    instances: Mapping[str, float]
    instance: str
    worker: WorkerPrice = WorkerPrice()

    def __post_init__(self) -> None:
        if self.instance not in self.instances:
            raise UnknownNameError.of("instance", self.instance, self.instances)

    @classmethod
    def load(cls, path: str | Path) -> PriceList:
        """The list in a TOML file; errors as of ``parse``, and DataError for a file that is missing or no TOML."""
        return cls.parse(read_toml(path), str(path))

    @classmethod
    def parse(cls, found: Mapping[str, Any], source: str) -> PriceList:
        """The list that a TOML document describes; ``source`` names it in errors.

        Raises ConfigError: a key is unknown or missing, or a price is not a number of at least 0; UnknownNameError:
        ``instance`` has no price.
        """
        for key in found:
            if key not in _KEYS:
                raise ConfigError(f"{source}: unknown key {key!r}; known are {', '.join(_KEYS)}")
        instances = _prices(found.get("instances", {}), "instances", source)
        worker = _prices(found.get("worker", {}), "worker", source)
        if unknown := sorted(worker.keys() - {"per_ms", "per_request"}):
            raise ConfigError(f"{source}: worker: unknown key {unknown[0]!r}; known are per_ms, per_request")
        if not instances:
            raise ConfigError(f"{source}: needs a table [instances] with the price of an hour of each")
        instance = found.get("instance", next(iter(instances)) if len(instances) == 1 else None)
        if not isinstance(instance, str):
            raise ConfigError(f'{source}: needs instance = "NAME", the one of [instances] that servers are')
        return cls(instances, instance, WorkerPrice(**worker))

    def cost(
        self, seconds: float, servers: int, *, instance: str | None = None, worker_s: float = 0.0, requests: float = 0.0
    ) -> float:
        """The cost of a run.

        Args:
            seconds: how long the servers are there.
            servers: how many.
            instance: what they are, if not ``self.instance``.
            worker_s: seconds that workers computed for, all of them together.
            requests: tasks that were handed to workers.

        Raises:
            UnknownNameError: ``instance`` has no price.
        """
        name = self.instance if instance is None else instance
        if name not in self.instances:
            raise UnknownNameError.of("instance", name, self.instances)
        return servers * self.instances[name] * seconds / _HOUR_S + self.worker.cost(worker_s, requests)


def value_of(seconds: float, cost: float) -> float:
    """1 / (time x cost), in one per second and unit of money; infinity for a run that cost nothing.

    Raises ConfigError: the time is not positive, or the cost is negative.
    """
    if not seconds > 0 or not cost >= 0:
        raise ConfigError(f"value of a run of {seconds} s that cost {cost}: time must be positive, cost at least 0")
    return 1 / (seconds * cost) if cost else math.inf


def _prices(found: Any, table: str, source: str) -> dict[str, float]:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{source}: {table} must be a table of prices")
    for name, price in found.items():
        number = isinstance(price, int | float) and not isinstance(price, bool)
        if not number or not 0 <= price < math.inf:
            raise ConfigError(f"{source}: {table}: {name} = {price!r}: a price is a number, at least 0")
    return {str(name): float(price) for name, price in found.items()}
