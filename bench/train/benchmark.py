"""``atta bench train``: seconds of a training epoch, and where the time of each trainer goes.

Beside DistDGL, both systems train the same model on batches that are sampled in the same way. ``atta-pyg`` is Atta as
its own users run it with ``--aggregate off``, ``atta-aggregate`` with ``on``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from atta.errors import ConfigError
from atta.observe.settings import NoOption, Option
from atta.partition.dataset import Dataset
from atta_bench.command import measured
from atta_bench.lab.netlab import Host
from atta_bench.lab.processes import Measured
from atta_bench.lab.rounds import ComparisonBench, Say, System, atta_on, compared, delivery, need_training
from atta_bench.lab.workload import Recipe
from atta_bench.loader import benchmark as loader
from atta_bench.results import BenchReport

PHASES = ("wait", "copy", "compute", "sync")
"""Phases of a step, one after the other. The rest of an epoch is ``other``."""

_SAME_WORK = ("vertices_per_seed", "edges_per_seed", "remote_rows_per_seed", "link_bytes_per_seed")
_COST = ("cpu_percent", "cpu_us_per_seed")


@dataclass(frozen=True, kw_only=True)
class TrainBench(ComparisonBench):
    """Settings of the benchmark."""

    data: Annotated[str, Option("Partitioned dataset; one daemon and one trainer per partition.")]
    warm_up: Annotated[int, Option("Epochs before measuring, per round.", at_least=1)] = 1
    epochs: Annotated[int, Option("Measured per round.", at_least=1)] = 3
    seconds: Annotated[float, NoOption("epochs are counted")] = 0.0
    seeds: Annotated[str, NoOption("trainers get the seeds near them")] = "local"
    timeout_s: Annotated[float, Option("Per system and round.", name="timeout", unit="s", at_least=1e-3)] = 1200.0
    runs: Annotated[int, Option("Rounds; systems alternate within a round.", at_least=1)] = 3
    hidden: Annotated[int, Option("Width of the hidden layers.", at_least=1)] = 32
    lr: Annotated[float, Option("Learning rate of Adam.", at_least=1e-12)] = 0.003

    @property
    def frontier(self) -> str:
        """What a hop of ``atta`` expands: beside DGL what DGL expands."""
        return "all" if self.beside_dgl else "new"

    @property
    def deliver(self) -> str:
        """Form of the batches that ``atta`` trains on: DGL's blocks beside DGL, else PyG's Data."""
        return delivery(self.beside_dgl)


def run(bench: TrainBench, say: Say = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens. Raises as ``compared``."""
    need_training()
    dataset = Dataset.open(bench.data, verify=False)
    recipe = _recipe(bench, dataset)
    config = {**asdict(recipe), "frontier": bench.frontier, "deliver": bench.deliver}
    report = BenchReport("train", config, drawn="epoch_s")

    def systems_on(hosts: Sequence[Host]) -> dict[str, System]:
        """Atta, which beside DGL trains as DGL does, and then also Atta as its own users run it, without and with the
        first layer's means made by the daemons."""
        systems = {"atta": atta_on(bench, hosts, bench.frontier, bench.deliver, recipe=recipe)}
        if bench.beside_dgl:
            systems["atta-pyg"] = atta_on(bench, hosts, "new", "pyg", recipe=recipe)
        systems["atta-aggregate"] = atta_on(bench, hosts, "new", "pyg", recipe=recipe, aggregate="mean")
        return systems

    return compared(bench, dataset, report, systems_on, figures, say=say, recipe=recipe)


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


def _recipe(bench: TrainBench, dataset: Dataset) -> Recipe:
    """What to train on this dataset; raises ConfigError if it cannot be trained on."""
    schema = dataset.schema
    node_type = schema.node_types[0]
    schema.split_size(node_type, bench.split)
    if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
        raise ConfigError("atta bench train takes graphs with one node type and one edge type")
    tables = schema.node_tables[node_type]
    if "x" not in tables or "y" not in tables or not schema.num_classes or len(tables["x"].row_shape) != 1:
        raise ConfigError("training needs the node tables x (a row of features per vertex) and y (integer labels)")
    if schema.splits[node_type][bench.split] < dataset.num_parts:
        raise ConfigError(f"the split {bench.split!r} has too few vertices to train on")
    layers = len(bench.num_neighbors)
    seed = bench.seed
    return Recipe(tables["x"].row_shape[0], schema.num_classes, layers, bench.hidden, lr=bench.lr, seed=seed)


@measured(TrainBench, run, "Draw seconds per epoch.")
def train() -> None:
    """Seconds of an epoch that trains GraphSAGE, a layer per hop, and where the trainers' time goes.

    Example: atta bench train --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json train.json
    """
