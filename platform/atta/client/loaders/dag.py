"""Loaders: what a training loop iterates over."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from atta.client.cluster import Cluster
from atta.client.loaders.minibatch import MiniBatch, Origin
from atta.client.loaders.seeds import (
    InputNodes,
    batches_of,
    edge_type_name,
    node_seeds,
    sized_seeds,
    tables_by_type,
    typed,
)
from atta.client.loaders.torch_options import ignore_torch_options
from atta.client.sessions.stream import BatchStream
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.kvstore.store import known_codec
from atta.protos.v1 import dag_pb2, session_pb2
from atta.samplers.arguments import flag, names, number, whole
from atta.samplers.batch.layout import check_draws_alone
from atta.samplers.dag.spec import Hops, batch_spec, check_spec, neighbor_spec
from atta.samplers.methods import Method
from atta.samplers.operators import BUILT_IN

__all__ = ["BatchLoader", "DagLoader", "NeighborLoader", "hops_of"]

_POLICIES = {"local": session_pb2.SEED_POLICY_LOCAL, "global": session_pb2.SEED_POLICY_GLOBAL}
_TEMPORAL = {"uniform": Method.TEMPORAL, "last": Method.LAST}
_MOST = (1 << 32) - 1
_MOST_EPOCHS = (1 << 64) - 1


class DagLoader:
    """Batches of any sampling DAG, one epoch per iteration.

    Every iteration opens a session on the daemon nearest to this rank and ends it when the iterator is exhausted, closed or
    garbage-collected; several may run at once. The n-th iteration is epoch n (from 0) unless ``set_epoch`` says otherwise, so a
    shuffled loader shuffles anew, and the same (seed, epoch) yields the same batches on any number of partitions or threads.

    Attributes:
        epochs: how often it will be iterated in all, None: not known. While one epoch ends, the daemon begins with the next.
    """

    _wide_ids = True
    """Whether the daemon writes local ids as PyTorch wants them, so that nothing is left to be converted."""

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
        seeds: str = "local",
        rank: int | None = None,
        world_size: int | None = None,
        pad: bool = True,
        edge_ids: bool = True,
        transform: Callable[[MiniBatch], Any] | None = None,
        codec: str = "",
        job: str | None = None,
        epochs: int | None = None,
        weight: float = 1.0,
        **torch_options: Any,
    ) -> None:
        """See ``NeighborLoader``; ``dag`` comes from ``atta.samplers.dag.spec``, ``input_nodes`` may be a message from
        ``atta.client.loaders.seeds``."""
        ignore_torch_options(type(self), torch_options, stacklevel=3 + (type(self) is not DagLoader))
        if seeds not in _POLICIES:
            raise UnknownNameError.of("seed policy", seeds, _POLICIES)
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform {transform!r}: must be a function of a MiniBatch")
        rank, world_size = _place("RANK", rank, 0), _place("WORLD_SIZE", world_size, 1)
        if not rank < world_size:
            raise ConfigError(f"rank {rank} of {world_size} trainers")
        self._cluster = cluster
        self._transform = transform
        self._epoch, self.epochs = 0, None if epochs is None else whole("epochs", epochs, 0)
        self._prepared: tuple[int, Future[BatchStream]] | None = None
        self._opener: ThreadPoolExecutor | None = None
        self._origin = Origin.of(dag, edge_ids=edge_ids)
        chosen = input_nodes if isinstance(input_nodes, session_pb2.Seeds) else node_seeds(cluster.schema, input_nodes)
        self._request = session_pb2.OpenRequest(
            dag=dag,
            seeds=chosen,
            batch_size=whole("batch_size", batch_size, 1, _MOST),
            seed=whole("seed", seed, 0, _MOST_EPOCHS),
            shuffle=flag("shuffle", shuffle),
            drop_last=flag("drop_last", drop_last),
            pad=flag("pad", pad),
            rank=rank,
            world_size=world_size,
            policy=_POLICIES[seeds],
            edge_ids=flag("edge_ids", edge_ids),
            wide_ids=self._wide_ids,
            codec=known_codec(codec),
            weight=number("weight", weight, "a positive number", above=0),
            job=str(job or f"loader-{os.getpid()}-{secrets.token_hex(3)}"),
        )
        if (chosen.sizes or chosen.WhichOneof("source") == "batches") and (shuffle or drop_last):
            raise ConfigError("batches: they come as given, without shuffle and drop_last")

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return _Batches(self._prepared_for(epoch) or self._open(epoch), self._made, partial(self._prepare, epoch + 1))

    def __len__(self) -> int:
        """Number of batches per epoch of this rank; asks no daemon.

        Raises:
            ConfigError: there are no seeds, or ``drop_last`` leaves no batch.
        """
        return batches_of(self._cluster.schema, self._request)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch`` (as torch's DistributedSampler)."""
        self._epoch = whole("epoch", epoch, 0, _MOST_EPOCHS)

    def resume(self, epoch: int, batch: int) -> Iterator[Any]:
        """Iterate epoch ``epoch`` from this rank's batch number ``batch`` on: the very batches that an interrupted run lacks.

        Raises:
            ConfigError: ``epoch`` or ``batch`` is no whole number from 0, or there are fewer batches.
        """
        epoch, first = whole("epoch", epoch, 0, _MOST_EPOCHS), whole("batch", batch, 0, len(self))
        stream = self._open(epoch, start_batch=first)
        self._epoch = epoch + 1
        return _Batches(stream, self._made, partial(self._prepare, epoch + 1))

    def _prepare(self, epoch: int) -> None:
        """Open the session of an epoch that is to come, in the background: its batches are made while the present one ends."""
        if self.epochs is None or not epoch < self.epochs or self._prepared is not None:
            return
        if self._opener is None:
            self._opener = ThreadPoolExecutor(1, thread_name_prefix="atta-open")
        self._prepared = epoch, self._opener.submit(self._open, epoch)

    def _prepared_for(self, epoch: int) -> BatchStream | None:
        """The session that has been prepared for ``epoch``; another one is closed, and what failed is tried again."""
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

    def _open(self, epoch: int, start_batch: int = 0) -> BatchStream:
        request = session_pb2.OpenRequest()
        request.CopyFrom(self._request)
        request.epoch, request.start_batch = epoch, start_batch
        return self._cluster.stream(request)

    def _made(self, raw: Any) -> Any:
        batch = MiniBatch(raw, self._cluster.schema, self._cluster.scratch, self._origin)
        return batch if self._transform is None else self._transform(batch)


