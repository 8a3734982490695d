"""``full`` and ``cooperative``: the trainers of a server share the subgraph of its vertices (GraNNDis, section 4.2), or
large batches of it (section 4.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from atta.errors import ConfigError, blaming
from atta.train.settings.servers import CooperativeSettings, FullSettings, ServerSettings
from atta.train.strategies.strategy import TrainingStrategy, check_servers, made_servers, trainer_at

if TYPE_CHECKING:
    from atta.train.planning.forecast import Forecast, Forecaster


def _check(settings: FullSettings) -> None:
    check_servers(settings)
    if settings.resample_every and settings.eas is None:
        raise ConfigError("resample-every: goes with eas=MAX_HOP,FANOUT: an exact closure is always the same")
    if settings.eas is not None:
        text = ",".join(map(str, settings.eas))
        if len(settings.eas) != 2:
            raise ConfigError(f"eas={text}: give MAX_HOP,FANOUT, such as 1,15")
        with blaming(ConfigError, f"eas={text}", of=ConfigError):
            settings.rule(0)


def _check_parts(settings: ServerSettings, parts: int) -> None:
    if settings.servers not in (1, parts):
        raise ConfigError(
            f"{made_servers(settings, parts)}; take --trainers {parts * settings.server_size} (a server per partition), "
            "or one server for all"
        )


def _evaluation(settings: FullSettings) -> str:
    if settings.eval == "exact":
        return "whole graph"
    if settings.eas is None:
        return f"exact closure of {settings.depth} hops"
    return f"expansion-aware sample, as trained: max_hop {settings.eas[0]}, fanout {settings.eas[1]}"


def _forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    sizes, machines = forecaster.sizes, forecaster.machines
    servers = ("--trainers-per-server", str(machines.trainers))
    whole = ("--strategy", "full", *servers)
    yield forecaster.shared("preloading", "full, shared preloading", sizes.closure, whole, exact=True)
    for bounds, work in sizes.sampled.items():
        sampled = ("--strategy", f"full:eas={bounds.max_hop},{bounds.fanout}", *servers)
        name = f"full, expansion-aware {bounds.max_hop},{bounds.fanout}"
        exact = bounds.fanout < 0 and bounds.max_hop >= forecaster.model.layers
        yield forecaster.shared("expansion-aware", name, work, sampled, exact=exact)


def _check_batches(settings: CooperativeSettings) -> None:
    _check(settings)
    if (settings.co_batches is None) == (settings.memory is None):
        raise ConfigError("--strategy cooperative: give either co-batches=R (steps per epoch) or memory=SIZE")


def _batch_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    bounds = forecaster.sizes.co_batch_rule
    for batches, work in forecaster.sizes.co_batches.items():
        strategy = f"cooperative:co-batches={batches},eas={bounds.max_hop},{bounds.fanout}"
        options = ("--strategy", strategy, "--trainers-per-server", str(forecaster.machines.trainers))
        yield forecaster.shared("cooperative", f"cooperative, {batches} co-batches", work, options, steps=batches)


FULL = TrainingStrategy(
    name="full",
    sentence="all vertices in one step",
    settings=FullSettings,
    trainer=trainer_at("cooperative.trainer:ServerTrainer"),
    check=_check,
    evaluation=_evaluation,
    check_parts=_check_parts,
    forecasts=_forecasts,
)
COOPERATIVE = replace(
    FULL,
    name="cooperative",
    sentence="large batches shared by the trainers of a server",
    settings=CooperativeSettings,
    check=_check_batches,
    forecasts=_batch_forecasts,
)
STRATEGIES = (FULL, COOPERATIVE)
