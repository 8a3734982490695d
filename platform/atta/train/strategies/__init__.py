"""Training strategies: files of records, and the table in which ``atta train`` finds them. docs/internals/adding.md
says how to add one."""

from importlib import import_module

from atta.train.strategies.strategy import TrainingStrategy

__all__ = ["STRATEGIES", "TrainingStrategy", "strategies_with"]

_FILES = (
    "minibatch",
    "full",
    "exchange",
    "dorylus",
)

STRATEGIES: dict[str, TrainingStrategy] = {
    strategy.name: strategy for file in _FILES for strategy in import_module(f"{__name__}.{file}").STRATEGIES
}
"""By the value of ``--strategy``."""


def strategies_with(setting: str) -> list[str]:
    """Names of the strategies that have a setting of their own by this name; none for settings that every run has."""
    return [name for name, strategy in STRATEGIES.items() if setting in strategy.own_settings]