class NeighborLoader(DagLoader):
    """Mini-batches of sampled neighbourhoods, with the arguments and results of PyG's ``NeighborLoader``."""

    def __init__(
        self,
        cluster: Cluster,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        input_nodes: InputNodes = "train",
        *,
        input_time: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        method: str | None = None,
        weight_attr: str | None = None,
        time_attr: str | None = None,
        temporal_strategy: str = "uniform",
        disjoint: bool = False,
        tables: Mapping[str, Sequence[str] | str] | Sequence[str] | str | None = None,
        seed_tables: Sequence[str] | str = (),
        edge_tables: Mapping[Any, Sequence[str] | str] | Sequence[str] | str = (),
        frontier: str = "new",
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            num_neighbors: in-neighbours per vertex and hop, counted from the seeds; -1 = all; a mapping gives them by edge type.
            input_nodes: a split's name (``"train"``), user ids, None for every vertex, or ``(node_type, one of these)``, which ids
                need where there are several types.
            input_time: int [seeds], with ``time_attr``: no sampled edge of a seed's tree is later; only with ids.
            batch_size: seeds per batch; a seed named twice within one batch counts once (unless trees are disjoint).
            shuffle: permute the seeds anew every epoch.
            drop_last: leave out a last batch that is not full.
            replace: draw neighbours with replacement.
            method: name of a neighbour method that reads no edge table (docs/samplers.md); None: ``"uniform"``.
            weight_attr: ``"weight"`` draws neighbours by the weights of their edges; None: uniformly.
            time_attr: ``"time"`` hides edges that are later than their seed; edge types without times are always there. Trees are
                disjoint then.
            temporal_strategy: ``"uniform"`` draws among the edges that are not hidden, ``"last"`` takes the latest of them.
            disjoint: every seed grows a tree of its own; ``MiniBatch.tree`` tells which one a vertex stands in.
            tables: names of the node tables to fetch, or one name (by node type where there are several: otherwise they are those
                of the seeds' type); default all.
            seed_tables: names of tables to fetch for the seeds alone, such as their labels; those have as many rows as there are
                seeds, and need not be named in ``tables``.
            edge_tables: names of edge tables whose rows come with the sampled edges (by edge type where there are several).
            frontier: ``"new"`` expands every vertex once (PyG), ``"all"`` every known vertex in each hop (DGL). ``to_dgl`` makes
                blocks of both.
            **options: ``seed`` (of all randomness), ``seeds`` (``"local"``: from near this rank, ``"global"``: one permutation
                over all ranks), ``rank`` and ``world_size`` (default: torchrun's RANK and WORLD_SIZE), ``pad`` (repeat a few
                seeds so that all ranks get equally many batches; switch off for evaluation), ``edge_ids``, ``transform``
                (called on every MiniBatch), ``codec`` (fp16, bf16 or int8: float32 rows cross the network between daemons in fewer
                bytes and with less precision; rows at home and labels stay as they are), ``job`` (a name for logs), ``weight``
                (share of the daemons' workers beside other loaders that keep them busy), ``epochs``
                (see ``DagLoader``). Arguments of PyTorch's loaders that mean nothing here, such as ``num_workers``, are ignored
                with a warning.

        Raises:
            ConfigError: an argument is out of range; UnknownNameError: a node type, edge type, table or split does not exist.
        """
        schema = cluster.schema
        seed_type, _ = typed(schema, input_nodes)
        wanted = tables_by_type(tables, [seed_type])
        hops = hops_of(
            cluster, num_neighbors, replace=replace, method=method, weight_attr=weight_attr, time_attr=time_attr,
            temporal_strategy=temporal_strategy, disjoint=disjoint, edge_tables=edge_tables, frontier=frontier,
        )  # fmt: skip
        super().__init__(
            cluster,
            neighbor_spec(
                schema, hops, seed_type=seed_type, tables=wanted, seed_tables=names("seed_tables", seed_tables)
            ),
            input_nodes=node_seeds(schema, input_nodes, input_time),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            **options,
        )
        self._origin = dataclasses.replace(self._origin, tables=wanted)


class BatchLoader(DagLoader):
    """Batches that an operator samples as a whole: ShaDow, GraphSAINT, Cluster-GCN, LADIES, walks, or one of your own."""

    def __init__(
        self,
        cluster: Cluster,
        operator: str,
        operator_options: Mapping[str, Any] | None = None,
        *,
        input_nodes: InputNodes = None,
        batches: Sequence[ArrayLike] | int | None = None,
        edge_type: Any = None,
        tables: Sequence[str] | str | None = None,
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            operator: its name (docs/samplers.md lists those that come with Atta), known to the daemons.
            operator_options: what it is made with.
            input_nodes: seeds, as for ``NeighborLoader``; vertices of the type that the edges end at.
            batches: instead of ``input_nodes``: the user ids of each batch's seeds, or how many batches the operator is to draw by
                itself. They go round the ranks; with ``pad`` a rank that lacks a last one repeats its own first one.
            edge_type: the edges that the operator sees; may be left out where there is one type.
            tables: names of the node tables to fetch; default all.
            **options: as for ``NeighborLoader``.

        Raises:
            ConfigError: an argument is out of range, or the operator has no batches without seeds; UnknownNameError: a type,
                table, split or option does not exist. What is wrong with an operator of your own is raised by the first
                iteration: only daemons know it.
        """
        schema = cluster.schema
        name = edge_type_name(schema, edge_type)
        node_type = schema.endpoints(name)[1]
        if (input_nodes is None) == (batches is None):
            raise ConfigError("give input_nodes or batches")
        wanted = tables_by_type(tables, [node_type])
        dag = batch_spec(schema, operator, operator_options or {}, edge_type=name, tables=wanted)
        if batches is None:
            seeds = node_seeds(schema, _of_type(input_nodes, node_type, name))
        else:
            seeds = sized_seeds(schema, node_type, batches)
        if operator in BUILT_IN:  # what others accept only the daemons know
            plan = check_spec(dag, schema)
            if seeds.WhichOneof("source") == "batches":
                check_draws_alone(plan, schema)
        super().__init__(cluster, dag, input_nodes=seeds, **options)
        self._origin = dataclasses.replace(self._origin, tables=wanted)


def _of_type(input_nodes: InputNodes, node_type: str, edge_type: str) -> InputNodes:
    """``input_nodes`` with their node type, which must be that of the edges' ends."""
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        if input_nodes[0] != node_type:
            raise ConfigError(f"input_nodes: {input_nodes[0]!r}, but edges {edge_type} end at {node_type!r}")
        return input_nodes
    return node_type, input_nodes


def _place(variable: str, given: int | None, least: int) -> int:
    """Rank or number of ranks: what was given, or torchrun's variable."""
    if given is not None:
        return whole("rank" if least == 0 else "world_size", given, least, _MOST)
    text = os.environ.get(variable, str(least))
    if not text.strip().isdecimal():
        raise ConfigError(f"environment variable {variable}={text!r}: must be a whole number")
    return whole(variable, int(text), least, _MOST)


def hops_of(
    cluster: Cluster,
    num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
    *,
    replace: bool,
    method: str | None,
    weight_attr: str | None,
    time_attr: str | None,
    temporal_strategy: str,
    disjoint: bool,
    edge_tables: Mapping[Any, Sequence[str] | str] | Sequence[str] | str,
    frontier: str,
) -> Hops:
    """The arguments that loaders share, checked."""
    for what, given, known in (("weight_attr", weight_attr, "weight"), ("time_attr", time_attr, "time")):
        if given not in (None, known):
            raise UnknownNameError.of(f"edge attribute ({what})", str(given), (known,))
    if temporal_strategy not in _TEMPORAL:
        raise UnknownNameError.of("temporal strategy", temporal_strategy, _TEMPORAL)
    by_name = {m.value: m for m in Method if m.table is None}
    if method is not None and method not in by_name:
        raise UnknownNameError.of("method", str(method), by_name)
    drawn = Method.UNIFORM if method is None else by_name[method]
    ways = ("method", drawn is not Method.UNIFORM), ("weight_attr", weight_attr), ("time_attr", time_attr)
    chosen = [name for name, given in ways if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)}: edges are drawn in one way")
    if weight_attr:
        drawn = Method.WEIGHTED
    if time_attr:
        drawn = _TEMPORAL[temporal_strategy]
    if not isinstance(edge_tables, Mapping):
        wanted = names("edge_tables", edge_tables)
        edge_tables = {edge_type_name(cluster.schema, None): wanted} if wanted else {}
    return Hops(num_neighbors, flag("replace", replace), drawn, frontier, flag("disjoint", disjoint), dict(edge_tables))


class _Batches(Iterator[Any]):
    """The iterator of one epoch; dropping it ends its session."""

    def __init__(self, stream: BatchStream, made: Callable[[Any], Any], ending: Callable[[], None]) -> None:
        """``ending``: called once when the daemon has begun the last batch, so that it could begin another epoch."""
        self._stream, self._made = stream, made
        self._ending: Callable[[], None] | None = ending

    def __next__(self) -> Any:
        if self._ending is not None and not self._stream.unlaunched:
            self._ending()
            self._ending = None
        return self._made(next(self._stream))

    def __len__(self) -> int:
        return self._stream.batches

    def close(self) -> None:
        """End the session early."""
        self._stream.close()
