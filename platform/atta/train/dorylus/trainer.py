"""The trainer of ``dorylus``: what one rank does."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

import atta
from atta.client.parameters import JobState, JobWeights
from atta.errors import AttaError, ConfigError, blaming
from atta.kvstore.parameters import ParameterSpec, VectorStep
from atta.observe.timeline import document
from atta.partition.disk.staging import StagedFile
from atta.train.cooperative.exchange import TrainerBatch, count_targets
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.halo import ReadRows, broadcast_bytes, broadcast_ids, exact_batch, meet
from atta.train.cooperative.trainer import ServerTrainer
from atta.train.dorylus.engine import IntervalEngine, TrainerIntervals
from atta.train.dorylus.gathering import Travels, forms_of, gather_plan, interval_rows, meet_intervals
from atta.train.dorylus.hand_out import HandOut, PoolSize
from atta.train.dorylus.links import Arrays, DaemonWeights, Listener, PeerLinks
from atta.train.dorylus.progress import Happening, IntervalTracks, PipelineProgress
from atta.train.dorylus.worker import Longs, loss_setting
from atta.train.dorylus.workers import WorkerPool
from atta.train.launching.trainers import MEETING
from atta.train.meeting import attempt_here, run_here, weights_of
from atta.train.reports.display import TRAINING_BEGINS
from atta.train.reports.epochs import EpochReport
from atta.train.settings.servers import DorylusSettings
from atta.train.steps.timing import Stopwatch

_LEASE_S = 300.0
"""The daemon drops the weights when it has heard nothing of the job for four times as long."""
_WORKERS_PER_CORE = 4
_COUNTED = ("sent_bytes", "relaunched", "lost", "ignored", "started", "tasks", "worker_s")
"""Counts that a report gives by epoch."""


class IntervalTrainer(ServerTrainer):
    """Trains a partition in intervals. Trainers meet before the first epoch and after the last one. Then the weights
    that were saved at ends of epochs are evaluated, by exact forward passes of all trainers. With checkpoints they meet
    and evaluate whenever one is due."""

    def __init__(self, config: DorylusSettings, cluster: atta.Cluster, device: torch.device) -> None:
        if device.type != "cpu":
            raise ConfigError("--device: dorylus computes on CPUs; give --device cpu")
        super().__init__(config, cluster, device, halo=True)
        if config.interval_trace is not None:
            with blaming(ConfigError, f"interval-trace={config.interval_trace}"):
                Path(config.interval_trace).mkdir(parents=True, exist_ok=True)
        self.optimiser = VectorStep("adam", config.lr, config.weight_decay)
        self.forms = forms_of(self.model)
        self._found: ReadRows | None = None
        self._saved: dict[int, np.ndarray] = {}

    def fit(self) -> list[EpochReport]:
        """Train, then evaluate the saved weights; returns a report of each epoch.

        Raises ConfigError: there are more intervals than vertices, or the daemon has no room for the weights;
        AttaError: workers fail, or a daemon or trainer does not answer.
        """
        self.done = self._restore()
        if len(self.done) < self.config.epochs:
            watch = Stopwatch(self.device)
            self.data.prepare(0, watch, self._needed)
            batch = self._kept(watch)
            assert self._found is not None, "the share has been made"
            self._train(self._found, count_targets(batch, self.groups))
        return self.done

    def _on_device(self, view: WorkerView, watch: Stopwatch) -> TrainerBatch:
        start = watch.now()
        self._found = meet(view, self.groups.place, self.device)
        batch = exact_batch(self._found, self.groups, self.device)
        watch.add("copy", start, watch.now())
        return batch

    def _train(self, found: ReadRows, count: int) -> None:
        view, options = found.view, self.options
        intervals = interval_rows(view.edge_index, len(view.own), options.intervals)
        plan = gather_plan(self.forms[0].kind, view, intervals)
        travels = meet_intervals(found, plan, self.rank, self.world)
        features = torch.from_numpy(np.concatenate([view.features, view.halo_features]))
        data = TrainerIntervals(plan, travels, features, view.global_ids[: len(view.own)], targets_of(view, intervals))
        progress = PipelineProgress(
            len(self.forms), len(intervals), epochs=len(self.done), first=len(self.done),
            mode=options.pipeline, staleness=options.staleness, rank=self.rank, forward=travels.rows_from,
            backward=travels.sums_from,
        )  # fmt: skip
        happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        tracks = IntervalTracks(progress.stages, len(intervals)) if options.interval_trace is not None else None
        hand_out = HandOut(timeout_s=options.timeout_s, max_relaunch=options.max_relaunch)
        with self._job() as job, ExitStack() as closing:
            key = broadcast_bytes(secrets.token_bytes(32), 0, self.device)
            setting = loss_setting(self.task.name, self.config.regression_loss, self.objective.weights)
            listener = Listener(_host(), key, setting)
            closing.callback(listener.close)
            pool = WorkerPool(listener, hand_out, self._pool_size(), key, happenings)
            closing.callback(pool.close)
            peers = PeerLinks(listener, key, self.rank, happenings)
            closing.callback(peers.close)
            peers.connect(self._readers(travels, listener.address))
            weights = DaemonWeights(job, self.rank * len(intervals), happenings)
            closing.callback(weights.close)

            about = {"seed": self.config.seed, "divisor": count}
            links = (pool, weights, peers)
            engine = IntervalEngine(
                progress, self.forms, data, links, happenings, about=about, began=self._keep, tracks=tracks
            )
            self.display.line(TRAINING_BEGINS)
            with self._run_log() as log, self._exporting() as show:
                for end in self._meetings():
                    progress.go_on(end)
                    try:
                        engine.run()
                    finally:  # why a run has failed may be seen, too
                        if tracks is not None:
                            self._write(tracks)
                    dist.barrier()  # until here others may need this trainer's rows
                    self._meet(job, end)
                    for report in self._reports(engine, count):
                        log.epoch(report)
                        show(report)

    def _meetings(self) -> Iterator[int]:
        """How many epochs are over whenever trainers meet: where a checkpoint is due, and at the end."""
        every = self.config.checkpoint_every if self.config.checkpoint is not None else self.config.epochs
        while (done := len(self.done)) < self.config.epochs:
            yield min(self.config.epochs, (done // every + 1) * every)

    def _meet(self, job: JobWeights, end: int) -> None:
        if self.rank == 0 and self.config.checkpoint is None:
            last = job.pull()
            assert last.values is not None, "the present weights are always there"
            self._saved[end] = last.values
        elif self.rank == 0:
            state = job.state()
            self._saved[end] = state.values
            _fill_adam(self.optimizer, self.model, state)
        dist.barrier()

    @contextlib.contextmanager
    def _job(self) -> Iterator[JobWeights]:
        name = broadcast_bytes(weights_of(run_here() or secrets.token_hex(8), attempt_here()).encode(), 0, self.device)
        parameters = parameters_to_vector(self.model.parameters()).detach().numpy()
        spec = ParameterSpec(
            name.decode(), tuple(form.size for form in self.forms),
            members=self.options.intervals * self.world, applies="summed", optimiser=self.optimiser,
            dtype=parameters.dtype.str, bound=self.options.staleness, lease_s=_LEASE_S, max_updates=self.config.epochs,
        )  # fmt: skip
        if self.config.checkpoint is not None:
            spec.check_state()
        job = self.cluster.weights(spec)
        if self.rank == 0:
            state = JobState(len(self.done), parameters, _moments_of(self.optimizer, self.model)) if self.done else None
            job.create(parameters, state)
        try:
            dist.barrier()
            yield job
        finally:
            if self.rank == 0:
                with contextlib.suppress(AttaError):  # what is wrong has been raised; silent jobs are dropped
                    job.drop()

    def _write(self, tracks: IntervalTracks) -> None:
        assert self.options.interval_trace is not None, "asked for"
        about = {"rank": self.rank, "mode": self.options.pipeline, "left_out": tracks.left_out}
        file = Path(self.options.interval_trace) / f"intervals-{self.rank}.json"
        with StagedFile(file, overwrite=True) as partial:
            partial.write_text(document(tracks.events(self.rank), about))

    def _readers(self, travels: Travels, address: str) -> dict[int, str]:
        """Where the trainers listen that read rows of this one; all trainers call this."""
        heard = [broadcast_bytes(address.encode(), rank, self.device).decode() for rank in range(self.world)]
        return {rank: heard[rank] for rank in sorted({rank for rank, _ in (*travels.rows_to, *travels.sums_to)})}

    def _pool_size(self) -> PoolSize:
        trainers = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world)))
        share = max(1, _WORKERS_PER_CORE * len(os.sched_getaffinity(0)) // trainers)
        return PoolSize(
            self.options.intervals, limit=self.options.most_workers or share, threads=torch.get_num_threads()
        )

    def _keep(self, version: int, values: np.ndarray) -> None:
        if self.rank == 0 and version and version % self.config.eval_every == 0:
            self._saved.setdefault(version, values)

    def _reports(self, engine: IntervalEngine, count: int) -> Iterator[EpochReport]:
        """A report of each new epoch. Epochs whose weights were saved are evaluated; checkpoints are written."""
        edges = self._sum([self._kept(Stopwatch(self.device)).graph.edge_index.shape[1]])[0]
        saved = broadcast_ids(np.array(sorted(self._saved), np.int64) if self.rank == 0 else None, 0, self.device)
        first, ended = engine.progress.first, self._max(engine.went_on)
        before = engine.marks[len(self.done) - first - 1] if len(self.done) > first else dict.fromkeys(_COUNTED, 0.0)
        for epoch in range(len(self.done), engine.progress.finished):
            end, now = self._max(engine.ended[epoch - first]), engine.marks[epoch - first]
            took, ended = max(end - ended, 1e-9), end
            new = {name: now[name] - before[name] for name in _COUNTED} | {"workers": now["workers"]}
            before, sums = now, dict(zip(new, self._sum(list(new.values())), strict=True))
            sent = sums.pop("sent_bytes")
            report = self.report(
                epoch,
                took,
                count,
                edges,
                loss=self._sum([engine.losses[epoch]])[0] / count,
                steps=1,
                exchanged_bytes=sent,
                crossed_bytes=sent,
                learning_rate=self.config.lr,
                pipeline={**sums, "oldest_row": self._max(now["oldest_row"])},
            )
            report.check_loss()
            if epoch + 1 in saved:
                self.take_weights(self._saved.get(epoch + 1))
                if (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.epochs:
                    report = self.evaluated(report)
            self.done.append(report)
            self.display.epoch(report)
            self._save(self.done, last=epoch + 1 == self.config.epochs)
            yield report
        self._saved.clear()


def targets_of(view: WorkerView, intervals: Sequence[Longs]) -> list[Arrays]:
    """The training vertices of each interval, and their targets."""
    trains = np.isin(np.arange(len(view.own)), view.targets)
    return [{"places": np.flatnonzero(trains[rows]), "targets": view.labels[rows[trains[rows]]]} for rows in intervals]


def _host() -> str:
    """The address of this machine at which other trainers reach it: where it reaches the first of them from."""
    first = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if MEETING in os.environ:
        first = json.loads(os.environ[MEETING])["address"].rpartition(":")[0]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _fill_adam(optimizer: torch.optim.Optimizer, model: torch.nn.Module, state: JobState) -> None:
    parameters = list(model.parameters())
    sizes = [one.numel() for one in parameters]
    means, squares = (moment.split(sizes) for moment in torch.from_numpy(np.array(state.moments)).chunk(2))
    for parameter, mean, square in zip(parameters, means, squares, strict=True):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(state.version)),
            "exp_avg": mean.view_as(parameter).clone(),
            "exp_avg_sq": square.view_as(parameter).clone(),
        }


def _moments_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> np.ndarray:
    kept = [optimizer.state[parameter] for parameter in model.parameters()]
    return np.concatenate([one[name].flatten().numpy() for name in ("exp_avg", "exp_avg_sq") for one in kept])
