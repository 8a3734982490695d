"""Shared by the tests of rows in tables: four trainer processes on real daemons, in servers of two.

``python -m tests.system.digest FOLDER RANK CLUSTER UNCUT CASES`` is one of them. It runs ``quick`` or ``all`` cases and
writes ``RANK.pt``. With ``forever`` in place of ``UNCUT`` it trains until it is killed.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import atta
from atta.client.tables.remote import RemoteTable
from atta.train import EpochReport, TrainConfig
from atta.train.cooperative import TrainerBatch
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.trainer import ServerTrainer
from atta.train.exchange import predictions
from atta.train.exchange.predictions import Guard
from atta.train.exchange.trainer import DigestTrainer, ExchangeTrainer
from atta.train.steps.timing import Stopwatch
from atta.train.strategies import STRATEGIES

WORLD, LAYERS, HIDDEN = 4, 3, 6
CLOCK = Stopwatch(torch.device("cpu"))


@dataclass(frozen=True)
class TableCase:
    """A run.

    Attributes:
        strategy, options: as of ``atta train``.
        uncut: train on the graph whose partitions have no edge between them, in float32; else in float64.
        rate: take plain gradient descent with this learning rate in place of Adam.
        delayed: pushes and pulls take random times.
        resumed: stop after so many epochs, and go on with another trainer from its state.
    """

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    uncut: bool = False
    rate: float | None = None
    delayed: bool = False
    resumed: int = 0

    @property
    def name(self) -> str:
        return "-".join(map(str, vars(self).values()))

    def config(self, cluster: str) -> TrainConfig:
        given: dict[str, Any] = {"model": "gcn", "hidden": HIDDEN, "epochs": 7, "layers": LAYERS, **self.options}
        return TrainConfig(
            cluster=cluster, strategy=self.strategy, trainers=WORLD, trainers_per_server=2,
            dropout=0.0, seed=1, device="cpu", verbose=False, eval_every=100, **given,
        )  # fmt: skip


def digest(every: int = 3, **options: Any) -> TableCase:
    return TableCase("digest", {"sync_every": every, **options})


def sat(**options: Any) -> TableCase:
    return TableCase("sat", {"sync_every": 1, "window": 3, "train_every": 2, "epochs": 16, **options})


PERIODS = (digest(3), digest(3, phase="paper"), digest(1, phase="paper"))
VARIANTS = (
    digest(2, model="sage", rows="all", loss="local"),
    digest(2, stale_across="trainers", rows="all", normalize_rows=True),
)
BASE = PERIODS[0]
DELAYED = TableCase("digest", BASE.options, delayed=True)
RESUMED = tuple(
    TableCase("digest", {"sync_every": 3, "phase": "paper", "grad_sync_every": 2}, resumed=at) for at in (0, 4)
)
SGD = tuple(TableCase("digest", {"sync_every": 2, "average": a}, rate=0.1) for a in ("gradients", "weights"))
FROZEN = TableCase("digest", {"sync_every": 3, "grad_sync_every": 1, "epochs": 12}, rate=0.0)
UNCUT = (TableCase("exchange", uncut=True), TableCase("digest", {"sync_every": 3}, uncut=True))
CHECKPOINTED = tuple(
    TableCase("digest", {"sync_every": 2, "model": "deepergcn", "checkpoint_layers": ends}) for ends in (False, True)
)
SATS = (
    sat(predictor="lstm"), sat(predictor="linear", history_codec="polyline:4"), TableCase("digest", {"sync_every": 1, "epochs": 16})
)  # fmt: skip
SAT_RESUMED = tuple(
    # What was learnt from epoch 4 is shared in epoch 6, so a run that stops after epoch 5 has to save it.
    TableCase("sat", {"sync_every": 2, "window": 3, "train_every": 4, "epochs": 11}, resumed=at)
    for at in (0, 5)
)
QUICK = (BASE, FROZEN, *RESUMED, *UNCUT, SATS[0], SATS[2])
"""Cases that `make test` runs."""
CASES = (*PERIODS, *VARIANTS, DELAYED, *RESUMED, *SGD, FROZEN, *UNCUT, *CHECKPOINTED, *SATS, *SAT_RESUMED)


def doubled(view: WorkerView) -> WorkerView:
    features, halo = view.features.astype(np.float64), view.halo_features.astype(np.float64)
    return replace(view, features=features, halo_features=halo)


class Run:
    """What a trainer of a case does, epoch by epoch."""

    def __init__(self, case: TableCase, config: TrainConfig, cluster: atta.Cluster) -> None:
        trainer = STRATEGIES[config.strategy].trainer(config.own, cluster, torch.device("cpu"))
        assert isinstance(trainer, ExchangeTrainer)
        self.trainer, self.epochs = trainer, list[dict[str, Any]]()
        if not case.uncut:
            trainer.model.double()
            whole = trainer.data.whole
            trainer.data.whole = lambda watch: doubled(whole(watch))  # type: ignore[method-assign]
        if case.rate is not None:
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), case.rate)
        self.update, trainer.update = trainer.update, self.updated  # type: ignore[method-assign]

    def updated(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """As the trainer's step, and note what it has done."""
        loss, trainer, found = self.update(batch, count), self.trainer, self.trainer.figures
        stale_rows = trainer.stale
        layers = getattr(stale_rows, "_layers", {})
        stale = {layer: stale_rows._pulled[layer].values for layer in layers}  # type: ignore[attr-defined]
        self.epochs.append(
            {
                "loss": float(loss),
                "gradients": [p.grad.clone() for p in trainer.model.parameters()],
                "weights": [p.detach().clone() for p in trainer.model.parameters()],
                "ages": {f"{layer} {way}": (a.least, a.most, a.rows) for (layer, way), a in found.ages.items()},
                "sent": sum(found.sent.values()),
                "crossed": sum(found.crossed.values()),
                "pushed": sum(found.pushed.values()),
                "gradients_kept": sum(held.nbytes for (_, way), held in stale_rows._held.items() if way == "backward"),
                "broadcasts": {layer: n for (layer, way), n in found.broadcasts.items() if way == "forward"},
                "errors": {layer: tuple(errors) for (layer, _), errors in found.errors.items()},
                "uses": {layer: of_layer.guard.uses for layer, of_layer in layers.items()},
                "predicts": {layer: not torch.equal(layers[layer].rows_to_read(r, 1), r) for layer, r in stale.items()},
            }
        )
        return loss

    def result(self) -> dict[str, Any]:
        view = self.trainer._kept(CLOCK).graph.view
        return {
            "epochs": self.epochs,
            "own": torch.from_numpy(view.global_ids[: len(view.own)]),
            "halo": len(view.halo),
        }

    def goes_on(self, state: dict[str, Any], reports: list[EpochReport]) -> None:
        """Begin where another trainer's ``state`` was taken, after the epochs of ``reports``."""
        trainer = self.trainer

        def restore() -> list[EpochReport]:
            trainer.model.load_state_dict(state["model"])
            trainer.optimizer.load_state_dict(state["optimizer"])
            trainer.data.prepare(0, CLOCK, trainer._needed)
            trainer._kept(CLOCK)
            trainer.stale.load_state(state["stale"])
            return list(reports)

        trainer._restore = restore  # type: ignore[method-assign]


