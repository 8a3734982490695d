"""Runs the rounds of ``atta bench strategies`` and writes the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta_bench.lab.flow import flow_bytes_per_s
from atta_bench.lab.netlab import Host
from atta_bench.lab.rounds import Say, alternate, need_training
from atta_bench.results import BenchReport
from atta_bench.strategies.distdgl import distdgl
from atta_bench.strategies.figures import Figures
from atta_bench.strategies.settings import StrategiesBench
from atta_bench.strategies.systems import calibrated, hosts_of_servers, system

__all__ = ["run"]


def run(bench: StrategiesBench, say: Say = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
        AttaError: Atta itself failed; a peer that fails only appears with its error in the report.
    """
    need_training()
    dataset = Dataset.open(bench.data, verify=False)
    if dataset.num_parts != bench.servers:
        raise ConfigError(
            f"--servers {bench.servers}: the dataset has {dataset.num_parts} partitions, one per server is needed"
        )
    link, alone = bench.link, None
    if bench.external_share is not None:
        say(f"measuring {bench.share_of} without a slow link")
        alone, link = calibrated(bench, say)
    counts = {"vertices": dataset.schema.node_counts, "edges": dataset.schema.edge_counts}
    config = {**asdict(bench), "link": link, "dataset_id": dataset.dataset_id, **counts}
    with hosts_of_servers(bench, link) as hosts:
        config["netns"] = "off" if hosts[0].interface is None else "on"
        ours = "cooperative" if "cooperative" in bench.names else bench.names[0]
        costs = frozenset({"epoch_seconds", "mean_epoch_seconds", "seconds_to_target"})
        report = BenchReport("strategies", config, ours, costs, drawn="epoch_seconds")
        systems = {name: system(bench, name, hosts, alone) for name in bench.names}
        systems |= distdgl(bench, dataset, hosts, report, say)
        alternate(systems, bench.runs, report, lambda found: found, limits_of=lambda: _limits(hosts), say=say)
    return report


def _limits(hosts: Sequence[Host]) -> Figures:
    return {"link_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "tcp")}
