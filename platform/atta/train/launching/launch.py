"""Runs a training: starts daemons, unless they already run, and the trainers of this machine."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import atta
from atta.client.cluster import connect_all
from atta.errors import AttaError, ConfigError, RemoteError, TrainerLostError
from atta.observe.lastwords import counted, printable
from atta.observe.machine.held import OwnFolder
from atta.partition.deploy import described_dataset
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import held
from atta.partition.schema import Schema
from atta.train.config import TrainConfig
from atta.train.launching.failure import Attempts
from atta.train.launching.nodes import Nodes
from atta.train.launching.trainers import MEETING_S, StoppedError, run_trainers
from atta.train.meeting import tables_of, weights_of
from atta.train.reports.display import nothing_left
from atta.train.reports.epochs import EpochReport
from atta.train.reports.loggers import read_epochs
from atta.train.reports.run import TrainReport
from atta.train.settings.common import TYPED_MODELS
from atta.train.strategies import STRATEGIES
from atta.wire.clusterfile import await_names, ended_daemon, is_file, read_cluster, resolve_target
from atta.wire.credentials import Credentials
from atta.wire.parts import AUTO, Addresses, groups_of, replicas_of

CLEAN_S = 5.0
"""How long a daemon may take to answer when what a failed run has left is dropped."""
EPOCHS = "epochs.json"
"""Where the first trainer of a machine writes its figures."""
SO_FAR = "so-far.jsonl"
"""Where it adds each epoch when it ends."""


def fit(config: TrainConfig, nodes: Nodes | None = None, so_far: TrainReport | None = None) -> TrainReport:
    """Train as ``config`` says and return the figures of every epoch.

    Trainers are processes of their own, so this works in a script, a notebook and a test. Ctrl-C ends them, and daemons
    that were started here, before KeyboardInterrupt is raised. On several machines, each one calls this with the same
    ``config`` and its own ``nodes``, and gets the same figures. ``so_far``: gets what is known if this raises.

    Raises ConfigError, DataError: bad settings or dataset; RemoteError: a daemon failed; AttaError: a trainer failed (the
    message names rank and cause), or other machines did not join."""
    nodes, so_far = nodes or Nodes(), so_far or TrainReport(config)
    so_far.config = config = checked(config, nodes)
    with _checkpoints(config, nodes):
        return _fit(config, nodes, so_far)


def checked(config: TrainConfig, nodes: Nodes) -> TrainConfig:
    """The settings, ``with_task`` if the dataset is here. Raises what ``fit`` can raise before it asks a daemon."""
    nodes.trainers_here(config)
    config.check_named()
    if config.data is not None:
        stored = described_dataset(config.data)
        return with_task(config, stored.schema, stored.num_parts)
    if is_file(target := str(config.cluster)):
        config.check_parts(len(read_cluster(target)))
    return config


@contextlib.contextmanager
def _checkpoints(config: TrainConfig, nodes: Nodes) -> Iterator[None]:
    """The folder of checkpoints is that of this run alone within the block."""
    if config.checkpoint is None or nodes.rank:
        yield
        return
    from atta.train.checkpoint.files import check_folder

    check_folder(config.checkpoint)
    with held(Mirror(config.checkpoint).path):
        check_kept(config, newest := _newest(config.checkpoint))
        if config.resume and not newest and config.verbose:
            _tell(f"{config.checkpoint}: no checkpoint yet: begins anew")
        yield


def _fit(config: TrainConfig, nodes: Nodes, so_far: TrainReport) -> TrainReport:
    if config.data is not None:  # before daemons are started, which takes as long as they read
        from atta.train.checkpoint.run import check_saved

        done = check_saved(config.own, described_dataset(config.data).schema)
        if len(done) >= config.epochs:
            if config.verbose:
                _tell(nothing_left(len(done)))
            return TrainReport(config, done)
    if config.verbose:
        trainers = nodes.trainers_here(config)
        also = "" if config.data is None else f" and daemons for {config.data}"
        _tell(f"starting {counted(trainers, 'trainer')}{also}")
    with _daemons(config, nodes) as (daemons, schema), OwnFolder("atta-train-") as folder:
        if config.data is None:
            so_far.config = config = with_task(config, schema, len(daemons["addresses"]))
        task = {"config": config.to_dict(), "run": uuid.uuid4().hex, **daemons}
        attempts = Attempts(config.max_restarts)
        run = partial(_attempt, attempts, config, task, nodes, Path(folder))
        try:
            return attempts.until_done(run, lambda error: _tell(_restart(attempts, config, error)))
        except (KeyboardInterrupt, StoppedError, RemoteError, TrainerLostError) as error:
            if config.verbose and config.checkpoint is not None and nodes.rank == 0 and _newest(config.checkpoint):
                _tell(f"{config.checkpoint} holds the run; --resume goes on with it")
            if isinstance(error, StoppedError):
                raise AttaError(str(error)) from None
            raise
        finally:
            for attempt in range(attempts.failed + 1):
                so_far.epochs = read_epochs(Path(folder, str(attempt), SO_FAR)) or so_far.epochs
            so_far.restarts = attempts.restarts


def _attempt(attempts: Attempts, config: TrainConfig, task: dict[str, Any], nodes: Nodes, folder: Path) -> TrainReport:
    """Run all trainers once. Raises the error of the trainer that failed first."""
    folder /= str(attempts.failed)
    folder.mkdir()
    if config.checkpoint is not None and attempts.resumes(_newest(config.checkpoint)):
        task["config"] |= {"resume": True, "overwrite": False}
    task["attempt"] = attempts.failed
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    alone = STRATEGIES[config.strategy].restarts(config.own)
    clean = (lambda run: _clean(config, task, run, f"weights-{run}")) if alone else None
    here = nodes.trainers_here(config)
    try:
        restarts = run_trainers(here, nodes, folder, config.rank_timeout, alone=alone, clean=clean, told=config.verbose)
    except BaseException:
        if not alone:  # trainers that were stopped or killed have dropped nothing
            _clean(config, task, task["run"], weights_of(task["run"], task["attempt"]))
        raise
    epochs = [EpochReport.from_dict(e) for e in json.loads((folder / EPOCHS).read_text(encoding="utf-8"))]
    return TrainReport(config, epochs, sum(restarts) if alone else attempts.restarts, restarts if alone else [])


def _clean(config: TrainConfig, daemons: Mapping[str, Any], run: str, weights: str) -> None:
    """Drop what trainers that were killed have left on daemons that go on: tables of the run, and its weights."""
    if config.cluster is None:
        return
    from atta.kvstore.parameters import ParameterSpec, VectorStep

    with contextlib.suppress(AttaError), connect_handed(daemons, deadline_s=CLEAN_S) as running:
        for name in running.tables.specs():
            if name.startswith((f"stale-{run}.", tables_of(run))):
                running.tables.delete(name)
        # Only the name counts.
        running.weights(ParameterSpec(weights, (1,), 1, applies="arrival", optimiser=VectorStep("adam", 1.0))).drop()


def _restart(attempts: Attempts, config: TrainConfig, error: AttaError) -> str:
    from atta.train.checkpoint.run import place_in

    assert config.checkpoint is not None, "--max-restarts needs it"
    newest = _newest(config.checkpoint)
    goes_on = newest and (config.resume or attempts.resumes(newest))
    place = str(place_in(config.checkpoint)) if goes_on else "the beginning"
    return f"all trainers start again from {place} (restart {attempts.failed} of {attempts.most}): {error}"


def check_kept(config: TrainConfig, newest: str) -> None:
    """Refuse to replace a run that nobody wants to lose. ``newest``: empty where the folder holds none. Raises ConfigError."""
    if newest and not (config.resume or config.overwrite):
        raise ConfigError(f"{config.checkpoint}: holds a run; --resume goes on with it, --overwrite replaces it")


def _newest(folder: str) -> str:
    """A text that changes with each checkpoint; empty: there is none."""
    from atta.train.checkpoint.files import LAST

    return Mirror(folder).version(LAST)


def with_task(config: TrainConfig, schema: Schema, parts: int) -> TrainConfig:
    """The settings with the model and the task that fit a dataset. What each trainer would refuse is refused here, once."""
    from atta.train.tasks.choice import check_watched, task_on
    from atta.train.tasks.targets import read_weights
    from atta.train.tasks.types import CURE, usual_model

    config.check_parts(parts)
    if config.model == AUTO:
        usual = usual_model(schema)
        try:
            config = replace(config, model=usual)
        except ConfigError as error:
            has = "types" if usual in TYPED_MODELS else "one node type and one edge type"
            raise ConfigError(f"the graph has {has}, so the model is {usual}, but {error}") from None
        if config.model in TYPED_MODELS and config.verbose:
            _tell(f"the graph has types, so the model is {config.model}; --model names another")
    found = task_on(schema, config.own)
    if config.class_weights not in ("none", "balanced"):
        read_weights(config.class_weights, found.outputs)
    ends = schema.endpoints(found.resolved["edge_type"]) if "edge_type" in found.resolved else ()
    deaf = [t for t in dict.fromkeys(ends) if t not in {schema.endpoints(e)[1] for e in schema.edge_types}]
    if deaf and config.verbose:
        _tell(f"no edge type ends at {' or '.join(deaf)}, so a model sees no neighbours there; {CURE}")
    resolved = replace(config, **found.resolved)
    check_watched(resolved.own, found.splits)
    return resolved


@contextlib.contextmanager
def _daemons(config: TrainConfig, nodes: Nodes) -> Iterator[tuple[dict[str, Any], Schema]]:
    """What trainers must know of the daemons (``handed``), and the schema of their graph. The daemons are started for
    the run unless the configuration names running ones."""
    if config.cluster is not None:
        if nodes.early:
            meeting = [nodes.endpoint] if nodes.endpoint is not None else []
            named = [address for all_ in resolve_target(config.cluster).values() for address in replicas_of(all_)]
            await_names([*named, *meeting], MEETING_S, _tell)
        with atta.connect(config.cluster, wait=nodes.early, deadline_s=MEETING_S) as running:
            running.check_method(getattr(config.own, "method", "uniform"))
            found = handed(running), running.schema
        yield found
        return
    with own_daemons(str(config.data), config.threads, nodes.trainers_here(config)) as started:
        yield handed(started), started.schema


@contextlib.contextmanager
def own_daemons(data: str, threads: int | None, readers: int) -> Iterator[atta.LocalCluster]:
    """Daemons for one run, with so many ``readers``. Raises DaemonEndedError where a daemon's end made the block fail."""
    with atta.local(data, threads=threads, readers=readers) as started:
        try:
            yield started
        except AttaError as error:
            if (lost := started.lost) is not None:
                raise lost from error
            raise


