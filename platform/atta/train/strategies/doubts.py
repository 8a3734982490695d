"""What strategies cannot do with the epochs, layers and cut that they get. ``atta train`` says it before the first epoch,
and ``atta plan`` ranks such strategies behind others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from atta.train.exchange.policies import SatPolicy, SyncPeriod, policy_of
from atta.train.settings import DEEP_MODELS, ServerSettings
from atta.train.settings.servers import followed

_OLD_LAYERS = 3
"""With so many layers, rows of the epoch before lose many points (bench/results/stale-accuracy.md)."""
_MOST_CUT = 0.5
"""Share of edges that no gradient crosses, times the layers that read computed rows. In trials on graphs that a model
does not learn to the last vertex, 0.34 lost nothing, and 0.68 and more at least 2 points."""


class Doubt(NamedTuple):
    """Where ``holds`` is true of settings and the share of cut edges (None: unknown), these strategies cannot keep what
    they are for; ``says`` tells why, with names of settings in braces."""

    strategies: tuple[str, ...]
    holds: Callable[[Any, float | None], bool]
    says: str


def _unused_layers(settings: Any, cut: float | None) -> bool:
    return settings.depth == 1 and settings.model not in DEEP_MODELS and not settings.send_features


def _lost_gradients(settings: Any, cut: float | None) -> bool:
    return cut is not None and settings.grad_sync_every is None and cut * (settings.depth - 1) > _MOST_CUT


DOUBTS = (
    Doubt(
        ("sancus", "pipegcn", "digest", "sat"),
        lambda given, cut: cut == 0,
        "no edge is cut, so there are no rows to save",
    ),
    Doubt(("sancus", "pipegcn"), _unused_layers, "one layer reads features alone, which never change: as exchange"),
    Doubt(("pipegcn",), lambda given, cut: given.epochs == 1, "the first epoch is exact, and there is no other"),
    Doubt(
        ("pipegcn",),
        lambda given, cut: given.depth >= _OLD_LAYERS,
        "with {depth} layers, rows and gradients of the epoch before cost many points of accuracy; take at most 2 "
        "layers, or sancus",
    ),
    Doubt(
        ("digest", "sat", "digest-async"),
        _lost_gradients,
        "{cut:.0%} of the edges are cut, and no gradient crosses them: with {depth} layers this costs 2 points of accuracy "
        "or more; take fewer parts, METIS, or sancus",
    ),
    Doubt(
        ("dorylus",),
        lambda given, cut: given.pipeline == "async" and given.depth >= _OLD_LAYERS,
        "mode=async with {depth} layers: rows get older in every layer, which costs many points of accuracy; take "
        "mode=pipe",
    ),
    Doubt(
        ("digest", "sat"),
        lambda given, cut: given.epochs < SyncPeriod(given.sync_every, given.phase).first,
        "sync-every={sync_every} with {epochs} epochs: all read rows of the first weights; take a smaller sync-every or "
        "more epochs",
    ),
    Doubt(
        ("sat",),
        lambda given, cut: given.epochs < policy_of(SatPolicy, given).predicts,
        "train-every={train_every} and sync-every={sync_every} with {epochs} epochs: never predicts, as digest; take "
        "smaller ones or more epochs",
    ),
    Doubt(
        ("sancus",),
        lambda given, cut: given.epochs <= max(1, given.warmup),
        "warmup={warmup} with {epochs} epochs: never skips, as exchange; take a smaller warmup or more epochs",
    ),
    Doubt(("sancus",), lambda given, cut: given.eps == 0, "eps=0: never skips, as exchange"),
)
"""The first that holds is said. What loses accuracy comes before what only gains nothing."""


def doubt(settings: ServerSettings, cut: float | None) -> str | None:
    """What the strategy of ``settings`` cannot do, in one line; None: nothing. ``cut``: share of the edges that come from
    other servers, or from all trainers whose rows may be stale; None: unknown."""
    given = followed(settings)
    values = vars(given) | {"depth": given.depth, "cut": cut}
    for strategies, holds, says in DOUBTS:
        if given.strategy in strategies and holds(given, cut):
            return f"{given.strategy}: {says.format_map(values)}"
    return None
