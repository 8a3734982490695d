"""Training strategies: files of records, and the registry in which ``atta train`` finds them."""

from importlib import import_module

from atta.observe.plugins import OpenRegistry
from atta.train.strategies.strategy import TrainingStrategy

__all__ = ["STRATEGIES", "TrainingStrategy", "strategies_with"]

_FILES = ("minibatch", "full", "exchange", "dorylus")

STRATEGIES: OpenRegistry[TrainingStrategy] = OpenRegistry(
    "strategy",
    "atta.strategies",
    {record.name: record for file in _FILES for record in import_module(f"{__name__}.{file}").STRATEGIES},
    "a TrainingStrategy",
    lambda part: isinstance(part, TrainingStrategy),
)
"""By the value of ``--strategy``."""


def strategies_with(setting: str) -> list[str]:
    """Names of Atta's strategies that have a setting of their own by this name; none for settings that every run has."""
    return [name for name, strategy in STRATEGIES.items() if setting in strategy.own_settings]
