"""Which clusters a larger graph fits into, by a sample of it, what an epoch takes on each, and which is the cheapest.

Bytes per vertex and per edge are those of the sample's files. Numbers that no longer fit into 32 bits take twice as
much. Kinds of machines are read from a TOML file:

[[instance]]
name = "m7i.8xlarge"
cores = 16                     # what the scheduler may count on
memory = "128GiB"
link = "12.5gbit"              # each way
price = 1.6128                 # of an hour, in any currency
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atta.errors import ConfigError, blaming
from atta.partition.dataset import Dataset, part_folder
from atta.partition.disk.files import FileRecord
from atta.partition.graph.needs import BARE_BYTES
from atta.scheduler.config import SchedulerConfig, link_threads
from atta.simulate.cluster import Outcome, simulate
from atta.simulate.scenario import Scenario

UNEVEN = 1.1
"""A part may be this many times as large as the mean: cuts balance vertices, and edges only roughly."""
_NARROW = 1 << 31


@dataclass(frozen=True)
class GraphCounts:
    """Vertices and edges of a graph, all types together."""

    vertices: int
    edges: int

    @property
    def degree(self) -> float:
        """Mean in-degree."""
        return self.edges / max(1, self.vertices)


@dataclass(frozen=True)
class SampleBytes:
    """Bytes of a sample's partitions: per vertex and per edge in the memory of the daemon that has them. ``shared``:
    per vertex in the memory of every daemon. ``vertex_numbers``, ``edge_numbers``: of ``per_edge``, numbers of vertices
    and of edges that fit into 32 bits. ``row``: of the tables, per vertex."""

    size: GraphCounts
    per_vertex: float
    per_edge: float
    shared: float
    vertex_numbers: float
    edge_numbers: float
    row: float

    def daemon(self, graph: GraphCounts, machines: int, cache: int, buffer: int) -> int:
        """Bytes that each of ``machines`` daemons of a larger graph needs. ``cache``, ``buffer``: its bounds."""
        wide = self.vertex_numbers * (graph.vertices >= _NARROW) + self.edge_numbers * (graph.edges >= _NARROW)
        part = (graph.vertices * self.per_vertex + graph.edges * (self.per_edge + wide)) / machines
        rows = graph.vertices * (1 - 1 / machines) * self.row
        uneven = UNEVEN if machines > 1 else 1.0
        return math.ceil(BARE_BYTES + uneven * part + graph.vertices * self.shared + min(cache, rows) + buffer)


def sample_bytes(dataset: Dataset) -> SampleBytes:
    """What the manifest of a partitioned sample tells. Raises ConfigError: it has no edges."""
    schema = dataset.schema
    size = GraphCounts(sum(schema.node_counts.values()), sum(schema.edge_counts.values()))
    if not size.edges:
        raise ConfigError(f"{dataset.path}: has no edges, so it says nothing about a larger graph")
    parts = tuple(f"{part_folder(part)}/" for part in range(dataset.num_parts))
    files = {name: record for name, record in dataset.files.items() if name.startswith(parts)}
    of_edges = {n: record for n, record in files.items() if "/edges/" in n and not n.endswith("/indptr.npy")}
    edge_bytes = sum(record.size for record in of_edges.values())
    shared = sum(record.size for name, record in dataset.files.items() if name.startswith("shared/"))
    rows = [
        schema.node_counts[t] * sum(spec.row_bytes for spec in tables.values())
        for t, tables in schema.node_tables.items()
    ]
    return SampleBytes(
        size,
        per_vertex=(sum(record.size for record in files.values()) - edge_bytes) / size.vertices,
        per_edge=edge_bytes / size.edges,
        shared=shared / size.vertices,
        vertex_numbers=_narrow(of_edges, "indices.npy") / size.edges,
        edge_numbers=_narrow(of_edges, "edge_ids.npy") / size.edges,
        row=sum(rows) / size.vertices,
    )


def _narrow(files: Mapping[str, FileRecord], ending: str) -> float:
    found = [record for name, record in files.items() if name.endswith(ending)]
    return float(sum(record.size for record in found if np.dtype(record.dtype).itemsize == 4))


_KEYS = ("name", "cores", "memory", "link", "price")


@dataclass(frozen=True)
class Instance:
    """One kind of machine. ``link``: bytes per second, each way. ``price``: of an hour."""

    name: str
    cores: int
    memory: int
    link: float
    price: float


def instances_of(
    found: Mapping[str, Any], source: str, *, size: Callable[[str], int], rate: Callable[[str], float]
) -> list[Instance]:
    """The kinds of machines that the TOML document ``found`` of the file ``source`` lists. ``size`` and ``rate`` read
    ``"128GiB"`` and ``"10gbit"``; they raise ValueError for anything else. Raises ConfigError, which names the key, if
    one is unknown or missing or a value makes no sense."""
    listed = found.get("instance")
    if found.keys() != {"instance"} or not isinstance(listed, list) or not listed:
        raise ConfigError(f"{source}: needs a table [[instance]] for each kind of machine, and nothing else")
    made = [_instance(entry, f"{source}: instance {at + 1}", size, rate) for at, entry in enumerate(listed)]
    names = [one.name for one in made]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{source}: instance {name} is listed twice")
    return made


def _instance(entry: Any, where: str, size: Callable[[str], int], rate: Callable[[str], float]) -> Instance:
    if not isinstance(entry, dict) or entry.keys() != set(_KEYS):
        raise ConfigError(f"{where}: needs {', '.join(_KEYS)}, and nothing else")
    name, cores, price = entry["name"], entry["cores"], entry["price"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: name is {name!r}, must be a word")
    if not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
        raise ConfigError(f"{where}: cores is {cores!r}, must be a whole number of at least 1")
    if not isinstance(price, int | float) or isinstance(price, bool) or not 0 <= price < math.inf:
        raise ConfigError(f"{where}: price is {price!r}, must be a number of at least 0")
    values: dict[str, Any] = {}
    for key, read in (("memory", size), ("link", rate)):
        with blaming(ConfigError, f"{where}: {key}", of=ValueError):
            values[key] = read(str(entry[key]))
    return Instance(name, cores, values["memory"], values["link"], float(price))


COUNTS = 3
"""How many numbers of machines are tried of each kind: the least that fits, and twice as many each time."""
MOST_MACHINES = 1000
USABLE = 0.9
"""Share of a machine's memory that a daemon may take; the rest is the system's and the trainer's."""


