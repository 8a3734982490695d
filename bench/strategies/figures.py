"""Figures of a run: time, payload, waiting, accuracies."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from atta_bench.lab.processes import Measured
from atta_bench.train.run import Trained

__all__ = ["WAITING", "Figures", "accuracies", "epochs_of", "figures"]

Figures = dict[str, float]

WAITING = ("wait", "exchange", "sync", "external")
"""Phases in which trainers wait: see ``atta.train.reports.epochs``."""


def figures(trained: Trained, warm_up: int, target: float | None = None) -> Figures:
    """Figures of a run: medians over the epochs after ``warm_up``, and the peak memory of the largest trainer.

    ``link_bytes`` is what the busiest host sent in an epoch, ``set_up_link_bytes`` what it sent before the end of the
    first epoch. Figures of ``payload`` are bytes between servers, sums over all hosts; like those of names with ``mean``
    they are means over epochs, because stale strategies do not send in every epoch. Those of ``pipeline`` are of intervals
    and workers (docs/async.md). See ``accuracies`` for the others.
    """
    # Strategies without epochs report as often as they have copied their weights, which may be once only.
    warm_up = min(warm_up, len(trained.epochs) - 1)
    counted, sent = trained.epochs[warm_up:], trained.sent_bytes[warm_up:]
    last = trained.epochs[-1]
    found = {
        "epoch_seconds": statistics.median(e["seconds"] for e in counted),
        "mean_epoch_seconds": statistics.fmean(e["seconds"] for e in counted),
        "waiting_share": _waiting_share(counted),
        "steps": float(last["steps"]),
        "steps_per_s": sum(e["steps"] for e in counted) / sum(e["seconds"] for e in counted),
        "link_bytes": statistics.median(max(hosts) for hosts in sent),
        "set_up_link_bytes": float(max(trained.sent_bytes[0])),
        "exchanged_bytes": float(last["exchanged_bytes"]),
        "peak_memory_bytes": float(max(last["peak_memory_bytes"], default=0)),
        "loss": last["loss"],
    }
    found |= _payload(counted) | _pipeline(counted)
    found["payload/interface_bytes"] = statistics.fmean(sum(hosts) for hosts in sent)
    for phase in counted[0]["breakdown"]:
        found[f"phases/{phase}_s"] = statistics.median(e["breakdown"][phase] for e in counted)
    return found | accuracies(trained.epochs, target)


def _pipeline(epochs: Sequence[Mapping[str, Any]]) -> Figures:
    """Tasks and workers of ``dorylus``: means per epoch; ``workers`` and ``oldest_row`` at the end."""
    did = [e["pipeline"] for e in epochs if e.get("pipeline")]
    if not did:
        return {}
    last = {name: float(did[-1][name]) for name in ("workers", "oldest_row")}
    means = {name: statistics.fmean(d[name] for d in did) for name in did[-1] if name not in last}
    return {f"pipeline/{name}": value for name, value in {**last, **means}.items()}


def _waiting_share(epochs: Sequence[Mapping[str, Any]]) -> float:
    """The share of the epochs' time in which trainers wait for batches, rows, gradients or each other."""
    waited = sum(e["breakdown"].get(phase, 0.0) for e in epochs for phase in WAITING)
    return float(waited / sum(e["seconds"] for e in epochs))


def _payload(epochs: Sequence[Mapping[str, Any]]) -> Figures:
    """Bytes between servers per epoch, without headers and without the sums of weight gradients."""
    features = statistics.fmean(e["crossed_feature_bytes"] for e in epochs)
    return {
        "payload/rows_bytes": statistics.fmean(e["crossed_bytes"] for e in epochs) - features,
        "payload/features_bytes": features,
        "payload/daemon_bytes": statistics.fmean(e["remote_bytes"] for e in epochs),
    }


def accuracies(epochs: Sequence[Mapping[str, Any]], target: float | None = None) -> Figures:
    """Accuracies of the epoch with the best validation, and the training time and epochs until ``target`` was reached.

    ``epochs`` begin with the first one. Each has ``seconds``, ``val_accuracy`` and ``test_accuracy`` (None: not
    evaluated).
    """
    found: Figures = {}
    evaluated = [e for e in epochs if e["val_accuracy"] is not None]
    if evaluated:
        best = max(evaluated, key=lambda e: float(e["val_accuracy"]))  # of equals the first
        found |= {"val_accuracy": best["val_accuracy"], "test_accuracy": best["test_accuracy"] or 0.0}
    until = itertools.accumulate(float(e["seconds"]) for e in epochs)
    for number, (seconds, epoch) in enumerate(zip(until, epochs, strict=True), 1):
        if target is not None and (epoch["test_accuracy"] or 0.0) >= target:
            return found | {"seconds_to_target": seconds, "epochs_to_target": float(number)}
    return found


def epochs_of(measured: Measured) -> list[dict[str, Any]]:
    """The epochs of a run, with its warm-up epoch, for ``accuracies``; ``sent_bytes`` is that of the busiest host."""
    by_number: dict[int, list[dict[str, Any]]] = {-1: measured.warm_ups}
    for reported in measured.epochs:
        by_number.setdefault(reported["epoch"], []).append(reported)
    return [
        {
            "seconds": max(e["stop"] for e in ranks) - min(e["start"] for e in ranks),
            "sent_bytes": max(e["sent_bytes"] for e in ranks),
            **{name: ranks[0][name] for name in ("val_accuracy", "test_accuracy")},
        }
        for _, ranks in sorted(by_number.items())
    ]
