"""Point queries as a client asks them: what the model of running daemons gives a few vertices now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atta.client.inference.task import Predictions, UserIds
from atta.protos.v1 import query_pb2
from atta.samplers.arguments import whole
from atta.wire import rpc
from atta.wire.bulk import ARRAYS_BYTES, UnseenVertices, given_ids, ids_of, vertex_ids

_MOST = (1 << 31) - 1


class PointQueries:
    """What a cluster's daemons with a model answer."""

    def predict(
        self,
        ids: ArrayLike,
        what: str = "embeddings",
        *,
        new: Mapping[str, Any] | None = None,
        node_type: str = "",
        deadline_s: float | None = None,
    ) -> Predictions:
        """What the model of the daemons (``atta serve --model``) gives some vertices now.

        Args:
            ids: user ids [n], numbers or strings, at most 4096; they may repeat.
            what: ``"embeddings"``, ``"scores"`` or ``"classes"``; see ``atta.predict``.
            new: the ``ids`` are names of vertices that the graph does not have. Nothing is stored, and no other row
                changes. ``x``: their features, float [n, channels], like rows of the graph's table ``x``; ``edges``: by edge
                type, or name of its relation, two lists: vertices of the graph that edges come from, and those of
                ``ids`` that they lead to; at most 4096 in all.
            node_type: of a model of links or classes of edges: the end whose vertices the ``ids`` are; empty: the targets'.
            deadline_s: how long it may take, in seconds; None: as long as each call.

        Returns:
            ``ids`` and their values in the same order: float32 [n, width], or int64 [n] classes.

        Raises:
            ConfigError: no daemon has a model, the model has no such rows or ``node_type``, or ``new`` does not fit the
                graph.
            UnknownNameError: there is no such vertex, which is named.
            DeadlineError, QuotaExceededError: the daemon has too much to do.
        """
        asked, more = _asked(ids, new)
        request = query_pb2.PredictRequest(ids=vertex_ids(asked), what=what, new=more, node_type=node_type)
        return self._query("QueryService.Predict", request, lambda reply: _predicted(asked, reply), deadline_s)

    def recommend(
        self,
        ids: ArrayLike,
        k: int = 10,
        *,
        relation: str = "",
        new: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
    ) -> Predictions:
        """The ``k`` targets with the best scores of each vertex, as ``atta.predict(..., top=k)`` finds them.

        Args:
            ids, new, deadline_s: as of ``predict``. Of a new vertex the sources of its edges are left out.
            k: there are fewer targets where no more are left.
            relation: name of that whose edges are left out; empty: the model's, or the only one.

        Returns:
            Pairs of sources and targets, user ids [r, 2], in the order of ``ids``, the best first, and float32 [r] scores.
            Where one end has string ids, both are strings.

        Raises:
            ConfigError, UnknownNameError, DeadlineError, QuotaExceededError: as ``predict``.
        """
        (asked, more), count = _asked(ids, new), whole("k", k, 1, _MOST)
        request = query_pb2.RecommendRequest(ids=vertex_ids(asked), count=count, relation=relation, new=more)
        return self._query("QueryService.Recommend", request, lambda reply: _recommended(asked, reply), deadline_s)

    def _query(
        self, method: str, request: Any, read: Callable[[Any], Predictions], deadline_s: float | None
    ) -> Predictions:
        address, reply = self._ask_model(method, request, deadline_s)
        with rpc.understanding(address):
            return read(reply)

    def _ask_model(self, method: str, request: Any, deadline_s: float | None) -> tuple[str, Any]:
        """The address of a daemon with a model, and its answer."""
        raise NotImplementedError


def _asked(given: ArrayLike, new: Mapping[str, Any] | None) -> tuple[UserIds, query_pb2.NewVertices | None]:
    ids = given_ids("ids", given)
    return ids, None if new is None else UnseenVertices.of(ids, new).message()


def _predicted(ids: UserIds, reply: query_pb2.PredictReply) -> Predictions:
    shape, kind = ((len(ids), reply.width), np.float32) if reply.width else ((len(ids),), np.int64)
    return Predictions(ids, np.frombuffer(reply.values, kind).reshape(shape), _version(reply.version))


def _recommended(ids: UserIds, reply: query_pb2.RecommendReply) -> Predictions:
    """Raises ValueError: lengths differ."""
    sources, targets = np.repeat(ids, np.frombuffer(reply.counts, np.int32)), ids_of(reply.targets, ARRAYS_BYTES)
    if sources.dtype.kind != targets.dtype.kind:
        sources, targets = sources.astype(np.str_), targets.astype(np.str_)
    scores = np.frombuffer(reply.scores, np.float32)
    if not len(sources) == len(targets) == len(scores):
        raise ValueError(f"{len(targets)} targets and {len(scores)} scores for {len(sources)}")
    return Predictions(np.stack([sources, targets], axis=1), scores, _version(reply.version))


def _version(told: int) -> int | None:
    return None if told < 0 else int(told)
