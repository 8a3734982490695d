"""Shared by the tests of whole runs: four trainer processes on real daemons, mostly in servers of two.

``python -m tests.system.strategies FOLDER RANK CUT UNCUT FOUR CASES`` is one of them: three clusters, of two parts with
edges between them, of two without, and of four. It runs ``quick`` or ``all`` cases and writes ``RANK.pt``. With
``forever`` in place of ``UNCUT`` it trains until it is killed.
"""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

import atta
from atta.client.parameters import JobWeights, StepWeights, Update
from atta.client.tables.remote import RemoteTable
from atta.train import EpochReport, TrainConfig
from atta.train.cooperative import TrainerBatch
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.trainer import ServerTrainer
from atta.train.dorylus import trainer as dorylus
from atta.train.dorylus.gathering import interval_rows
from atta.train.dorylus.progress import PipelineProgress, Work
from atta.train.dorylus.worker import FAULTS_VARIABLE
from atta.train.exchange.trainer import DigestTrainer, ExchangeTrainer
from atta.train.steps.timing import Stopwatch
from atta.train.strategies import STRATEGIES
from tests.waiting import eventually

WORLD, LAYERS, HIDDEN = 4, 3, 6
CLOCK = Stopwatch(torch.device("cpu"))


@dataclass(frozen=True, eq=False)
class TableCase:
    """A run.

    Attributes:
        strategy, options: as of ``atta train``.
        data: ``cut``; ``uncut``: the graph whose partitions have no edge between them, in float32, else in float64;
            ``four``: one part for each trainer.
        rate: take plain gradient descent with this learning rate in place of Adam.
        delayed: pushes and pulls take random times.
        resumed: stop after so many epochs, and go on with another trainer from its state.
        seconds: that each trainer says to have computed: first in three epochs, then in three others, and so on.
        turns: the trainers of ``digest-async`` in turn, which take weights and then send a gradient.
    """

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    data: str = "cut"
    rate: float | None = None
    delayed: bool = False
    resumed: int = 0
    seconds: tuple[tuple[float, ...], ...] = ()
    turns: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        default = TableCase("").__dict__
        return "-".join(str(value) for name, value in vars(self).items() if value != default[name])

    def config(self, cluster: str) -> TrainConfig:
        given: dict[str, Any] = {"model": "gcn", "hidden": HIDDEN, "epochs": 7, "layers": LAYERS, **self.options}
        return TrainConfig(
            cluster=cluster, strategy=self.strategy, trainers=WORLD, trainers_per_server=1 if self.data == "four" else 2,
            dropout=0.0, seed=1, device="cpu", verbose=False, eval_every=100, **given,
        )  # fmt: skip


def digest(every: int = 3, **options: Any) -> TableCase:
    return TableCase("digest", {"sync_every": every, **options})


def sat(**options: Any) -> TableCase:
    """So few epochs teach little, but what is nearer at all can be told from what is not."""
    lax = {"guard": 1 - 1e-9}
    return TableCase("sat", {"sync_every": 1, "window": 3, "train_every": 2, "epochs": 16, **lax, **options})


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
UNCUT = (TableCase("exchange", data="uncut"), TableCase("digest", {"sync_every": 3}, data="uncut"))
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


def sancus(eps: float, warmup: int, **options: Any) -> TableCase:
    return TableCase("sancus", {"eps": eps, "warmup": warmup, **options})