@dataclass(frozen=True)
class ClusterChoice:
    """A number of machines of one kind, and an epoch on them. ``memory``: bytes of each daemon."""

    instance: Instance
    machines: int
    memory: int
    outcome: Outcome
    epoch_s: float
    epoch_price: float


def fitting_counts(sample: SampleBytes, graph: GraphCounts, instance: Instance, cache: int, buffer: int) -> list[int]:
    """Numbers of machines to try: powers of two times the least that fits into memory; empty: no number does."""

    def fits(machines: int) -> bool:
        return sample.daemon(graph, machines, cache, buffer) <= USABLE * instance.memory

    if not fits(MOST_MACHINES):  # what every daemon holds of all vertices is too much already
        return []
    low, high = 0, MOST_MACHINES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return [count for count in (high << more for more in range(COUNTS)) if count <= MOST_MACHINES]


def choices(
    base: Scenario,
    sample: SampleBytes,
    graph: GraphCounts,
    instances: Sequence[Instance],
    *,
    cache: int,
    buffer: int,
    said: Callable[[str, int], None] = lambda name, machines: None,
) -> Iterator[ClusterChoice]:
    """Simulate every kind of machine in the numbers of ``fitting_counts``, and tell ``said`` what comes next. ``base``:
    policy, batches, trainer, round trip and profile; its machines, cores and links are replaced. ``cache``, ``buffer``:
    bounds of each daemon, in bytes. Raises ConfigError: the profile does not tell the seeds of an epoch."""
    if not base.profile.epoch_seeds:
        raise ConfigError("the profile does not tell the seeds of an epoch (epoch_seeds), so neither time nor price")
    for instance in instances:
        for machines in fitting_counts(sample, graph, instance, cache, buffer):
            said(instance.name, machines)
            outcome = simulate(_scenario(base, instance, machines, graph.vertices / sample.size.vertices))
            assert outcome.epoch_s is not None
            price = machines * instance.price * outcome.epoch_s / 3600
            memory = sample.daemon(graph, machines, cache, buffer)
            yield ClusterChoice(instance, machines, memory, outcome, outcome.epoch_s, price)


def best(found: Sequence[ClusterChoice], within_s: float | None) -> ClusterChoice | None:
    """The cheapest whose epoch takes at most ``within_s``, of equally cheap ones the fastest; None: there is none."""
    quick = [one for one in found if within_s is None or one.epoch_s <= within_s]
    return min(quick, key=lambda one: (one.epoch_price, one.epoch_s), default=None)


def _scenario(base: Scenario, instance: Instance, machines: int, growth: float) -> Scenario:
    scheduler: SchedulerConfig = replace(base.scheduler, workers=instance.cores)
    return replace(
        base,
        machines=machines,
        cores=instance.cores,
        link=instance.link,
        scheduler=scheduler,
        serve_threads=link_threads(instance.cores),
        growth=growth,
    )
