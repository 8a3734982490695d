"""``atta bench scheduler``: compares launch policies by how busy each keeps the scarcest resource of the machine.

Every policy runs the same daemons, batches and links. Only *when* a batch is launched, and which task runs next,
differs. A policy is right when some resource is always busy: the cores, a link, or the consumer. Which one that is
depends on the setting, not on the policy. So the busiest one is compared.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from atta.errors import AttaError, ConfigError
from atta.partition.dataset import Dataset
from atta.scheduler import POLICIES, SchedulerConfig, policy_named
from atta_bench.lab.netlab import Host, bits_per_s
from atta_bench.lab.platform_run import cache_options, run_atta
from atta_bench.lab.processes import Measured
from atta_bench.lab.rounds import (
    ComparisonBench,
    Say,
    System,
    add_distdgl,
    alternate,
    hosts_of,
    machine_limits,
    settings,
)
from atta_bench.loader import benchmark as loader
from atta_bench.results import BenchReport

__all__ = ["OURS", "SchedulerBench", "figures", "run"]

OURS = SchedulerConfig.policy
_LOADING = ("cpu_percent", "cpu_us_per_seed", "link_bytes_per_seed")


@dataclass(frozen=True)
class SchedulerBench(ComparisonBench):
    """Settings of the benchmark; the others are those of ``ComparisonBench``.

    Attributes:
        policies: of the daemons' schedulers; the default one is what the others are compared with.
        depths: a policy with a depth (``Policy.has_depth``) runs once with each of these.
        rtt_ms: how long every request to another daemon waits first. The daemons inject this delay, not the network.
    """

    policies: tuple[str, ...] = tuple(POLICIES)
    depths: tuple[int, ...] = (4,)
    rtt_ms: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for policy in self.policies:
            policy_named(policy)
        if OURS not in self.policies:
            raise ConfigError(
                f"--policies {','.join(self.policies)}: {OURS} must be among them, the others are compared with it"
            )
        if not self.depths or min(self.depths) < 1:
            raise ConfigError(f"--depths {','.join(map(str, self.depths))}: there must be some, each at least 1")
        if not 0 <= self.rtt_ms < math.inf:
            raise ConfigError(f"--rtt {self.rtt_ms:g} ms: must not be negative")
        if self.beside_dgl and self.rtt_ms:
            raise ConfigError("--vs dgl: only Atta's daemons can be slowed down by --rtt")


def run(bench: SchedulerBench, say: Say = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
        AttaError: Atta itself failed; a peer that fails only appears with its error in the report.
    """
    dataset = Dataset.open(bench.data, verify=False)
    dataset.schema.split_size(dataset.schema.node_types[0], bench.workload.split)
    with hosts_of(bench, dataset.num_parts) as hosts:
        if bench.link and hosts[0].interface is None:
            raise AttaError(f"--link {bench.link}: the links of network namespaces are shaped, and there are none here")
        config = {**settings(bench, dataset, hosts), "frontier": _frontier(bench)}
        report = BenchReport("scheduler", config, ours=OURS, drawn="seeds_per_s")
        systems = _systems(bench, hosts) | add_distdgl(bench, hosts, report, say)
        measured = partial(figures, bench=bench, hosts=len(hosts))
        limits_of = partial(machine_limits, bench, dataset, hosts)
        alternate(systems, bench.runs, report, measured, limits_of=limits_of, say=say)
    return report


def figures(measured: Measured, *, bench: SchedulerBench, hosts: int) -> dict[str, float]:
    """Figures of one round.

    ``completion_ms`` is the time from the launch of a batch to its end. ``busy/cores``, ``busy/link`` (the link and
    direction that carries most) and ``busy/consumer`` (computing and taking batches) are shares of the time in which
    all consumers work. ``busiest`` is the largest of these shares, ``queue_bytes`` the most memory that finished
    batches took in any daemon.
    """
    found, together = loader.figures(measured), measured.together
    window = measured.window_s
    epochs = 1 + max(e["epoch"] for e in measured.epochs)
    chosen = {"seeds_per_s": found["seeds_per_s"], "epoch_s": window / epochs}
    if made := sorted(ms for e in measured.epochs for ms in e.get("make_ms") or ()):
        chosen["completion_ms"] = statistics.fmean(made)
        chosen["completion_ms_p95"] = made[min(len(made) - 1, math.ceil(0.95 * len(made)))]
    if queued := [e["queue_bytes"] for e in measured.epochs if e.get("queue_bytes")]:
        chosen["queue_bytes"] = max(queued)
    busy = {"cores": together.cpu_s / (together.seconds * len(os.sched_getaffinity(0)))}
    if bench.link and any(together.sent_bytes):
        busy["link"] = 8 * max(together.sent_bytes) / (together.seconds * bits_per_s(bench.link))
    if think_ms := bench.workload.think_ms:
        # The first epoch does not count: no batch is ready when it begins.
        later = [e for e in measured.epochs if e["epoch"]] or measured.epochs
        thought = sum(e["batches"] for e in later) * think_ms / 1e3 / sum(e["stop"] - e["start"] for e in later)
        busy["consumer"] = min(1.0, thought + together.rank_cpu_s / (together.seconds * hosts))
    chosen |= {name: found[name] for name in _LOADING if name in found}
    chosen["busiest"] = max(busy.values())
    return chosen | {f"busy/{name}": share for name, share in busy.items()}


def _frontier(bench: SchedulerBench) -> str:
    """What a hop expands: beside DGL what DGL expands."""
    return "all" if bench.beside_dgl else "new"


def _systems(bench: SchedulerBench, hosts: Sequence[Host]) -> dict[str, System]:
    """A system per policy, and per depth where a policy has one."""

    def daemons(*options: str) -> System:
        return lambda folder: run_atta(
            Path(bench.data).resolve(),
            bench.workload,
            hosts,
            folder,
            frontier=_frontier(bench),
            deliver="arrays",
            serve=(*cache_options(bench.cache_share), "--peer-delay", f"{bench.rtt_ms:g}ms", *options),
        )

    found: dict[str, System] = {}
    for policy in bench.policies:
        if POLICIES[policy].has_depth:
            found |= {f"{policy}-{k}": daemons("--policy", policy, "--prefetch", str(k)) for k in bench.depths}
        else:
            found[policy] = daemons("--policy", policy)
    return found
