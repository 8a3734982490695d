"""``atta bench train``: seconds of a training epoch, and where the time of each trainer goes.

Beside DistDGL, both systems train the same model on batches that are sampled in the same way. ``atta-pyg`` is Atta as
its own users run it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from atta.cli.output import DURATION, INTS
from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta_bench.command import (
    BATCH,
    COUNT,
    SEED,
    THREADS,
    Run,
    link_option,
    measured,
    netns_option,
    split_option,
    vs_option,
    work_option,
    workload,
)
from atta_bench.lab.netlab import Host
from atta_bench.lab.processes import Measured
from atta_bench.lab.rounds import (
    ComparisonBench,
    Say,
    System,
    add_distdgl,
    alternate,
    cache_options,
    delivery,
    hosts_of,
    machine_limits,
    need_training,
    run_atta,
    settings,
)
from atta_bench.lab.workload import Recipe
from atta_bench.loader import benchmark as loader
from atta_bench.results import BenchReport

PHASES = ("wait", "copy", "compute", "sync")
"""Phases of a step, one after the other. The rest of an epoch is ``other``."""

_SAME_WORK = ("vertices_per_seed", "edges_per_seed", "remote_rows_per_seed", "link_bytes_per_seed")
_COST = ("cpu_percent", "cpu_us_per_seed")


@dataclass(frozen=True)
class TrainBench(ComparisonBench):
    """Settings of the benchmark; the others are those of ``ComparisonBench``.

    Attributes:
        hidden: width of the hidden layers.
        lr: learning rate of Adam.
    """

    hidden: int = 32
    lr: float = 0.003

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden < 1:
            raise ConfigError(f"--hidden {self.hidden}: must be at least 1")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"--lr {self.lr}: must be positive")

    @property
    def frontier(self) -> str:
        """What a hop of ``atta`` expands: beside DGL what DGL expands."""
        return "all" if self.beside_dgl else "new"

    @property
    def deliver(self) -> str:
        """Form of the batches that ``atta`` trains on: DGL's blocks beside DGL, else PyG's Data."""
        return delivery(self.beside_dgl)


def run(bench: TrainBench, say: Say = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
        AttaError: Atta itself failed; a peer that fails only appears with its error in the report.
    """
    need_training()
    dataset = Dataset.open(bench.data, verify=False)
    recipe = _recipe(bench, dataset)
    with hosts_of(bench, dataset.num_parts) as hosts:
        config = {
            **settings(bench, dataset, hosts),
            **asdict(recipe),
            "frontier": bench.frontier,
            "deliver": bench.deliver,
        }
        report = BenchReport("train", config, drawn="epoch_s")
        systems = _systems(bench, hosts, recipe) | add_distdgl(bench, hosts, report, say, recipe=recipe)
        limits_of = partial(machine_limits, bench, dataset, hosts)
        alternate(systems, bench.runs, report, figures, limits_of=limits_of, say=say)
    return report


def figures(measured: Measured) -> dict[str, float]:
    """Figures of one round.

    ``epoch_s`` is the time from the start of the first trainer to the end of the last, divided by the number of epochs.
    Phases are seconds per epoch, means over the trainers; they add up to ``epoch_s``. Loss and accuracy are those of
    the batches of the last epoch while they were trained on.
    """
    epochs = 1 + max(e["epoch"] for e in measured.epochs)
    reports, seeds = len(measured.epochs), measured.total("seeds")
    epoch_s = measured.window_s / epochs
    spent = {phase: measured.total(f"{phase}_s") / reports for phase in PHASES}
    last = [e for e in measured.epochs if e["epoch"] == epochs - 1]
    trained = sum(e["seeds"] for e in last)
    loading = loader.figures(measured)
    found = {
        "epoch_s": epoch_s,
        "seeds_per_s": seeds / measured.window_s,
        "loader_share": (spent["wait"] + spent["copy"]) / epoch_s,
        **{name: loading[name] for name in _COST},
        "trainer_cpu_us_per_seed": loading["consumer_cpu_us_per_seed"],
        "steps": measured.total("batches") / reports,
        **{name: loading[name] for name in _SAME_WORK if name in loading},
        "loss": sum(e["loss_sum"] for e in last) / trained,
        "accuracy": sum(e["right"] for e in last) / trained,
    }
    found |= {f"trainer/{phase}_s": seconds for phase, seconds in spent.items()}
    found["trainer/other_s"] = epoch_s - sum(spent.values())
    found |= {f"loading/{name}_s": measured.total(f"{key}_s") / reports for name, key in _LOADING.items()}
    return found


_LOADING = {"sample": "sampling", "fetch": "fetch"}


def _systems(bench: TrainBench, hosts: Sequence[Host], recipe: Recipe) -> dict[str, System]:
    """Atta, which beside DGL trains as DGL does, and then also Atta as its own users run it."""

    def atta_as(frontier: str, deliver: str) -> System:
        return lambda folder: run_atta(
            Path(bench.data).resolve(),
            bench.workload,
            hosts,
            folder,
            frontier=frontier,
            deliver=deliver,
            serve=cache_options(bench.cache_share),
            recipe=recipe,
        )

    systems = {"atta": atta_as(bench.frontier, bench.deliver)}
    if bench.beside_dgl:
        systems["atta-pyg"] = atta_as("new", "pyg")
    return systems


def _recipe(bench: TrainBench, dataset: Dataset) -> Recipe:
    """What to train on this dataset; raises ConfigError if it cannot be trained on."""
    schema = dataset.schema
    node_type = schema.node_types[0]
    schema.split_size(node_type, bench.workload.split)
    if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
        raise ConfigError("atta bench train takes graphs with one node type and one edge type")
    tables = schema.node_tables[node_type]
    if "x" not in tables or "y" not in tables or not schema.num_classes or len(tables["x"].row_shape) != 1:
        raise ConfigError("training needs the node tables x (a row of features per vertex) and y (integer labels)")
    if schema.splits[node_type][bench.workload.split] < dataset.num_parts:
        raise ConfigError(f"the split {bench.workload.split!r} has too few vertices to train on")
    layers = len(bench.workload.num_neighbors)
    seed = bench.workload.seed
    return Recipe(tables["x"].row_shape[0], schema.num_classes, layers, bench.hidden, lr=bench.lr, seed=seed)


@click.command()
@click.option("--data", required=True, help="Partitioned dataset; one daemon and one trainer per partition.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True, help="One layer per hop.")
@click.option("--batch-size", type=BATCH, default=1024, show_default=True, help="Seeds per trainer and step.")
@click.option("--hidden", type=COUNT, default=32, show_default=True, help="Width of the hidden layers.")
@click.option("--lr", type=float, default=0.003, show_default=True, help="Learning rate of Adam.")
@vs_option
@click.option("--runs", type=COUNT, default=3, show_default=True, help="Rounds; systems alternate within a round.")
@click.option("--warm-up", type=COUNT, default=1, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=COUNT, default=3, show_default=True, help="Measured per round.")
@split_option
@click.option(
    "--threads", type=THREADS, default=1, show_default=True, help="Threads of every daemon, trainer and peer process."
)
@netns_option
@link_option
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Rows that Atta's daemons cache, in percent of the HALO vertices  [default: what fits into 1 GiB].",
)
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="20m", show_default=True, help="Per system and round.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the sampling and the initial weights.")
@measured("Draw seconds per epoch.")
def train(**options: Any) -> tuple[Run, Any]:
    """Seconds of an epoch that trains GraphSAGE, and where the trainers' time goes.

    Example: atta bench train --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json train.json
    """
    return run, TrainBench(workload=workload(options, seconds=0.0), **options)
