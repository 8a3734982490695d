"""A training strategy as a record: everything that configuration, command line, trainers and planner ask of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.train.settings import MOST_LAYERS, ServerSettings, TrainSettings

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.loop import EpochLoop
    from atta.train.planning.forecast import Forecast, Forecaster

MakeTrainer = Callable[[Any, "atta.Cluster", "torch.device"], "EpochLoop[Any]"]


def _goes_with_any(settings: Any, parts: int) -> None:
    """Accept any number of partitions."""


def check_servers(settings: ServerSettings) -> None:
    """Refuse settings of servers that make no sense; raises ConfigError."""
    if settings.depth > MOST_LAYERS:
        raise ConfigError(f"--layers {settings.depth}: must be at most {MOST_LAYERS}")
    if settings.trainers % settings.server_size:
        raise ConfigError(
            f"--trainers {settings.trainers}: cannot form servers of --trainers-per-server {settings.server_size}"
        )


def no_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Leave the strategy out of plans."""
    return iter(())


def _never(settings: Any) -> int:
    """Trainers that need each other in every step are not started again alone."""
    return 0


@dataclass(frozen=True)
class TrainingStrategy:
    """How trainers get what they compute on, and what they do with it.

    The functions take an instance of ``settings``, ``TrainConfig.own``. They import what they need when they are called,
    so that the command line can read this record without torch.

    Attributes:
        name: value of ``--strategy``.
        sentence: what it does, for ``--help``.
        settings: dataclass of its settings. A setting that is not in ``TrainSettings`` is refused by strategies that
            lack it.
        trainer: makes one rank's trainer from settings, cluster and device, within the process group.
        check: raises ConfigError for settings that make no sense together.
        evaluation: what validation and test vertices are predicted from, for people.
        counted: what its throughput counts, for people.
        links: whether it can train tasks without a table of targets (``UNTABLED``).
        check_parts: raises ConfigError where the settings do not go with the dataset's number of partitions.
        forecasts: what ``atta plan --strategy auto`` predicts of it, one entry per way to use it.
        restarts: how often a trainer that died is started again alone; 0: its death ends the job.
    """

    name: str
    sentence: str
    settings: type[TrainSettings]
    trainer: MakeTrainer
    check: Callable[[Any], None]
    evaluation: Callable[[Any], str]
    counted: str
    links: bool = False
    check_parts: Callable[[Any, int], None] = _goes_with_any
    forecasts: Callable[[Forecaster], Iterator[Forecast]] = no_forecasts
    restarts: Callable[[Any], int] = _never

    @cached_property
    def own_settings(self) -> frozenset[str]:
        """Names of the settings that not every strategy has."""
        every = {f.name for f in dataclasses.fields(TrainSettings)}
        return frozenset(f.name for f in dataclasses.fields(self.settings)) - every
