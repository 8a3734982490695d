"""``DagLoader``: batches of any sampling DAG. The other loaders build their DAG and leave the rest to it."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from atta.client.cluster import Cluster
from atta.client.loaders.arguments import ignore_torch_options
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.sampled import Origin
from atta.client.loaders.seeds import InputNodes, batches_of, node_seeds
from atta.client.loaders.subgraphs import EDGE_ORDERS, in_file_order, with_reverses
from atta.client.sessions.cursor import Cursor, StreamPlace, request_digest
from atta.client.sessions.resuming import RECONNECT_S, ResumingStream, Search
from atta.client.sessions.stream import BatchStream
from atta.errors import AttaError, ConfigError, known_name
from atta.kvstore.store import known_codec
from atta.observe import html
from atta.protos.v1 import dag_pb2, session_pb2
from atta.samplers.arguments import flag, number, whole

_SEED_POLICIES = {"local": session_pb2.SEED_POLICY_LOCAL, "global": session_pb2.SEED_POLICY_GLOBAL}
_MOST = (1 << 32) - 1
_MOST_EPOCHS = (1 << 64) - 1


_VARIABLES = "RANK", "WORLD_SIZE"


@dataclass(frozen=True)
class TrainerRank:
    """One trainer of a job: its number, from 0, and how many there are."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError if there is no such trainer."""
        if not self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} trainers")

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world}"

    @classmethod
    def of(cls, rank: int | None, world_size: int | None) -> TrainerRank:
        """The trainer with these numbers. What is None is found in this process, see ``here``. Raises ConfigError: a
        number is none, or there is no such trainer."""
        found = cls.here() if rank is None or world_size is None else cls()
        return cls(
            found.rank if rank is None else whole("rank", rank, 0, _MOST),
            found.world if world_size is None else whole("world_size", world_size, 1, _MOST),
        )

    @classmethod
    def here(cls) -> TrainerRank:
        """This process in torch's process group; without one what RANK and WORLD_SIZE say; without these the only one.
        Raises ConfigError: only one of the variables is set, or one is no number: who launched this process sets the
        other one later, with the process group."""
        if (group := _group()) is not None:
            return group
        said = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        for name, text in said.items():
            if not text.strip().isdecimal():
                raise ConfigError(f"environment variable {name}={text!r}: must be a whole number")
        if len(said) == 1:
            (name,), (missing,) = said, set(_VARIABLES) - set(said)
            raise ConfigError(
                f"environment variable {name} is set and {missing} is not: make the loader after torch's process "
                "group, or give rank= and world_size="
            )
        return cls(int(said["RANK"]), whole("WORLD_SIZE", int(said["WORLD_SIZE"]), 1, _MOST)) if said else cls()


