"""``atta.ray.fit``: trainers as Ray's actors, each beside its home daemon."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import atta
from atta.errors import AttaError, ConfigError, QuotaExceededError
from atta.observe.lastwords import first_line
from atta.observe.machine.held import OwnFolder
from atta.partition.deploy import described_dataset
from atta.partition.disk.store import is_url
from atta.train.config import TrainConfig
from atta.train.launching.failure import Attempts, failure_file, first_cause
from atta.train.launching.launch import check_kept, handed, with_task
from atta.train.launching.on_ray.keepers import TrainerKeeper
from atta.train.launching.on_ray.placement import home_nodes, ranks_on
from atta.train.launching.on_ray.serving import serve
from atta.train.reports.epochs import EpochReport
from atta.train.reports.run import TrainReport
from atta.wire.clusterfile import NAMESPACE, PREFIX, ask_ray, is_named, joined_ray

log = logging.getLogger(__name__)

ROOM_S = 120.0
"""How long Ray may take to find room for the trainers, and machines to come back after a loss."""
OTHERS_S = 5.0
"""How long the other trainers may take to say how they failed; then they are killed."""


def fit(
    config: TrainConfig, *, max_failures: int = 0, threads: int = 1, insecure: bool = False, memory_bytes: int = 0
) -> TrainReport:
    """Train as ``config`` says, with trainers that Ray places. Returns the figures of every epoch.

    With the target ``ray:NAME`` as ``config.cluster``, each trainer runs on the machine of its home daemon if there is
    room. With ``config.data``, daemons are started for the run. Batches and losses are those of ``atta train`` with as
    many threads per trainer.

    After the loss of a trainer or of its machine all trainers start again, from the checkpoint that this run has
    written last, or else from the beginning. The figures are those of a run without a loss. The folder of checkpoints
    must be the same on all machines.

    Args:
        config: of the run.
        max_failures: how often that may happen.
        threads: cores that Ray reserves for each trainer, and threads that it computes with.
        insecure: with ``config.data``: trust the network; see ``serve``.
        memory_bytes: memory that Ray reserves for each trainer; 0: none.

    Raises:
        ConfigError, DataError: bad settings or dataset.
        QuotaExceededError: Ray has no room for the trainers.
        RemoteError: a daemon failed.
        AttaError: a trainer failed once too often; the message names rank and cause.
    """
    attempts = Attempts(max_failures)
    if config.max_restarts:
        raise ConfigError(f"max_restarts is {config.max_restarts}: on Ray max_failures limits their restarts")
    if threads < 1:
        raise ConfigError(f"threads is {threads}: must be at least 1")
    if config.data is not None:
        stored = described_dataset(config.data)
        with_task(replace(config, verbose=False), stored.schema, stored.num_parts)  # raises before daemons are started
    ray = joined_ray(local=True)
    with _target(config, insecure) as target:
        folder = config.checkpoint
        if folder is not None and not is_url(folder):  # trainers have another working folder
            folder = str(Path(folder).absolute())
        config = replace(config, data=None, cluster=target, checkpoint=folder)
        return attempts.until_done(
            partial(_attempt, ray, config, attempts, threads, memory_bytes),
            lambda error: log.warning("trainers start again (%d of %d): %s", attempts.restarts, max_failures, error),
        )


def _attempt(ray: Any, config: TrainConfig, attempts: Attempts, threads: int, memory: int) -> TrainReport:
    with atta.connect(config.cluster or "", wait=True, deadline_s=ROOM_S) as cluster:
        settled = with_task(config, cluster.schema, cluster.num_parts)
        task = {"config": settled.to_dict(), **handed(cluster)}
    with _trainers(ray, settled, threads, memory) as trainers:
        newest = trainers.checkpoint(settled)
        if not attempts.failed:
            check_kept(config, newest)
        if attempts.resumes(newest):
            task["config"] |= {"resume": True, "overwrite": False}
        return TrainReport(settled, trainers.train(task, threads), attempts.restarts)


@contextlib.contextmanager
def _target(config: TrainConfig, insecure: bool) -> Iterator[str]:
    if config.cluster is not None:
        yield config.cluster
        return
    assert config.data is not None
    with serve(config.data, name=f"fit-{uuid.uuid4().hex[:12]}", threads=config.threads or 1, insecure=insecure) as own:
        yield own.target


@contextlib.contextmanager
def _trainers(ray: Any, config: TrainConfig, threads: int, memory: int) -> Iterator[_RayTrainers]:
    """Actors for all ranks. They and their trainers end with the block."""
    nodes: Sequence[str | None] = [None] * config.trainers
    registry, target = None, config.cluster or ""
    if is_named(target):
        nodes = home_nodes(config.trainers, ask_ray(target).nodes)
        registry = ray.get_actor(target.removeprefix(PREFIX), namespace=NAMESPACE)
    actors = [_actor(ray, node, threads, memory) for node in nodes]
    try:
        yield _RayTrainers(ray, actors, registry)
    finally:
        for actor in actors:
            ray.kill(actor)


def _actor(ray: Any, node: str | None, threads: int, memory: int) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # ``soft`` alone waits for ever where the node lives and is full. Ray Serve places its replicas like this, too.
    beside = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
    room = {"memory": memory} if memory else {}
    return ray.remote(TrainerKeeper).options(num_cpus=threads, scheduling_strategy=beside, **room).remote()


class _RayTrainers:
    def __init__(self, ray: Any, actors: Sequence[Any], registry: Any) -> None:
        self._ray, self._actors, self._registry = ray, actors, registry
        late = QuotaExceededError(f"Ray has no room for {len(actors)} trainers after {ROOM_S:g} s")
        self._places: list[Mapping[str, Any]] = self._told([actor.place.remote() for actor in actors], late)

    def _told(self, asked: Any, late: AttaError) -> Any:
        """What actors answer before they train. Raises ``late`` after ``ROOM_S``, AttaError if one of them is lost."""
        try:
            return self._ray.get(asked, timeout=ROOM_S)
        except self._ray.exceptions.GetTimeoutError:
            raise late from None
        except self._ray.exceptions.RayError as error:
            raise AttaError(f"Ray lost a trainer as it started: {error}") from None

    def checkpoint(self, config: TrainConfig) -> str:
        """What tells the checkpoint there is now from another one, as rank 0 sees it."""
        from atta.train.checkpoint.files import LAST

        late = AttaError(f"trainer 0 did not find out within {ROOM_S:g} s which checkpoint is in {config.checkpoint}")
        found: str = self._told(self._actors[0].version.remote(config.checkpoint, LAST), late)
        return found

    def train(self, task: Mapping[str, Any], threads: int) -> list[EpochReport]:
        """The figures of rank 0; raises the error of the rank that failed first."""
        first = self._places[0]
        asked = {}
        for rank, actor in zip(ranks_on([place["node"] for place in self._places]), self._actors, strict=True):
            environment = rank.environment() | {
                "MASTER_ADDR": first["host"],
                "MASTER_PORT": str(first["port"]),
                "OMP_NUM_THREADS": str(threads),
            }
            asked[actor.train.remote(task, environment, self._registry)] = rank.rank
        ended: dict[int, dict[str, Any]] = {}
        deadline: float | None = None
        while len(ended) < len(asked) and (deadline is None or time.monotonic() < deadline):
            waiting = [ref for ref, rank in asked.items() if rank not in ended]
            ready, _ = self._ray.wait(waiting, num_returns=1, timeout=1.0)
            for ref in ready:
                ended[asked[ref]] = self._result(ref)
                if ended[asked[ref]]["code"] and deadline is None:
                    deadline = time.monotonic() + OTHERS_S
        if any(end["code"] for end in ended.values()):
            raise _cause(ended)
        return [EpochReport.from_dict(epoch) for epoch in ended[0]["epochs"]]

    def _result(self, ref: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return {"code": 1, "record": "", "epochs": [], "lost": first_line(error)}
        return found


def _cause(ended: Mapping[int, Mapping[str, Any]]) -> AttaError:
    if lost := {rank: end["lost"] for rank, end in ended.items() if "lost" in end}:
        rank = min(lost)
        return AttaError(f"trainer {rank} was lost with its machine or its actor: {lost[rank]}")
    with OwnFolder("atta-ray-") as folder:
        for rank, end in ended.items():
            if end["record"]:
                failure_file(Path(folder), rank).write_text(end["record"], encoding="utf-8")
        return first_cause(Path(folder), {rank: end["code"] for rank, end in ended.items() if end["code"]})
