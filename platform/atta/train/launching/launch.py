"""Runs a training: starts daemons (unless they already run), and trainers: under torch's elastic launcher, or, where one
that died is started again alone, under our own (``restarting``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atta.client.folder import OwnFolder
from atta.errors import AttaError, ConfigError
from atta.observe.printable import first_line, printable
from atta.partition.disk.mirror import Mirror
from atta.partition.schema import Schema
from atta.train.config import TrainConfig
from atta.train.launching.failure import first_cause
from atta.train.launching.handing import blaming_daemons, connect_handed, handed
from atta.train.launching.life import START_S, watched
from atta.train.launching.nodes import Nodes
from atta.train.launching.restarting import run_restarting
from atta.train.launching.restarts import Attempts
from atta.train.meeting.run import tables_of, weights_of
from atta.train.reports.epochs import EpochReport
from atta.train.reports.loggers import check_logger
from atta.train.reports.run import TrainReport
from atta.train.settings.common import parse_logger
from atta.train.strategies import STRATEGIES
from atta.train.tasks.choice import task_on
from atta.train.tasks.watching import check_watched
from atta.train.tasks.weights import read_weights
from atta.wire.names import await_names

__all__ = ["fit", "with_task"]

SHUTDOWN_S = 10
"""How long the other trainers may take to end after one has failed; then they are killed."""
CLEAN_S = 5.0
"""How long a daemon may take to answer when what a failed run has left is dropped."""
MEETING_S = 120
"""How long a node waits for other nodes, and for daemons that are still starting."""


def fit(config: TrainConfig, nodes: Nodes | None = None) -> TrainReport:
    """Train as ``config`` says and return the figures of every epoch.

    Trainers are processes of their own, so this works in a script, a notebook and a test. Ctrl-C ends trainers and the
    daemons that were started here, before KeyboardInterrupt is raised. On several machines, each one calls this with
    the same ``config`` and its own ``nodes``, and each gets the same figures.

    Raises:
        ConfigError, DataError: bad settings or dataset.
        RemoteError: a daemon failed.
        AttaError: a trainer failed (the message names rank and cause), or other machines did not join.
    """
    nodes = nodes or Nodes()
    nodes.trainers_here(config)  # refuses what does not fit
    for logger in config.logger or ():
        check_logger(parse_logger(logger))
    if config.checkpoint is not None and nodes.rank == 0:
        from atta.train.checkpoint import check_folder

        check_folder(config.checkpoint)
    with _daemons(config, nodes) as (cluster, schema), OwnFolder("atta-train-") as folder:
        config.check_parts(len(cluster["addresses"]))
        config = with_task(config, schema)
        task = {"config": config.to_dict(), "run": uuid.uuid4().hex, **cluster}
        most = STRATEGIES[config.strategy].restarts(config.own)
        if most:
            return _restarting(config, task, nodes, Path(folder), most=most)
        attempts = Attempts(config.max_restarts)
        while (epochs := _attempt(attempts, config, task, nodes, Path(folder))) is None:
            pass
    return TrainReport(config, epochs, attempts.restarts)


def _restarting(config: TrainConfig, task: dict[str, Any], nodes: Nodes, folder: Path, *, most: int) -> TrainReport:
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    restarts = run_restarting(
        nodes.trainers_here(config), nodes, folder, most=most, shutdown_s=SHUTDOWN_S, meeting_s=MEETING_S,
        clean=lambda run: _clean(config, task, run, f"weights-{run}"),
    )  # fmt: skip
    epochs = json.loads((folder / "epochs.json").read_text(encoding="utf-8"))
    return TrainReport(config, [EpochReport.from_dict(e) for e in epochs], sum(restarts), restarts)


def _clean(config: TrainConfig, cluster: dict[str, Any], run: str, weights: str) -> None:
    """Drop what trainers that were killed have left on daemons that go on: tables of the run, and its weights."""
    if config.cluster is None:
        return
    from atta.kvstore.parameters.spec import ParameterSpec, VectorStep

    with contextlib.suppress(AttaError), connect_handed(cluster, deadline_s=CLEAN_S) as running:
        for name in running.tables.specs():
            if name.startswith((f"stale-{run}.", tables_of(run))):
                running.tables.delete(name)
        # Only the name counts.
        spec = ParameterSpec(weights, (1,), 1, applies="arrival", optimiser=VectorStep("adam", 1.0))
        running.weights(spec).drop()


def _attempt(
    attempts: Attempts, config: TrainConfig, task: dict[str, Any], nodes: Nodes, folder: Path
) -> list[EpochReport] | None:
    """Run all trainers once. Returns the figures of every epoch; None if a trainer was lost and all shall start again.

    Raises the error of the trainer that failed first.
    """
    folder /= str(attempts.failed)
    folder.mkdir()
    if config.checkpoint is not None and attempts.resumes(_newest(config.checkpoint)):
        task["config"]["resume"] = True
    task["attempt"] = attempts.failed
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    error = _launch(nodes.trainers_here(config), nodes, folder, config.rank_timeout)
    if error is None:
        epochs = json.loads((folder / "epochs.json").read_text(encoding="utf-8"))
        return [EpochReport.from_dict(e) for e in epochs]
    _clean(config, task, task["run"], weights_of(task["run"], task["attempt"]))
    if not attempts.again(error):
        raise error
    place = _restart_place(attempts, config)
    _tell(f"all trainers start again from {place} (restart {attempts.failed} of {attempts.most}): {error}")
    return None


def _restart_place(attempts: Attempts, config: TrainConfig) -> str:
    from atta.train.checkpoint import place_in

    assert config.checkpoint is not None, "--max-restarts needs it"
    newest = _newest(config.checkpoint)
    return (
        str(place_in(config.checkpoint)) if newest and (config.resume or attempts.resumes(newest)) else "the beginning"
    )


def _newest(folder: str) -> str:
    """A text that changes with each checkpoint; empty: there is none."""
    from atta.train.checkpoint import LAST

    return Mirror(folder).version(LAST)


def with_task(config: TrainConfig, schema: Schema) -> TrainConfig:
    """The settings with the task that fits the dataset. What each trainer would refuse is refused here, once."""
    found = task_on(schema, config.own)
    if config.class_weights not in ("none", "balanced"):
        read_weights(config.class_weights, found.outputs)
    resolved = replace(config, **found.resolved)
    check_watched(resolved.own, found)
    return resolved


@contextlib.contextmanager
def _daemons(config: TrainConfig, nodes: Nodes) -> Iterator[tuple[dict[str, Any], Schema]]:
    """What trainers must know of the daemons (``handed``), and the schema of their graph. The daemons are started for the
    run unless the configuration names running ones.
    """
    import atta
    from atta.wire.named import resolve_target
    from atta.wire.parts import replicas_of

    if config.cluster is not None:
        if nodes.early:
            meeting = [nodes.endpoint] if nodes.endpoint is not None else []
            named = [address for all_ in resolve_target(config.cluster).values() for address in replicas_of(all_)]
            await_names([*named, *meeting], MEETING_S, _tell)
        with atta.connect(config.cluster, wait=nodes.early, deadline_s=MEETING_S) as running:
            found = handed(running), running.schema
        yield found
        return
    assert config.data is not None
    readers = nodes.trainers_here(config)
    with atta.local(config.data, threads=config.threads, readers=readers) as started, blaming_daemons(started):
        yield handed(started), started.schema


def _tell(sentence: str) -> None:
    print(printable(f"atta: {sentence}"), file=sys.stderr, flush=True)


def _launch(trainers: int, nodes: Nodes, folder: Path, limit_s: float) -> AttaError | None:
    """Run this machine's trainers until they end; returns the cause if one of them failed.

    limit_s: a trainer that gives no sign of life for so many seconds is killed.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns of addresses without a host name, among others
    try:
        from torch.distributed import DistError
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        from atta.train.launching.here import ADDRESS, BACKEND
    except ImportError as error:
        raise ConfigError("training needs torch and torch_geometric: install atta[train]") from error
    meeting: dict[str, Any] = {"rdzv_backend": BACKEND, "local_addr": ADDRESS}
    if nodes.count > 1:
        place = {"rank": nodes.rank, "timeout": MEETING_S}
        meeting = {"rdzv_backend": "static", "rdzv_endpoint": nodes.endpoint, "rdzv_configs": place}
    settings = LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=trainers,
        run_id="atta" if nodes.count > 1 else uuid.uuid4().hex,  # the same on all nodes
        max_restarts=0,
        monitor_interval=0.2,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        **meeting,
    )
    if hasattr(settings, "shutdown_timeout"):  # torch 2.11 has none, and waits as long as it likes
        settings.shutdown_timeout = SHUTDOWN_S
    ranks = range(nodes.rank * trainers, (nodes.rank + 1) * trainers)
    start_s = START_S + (MEETING_S if nodes.count > 1 else 0)
    signs = watched(folder, ranks, limit_s, start_s)
    with _signals_restored(), _quiet_torch(), nodes.interface_named(), signs as silent:
        try:
            elastic_launch(settings, sys.executable)("-m", "atta.train.launching.worker", str(folder))
        except ChildFailedError as error:
            codes = {rank: f.exitcode for rank, f in _failures(error).items()}
            return first_cause(folder, codes, others=nodes.count > 1, silent=silent, ranks=ranks)
        except DistError as error:  # between launchers: errors of trainers are ChildFailedErrors
            raise AttaError(f"{nodes}: the others did not come or went away: {first_line(error)}") from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise AttaError(f"training was stopped by {error.sigval.name}") from None
    return None


def _failures(error: Any) -> Mapping[int, Any]:
    failures: Mapping[int, Any] = error.failures
    return failures


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers that the launcher replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Silence the launcher's report of failures; ours names the cause in one line."""

    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith("torch.distributed") and isinstance(logger, logging.Logger)
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
