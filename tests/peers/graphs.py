"""Graphs of a peer's tests on their way of a user's: saved, imported, cut and served by daemons."""

from __future__ import annotations

import hashlib
import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

import atta
from atta.errors import ConfigError
from atta.partition import partition_graph
from atta.partition.importers import import_graph

_MOST = 4
"""At most this many graphs are served at a time."""


class Graphs:
    """Graphs that are served. Cases with the same graph share its daemons. ``asked``: how often a graph was asked for."""

    def __init__(self, folder: Path, parts: int) -> None:
        """``folder``: for what is imported. ``parts``: number of partitions of each graph."""
        self.asked = 0
        self._folder, self._parts = folder, parts
        self._served: OrderedDict[str, atta.LocalCluster] = OrderedDict()

    def cluster(self, data: Any) -> atta.LocalCluster:
        """The daemons that serve a ``Data`` or ``HeteroData``; raises ConfigError for something else."""
        self.asked += 1
        if not isinstance(data, Data | HeteroData):
            raise ConfigError(f"{type(data).__name__}: daemons sample from graphs that were imported")
        saved = io.BytesIO()
        torch.save(data, saved)
        name = hashlib.sha256(saved.getvalue()).hexdigest()[:16]
        if name not in self._served:
            while len(self._served) >= _MOST:
                self._served.popitem(last=False)[1].close()
            self._served[name] = self._serve(data, saved.getvalue(), self._folder / name)
        self._served.move_to_end(name)
        return self._served[name]

    def close(self) -> None:
        for cluster in self._served.values():
            cluster.close()

    def _serve(self, data: Any, saved: bytes, folder: Path) -> atta.LocalCluster:
        folder.mkdir(exist_ok=True)
        dataset = folder / "data"
        if not dataset.exists():
            (folder / "graph.pt").write_bytes(saved)
            seeds = {str(name) for store in data.stores for name in store if str(name).endswith("label_index")}
            import_graph("pyg", folder / "graph.pt", folder / "graph", drop=sorted(seeds))
            partition_graph(folder / "graph", dataset, parts=self._parts, method="random")
        return atta.local(dataset, threads=1)
