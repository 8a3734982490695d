"""What ``initialize`` sets up: the dataset and cluster of this process, its rank, and meeting the other trainers."""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from atta.client.cluster import Cluster, connect
from atta.client.loaders.dag import TrainerRank
from atta.client.local import local
from atta.errors import ConfigError, DataError, blaming
from atta.observe.machine.memory import keep_freed
from atta.partition import partition_graph
from atta.partition.dataset import MANIFEST
from atta.partition.importers import import_graph

PORT = 30_050
"""Port of a line without one in DGL's file of addresses."""
_MEANINGLESS = {
    "max_queue_size", "net_type", "num_worker_threads", "num_workers", "num_servers", "use_graphbolt",
}  # fmt: skip


class Job:
    """This process as one of the trainers of a job.

    Attributes:
        cluster: the daemons; None until ``DistGraph`` has started some.
        group: distinguishes the tensors of jobs that use the same daemons at the same time (``DGL_GROUP_ID``).
        tensors: names of the tensors of this job that exist, as far as this trainer knows.
        embeddings, learned: rows of the embeddings that this trainer has now, by type and name, and of all.
        changes: counts what may have changed rows of embeddings: steps, writes, barriers.
    """

    def __init__(self, cluster: Cluster | None, *, owns: bool) -> None:
        """``owns``: whether ``close`` ends the cluster."""
        self.cluster = cluster
        self.group = os.environ.get("DGL_GROUP_ID", "0")
        self.tensors: set[str] = set()
        self.embeddings: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
        self.learned: WeakSet[Any] = WeakSet()
        self.changes = 0
        self.anonymous = 0
        self._owns = owns
        self._settled = False

    @property
    def rank(self) -> int:
        """Number of this trainer. Scripts make torch's process group after ``initialize``, so it is found anew."""
        return TrainerRank.here().rank

    @property
    def world(self) -> int:
        """How many trainers there are."""
        return TrainerRank.here().world

    def open(self, part_config: str | Path | None) -> Cluster:
        """The cluster. Without one, start daemons for the dataset at ``part_config``; see ``dataset_of``. Raises
        ConfigError: neither a cluster nor a dataset was named, or several trainers would start their own."""
        if self.cluster is None:
            if part_config is None:
                raise ConfigError("DistGraph: name the dataset (part_config), or daemons (initialize)")
            if self.world > 1:
                raise ConfigError(
                    f"DistGraph: {self.world} trainers need common daemons: start them with `atta serve` and name their "
                    "cluster file in initialize"
                )
            self.cluster = local(dataset_of(part_config))
        return self.cluster

    def settle(self) -> None:
        """The script has trained for an epoch, so all is loaded. From now on, Python's garbage collector passes over these
        350,000 objects of torch and DGL: visiting them takes longer than a batch, every few epochs."""
        if not self._settled:
            self._settled = True
            gc.collect()
            gc.freeze()

    def close(self) -> None:
        """Leave the daemons, and end those that were started here."""
        if self._settled:
            gc.unfreeze()
        if self.cluster is not None and self._owns:
            self.cluster.close()
        self.cluster = None


_jobs: list[Job] = []


def initialize(ip_config: str | Path | Cluster | None = None, **options: Any) -> None:
    """Connect to the daemons. It takes the place of ``dgl.distributed.initialize``.

    From then on the process keeps memory that it frees, as every step wants it again. Who sets glibc's variables
    (``MALLOC_TRIM_THRESHOLD_``, ...) decides that instead.

    Args:
        ip_config: a cluster file (``.toml``); DGL's file of addresses, ``HOST [PORT]`` a line, of daemons in the order
            of their partitions; whatever else ``atta.connect`` takes; or a cluster. None: ``DistGraph`` starts daemons
            for its dataset, for a single trainer.
        **options: options of DGL that mean nothing here (``net_type``, ``num_worker_threads``, ...): daemons sample.

    Raises:
        ConfigError: it was called twice, or in a process that should be one of DGL's servers.
        DataError: the file of addresses is missing. Also what ``atta.connect`` raises.
    """
    if unknown := sorted(options.keys() - _MEANINGLESS):
        raise TypeError(f"initialize: unknown argument {unknown[0]!r}")
    if os.environ.get("DGL_ROLE") == "server":
        raise ConfigError("DGL_ROLE=server: Atta's daemons are started with `atta serve`, not by the script")
    if _jobs:
        raise ConfigError("initialize was called before; exit_client ends what it has set up")
    keep_freed()
    if isinstance(ip_config, Cluster):
        _jobs.append(Job(ip_config, owns=False))
    else:
        _jobs.append(Job(None if ip_config is None else connect(_target(ip_config), wait=True), owns=True))