PACES = ((1.0, 1.1, 1.5, 5.0), (3.0, 1.0, 1.0, 1.0))
LAGGING = (
    replace(sancus(3.0, 1, bound="adaptive", epochs=14), seconds=PACES),
    replace(sancus(3.0, 1, bound="adaptive", epochs=14), seconds=PACES, resumed=6),
)
STRAGGLER = (0, 3, 1, 2, 0, 1, 2, 0, 1, 0, 2, 1, 2, 0, 1, 3, 2, 0, 3, 1, 0, 2, 1, 0, 2, 1, 3, 2)
"""The last trainer takes weights at the beginning, and sends its gradient five updates later."""
IN_TURN = TableCase(
    "digest-async", {"sync_every": 2, "max_updates": len(STRAGGLER) // 2, "lr": 0.05}, data="four", turns=STRAGGLER
)
INTERVALS = tuple(
    TableCase("dorylus", {"intervals": 3, "workers": "1", "layers": 2, "lr": 0.05, **how}, data="four")
    for how in ({"mode": "pipe"}, {"mode": "async"}, {"staleness": 1, "layers": 3})
)
BARRIERS = (
    TableCase("exchange", {"model": "sage"}),
    *(sancus(1.0, 2), sancus(2.0, 0, model="sage", clip_grad=0.1, stale_across="trainers"), LAGGING[0]),
    *(sancus(0.02, 1, bound="gap"), sancus(0.01, 0, bound="gap", rows="all")),
    *(sancus(2.0, 1, skip="gradients"), replace(LAGGING[0], options=LAGGING[0].options | {"skip": "gradients"})),
    *(TableCase("pipegcn"), TableCase("pipegcn", {"smooth": 0.8, "model": "sage"})),
    *(*PERIODS, *VARIANTS, *SGD, RESUMED[0], FROZEN),
    TableCase("digest", {"sync_every": 2, "average": "weights", "loss": "local"}),
    *(SATS[0], sat(predictor="linear"), sat(predictor="linear", sync_every=2, phase="paper", train_every=3)),
)
"""Cases whose trainers wait for each other in every epoch, against the program of their strategy."""
CASES = tuple(
    dict.fromkeys(
        [*BARRIERS, DELAYED, *RESUMED, *UNCUT, *CHECKPOINTED, *SATS, *SAT_RESUMED, *LAGGING, IN_TURN, *INTERVALS]
    )
)
QUICK = (
    *(BASE, FROZEN, *RESUMED, LAGGING[0], IN_TURN, INTERVALS[2]),
    *(case for case in BARRIERS if case.options.get("smooth")),
    *(case for case in BARRIERS if case.options.get("skip") and not case.seconds),
    *(case for case in BARRIERS if case.options.get("predictor") == "linear" and case.options.get("phase")),
)
"""Cases that `make test` runs."""


def doubled(view: WorkerView) -> WorkerView:
    features, halo = view.features.astype(np.float64), view.halo_features.astype(np.float64)
    return replace(view, features=features, halo_features=halo)


class Run:
    """What a trainer of a case does, epoch by epoch."""

    def __init__(self, case: TableCase, config: TrainConfig, cluster: atta.Cluster) -> None:
        trainer = STRATEGIES[config.strategy].trainer(config.own, cluster, torch.device("cpu"))
        assert isinstance(trainer, ExchangeTrainer)
        self.trainer, self.epochs = trainer, list[dict[str, Any]]()
        if case.data != "uncut":
            in_doubles(trainer)
        if case.rate is not None:
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), case.rate)
        if case.seconds:
            trainer._computed_s = self.clock  # type: ignore[method-assign]
        self.case, self.ticks = case, 0
        self.update, trainer.update = trainer.update, self.updated  # type: ignore[method-assign]

    def clock(self, batch: TrainerBatch) -> float:
        """It is read before and after what a trainer computes."""
        self.ticks += 1
        paces, rank = self.case.seconds, dist.get_rank()
        return 0.0 if self.ticks % 2 else paces[(len(self.epochs) // 3) % len(paces)][rank]

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


def in_doubles(trainer: ServerTrainer) -> None:
    trainer.model.double()
    whole = trainer.data.whole
    trainer.data.whole = lambda watch: doubled(whole(watch))  # type: ignore[method-assign]


class Turns:
    """Weights of a job that trainers use in turn: one waits for its turn before it begins a step, which lasts until its
    gradient is there, and for another one before it sends it."""

    def __init__(self, job: JobWeights, turns: Sequence[int], folder: Path) -> None:
        self._job, self._folder, self._last = job, folder, len(turns) - 1
        self._mine = iter([number for number, rank in enumerate(turns) if rank == dist.get_rank()])
        self.now, self.weights = -1, dict[int, torch.Tensor]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def begin(self, *given: Any, **named: Any) -> StepWeights:
        self._wait()
        return self._job.begin(*given, **named)

    def push(self, *given: Any, **named: Any) -> Update:
        self._end()
        self._wait()
        found, values = self._job.push(*given, **named), self._job.pull().values
        assert values is not None
        self.weights[self.now] = torch.from_numpy(np.array(values))
        self._end()
        return found

    def _wait(self) -> None:
        self.now = next(self._mine, self._last + 1)
        assert eventually((self._folder / f"turn-{self.now - 1}").exists, 120) if self.now else True

    def _end(self) -> None:
        (self._folder / f"turn-{self.now}").touch()


def in_turn(case: TableCase, config: TrainConfig, cluster: atta.Cluster, folder: Path) -> dict[str, Any]:
    """A run of ``digest-async``; the weights after each turn that changed them."""
    run = Run(case, config, cluster)
    trainer: Any = run.trainer
    made, jobs = trainer._job, list[Turns]()
    trainer._job = lambda: jobs.append(Turns(made(), case.turns, folder)) or jobs[0]  # type: ignore[func-returns-value]
    trainer.fit()
    return run.result() | {"updates": jobs[0].weights}


def of_intervals(config: TrainConfig, cluster: atta.Cluster) -> dict[str, Any]:
    """A run of ``dorylus``: losses, weights by version, and what each interval has gathered, as its trainer believes."""
    read, began, weights = dict[Any, Any](), dict[Any, int](), dict[int, torch.Tensor]()

    class NotedProgress(PipelineProgress):
        def take(self, work: Work) -> None:
            super().take(work)
            stage = self.stages[work.stage]
            if (reads := self._reads(stage)) is not None:
                one = dist.get_rank(), work.interval
                read[stage.part, stage.layer, one, work.epoch] = dict(self._versions[reads])

        def begun(self, interval: int, epoch: int, version: int) -> bool:
            found = super().begun(interval, epoch, version)
            if found:
                began[(dist.get_rank(), interval), epoch] = version
            return found

    trainer: Any = STRATEGIES[config.strategy].trainer(config.own, cluster, torch.device("cpu"))
    in_doubles(trainer)
    keep = trainer._keep

    def kept(version: int, values: np.ndarray) -> None:
        weights[version] = torch.from_numpy(np.array(values))
        keep(version, values)

    trainer._keep = kept
    with mock.patch.object(dorylus, "PipelineProgress", NotedProgress):
        losses = [report.loss for report in trainer.fit()]
    view = trainer._found.view
    rows = interval_rows(view.edge_index, len(view.own), config.own.intervals)  # type: ignore[attr-defined]
    weights[config.epochs] = parameters_to_vector(trainer.model.parameters()).detach().clone()
    ids = [torch.from_numpy(view.global_ids[of_one]) for of_one in rows]
    return {"losses": losses, "weights": weights, "read": read, "began": began, "intervals": ids}


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
    if case.turns:
        return in_turn(case, config, cluster, folder)
    if case.strategy == "dorylus":
        with mock.patch.dict(os.environ, {FAULTS_VARIABLE: f"late=0.3:0.03,seed={dist.get_rank()}"}):
            return of_intervals(config, cluster)
    if case.resumed:
        return interrupted(case, config, cluster, folder / f"{dist.get_rank()}-saved.pt")
    run = Run(case, config, cluster)
    with ExitStack() as stack:
        for name in ("push", "pull") if case.delayed else ():
            stack.enter_context(mock.patch.object(RemoteTable, name, slow(getattr(RemoteTable, name), draws)))
        run.trainer.fit()
    return run.result()


def main(folder: Path, rank: int, cut: str, uncut: str, four: str = "", which: str = "all") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), rank=rank, world_size=WORLD)
    with ExitStack() as stack:
        clusters = {"cut": (stack.enter_context(atta.connect(cut)), cut)}
        if uncut == "forever":
            DigestTrainer.lease_s = 2.0
            case = digest(epochs=1_000_000)
            Run(case, case.config(cut), clusters["cut"][0]).trainer.fit()
        for name, target in (("uncut", uncut), ("four", four)):
            clusters[name] = stack.enter_context(atta.connect(target)), target
        cases = QUICK if which == "quick" else CASES
        found = {case.name: run_case(case, *clusters[case.data], folder) for case in cases}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
