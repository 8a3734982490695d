"""``dorylus``: each trainer divides its vertices into intervals, whose tasks overlap; stateless workers compute layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.train.settings.servers import DORYLUS_MODELS, DorylusSettings
from atta.train.strategies.exchange import whole_graph
from atta.train.strategies.strategy import check_servers, refuse, trainer_at

if TYPE_CHECKING:
    from atta.train.planning.forecast import Forecast, Forecaster

_EPOCHS = 1.4
"""Epochs of ``async`` beside one of ``pipe``, to the same accuracy: 1.0 on communities (bench/results/async-dorylus.md), 1.4
where a program of one process trained on amazon_computers."""


def _check(settings: DorylusSettings) -> None:
    check_servers(settings)
    refused = {
        "--patience": settings.patience is not None,
        "--early-stop": settings.early_stop is not None,
        "--lr-schedule": settings.lr_schedule != "none",
        "--clip-grad-norm": settings.clip_grad_norm is not None,
        "--device cuda": settings.device == "cuda",
    }
    refuse(refused, "dorylus, whose workers compute layers, on CPUs")
    if settings.model not in DORYLUS_MODELS:
        raise ConfigError(
            f"--model {settings.model}: dorylus cannot split it into gather and apply; take {', '.join(DORYLUS_MODELS)}"
        )
    if settings.staleness and settings.pipeline != "async":
        raise ConfigError(
            f"staleness={settings.staleness}: goes with mode=async; {settings.mode} reads rows of this epoch only"
        )
    for read in (settings.most_workers, settings.timeout_s):  # what makes no sense is refused where it is read
        assert read is None or read > 0
    if settings.interval_trace is not None and Path(settings.interval_trace).is_file():
        raise ConfigError(f"interval-trace={settings.interval_trace}: is a file; each trainer writes one into a folder")
    if settings.server_size > 1:
        raise ConfigError("--trainers-per-server above 1: dorylus has one trainer per partition; give 1")


def dorylus_forecasts(forecaster: Forecaster) -> Iterator[Forecast]:
    """Workers get sums and give rows, in both directions, and compute a layer again for backward. Without a staleness,
    rows and gradients are waited for; otherwise they travel while other intervals compute."""
    from atta.train.planning.sizes import AGAIN, HANDED

    machines = forecaster.machines
    on_cpus = machines.servers > 1 and machines.trainers == 1 and machines.device == "cpu"
    if on_cpus and forecaster.model.model in DORYLUS_MODELS:
        both: dict[str, Any] = {"forward": 1, "backward": 1, "copies": 4, "again": AGAIN, "handed": HANDED}
        yield forecaster.reading("dorylus", "dorylus, pipe", **both)
        yield forecaster.reading(
            "dorylus",
            "dorylus, async with staleness 0",
            settings={"mode": "async"},
            ages=(0, 1),
            overlaps=True,
            risk="rows and gradients may be of the epoch before, and which depends on speed",
            measured="dorylus",
            epochs=_EPOCHS,
            reason="intervals overlap, and workers that fail are replaced; sums and rows go to workers and back",
            **both,
        )


STRATEGIES = (
    whole_graph(
        name="dorylus",
        sentence="all vertices in intervals whose tasks overlap; stateless workers compute layers",
        settings=DorylusSettings,
        trainer=trainer_at("dorylus.trainer:IntervalTrainer"),
        check=_check,
        forecasts=dorylus_forecasts,
    ),
)