def is_initialized() -> bool:
    """Whether ``initialize`` has been called."""
    return bool(_jobs)


def exit_client() -> None:
    """End what ``initialize`` has set up. Also done when the process ends."""
    while _jobs:
        _jobs.pop().close()


atexit.register(exit_client)


def present() -> Job:
    """The job of this process; raises ConfigError before ``initialize``."""
    if not _jobs:
        raise ConfigError("call dgl.distributed.initialize first")
    return _jobs[-1]


def meeting() -> Any:
    """``torch.distributed``, where the trainers meet; raises ConfigError without a process group."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ConfigError("trainers meet in torch's process group: call torch.distributed.init_process_group first")
    return dist


def barrier() -> None:
    """Wait for the other trainers, in the process group of torch; raises ConfigError if there is none."""
    job = present()
    if job.world > 1:
        meeting().barrier()
    job.changes += 1  # by others


def _target(ip_config: str | Path) -> str | Path | list[str]:
    """What ``atta.connect`` takes."""
    path = Path(ip_config)
    if path.suffix == ".toml" or not (path.is_file() or path.suffix == ".txt"):
        return ip_config
    with blaming(DataError, path, "not a file of addresses", of=(OSError, UnicodeDecodeError), say=str):
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines or any(len(words) > 2 or not words[-1].isascii() for words in lines):
        raise DataError(path, "not a file of addresses: wanted is HOST [PORT] in each line")
    return [f"{words[0]}:{words[1] if len(words) == 2 else PORT}" for words in lines]


def drawing_seed() -> int:
    """The seed of all draws: torch's, so that ``torch.manual_seed`` repeats a run."""
    import torch

    return torch.initial_seed()


_MADE_OF = "made-of.txt"
"""In a dataset that was converted: ``_fingerprint`` of what it was made of."""
_LOOKED_AT = 1 << 16
"""Bytes at either end of a file."""


def dataset_of(part_config: str | Path) -> Path:
    """The partitioned dataset at ``part_config``: its folder, or the ``NAME.json`` of ``dgl.distributed.partition_graph``,
    which is converted to ``NAME.atta`` beside it, once, as long as its files stay as they are. Raises DataError."""
    path = Path(part_config)
    if (path / MANIFEST).exists() or path.name == MANIFEST:
        return path if path.is_dir() else path.parent
    if path.suffix != ".json" or not path.is_file():
        raise DataError(path, "neither a partitioned dataset nor the .json of DistDGL's partitions")
    made = path.with_suffix(".atta")
    if not _is_of(made, path):
        convert(path, made)
        (made / _MADE_OF).write_text(_fingerprint(path), encoding="ascii")
    return made


def _is_of(made: Path, part_config: Path) -> bool:
    """Whether ``made`` is there, and what is beside it has not changed since. Without parts it is taken as it is."""
    manifest = made / MANIFEST
    if not manifest.exists():
        return False
    if not _files(part_config):
        return True
    try:
        return (made / _MADE_OF).read_text(encoding="ascii") == _fingerprint(part_config)
    except (OSError, UnicodeDecodeError):  # made by hand
        return manifest.stat().st_mtime_ns >= part_config.stat().st_mtime_ns


def _files(part_config: Path) -> list[Path]:
    return sorted(path for path in part_config.parent.glob("part*/*") if path.is_file())


def _fingerprint(part_config: Path) -> str:
    """Changes with the configuration, and with the size, the beginning, or the end of any file of its parts."""
    found = hashlib.sha256(part_config.read_bytes())
    for path in _files(part_config):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            found.update(f"{path.relative_to(part_config.parent)}\0{size}\0".encode())
            for start in (0, max(0, size - _LOOKED_AT)):
                file.seek(start)
                found.update(file.read(_LOOKED_AT))
    return found.hexdigest()


def convert(part_config: str | Path, out: str | Path) -> list[str]:
    """Write DistDGL's partitions as the partitioned dataset ``out``, as ``atta import dgl`` and ``atta partition
    --method given:table=part`` do; returns what the user should know. An older ``out`` is replaced."""
    out = Path(out)
    with tempfile.TemporaryDirectory(prefix=".atta-", dir=out.parent) as scratch:
        graph = Path(scratch) / "graph"
        notes = import_graph("dgl", part_config, graph)
        parts = int(json.loads(Path(part_config).read_bytes())["num_parts"])
        partition_graph(graph, out, parts=parts, method="given", options={"table": "part"}, overwrite=True)
    return notes
