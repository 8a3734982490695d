"""Training strategies: one file each, and the table in which ``atta train`` finds them (``STRATEGIES``).

To add one, write a file with its ``Strategy`` record and add a line to the table: see docs/contributing.
"""

from atta.train.strategies.cooperative import COOPERATIVE
from atta.train.strategies.full import FULL
from atta.train.strategies.minibatch import MINIBATCH
from atta.train.strategies.strategy import Strategy

__all__ = ["STRATEGIES", "Strategy", "strategies_with"]

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        MINIBATCH,
        FULL,
        COOPERATIVE,
    )
}


def strategies_with(setting: str) -> list[str]:
    """Names of the strategies that have a setting of their own by this name; none for settings that every run has."""
    return [name for name, strategy in STRATEGIES.items() if setting in strategy.own_settings]
