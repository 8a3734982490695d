"""What ``--early-stop`` and ``--patience`` say."""

from __future__ import annotations

from typing import NamedTuple

from atta.errors import ConfigError
from atta.train.settings.common import TrainSettings

__all__ = ["EarlyStop", "parse_early_stop", "patience_of"]


class EarlyStop(NamedTuple):
    """``--early-stop``: a metric of validation, and after how many evaluations without a better one a run stops."""

    metric: str
    patience: int


def parse_early_stop(text: str) -> EarlyStop:
    """Read ``METRIC:PATIENCE``. Raises ConfigError."""
    metric, colon, number = text.rpartition(":")
    metric = metric.strip().removeprefix("val_")
    if not (colon and metric and number.isdecimal() and int(number)):
        raise ConfigError(f"--early-stop {text}: give METRIC:PATIENCE, such as loss:5")
    return EarlyStop(metric, int(number))


def patience_of(settings: TrainSettings) -> int | None:
    """Evaluations in a row without a better figure after which a run stops; None: it does not."""
    return settings.patience if settings.early_stop is None else parse_early_stop(settings.early_stop).patience
