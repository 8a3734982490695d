"""``digest``: rows of other servers are pulled from tables on the daemons every N epochs (DIGEST)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.train.settings import DEEP_MODELS, DigestSettings
from atta.train.strategies.exchange import reading_rows
from atta.train.strategies.forecasts import digest_forecasts

if TYPE_CHECKING:
    from atta.train.cooperative.across.trainer import ExchangeTrainer
    from atta.train.stale.decisions.common import Decisions

__all__ = ["STRATEGY", "decisions_on_tables"]


def decisions_on_tables(kind: type[Any], settings: DigestSettings) -> Decisions:
    """Decisions of a ``kind``. Raises ConfigError for options that tables on daemons cannot follow."""
    from atta.train.stale.decisions.common import decisions_of

    if settings.depth < 2 and settings.model not in DEEP_MODELS and not settings.send_features:
        raise ConfigError(
            f"--layers {settings.depth}: a single layer of {settings.model} reads features only, which never change, so "
            "tables on the daemons would have no rows; take more layers, or --strategy exchange"
        )
    if settings.codec == "delta-int8":
        raise ConfigError(
            "codec=delta-int8: a daemon does not know what each reader has; take bf16, fp16, int8 or none"
        )
    if settings.average == "weights" and settings.clip_grad_norm is not None:
        raise ConfigError("--clip-grad-norm: there is no gradient of all trainers with average=weights")
    found: Decisions = decisions_of(kind, settings)
    return found


def _decisions(settings: DigestSettings) -> Decisions:
    from atta.train.stale.decisions.digest import DigestDecisions

    return decisions_on_tables(DigestDecisions, settings)


def _trainers() -> type[ExchangeTrainer]:
    from atta.train.cooperative.across.digest import DigestTrainer

    return DigestTrainer


STRATEGY = reading_rows(
    "digest",
    "as exchange, but rows are pulled from tables on the daemons every N epochs, and gradients end at the cut",
    DigestSettings,
    _decisions,
    trainers=_trainers,
    forecasts=digest_forecasts,
)
