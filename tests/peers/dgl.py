"""Puts ``atta.compat.dgl`` in the place of DGL's distributed part while DGL's own tests run.

A server of DGL becomes the daemons of its partitions. The processes that a test starts run within this one, one after
the other: a client finds the daemons by the file of addresses that its server was started with. Graphs in memory, and
``partition_graph``, stay DGL's.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch

import atta
from atta.compat import dgl as over_atta
from atta.compat import refuse
from atta.compat.dgl.job import dataset_of

_REFUSED = ("KVServer", "KVClient", "connect_to_server", "sample_etype_neighbors", "start_server")
"""Names of DGL's that would talk to servers of DGL."""
_CORA = 2708, 5278
"""Vertices of Cora, and pairs of them with an edge."""


class Served(Exception):
    """Leaves the function of a test that runs a server."""


class Servers:
    """The daemons in the places of DGL's servers; ``asked``: how often a test has connected, or started servers."""

    def __init__(self) -> None:
        self.asked = 0
        self._clusters: dict[str, atta.LocalCluster] = {}

    def start(self, number: int, ip_config: str | Path, *given: Any, **options: Any) -> None:
        """Stand in for ``DistGraphServer``: serve the partitions when the first server of a group begins."""
        self.asked += 1
        where, part_config = os.path.abspath(ip_config), given[2] if len(given) > 2 else options["part_config"]
        if number == 0 or where not in self._clusters:
            if where in self._clusters:
                self._clusters.pop(where).close()
            self._clusters[where] = atta.local(dataset_of(part_config))
        raise Served

    def connect(self, ip_config: str | Path | None = None, *_: Any, **__: Any) -> None:
        """Stand in for ``initialize``: reach the daemons, or none yet in standalone mode."""
        self.asked += 1
        over_atta.distributed.exit_client()
        alone = os.environ.get("DGL_DIST_MODE") == "standalone"
        over_atta.distributed.initialize(None if alone else self._clusters[os.path.abspath(ip_config or "")])

    def close(self) -> None:
        over_atta.distributed.exit_client()
        for cluster in self._clusters.values():
            cluster.close()


class _Process:
    """A process of a test, which runs within this one when it is started."""

    def __init__(self, target: Callable[..., Any], args: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
        self._run, self.exitcode = lambda: target(*args, **(kwargs or {})), None

    def start(self) -> None:
        """Run to the end. What fails here fails the test, as its exit code would."""
        before = dict(os.environ)
        try:
            self._run()
        except Served:
            pass
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.exitcode: int | None = 0

    def join(self, _: float | None = None) -> None:
        """It has ended."""


class _Context:
    def __init__(self, real: Any) -> None:
        self._real, self.Process = real, _Process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def hand_over(servers: Servers, folder: Path) -> None:
    """Put Atta's names into DGL's modules for the rest of this process. ``folder`` has the tests."""
    ours, theirs = over_atta.distributed, dgl.distributed
    for name in ours.__all__:
        if name != "optim":
            setattr(theirs, name, getattr(ours, name))
    for name in ours.optim.__all__:
        setattr(theirs.optim, name, getattr(ours.optim, name))
    for name in _REFUSED:
        setattr(theirs, name, _refused(name))
    theirs.DistGraphServer, theirs.initialize = servers.start, servers.connect
    for name in over_atta.dataloading.__all__:
        setattr(dgl.dataloading, name, getattr(over_atta.dataloading, name))
    dgl.data.CitationGraphDataset = lambda _: [_of_coras_size()]
    context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: _Context(context(method))  # type: ignore[assignment, misc]
    torch.distributed.init_process_group = _refused("init_process_group with trainers side by side")
    sys.path += [str(above) for above in folder.resolve().parents if (above / "backend").is_dir()]


def _refused(name: str) -> Callable[..., Any]:
    def called(*_: Any, **__: Any) -> Any:
        raise refuse("atta.compat.dgl", name, over_atta.distributed.__all__)

    return called


def _of_coras_size() -> Any:
    """A random graph in the place of Cora, which DGL would fetch: each pair of vertices with an edge has both."""
    count, pairs = _CORA
    rng = np.random.default_rng(0)
    drawn = np.unique(np.sort(rng.integers(0, count, (2 * pairs, 2)), axis=1), axis=0)
    ends = torch.from_numpy(rng.permutation(drawn[drawn[:, 0] != drawn[:, 1]])[:pairs].T)
    graph = dgl.graph((torch.cat([ends[0], ends[1]]), torch.cat([ends[1], ends[0]])), num_nodes=count)
    graph.ndata["feat"] = torch.rand(count, 8)
    graph.ndata["label"] = torch.randint(0, 7, (count,))
    return graph
