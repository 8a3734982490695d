"""Runs a training: starts daemons, unless they already run, and the trainers of this machine."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from atta.client.folder import OwnFolder
from atta.errors import AttaError
from atta.observe.lastwords import printable
from atta.partition.disk.mirror import Mirror
from atta.partition.schema import Schema
from atta.train.config import TrainConfig
from atta.train.launching.failure import Attempts
from atta.train.launching.handing import blaming_daemons, connect_handed, handed
from atta.train.launching.nodes import Nodes
from atta.train.launching.trainers import MEETING_S, StoppedError, run_trainers
from atta.train.meeting.notes import tables_of, weights_of
from atta.train.reports.epochs import EpochReport
from atta.train.reports.loggers import check_logger
from atta.train.reports.run import TrainReport
from atta.train.settings.common import parse_logger
from atta.train.strategies import STRATEGIES
from atta.train.tasks.choice import task_on
from atta.train.tasks.watching import check_watched
from atta.train.tasks.weights import read_weights
from atta.wire.named import await_names

CLEAN_S = 5.0
"""How long a daemon may take to answer when what a failed run has left is dropped."""


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
        attempts = Attempts(config.max_restarts)
        while (report := _attempt(attempts, config, task, nodes, Path(folder))) is None:
            pass
    return report


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
) -> TrainReport | None:
    """Run all trainers once. Returns the figures of every epoch; None if a trainer was lost and all shall start again.

    Raises the error of the trainer that failed first.
    """
    folder /= str(attempts.failed)
    folder.mkdir()
    if config.checkpoint is not None and attempts.resumes(_newest(config.checkpoint)):
        task["config"]["resume"] = True
    task["attempt"] = attempts.failed
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    alone = STRATEGIES[config.strategy].restarts(config.own)
    clean = (lambda run: _clean(config, task, run, f"weights-{run}")) if alone else None
    here = nodes.trainers_here(config)
    try:
        restarts = run_trainers(here, nodes, folder, config.rank_timeout, alone=alone, clean=clean)
    except BaseException as error:
        if not alone:  # trainers that were stopped or killed have dropped nothing
            _clean(config, task, task["run"], weights_of(task["run"], task["attempt"]))
        if isinstance(error, StoppedError):
            raise AttaError(str(error)) from None
        if not isinstance(error, AttaError):
            raise
        if not attempts.again(error):
            raise
        place = _restart_place(attempts, config)
        _tell(f"all trainers start again from {place} (restart {attempts.failed} of {attempts.most}): {error}")
        return None
    epochs = [EpochReport.from_dict(e) for e in json.loads((folder / "epochs.json").read_text(encoding="utf-8"))]
    if alone:
        return TrainReport(config, epochs, sum(restarts), restarts)
    return TrainReport(config, epochs, attempts.restarts)


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
