"""Measuring processes of ``atta bench kv`` for mutable tables: on a daemon, in this process, and as torch has them.

    python -m atta_bench.pieces.kv_tables tables '{"address": "127.0.0.1:7070", ...}'
    python -m atta_bench.pieces.kv_tables reads '{"address": "127.0.0.1:7070", ...}'

``tables``: all systems do every operation on the same rows, in turn. Afterwards their tables must agree. ``reads``:
rows by memory, in messages, and what the machine can do. Each prints one line of JSON.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import atta
from atta.errors import AttaError
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.samplers import kernels

OPTIMISERS = {"sgd": OptimiserSpec.sgd, "adagrad": OptimiserSpec.adagrad, "adam": OptimiserSpec.adam}
OPERATIONS = ("read", "write", "add", *OPTIMISERS)
_CLIENT = 1

Operation = Callable[[np.ndarray, np.ndarray], Any]
"""Takes rows (int64 [batch]) and values or gradients (float32 [batch, dim])."""


@dataclass(frozen=True)
class TablesConfig:
    """Settings of the process.

    Attributes:
        address: address of the daemon.
        rows, dim: shape of every float32 table.
        batch: rows per operation, distinct and random.
        threads: number of threads that torch may use.
        repeats: timed operations per system.
        seed: seed of rows and values.
    """

    address: str
    rows: int
    dim: int
    batch: int
    threads: int
    repeats: int
    seed: int


def measure_tables(config: TablesConfig) -> dict[str, dict[str, float]]:
    """Figures by system: ``"atta"``, ``"local"`` and, where torch is installed, ``"torch"``.

    Raises AttaError: the daemon does not answer, or the tables differ in the end.
    """
    found: dict[str, dict[str, float]] = {}
    batches = _RowBatches(config)
    with atta.connect([config.address], wait=True, deadline_s=120.0) as cluster:
        for optimiser in (None, *OPTIMISERS):
            systems = {
                "atta": _DaemonTable(cluster, _spec(config, optimiser)),
                "local": _LocalTable(_spec(config, optimiser)),
                **_torch(config, optimiser),
            }
            for name in [optimiser] if optimiser else ["read", "write", "add"]:
                operations = {system: of.operation(name) for system, of in systems.items()}
                for system, seconds in batches.timed(operations).items():
                    found.setdefault(system, {}).update(
                        {
                            f"{name}_rows_per_s": config.batch / seconds,
                            f"{name}_bytes_per_s": 4 * config.dim * config.batch / seconds,
                        }
                    )
            batches.compare({system: of.operation("read") for system, of in systems.items()})
            cluster.tables.delete(_spec(config, optimiser).name)
    return found


class _RowBatches:
    """Batches of random rows with values, the same for all systems."""

    def __init__(self, config: TablesConfig) -> None:
        self._config = config
        rng = np.random.default_rng(config.seed)
        order, count = rng.permutation(config.rows).astype(np.int64), config.rows // config.batch
        self._batches = itertools.cycle(list(order[: count * config.batch].reshape(count, config.batch)))
        self._values = rng.standard_normal((config.batch, config.dim), dtype=np.float32)

    def timed(self, operations: dict[str, Operation]) -> dict[str, float]:
        """Median seconds of an operation by system."""
        seconds: dict[str, list[float]] = {system: [] for system in operations}
        for number in range(self._config.repeats + 1):
            rows = next(self._batches)
            for system in list(operations)[:: 1 if number % 2 == 0 else -1]:
                start = time.perf_counter()
                kept = operations[system](rows, self._values)
                seconds[system].append(time.perf_counter() - start)
                del kept
        return {system: statistics.median(taken[1:]) for system, taken in seconds.items()}  # the first one warms up

    def compare(self, reads: dict[str, Operation]) -> None:
        """Raise AttaError unless all systems hold the same values, up to rounding in float32."""
        rows = next(self._batches)
        held = {system: np.asarray(read(rows, self._values)) for system, read in reads.items()}
        for system, values in held.items():
            if not np.allclose(values, held["atta"], rtol=1e-4, atol=1e-5):
                raise AttaError(f"mutable tables: {system} and the daemon hold different rows")


def _spec(config: TablesConfig, optimiser: str | None) -> MutableSpec:
    made = None if optimiser is None else OPTIMISERS[optimiser]()
    return MutableSpec(f"bench-{optimiser or 'plain'}", config.rows, row_shape=(config.dim,), optimiser=made)


class _DaemonTable:
    """A table on the daemon, used as ``DistTensor`` and ``DistEmbedding`` use it."""

    def __init__(self, cluster: Any, spec: MutableSpec) -> None:
        self._table = cluster.tables.create(spec)
        self._tensor = None
        if spec.optimiser is None:
            self._tensor = atta.DistTensor(cluster, (spec.rows, *spec.row_shape), name=spec.name)

    def operation(self, name: str) -> Operation:
        tensor, table = self._tensor, self._table
        if name == "read":
            return lambda rows, _: table.pull(rows).values if tensor is None else tensor[rows]
        if tensor is None:
            steps = itertools.count(1)
            return lambda rows, grads: table.push(rows, grads, "step", step=next(steps)).wait()
        return tensor.write if name == "write" else tensor.add


class _LocalTable:
    """The same table in this process."""

    def __init__(self, spec: MutableSpec) -> None:
        self._table = MutableTable(spec)
        self._table.register(_CLIENT)
        self._numbers = itertools.count()

    def operation(self, name: str) -> Operation:
        if name == "read":
            return lambda rows, _: self._table.pull(rows).values
        op = name if name in ("write", "add") else "step"
        return lambda rows, values: self._push(op, rows, values)

    def _push(self, op: str, rows: np.ndarray, values: np.ndarray) -> None:
        number = next(self._numbers)
        self._table.push(rows, values, op, client=_CLIENT, sequence=number, settled=number)


def _torch(config: TablesConfig, optimiser: str | None) -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {}
    return {"torch": _TorchTable(config, optimiser)}


class _TorchTable:
    """A dense tensor of torch in this process. Steps take sparse gradients, like ``nn.Embedding(sparse=True)``."""

    def __init__(self, config: TablesConfig, optimiser: str | None) -> None:
        import torch

        torch.set_num_threads(config.threads)
        self._table = torch.zeros(config.rows, config.dim)
        self._table += 0.0  # touches its pages before the clock starts
        self._optimiser: Any = None
        if optimiser is not None:
            parameter = self._table = torch.nn.Parameter(self._table)
            spec = OPTIMISERS[optimiser]()
            kinds: dict[str, Any] = {
                "sgd": torch.optim.SGD,
                "adagrad": torch.optim.Adagrad,
                "adam": torch.optim.SparseAdam,
            }
            self._optimiser = kinds[optimiser]([parameter], lr=spec.lr)

    def operation(self, name: str) -> Operation:
        from torch import from_numpy

        table = self._table.detach()
        operations: dict[str, Operation] = {
            "read": lambda rows, _: table.index_select(0, from_numpy(rows)).numpy(),
            "write": lambda rows, values: table.index_copy_(0, from_numpy(rows), from_numpy(values)),
            "add": lambda rows, values: table.index_add_(0, from_numpy(rows), from_numpy(values)),
        }
        return operations.get(name, self._step)

    def _step(self, rows: np.ndarray, grads: np.ndarray) -> None:
        import torch

        index = torch.from_numpy(rows)[None]
        self._table.grad = torch.sparse_coo_tensor(
            index, torch.from_numpy(grads), self._table.shape, check_invariants=False
        )
        self._optimiser.step()


_CPU_CLOCK = 2  # of a process, see clock_getcpuclockid(3)


@dataclass(frozen=True)
class ReadsConfig:
    """Settings of the process.

    Attributes:
        address: address of the daemon.
        daemon_pid: its process id.
        rows, dim: shape of the float32 table.
        batch: rows per read, distinct and random.
        repeats: timed reads per way.
        seed: seed of rows and values.
    """

    address: str
    daemon_pid: int
    rows: int
    dim: int
    batch: int
    repeats: int
    seed: int


@dataclass
class _ReadWay:
    """A way to read, its seconds per read, and the processor seconds of both processes in all reads."""

    read: Callable[[np.ndarray], np.ndarray]
    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    def timed(self, rows: np.ndarray, daemon: int) -> np.ndarray:
        """Read once, with the clock running."""
        cpu, start = _cpu_s(daemon), time.perf_counter()
        found = self.read(rows)
        self.seconds.append(time.perf_counter() - start)
        self.cpu_s += _cpu_s(daemon) - cpu
        return found


def _cpu_s(daemon: int) -> float:
    """Processor seconds of this process and the daemon so far; finer than the hundredths of ``psutil``."""
    return time.process_time() + time.clock_gettime(_CPU_CLOCK | (~daemon << 3))


def measure_reads(config: ReadsConfig) -> dict[str, dict[str, float]]:
    """Figures by way: ``"atta"`` (by memory, if the answer is large enough), ``"messages"``, ``"loop"``, ``"copy"``.

    Raises AttaError: the daemon does not answer, or the ways read different rows.
    """
    spec = MutableSpec("bench-reads", config.rows, row_shape=(config.dim,))
    rng = np.random.default_rng(config.seed)
    local, values = MutableTable(spec), rng.random((config.rows, config.dim), dtype=np.float32)
    local.register(_CLIENT)
    everything = np.arange(config.rows)
    local.push(everything, values, "write", client=_CLIENT, sequence=0)
    with (
        atta.connect([config.address], wait=True, deadline_s=120.0) as cluster,
        atta.connect([config.address], deadline_s=120.0) as other,
    ):
        table, far = cluster.tables.create(spec), other.tables.create(spec)
        for connection in other._connections:
            connection.takes_lent = False
        table.push(everything, values).wait()
        ways = {
            "atta": _ReadWay(lambda rows: table.pull(rows).values),
            "messages": _ReadWay(lambda rows: far.pull(rows).values),
            **_limits(local, values, config.batch),
        }
        names = list(ways)
        for number in range(config.repeats + 1):
            rows = rng.choice(config.rows, config.batch, replace=False)
            wanted = values[rows]
            for name in names[:: 1 if number % 2 == 0 else -1]:
                found = ways[name].timed(rows, config.daemon_pid)
                if name != "copy" and not np.array_equal(found, wanted):
                    raise AttaError(f"reads: {name} gives wrong rows")
                del found
        cluster.tables.delete(spec.name)
    nbytes = 4 * config.dim * config.batch
    return {name: _figures(way, config, nbytes) for name, way in ways.items()}


def _limits(table: MutableTable, values: np.ndarray, batch: int) -> dict[str, _ReadWay]:
    """A gather in this process, and a copy of as many bytes that lie together, both into memory that has its pages."""
    out = np.ones((batch, values.shape[1]), dtype=np.float32)

    def copy(_: np.ndarray) -> np.ndarray:
        np.copyto(out, values[:batch])
        return out

    return {"loop": _ReadWay(lambda rows: table.pull(rows, out=Pulled(out, None)).values), "copy": _ReadWay(copy)}


def _figures(way: _ReadWay, config: ReadsConfig, nbytes: int) -> dict[str, float]:
    seconds = statistics.median(way.seconds[1:])  # the first one warms up
    return {
        "rows_per_s": config.batch / seconds,
        "bytes_per_s": nbytes / seconds,
        "cpu_s_per_gb": 1e9 * way.cpu_s / (nbytes * len(way.seconds)),
    }


def main() -> None:
    """Measure, as the module docstring says."""
    kernels.retain_heap()
    what, settings = sys.argv[1], json.loads(sys.argv[2])
    found = measure_reads(ReadsConfig(**settings)) if what == "reads" else measure_tables(TablesConfig(**settings))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