def handed(cluster: atta.Cluster) -> dict[str, Any]:
    """What a process hands to others so that they reach the same daemons, as plain values: ``addresses`` of each partition's
    daemon and its replicas, files of ``tls``, and the cluster ``file`` of daemons that were started here, if so."""
    credentials, file = cluster.credentials, getattr(cluster, "cluster_file", None)
    return {
        "addresses": [[*replicas] for replicas in cluster.replicas],
        "tls": None if credentials is None else credentials.to_dict(),
        "file": None if file is None else str(file),
    }


def connect_handed(task: Mapping[str, Any], *, deadline_s: float = 30.0) -> atta.Cluster:
    """The cluster that ``handed`` was told of; ``task["file"]`` may be rewritten when a daemon moves. Raises
    UnavailableError: a daemon does not answer; DataError: a file of the credentials is missing or damaged."""
    tls, file = task.get("tls"), task.get("file")
    found = groups_of({part: replicas_of(replicas) for part, replicas in enumerate(task["addresses"])})
    addresses = {parts.start: replicas for parts, replicas in found.items()}

    def where() -> Mapping[int, Addresses]:
        return resolve_target(file) if file else addresses

    ended = partial(ended_daemon, file) if file else None
    credentials = None if tls is None else Credentials(**tls)
    return connect_all(addresses, credentials, deadline_s=deadline_s, where=where, ended=ended)


def _tell(sentence: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(printable(f"atta: {sentence}"), file=sys.stderr, flush=True)
