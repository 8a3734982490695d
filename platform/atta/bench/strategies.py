"""``atta bench strategies``: training strategies over a slow link between servers.

Every system is ``atta train`` on the same partitions. Each host is a server with its trainers:

===========  ==================================================================================================
minibatch    each trainer samples its own batches
full         exact full-graph training that exchanges rows before every layer, also between servers: the baseline of
             GraNNDis
preload      exact full-graph training; each server holds all vertices that its own depend on
cooperative  whole servers with expansion-aware sampling, in one step or in co-batches
===========  ==================================================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atta.bench.lab.flow import flow_bytes_per_s
from atta.bench.lab.netlab import Host, NetLab, bits_per_s, loopback, no_namespaces
from atta.bench.lab.processes import Measured
from atta.bench.lab.rounds import PEERS, Say, alternate, need_training
from atta.bench.lab.workfolder import work_folder
from atta.bench.lab.workload import BenchWorkload, Recipe
from atta.bench.results import BenchReport
from atta.bench.train.run import Trained, run_training
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition.dataset import Dataset
from atta.train.config import TrainConfig

__all__ = ["STRATEGIES", "StrategiesBench", "accuracies", "epochs_of", "external_rate", "figures", "run"]

_KBIT = 1e3
_TRIES = 3
_CALIBRATING = 20
"""Number of epochs that tell how long one takes."""
_CLOSE = 0.02
"""How far the share of external time may lie from the one asked for."""

Figures = dict[str, float]


@dataclass(frozen=True)
class StrategiesBench:
    """Settings of the benchmark.

    Attributes:
        data: partitioned dataset, as many partitions as servers.
        servers, trainers_per_server: numbers of servers and of trainers; each server is a host of its own if namespaces
            are possible.
        strategies: some of ``STRATEGIES``; ratios are about ``cooperative`` or else about the first one.
        vs: peers: dgl.
        model, layers, hidden, lr, dropout, seed: as for ``atta train``.
        eas: expansion-aware sampling of ``cooperative``: (hops, new neighbours per vertex).
        co_batches: steps per epoch of ``cooperative``.
        num_neighbors, batch_size: settings of ``minibatch`` and DistDGL.
        external_share: shape the links so that ``full`` spends this share of its time in them; None: see ``link``.
        link: rate of the links, e.g. ``"100mbit"``; None: unshaped, unless there is an ``external_share``.
        eval_every: epochs between evaluations; None: only after the last one.
        target: a test accuracy; the time until it was reached is reported. None: it is not.
        runs: number of rounds; systems alternate within a round, and each round has another seed.
        warm_up, epochs: epochs per round before measuring, and measured epochs.
        timeout_s: a system that takes longer has failed.
        work: folder that keeps graphs converted for peers; None: ``atta`` in the user's cache folder.
    """

    data: str
    servers: int = 2
    trainers_per_server: int = 2
    strategies: tuple[str, ...] = ("cooperative", "full", "minibatch")
    vs: tuple[str, ...] = ()
    model: str = "sage"
    layers: int = 3
    hidden: int = 64
    lr: float = 0.01
    dropout: float = 0.0
    eas: tuple[int, int] = (1, 15)
    co_batches: int = 1
    num_neighbors: tuple[int, ...] = (10,)
    batch_size: int = 1024
    external_share: float | None = None
    link: str | None = None
    eval_every: int | None = None
    target: float | None = None
    runs: int = 3
    warm_up: int = 2
    epochs: int = 10
    timeout_s: float = 600.0
    seed: int = 0
    work: str | None = None

    def __post_init__(self) -> None:
        for what, given, known in (("strategy", self.strategies, STRATEGIES), ("peer", self.vs, PEERS)):
            for name in given:
                if name not in known:
                    raise UnknownNameError.of(what, name, known)
        if not self.strategies:
            raise ConfigError("--strategies: name at least one")
        for name in ("servers", "trainers_per_server", "runs", "warm_up", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        self._check_share()
        if self.link is not None:
            bits_per_s(self.link)
        if self.target is not None and not 0 < self.target <= 1:
            raise ConfigError(f"--target {self.target}: must lie between 0 and 1")
        if self.vs and self.model != "sage":
            raise ConfigError(f"--vs dgl: trains sage here, not {self.model}")
        for name in self.strategies:
            TrainConfig(data=self.data, **self.settings(name))  # type: ignore[arg-type]

    def _check_share(self) -> None:
        if self.external_share is None:
            return
        if self.link is not None:
            raise ConfigError("--external-share and --link: give one of them, the first finds the second")
        if not 0 < self.external_share < 1:
            raise ConfigError(f"--external-share {self.external_share}: must lie between 0 and 1")
        if "full" not in self.strategies or self.servers == 1:
            raise ConfigError(
                "--external-share: the share of `full` between servers, so name it and take at least 2 servers"
            )

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """Fan-outs of mini-batches, one per layer."""
        return self.num_neighbors * self.layers if len(self.num_neighbors) == 1 else self.num_neighbors

    def settings(self, strategy: str) -> dict[str, object]:
        """Settings of ``TrainConfig`` for one of ``STRATEGIES``."""
        common = {
            **{name: getattr(self, name) for name in ("model", "layers", "hidden", "lr", "dropout")},
            "trainers": self.servers * self.trainers_per_server,
            "epochs": self.warm_up + self.epochs,
            "eval_every": self.eval_every or self.warm_up + self.epochs,
        }
        return common | STRATEGIES[strategy](self)

    def options(self, strategy: str, seed: int) -> list[str]:
        """Options of ``atta train`` for one of ``STRATEGIES``."""
        words = ["--seed", str(seed)]
        for name, value in self.settings(strategy).items():
            if name != "trainers":
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                words += [f"--{name.replace('_', '-')}", text]
        return words


def _minibatch(bench: StrategiesBench) -> dict[str, object]:
    return {"strategy": "minibatch", "num_neighbors": bench.fan_outs, "batch_size": bench.batch_size}


def _full(bench: StrategiesBench) -> dict[str, object]:
    return {"strategy": "full", "trainers_per_server": bench.servers * bench.trainers_per_server}


def _preload(bench: StrategiesBench) -> dict[str, object]:
    return {"strategy": "full", "trainers_per_server": bench.trainers_per_server}


def _cooperative(bench: StrategiesBench) -> dict[str, object]:
    own = {"trainers_per_server": bench.trainers_per_server, "eas": bench.eas, "co_batches": bench.co_batches}
    return {"strategy": "cooperative", **own}


STRATEGIES: dict[str, Callable[[StrategiesBench], dict[str, object]]] = {
    "cooperative": _cooperative,
    "full": _full,
    "preload": _preload,
    "minibatch": _minibatch,
}
"""By the name of a system: its own settings of ``TrainConfig``."""


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
        say("measuring full without a slow link")
        alone, link = _calibrated(bench, say)
    counts = {"vertices": dataset.schema.node_counts, "edges": dataset.schema.edge_counts}
    config = {**asdict(bench), "link": link, "dataset_id": dataset.dataset_id, **counts}
    with _hosts(bench, link) as hosts:
        config["netns"] = "off" if hosts[0].interface is None else "on"
        ours = "cooperative" if "cooperative" in bench.strategies else bench.strategies[0]
        costs = frozenset({"epoch_seconds", "seconds_to_target"})
        report = BenchReport("strategies", config, ours, costs, drawn="epoch_seconds")
        systems = {name: _system(bench, name, hosts, alone) for name in bench.strategies}
        systems |= _distdgl(bench, dataset, hosts, report, say)
        alternate(systems, bench.runs, report, lambda found: found, limits_of=lambda: _limits(hosts), say=say)
    return report


def figures(trained: Trained, warm_up: int, target: float | None = None) -> Figures:
    """Figures of a run: medians over the epochs after ``warm_up``, and the peak memory of the largest trainer.

    ``link_bytes`` is what the busiest host sent in an epoch, ``set_up_link_bytes`` what it sent before the end of the
    first epoch. See ``accuracies`` for the others.
    """
    counted, sent = trained.epochs[warm_up:], trained.sent_bytes[warm_up:]
    last = trained.epochs[-1]
    found = {
        "epoch_seconds": statistics.median(e["seconds"] for e in counted),
        "steps": float(last["steps"]),
        "link_bytes": statistics.median(max(hosts) for hosts in sent),
        "set_up_link_bytes": float(max(trained.sent_bytes[0])),
        "exchanged_bytes": float(last["exchanged_bytes"]),
        "peak_memory_bytes": float(max(last["peak_memory_bytes"], default=0)),
        "loss": last["loss"],
    }
    for phase in counted[0]["breakdown"]:
        found[f"phases/{phase}_s"] = statistics.median(e["breakdown"][phase] for e in counted)
    return found | accuracies(trained.epochs, target)


def accuracies(epochs: Sequence[Mapping[str, Any]], target: float | None = None) -> Figures:
    """Accuracies of the epoch with the best validation, and the training time until ``target`` was reached.

    ``epochs`` begin with the first one. Each has ``seconds``, ``val_accuracy`` and ``test_accuracy`` (None: not
    evaluated).
    """
    found: Figures = {}
    evaluated = [e for e in epochs if e["val_accuracy"] is not None]
    if evaluated:
        best = max(evaluated, key=lambda e: float(e["val_accuracy"]))  # of equals the first
        found |= {"val_accuracy": best["val_accuracy"], "test_accuracy": best["test_accuracy"] or 0.0}
    until = itertools.accumulate(float(e["seconds"]) for e in epochs)
    for seconds, epoch in zip(until, epochs, strict=True):
        if target is not None and (epoch["test_accuracy"] or 0.0) >= target:
            return found | {"seconds_to_target": seconds}
    return found


def external_rate(seconds: float, sent_bytes: float, share: float) -> float:
    """Bits per second of a link that takes ``share`` of an epoch; ``seconds`` is the time of its other work."""
    return 8 * sent_bytes * (1 - share) / (share * seconds)


def _calibrated(bench: StrategiesBench, say: Say) -> tuple[float, str]:
    """Seconds of an epoch of ``full`` on unshaped links, and the rate with which links take the share asked for.

    The time that a link adds is only about bytes / rate: computing hides a part of it, and messages wait for each
    other. So each try corrects the rate by the time that was measured with it.
    """
    assert bench.external_share is not None
    short = dataclasses.replace(bench, epochs=min(bench.epochs, _CALIBRATING), eval_every=None, target=None)
    with _hosts(bench, None) as hosts:
        found = _measured(short, "full", hosts)
    alone = found["epoch_seconds"]
    wanted = alone * bench.external_share / (1 - bench.external_share)  # seconds that the link must add
    rate = external_rate(alone, found["link_bytes"], bench.external_share)
    for _ in range(_TRIES):
        link = f"{max(1, round(rate / _KBIT))}kbit"
        with _hosts(bench, link) as hosts:
            seconds = _measured(short, "full", hosts)["epoch_seconds"]
        share = 1 - alone / seconds
        say(f"with {link} full spends {100 * share:.0f} % of its time in the links")
        if abs(share - bench.external_share) <= _CLOSE:
            break
        rate *= max(0.1, (seconds - alone) / wanted)
    return alone, link


def _measured(bench: StrategiesBench, strategy: str, hosts: Sequence[Host]) -> Figures:
    with tempfile.TemporaryDirectory(prefix="atta-bench-full-") as folder:
        return _system(bench, strategy, hosts, None)(Path(folder))


def _system(bench: StrategiesBench, name: str, hosts: Sequence[Host], alone: float | None) -> Callable[[Path], Figures]:
    """A function that runs a strategy once; ``alone`` is the time of an epoch of ``full`` without a slow link."""
    data, seeds = Path(bench.data).resolve(), itertools.count(bench.seed)

    def measure(folder: Path) -> Figures:
        options = bench.options(name, next(seeds))
        trained = run_training(
            data, options, hosts, folder, trainers=bench.trainers_per_server, timeout_s=bench.timeout_s
        )
        found = figures(trained, bench.warm_up, bench.target)
        if name == "full" and alone is not None:
            found["external_share"] = 1 - alone / found["epoch_seconds"]
        return found

    return measure


@contextlib.contextmanager
def _hosts(bench: StrategiesBench, link: str | None) -> Iterator[list[Host]]:
    """A host per server, inside the block."""
    if bench.link is None and bench.external_share is None and no_namespaces():
        yield loopback(bench.servers)
        return
    with NetLab(bench.servers, rate=link) as lab:
        yield list(lab.hosts)


def _limits(hosts: Sequence[Host]) -> Figures:
    return {"link_bytes_per_s": flow_bytes_per_s(hosts[0], hosts[-1], "tcp")}


def _distdgl(
    bench: StrategiesBench, dataset: Dataset, hosts: Sequence[Host], report: BenchReport, say: Say
) -> dict[str, Callable[[Path], Figures]]:
    """DistDGL's mini-batches if they are asked for; if it cannot run, the report says why."""
    if "dgl" not in bench.vs:
        return {}
    from atta.bench.peers.distdgl.launch import run_distdgl
    from atta.bench.peers.distdgl.partition import prepare
    from atta.bench.train import benchmark as train

    workload = BenchWorkload(
        bench.fan_outs,
        bench.batch_size,
        warm_up=1,  # only its last warm-up epoch is reported, and the time to an accuracy counts all epochs
        epochs=bench.warm_up + bench.epochs - 1,
        seconds=0.0,
        timeout_s=bench.timeout_s,
        seed=bench.seed,
    )
    schema = dataset.schema
    channels = schema.node_tables[schema.node_types[0]]["x"].row_shape[0]
    recipe = Recipe(channels, schema.num_classes or 2, bench.layers, bench.hidden, lr=bench.lr, dropout=bench.dropout)
    seeds = itertools.count(bench.seed)
    try:
        if hosts[0].interface is None:
            raise AttaError(no_namespaces() or "DistDGL runs only in network namespaces")
        say("converting the graph for DistDGL")
        partitions = prepare(Path(bench.data).resolve(), len(hosts), workload.split, work_folder(bench.work))
    except AttaError as error:
        report.fail("dgl", str(error))
        return {}

    def measure(folder: Path) -> Figures:
        measured = run_distdgl(
            partitions,
            workload,
            hosts,
            folder,
            recipe=dataclasses.replace(recipe, seed=next(seeds)),
            trainers=bench.trainers_per_server,
            eval_every=bench.eval_every or bench.warm_up + bench.epochs,
        )
        found = train.figures(measured)
        phases = {f"phases/{phase}_s": found[f"trainer/{phase}_s"] for phase in train.PHASES}
        epochs = epochs_of(measured)
        same = {
            "epoch_seconds": statistics.median(e["seconds"] for e in epochs[bench.warm_up :]),
            "steps": found["steps"],
            "link_bytes": statistics.median(e["sent_bytes"] for e in epochs[bench.warm_up :]),
            "loss": found["loss"],
        }
        return same | phases | accuracies(epochs, bench.target)

    return {"dgl": measure}


def epochs_of(measured: Measured) -> list[dict[str, Any]]:
    """The epochs of a run, with its warm-up epoch, for ``accuracies``; ``sent_bytes`` is that of the busiest host."""
    by_number: dict[int, list[dict[str, Any]]] = {-1: measured.warm_ups}
    for reported in measured.epochs:
        by_number.setdefault(reported["epoch"], []).append(reported)
    return [
        {
            "seconds": max(e["stop"] for e in ranks) - min(e["start"] for e in ranks),
            "sent_bytes": max(e["sent_bytes"] for e in ranks),
            **{name: ranks[0][name] for name in ("val_accuracy", "test_accuracy")},
        }
        for _, ranks in sorted(by_number.items())
    ]
