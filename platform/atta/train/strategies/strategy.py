"""A training strategy as a record: everything that configuration, command line, trainers and planner ask of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.observe.lastwords import counted
from atta.train.settings.common import MOST_LAYERS, TrainSettings
from atta.train.settings.servers import ServerSettings

if TYPE_CHECKING:
    import torch

    import atta
    from atta.train.loop import EpochLoop
    from atta.train.planning.forecast import Forecast, Forecaster

Forecasts = Callable[["Forecaster"], Iterator["Forecast"]]


def trainer_at(place: str) -> Callable[..., Any]:
    """Makes trainers of the class at ``module:Class`` below ``atta.train``, which is imported with the first one."""

    def make(*given: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(import_module(f"atta.train.{module}"), name)(*given)

    return make


def refuse(given: Mapping[str, bool], why: str) -> None:
    """Raise ConfigError for the first option that is ``given``."""
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(f"{option}: does not go with {why}")


def check_servers(settings: ServerSettings) -> None:
    """Refuse settings of servers that make no sense; raises ConfigError."""
    if settings.depth > MOST_LAYERS:
        raise ConfigError(f"--layers {settings.depth}: must be at most {MOST_LAYERS}")
    if settings.trainers % settings.server_size:
        raise ConfigError(
            f"--trainers {settings.trainers}: cannot form servers of --trainers-per-server {settings.server_size}"
        )


def made_servers(settings: ServerSettings, parts: int) -> str:
    """How many servers the trainers form, as the beginning of an error."""
    given = "" if settings.trainers_per_server else "without "
    return (
        f"--trainers {settings.trainers} {given}--trainers-per-server {settings.trainers_per_server or ''}".rstrip()
        + f" make {counted(settings.servers, 'server')}, the dataset has {parts} partitions"
    )


def no_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Leave the strategy out of plans."""
    return iter(())


@dataclass(frozen=True)
class TrainingStrategy:
    """How trainers get what they compute on, and what they do with it.

    The functions take an instance of ``settings``, ``TrainConfig.own``. They import what they need when they are called,
    so that the command line can read this record without torch.

    Attributes:
        name, sentence: value of ``--strategy``, and what it does, for ``--help``.
        settings: dataclass of its settings. One that is not in ``TrainSettings`` is refused by strategies that lack it.
        trainer: makes one rank's trainer from settings, cluster and device, within the process group.
        check: raises ConfigError for settings that make no sense together.
        evaluation: what validation and test vertices are predicted from, for people.
        links: whether it can train tasks without a table of targets (``UNTABLED``).
        check_parts: raises ConfigError where the settings do not go with the dataset's number of partitions.
        forecasts: what ``atta plan --strategy auto`` predicts of it, one entry per way to use it.
        restarts: how often a trainer that died is started again alone; 0: its death ends the job.
        explain: lines for people about what a run will decide by itself.
    """

    name: str
    sentence: str
    settings: type[TrainSettings]
    trainer: Callable[[Any, atta.Cluster, torch.device], EpochLoop[Any]]
    check: Callable[[Any], None]
    evaluation: Callable[[Any], str]
    links: bool = False
    check_parts: Callable[[Any, int], None] = lambda settings, parts: None
    forecasts: Forecasts = no_forecasts
    restarts: Callable[[Any], int] = lambda settings: 0
    explain: Callable[[Any], list[str]] = lambda settings: []

    @cached_property
    def own_settings(self) -> frozenset[str]:
        """Names of the settings that not every strategy has."""
        every = {f.name for f in dataclasses.fields(TrainSettings)}
        return frozenset(f.name for f in dataclasses.fields(self.settings)) - every