def _group() -> TrainerRank | None:
    """This process in the process group of torch; None if there is none. Does not import torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return TrainerRank(distributed.get_rank(), distributed.get_world_size())


class DagLoader:
    """Batches of any sampling DAG, one epoch per iteration.

    Every iteration opens a session on the daemon nearest to this rank. The session ends when the iterator is exhausted,
    closed or garbage-collected. Several iterations may run at once. The n-th iteration is epoch n (from 0) unless
    ``set_epoch`` says otherwise, so a shuffled loader shuffles anew; one that could not be opened does not count. The
    same (seed, epoch) yields the same batches on any number of partitions and threads.

    Attributes:
        epochs: how often the loader will be iterated; None: not known. While one epoch ends, the daemon begins the
            next.

    If the daemon goes away, the iterator waits for it, at most ``reconnect`` seconds (60), and goes on with the next
    batch: none is lost and none comes twice. ``reconnect=0``: it fails at once (docs/guide/reliability.md).
    """

    _wide_ids = True
    """Whether the daemon writes local ids as int64, as PyTorch wants them, so that nobody converts them later."""

    def __init__(
        self,
        cluster: Cluster,
        dag: dag_pb2.DagSpec,
        *,
        input_nodes: InputNodes | session_pb2.Seeds = "train",
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        seed_policy: str = "local",
        rank: int | None = None,
        world_size: int | None = None,
        pad: bool = True,
        edge_ids: bool = True,
        edge_order: str = "source",
        transform: Callable[[MiniBatch], Any] | None = None,
        codec: str = "",
        job: str | None = None,
        epochs: int | None = None,
        share: float = 1.0,
        reconnect: float = RECONNECT_S,
        home: int | None = None,
        **torch_options: Any,
    ) -> None:
        """Keywords are those of ``NeighborLoader``. ``dag`` comes from ``atta.samplers.dag.spec``; ``input_nodes`` may
        be a message from ``atta.client.loaders.seeds``."""
        ignore_torch_options(type(self), torch_options)
        known_name("seed policy", seed_policy, _SEED_POLICIES)
        known_name("edge_order", edge_order, EDGE_ORDERS)
        if edge_order == "file" and not edge_ids:
            raise ConfigError("edge_order='file': goes by the ids of edges, so edge_ids must be True")
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform {transform!r}: must be a function of a MiniBatch")
        self._trainer, self._given = TrainerRank.of(rank, world_size), (rank, world_size)
        self._cluster = cluster
        self._home = None if home is None else whole("home", home, 0, cluster.num_parts - 1)
        self._transform, self._edge_order = transform, edge_order
        self._epoch, self.epochs = 0, None if epochs is None else whole("epochs", epochs, 0)
        self._reconnect_s = number("reconnect", reconnect, "seconds, at least 0", above=-math.ulp(0.0))
        self._place, self._loaded = StreamPlace(0), False
        self._prepared: tuple[int, Future[BatchStream]] | None = None
        self._opener: ThreadPoolExecutor | None = None
        self._origin = Origin.of(dag, edge_ids=edge_ids)
        if not isinstance(input_nodes, session_pb2.Seeds):
            input_nodes = node_seeds(cluster.ids, input_nodes)
        self._request = session_pb2.OpenRequest(
            dag=dag, seeds=input_nodes, batch_size=whole("batch_size", batch_size, 1, _MOST),
            seed=whole("seed", seed, 0, _MOST_EPOCHS), shuffle=flag("shuffle", shuffle),
            drop_last=flag("drop_last", drop_last), pad=flag("pad", pad), rank=self._trainer.rank,
            world_size=self._trainer.world, policy=_SEED_POLICIES[seed_policy], edge_ids=flag("edge_ids", edge_ids),
            wide_ids=self._wide_ids, codec=known_codec(codec),
            share=number("share", share, "a positive number", above=0),
            job=str(job or f"loader-{os.getpid()}-{secrets.token_hex(3)}"),
        )  # fmt: skip
        if (input_nodes.sizes or input_nodes.WhichOneof("source") == "batches") and (shuffle or drop_last):
            raise ConfigError("batches: they come as given, without shuffle and drop_last")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _repr_html_(self) -> str:
        rows = ("batches per epoch", len(self)), ("seeds per batch", self._request.batch_size), ("epoch", self._epoch)
        return html.table(f"{self!r} for {self._trainer}", rows)

    def __iter__(self) -> Iterator[Any]:
        if self._loaded:
            return self._batches(StreamPlace(self._place.epoch, self._place.batch, self._place.version))
        return self._batches(StreamPlace(self._epoch))

    def __len__(self) -> int:
        """Number of batches per epoch of this rank. Asks no daemon. Raises ConfigError: there are no seeds, or
        ``drop_last`` leaves no batch."""
        return batches_of(self._cluster.schema, self._request)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``, as torch's DistributedSampler does. If a state has been loaded and
        it lies in this epoch, the iteration still begins where the state says."""
        self._epoch = whole("epoch", epoch, 0, _MOST_EPOCHS)
        self._loaded = self._loaded and self._place.epoch == self._epoch
        if not self._loaded:
            self._place = StreamPlace(self._epoch)

    def resume(self, epoch: int, batch: int) -> Iterator[Any]:
        """Iterate epoch ``epoch`` from this rank's batch ``batch`` on: the same batches that an interrupted run lacks.
        Raises ConfigError: ``epoch`` or ``batch`` is not a whole number from 0, or there are fewer batches."""
        epoch, first = whole("epoch", epoch, 0, _MOST_EPOCHS), whole("batch", batch, 0, len(self))
        return self._batches(StreamPlace(epoch, first))

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration is, in plain values: its epoch and its next batch, also in mid-epoch; if
        ``set_epoch`` has been called since, the start of that epoch. A batch counts when the iterator has returned
        it. After the last batch the state is the start of the next epoch."""
        place = self._place
        if place.batch and place.batch >= len(self):
            place = StreamPlace(place.epoch + 1)
        # An epoch that has not begun may have a later version of the tables.
        version = place.version if place.batch else None
        trainer = self._trainer
        return Cursor(self._digest(), trainer.rank, trainer.world, place.epoch, place.batch, version).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin where ``state``, from ``state_dict``, says. Raises ConfigError: it is no state,
        or that of a loader with other batches: another dataset, seed, batch size, ..."""
        cursor = Cursor.from_state(state)
        if (theirs := TrainerRank(cursor.rank, cursor.world)) != self._trainer:
            raise ConfigError(f"state of a loader: it is that of {theirs} trainers, this one is {self._trainer}")
        if cursor.request != self._digest():
            raise ConfigError("state of a loader: it belongs to a loader with other batches (dataset or arguments)")
        whole("batch", cursor.batch, 0, len(self))
        place = StreamPlace(cursor.epoch, cursor.batch, cursor.tables_version)
        self._place, self._epoch, self._loaded = place, cursor.epoch, True

    def _digest(self) -> str:
        self._request.dataset_id = self._cluster.dataset_id
        return request_digest(self._request)

    def _batches(self, place: StreamPlace) -> _Batches:
        """Iterate from ``place`` on. The next iteration is the epoch after it, unless this one could not be opened.
        Raises ConfigError: a process group has begun since the loader was made, and says something else."""
        if (now := TrainerRank.of(*self._given)) != self._trainer:
            raise ConfigError(
                f"the loader was made for {self._trainer} trainers, and now this is {now}: make it after torch's "
                "process group, or give rank= and world_size="
            )
        before = self._epoch, self._loaded
        self._epoch, self._loaded = place.epoch + 1, False  # at once: other threads may begin an iteration meanwhile
        try:
            prepared = None if place.batch else self._prepared_for(place.epoch)
            stream = ResumingStream(self._open, place, self._reconnect_s, prepared)
        except BaseException:
            if self._epoch == place.epoch + 1:  # else another thread has begun one since
                self._epoch, self._loaded = before
            raise
        self._place = place
        return _Batches(stream, self._made, partial(self._prepare, place.epoch + 1))

    def _prepare(self, epoch: int) -> None:
        """Open the session of a coming epoch in the background: its batches are made while the present epoch ends."""
        if self.epochs is None or not epoch < self.epochs or self._prepared is not None:
            return
        if self._opener is None:
            self._opener = ThreadPoolExecutor(1, thread_name_prefix="atta-open")
        self._prepared = epoch, self._opener.submit(self._open, StreamPlace(epoch))

    def _prepared_for(self, epoch: int) -> BatchStream | None:
        """The session that was prepared for ``epoch``; None if there is none. A session of another epoch is closed."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        try:
            stream = prepared[1].result()
        except AttaError:
            return None
        if prepared[0] == epoch:
            return stream
        stream.close()
        return None

    def _open(self, place: StreamPlace, timeout_s: float | None = None, search: Search = Search.NOWHERE) -> BatchStream:
        request = session_pb2.OpenRequest()
        request.CopyFrom(self._request)
        request.epoch, request.start_batch = place.epoch, place.batch
        if place.version is not None:
            request.version = place.version
        return self._cluster.stream(request, timeout_s, search=search, home=self._home)

    def _made(self, raw: Any) -> Any:
        if self._origin.reverses is not None:
            raw = dataclasses.replace(raw, arrays=with_reverses(raw.arrays, self._origin.reverses))
        if self._edge_order == "file":
            raw = dataclasses.replace(raw, arrays=in_file_order(raw.arrays))
        batch = MiniBatch(raw, self._cluster.schema, self._cluster.scratch, self._origin)
        return batch if self._transform is None else self._transform(batch)


class _Batches(Iterator[Any]):
    """The iterator of one epoch. Its session ends when the iterator is dropped."""

    def __init__(self, stream: ResumingStream, made: Callable[[Any], Any], ending: Callable[[], None]) -> None:
        """``ending``: called once, when the daemon has begun the last batch and could begin another epoch."""
        self._stream, self._made = stream, made
        self._batches = stream.batches - stream.place.batch
        self._ending: Callable[[], None] | None = ending

    def __next__(self) -> Any:
        if self._ending is not None and not self._stream.unlaunched:
            self._ending()
            self._ending = None
        return self._made(next(self._stream))

    def __len__(self) -> int:
        """Number of batches from where it began to the end of the epoch."""
        return self._batches

    def close(self) -> None:
        """End the session early."""
        self._stream.close()