def interrupted(case: TableCase, config: TrainConfig, cluster: atta.Cluster, path: Path) -> dict[str, Any]:
    """The run of a case that stops in the middle and goes on from a file."""
    first, second = Run(case, replace(config, epochs=case.resumed), cluster), Run(case, config, cluster)
    trainer = first.trainer
    reports = ServerTrainer.fit(trainer)  # without the end of rows and tables: then what is being learnt is lost
    model, optimizer = trainer.model.state_dict(), trainer.optimizer.state_dict()
    torch.save({"model": model, "optimizer": optimizer, "stale": trainer.stale.state()}, path)
    trainer.stale.close()
    trainer._reporter.end()
    second.epochs.extend(first.epochs)
    second.goes_on(torch.load(path, weights_only=True), reports)
    second.trainer.fit()
    return second.result()


def slow(method: Any, draws: random.Random) -> Any:
    """As ``method``, after a random time."""

    def late(*arguments: Any, **named: Any) -> Any:
        time.sleep(draws.random() * 0.03)
        return method(*arguments, **named)

    return late


def run_case(case: TableCase, cluster: atta.Cluster, target: str, folder: Path) -> dict[str, Any]:
    config, draws = case.config(target), random.Random(dist.get_rank())
    if case.resumed:
        return interrupted(case, config, cluster, folder / f"{dist.get_rank()}-saved.pt")
    run = Run(case, config, cluster)
    with ExitStack() as stack:
        for name in ("push", "pull") if case.delayed else ():
            stack.enter_context(mock.patch.object(RemoteTable, name, slow(getattr(RemoteTable, name), draws)))
        run.trainer.fit()
    return run.result()


def main(folder: Path, rank: int, cut: str, uncut: str, which: str = "all") -> None:
    torch.set_num_threads(1)
    # So few epochs teach little, but what is nearer at all can be told from what is not.
    predictions.Guard = partial(Guard, most_ratio=1 - 1e-9)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), rank=rank, world_size=WORLD)
    with atta.connect(cut) as cluster:
        if uncut == "forever":
            DigestTrainer.lease_s = 2.0
            case = digest(epochs=1_000_000)
            Run(case, case.config(cut), cluster).trainer.fit()
        with atta.connect(uncut) as other:
            cases = QUICK if which == "quick" else CASES
            found = {c.name: run_case(c, *((other, uncut) if c.uncut else (cluster, cut)), folder) for c in cases}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
