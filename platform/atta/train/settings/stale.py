"""Settings of the systems that read stale rows. Their policies have them too: ``atta.train.exchange.policies``."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any

from atta.errors import ConfigError
from atta.observe.settings import Option, check_bounds
from atta.train.settings.exchange import StaleSettings

__all__ = [
    "BOUNDS", "HISTORY_CODECS", "PHASES", "PREDICTORS", "AsyncDigestSettings", "AsyncOptions", "DigestOptions",
    "DigestSettings", "PipeGcnOptions", "PipeGcnSettings", "SancusOptions", "SancusSettings", "SatOptions",
    "SatSettings", "check_options",
]  # fmt: skip

BOUNDS = ("epoch", "adaptive", "gap")
PHASES = ("early", "paper")
PREDICTORS = ("lstm", "linear")
HISTORY_CODECS = ("none", "bf16", "polyline:P")
_MOST_VERSIONS = 64


@dataclass(frozen=True)
class SancusOptions:
    """What SANCUS asks for (Peng et al., VLDB 2022)."""

    bound: Annotated[
        str,
        Option(
            "What is bounded: the age of copies, their age with owners taking turns, or the change.", choices=BOUNDS
        ),
    ] = "epoch"
    eps: Annotated[
        float | None,
        Option("The bound: epochs, or with --bound gap the mean change of a number.", unset="1, or 0.03", at_least=0),
    ] = None
    warmup: Annotated[int, Option("First epochs, in which rows are sent every time.", at_least=0)] = 50
    clip_grad: Annotated[
        float | None,
        Option("Clip each trainer's gradient to this norm divided by the root of their number.", unset="never"),
    ] = None


@dataclass(frozen=True)
class PipeGcnOptions:
    """What PipeGCN asks for (Wan et al., ICLR 2022)."""

    smooth: Annotated[
        float | None, Option("Read a moving mean of rows and gradients with this decay, such as 0.95.", unset="off")
    ] = None


@dataclass(frozen=True)
class DigestOptions:
    """What DIGEST asks for (Chai et al., 2022)."""

    sync_every: Annotated[int, Option("Epochs between synchronisations of rows.", at_least=1)] = 10
    phase: Annotated[
        str,
        Option(
            "When rows are pulled: early, the epoch after a push; paper, the epoch before the next.", choices=PHASES
        ),
    ] = "early"
    grad_sync_every: Annotated[
        int | None,
        Option("Epochs between synchronisations of gradients.", unset="gradients end at the cut", at_least=1),
    ] = None
    normalize_rows: Annotated[bool, Option("Divide rows by their length before they are pushed.")] = False
    average: Annotated[str, Option("What trainers average after an epoch.", choices=("gradients", "weights"))] = (
        "gradients"
    )
    loss: Annotated[
        str, Option("Mean over all training vertices, or over each trainer's.", choices=("global", "local"))
    ] = "global"


@dataclass(frozen=True)
class SatOptions(DigestOptions):
    """What SAT asks for (Zhang et al., 2024)."""

    window: Annotated[
        int, Option("Synchronisations that a prediction is made from.", at_least=2, at_most=_MOST_VERSIONS)
    ] = 5
    predictor: Annotated[
        str, Option("What predicts rows: an LSTM with two GCN layers, or linear extrapolation.", choices=PREDICTORS)
    ] = "lstm"
    train_every: Annotated[int, Option("Epochs between steps of the predictor.", at_least=1)] = 10
    history_codec: Annotated[str, Option(f"How past rows are kept: {', '.join(HISTORY_CODECS)}.")] = "none"


@dataclass(frozen=True)
class AsyncOptions:
    """What training without barriers asks for."""

    max_delay: Annotated[
        int | None,
        Option("Steps that a trainer may be ahead of the slowest.", unset="no bound", at_least=0, at_most=1 << 20),
    ] = None
    lr_scale: Annotated[
        float | None, Option("Multiply the learning rate by this.", unset="1 divided by the number of trainers")
    ] = None
    max_updates: Annotated[
        int | None, Option("Stop after this many updates.", unset="epochs times trainers", at_least=1, at_most=1 << 40)
    ] = None
    eval_interval: Annotated[
        float, Option("Time between copies of the weights, which are evaluated after the run.", unit="s")
    ] = 10.0
    lease: Annotated[float, Option("How long a silent trainer may hold up others at most.", unit="s")] = 30.0
    restarts: Annotated[
        int | None,
        Option(
            "How often a trainer that died is started again.",
            unset="3, or 0 with --trainers-per-server above 1",
            at_least=0,
            at_most=1000,
        ),
    ] = None


@dataclass(frozen=True)
class SancusSettings(StaleSettings, SancusOptions):
    """What ``sancus`` has."""


@dataclass(frozen=True)
class PipeGcnSettings(StaleSettings, PipeGcnOptions):
    """What ``pipegcn`` has."""


@dataclass(frozen=True)
class DigestSettings(StaleSettings, DigestOptions):
    """What ``digest`` has."""


@dataclass(frozen=True)
class SatSettings(DigestSettings, SatOptions):
    """What ``sat`` has."""


@dataclass(frozen=True)
class AsyncDigestSettings(DigestSettings, AsyncOptions):
    """What ``digest-async`` has."""


def check_options(options: Any) -> None:
    """Refuse options outside their bounds or choices, and numbers that are not finite.

    Raises:
        ConfigError: names the option; one line.
    """
    check_bounds(options)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"--{field.name.replace('_', '-')} {value}: must be a finite number")
