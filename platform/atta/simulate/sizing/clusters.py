"""Which clusters a graph fits into, what an epoch takes on each, and which is the cheapest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from atta.errors import ConfigError
from atta.scheduler import SchedulerConfig
from atta.scheduler.config import link_threads
from atta.simulate.cluster import Outcome, simulate
from atta.simulate.scenario import Scenario
from atta.simulate.sizing.graph import GraphCounts, SampleBytes
from atta.simulate.sizing.instances import Instance

__all__ = ["COUNTS", "ClusterChoice", "best", "choices", "fitting_counts"]

COUNTS = 3
"""How many numbers of machines are tried of each kind: the least that fits, and twice as many each time."""
MOST_MACHINES = 1000
USABLE = 0.9
"""Share of a machine's memory that a daemon may take; the rest is the system's and the trainer's."""


@dataclass(frozen=True)
class ClusterChoice:
    """A number of machines of one kind, and an epoch on them.

    Attributes:
        instance, machines: what the cluster consists of.
        memory: bytes that each daemon needs.
        outcome: of the simulation.
        epoch_s: seconds of an epoch at the simulated rate.
        epoch_price: of all machines for that time.
    """

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
    """Simulate every kind of machine in the numbers of ``fitting_counts``.

    Args:
        base: policy, batches, trainer, round trip and profile; its machines, cores and links are replaced.
        sample: bytes of a sample's partitions.
        graph: how large the graph is.
        instances: the kinds of machines.
        cache, buffer: bounds of each daemon for rows of others and for batches, in bytes.
        said: is told what is simulated next.

    Raises:
        ConfigError: the profile does not tell the number of seeds of an epoch.
    """
    if not base.profile.epoch_seeds:
        raise ConfigError(
            "the profile does not tell the seeds of an epoch (epoch_seeds), so neither its time nor price"
        )
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
