"""Loaders: what a training loop iterates over."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atta.client.cluster import Cluster
from atta.client.stream import BatchStream
from atta.errors import ConfigError, UnknownNameError
from atta.minibatch import MiniBatch
from atta.partition.schema import Schema
from atta.protos.v1 import dag_pb2, session_pb2
from atta.samplers.spec import neighbor_spec

__all__ = ["DagLoader", "NeighborLoader"]

_POLICIES = {"local": session_pb2.SEED_POLICY_LOCAL, "global": session_pb2.SEED_POLICY_GLOBAL}

Seeds = str | ArrayLike | tuple[str, str | ArrayLike] | None


class DagLoader:
    """Batches of any sampling DAG, one epoch per iteration.

    Every iteration opens a session on the daemon nearest to this rank and ends it when the iterator is exhausted, closed or
    garbage-collected; several may run at once. The n-th iteration is epoch n (from 0) unless ``set_epoch`` says otherwise, so a
    shuffled loader shuffles anew, and the same (seed, epoch) yields the same batches on any number of partitions or threads.
    """

    def __init__(
        self,
        cluster: Cluster,
        dag: dag_pb2.DagSpec,
        *,
        input_nodes: Seeds = "train",
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
        job: str | None = None,
    ) -> None:
        """See ``NeighborLoader``; ``dag`` comes from ``atta.samplers.spec``."""
        if seeds not in _POLICIES:
            raise UnknownNameError.of("seed policy", seeds, _POLICIES)
        if batch_size < 1:
            raise ConfigError(f"batch_size {batch_size}: must be at least 1")
        if not 0 <= seed < 1 << 64:
            raise ConfigError(f"seed {seed}: must be 0 to 2**64 - 1")
        rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        world_size = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} of {world_size} trainers")
        self._cluster = cluster
        self._transform = transform
        self._epoch = 0
        self._length: int | None = None
        self._request = session_pb2.OpenRequest(
            dag=dag,
            seeds=_seeds(cluster.schema, input_nodes),
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            pad=pad,
            rank=rank,
            world_size=world_size,
            policy=_POLICIES[seeds],
            edge_ids=edge_ids,
            job=job or f"loader-{os.getpid()}-{secrets.token_hex(3)}",
        )

    def __iter__(self) -> Iterator[Any]:
        stream = self._open(self._epoch)
        self._epoch += 1
        return _Batches(stream, self._cluster, self._transform)

    def __len__(self) -> int:
        """Number of batches per epoch of this rank."""
        if self._length is None:
            stream = self._open(self._epoch)
            stream.close()
        assert self._length is not None
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch`` (as torch's DistributedSampler)."""
        if epoch < 0:
            raise ConfigError(f"epoch {epoch}: must not be negative")
        self._epoch = epoch

    def resume(self, epoch: int, batch: int) -> Iterator[Any]:
        """Iterate epoch ``epoch`` from this rank's batch number ``batch`` on: the very batches that an interrupted run lacks."""
        stream = self._open(epoch, start_batch=batch)
        self._epoch = epoch + 1
        return _Batches(stream, self._cluster, self._transform)

    def _open(self, epoch: int, start_batch: int = 0) -> BatchStream:
        request = session_pb2.OpenRequest()
        request.CopyFrom(self._request)
        request.epoch, request.start_batch = epoch, start_batch
        stream = self._cluster.stream(request)
        self._length = stream.batches
        return stream


class NeighborLoader(DagLoader):
    """Mini-batches of sampled neighbourhoods, with the arguments and results of PyG's ``NeighborLoader``."""

    def __init__(
        self,
        cluster: Cluster,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        input_nodes: Seeds = "train",
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        weight_attr: str | None = None,
        tables: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
        frontier: str = "new",
        **options: Any,
    ) -> None:
        """Describe the batches; nothing is sent before the first iteration.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            num_neighbors: in-neighbours per vertex and hop, counted from the seeds; -1 = all; a mapping gives them by edge type.
            input_nodes: a split's name (``"train"``), user ids, or ``(node_type, split or ids)``.
            batch_size: seeds per batch; a seed named twice within one batch counts once.
            shuffle: permute the seeds anew every epoch.
            drop_last: leave out a last batch that is not full.
            replace: draw neighbours with replacement.
            weight_attr: ``"weight"`` draws neighbours by the weights of their edges; None: uniformly.
            tables: names of the node tables to fetch (by node type where there are several); default all.
            frontier: ``"new"`` expands every vertex once (PyG), ``"all"`` every known vertex in each hop (DGL blocks).
            **options: ``seed`` (of all randomness), ``seeds`` (``"local"``: from near this rank, ``"global"``: one permutation
                over all ranks), ``rank`` and ``world_size`` (default: torchrun's RANK and WORLD_SIZE), ``pad`` (repeat a few
                seeds so that all ranks get equally many batches; switch off for evaluation), ``edge_ids``, ``transform``
                (called on every MiniBatch), ``job`` (a name for logs).

        Raises:
            ConfigError: an argument is out of range; UnknownNameError: a node type, edge type, table or split does not exist.
        """
        schema = cluster.schema
        if weight_attr not in (None, "weight"):
            raise UnknownNameError.of("edge attribute", str(weight_attr), ("weight",))
        seed_type, _ = _typed(schema, input_nodes)
        if tables is not None and not isinstance(tables, Mapping):
            tables = {seed_type: list(tables)}
        dag = neighbor_spec(
            schema,
            num_neighbors=num_neighbors,
            seed_type=seed_type,
            tables=tables,
            replace=replace,
            weighted=weight_attr is not None,
            frontier=frontier,
        )
        super().__init__(
            cluster,
            dag,
            input_nodes=input_nodes,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            **options,
        )


class _Batches(Iterator[Any]):
    """The iterator of one epoch; dropping it ends its session."""

    def __init__(self, stream: BatchStream, cluster: Cluster, transform: Callable[[MiniBatch], Any] | None) -> None:
        self._stream, self._cluster, self._transform = stream, cluster, transform

    def __next__(self) -> Any:
        batch = MiniBatch(next(self._stream), self._cluster.schema, self._cluster.scratch)
        return batch if self._transform is None else self._transform(batch)

    def __len__(self) -> int:
        return self._stream.batches

    def close(self) -> None:
        """End the session early."""
        self._stream.close()


def _typed(schema: Schema, input_nodes: Seeds) -> tuple[str, str | ArrayLike | None]:
    """(node type, split or ids): the only node type unless ``input_nodes`` names one."""
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    return schema.node_types[0], input_nodes


def _seeds(schema: Schema, input_nodes: Seeds) -> session_pb2.Seeds:
    node_type, source = _typed(schema, input_nodes)
    if node_type not in schema.node_types:
        raise UnknownNameError.of("node type", node_type, schema.node_types)
    if source is None:
        raise ConfigError("input_nodes: give the name of a split or an array of ids")
    if isinstance(source, str):
        if source not in schema.splits.get(node_type, {}):
            raise UnknownNameError.of("split", source, schema.splits.get(node_type, {}))
        return session_pb2.Seeds(node_type=node_type, split=source)
    ids = np.asarray(source)
    if ids.dtype == np.bool_:
        raise ConfigError(
            "input_nodes: give ids or the name of a split, not a mask (masks depend on an order of vertices)"
        )
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ConfigError(f"input_nodes: ids must be a 1-D integer array, not {ids.dtype} of shape {ids.shape}")
    return session_pb2.Seeds(node_type=node_type, ids=np.ascontiguousarray(ids, dtype=np.int64).tobytes())
