"""Accuracy with stale rows, paired by seeds: each strategy beside exact exchange, on the same graph and weights.

    python -m bench.train.stale --data-root DIR [--graphs sbm,amazon_computers] [--seeds 5] [--only exchange,sancus-e1]

Trainers (``--parts``), a server each, live as long as the comparison, and the daemons as long as their graph. Every run is what
``atta train`` does, with a GCN of width 64 and Adam at 0.01. ``--only`` names variants: those of the gates by default,
``defaults`` for each strategy at its own, ``all`` for all of them. With ``--keep`` a comparison goes on where it was cut
off. ``--sat`` measures instead how good predicted rows are. Writes stale-accuracy or stale-sat, .json and .md.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from atta.partition.generate import GenerateOptions
from atta.train.config import TrainConfig
from atta.train.reports.display import Display
from atta.train.reports.epochs import EpochReport, best_epoch
from atta.train.strategies import STRATEGIES
from atta_bench.graphs import SPLITS, partitioned
from atta_bench.results import ROOT, Maybe, arguments_of, document, head, rows_of, spread, write, yes_or_no

TIMEOUT = timedelta(seconds=300)
"""How long a trainer waits for the others."""
RUN_S = 3600
"""How long a run may take."""


class TrainerPool:
    """``count`` forked trainers, each with one thread; use it as a context manager.

    Make it before anything in this process has started threads: the trainers are forked.
    """

    def __init__(self, count: int) -> None:
        import torch_geometric  # noqa: F401 - trainers inherit what is imported here

        import atta.train.exchange.trainer  # noqa: F401

        self.count = count
        self._folder = tempfile.TemporaryDirectory(prefix="atta-pool-")
        self._runs = 0
        context = get_context("fork")
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, count, there), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def __enter__(self) -> TrainerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    def fit(self, config: TrainConfig, addresses: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
        """Train; returns what it warned of, and the figures of all epochs. Raises RuntimeError with the traceback of a
        failed trainer."""
        self._runs += 1
        meeting = str(Path(self._folder.name) / f"run-{self._runs}")
        for end in self._ends:
            end.send((config.to_dict(), list(addresses), meeting))
        found: list[Any] = []
        for rank, end in enumerate(self._ends):
            if not end.poll(RUN_S):
                raise RuntimeError(f"trainer {rank} did not answer")
            try:
                failed, answer = end.recv()
            except EOFError:
                raise RuntimeError(f"trainer {rank} ended") from None
            if failed:
                raise RuntimeError(f"trainer {rank}:\n{answer}")
            found.append(answer)
        return found[0]  # type: ignore[no-any-return]


def _serve(rank: int, count: int, end: Connection) -> None:
    """A trainer: trains what arrives, until the pool ends."""
    import torch

    from atta.observe.machine.memory import keep_freed

    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    keep_freed()
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    while True:
        try:
            settings, addresses, meeting = end.recv()
        except EOFError:
            return
        try:
            answer = _fit(TrainConfig.from_dict(settings), addresses, meeting, rank, count)
            end.send((False, answer if rank == 0 else None))
        except Exception:
            end.send((True, traceback.format_exc()))
        gc.collect()


class HeardDisplay(Display):
    """Keeps the lines of a run in ``said``."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(False)
        self._said = said

    def line(self, text: str) -> None:
        """Keep a line."""
        self._said.append(text)


def _fit(config: TrainConfig, addresses: list[str], meeting: str, rank: int, count: int) -> Any:
    import torch
    import torch.distributed as dist

    import atta
    from atta.train.strategies import STRATEGIES

    # A group for each run: trainers make groups of their own in it, and these go with it.
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=TIMEOUT)
    try:
        with atta.connect(addresses) as cluster:
            trainer = STRATEGIES[config.strategy].trainer(config.own, cluster, torch.device("cpu"))
            said: list[str] = []
            trainer.display = HeardDisplay(said)
            epochs = [asdict(epoch) for epoch in trainer.fit()]
            return " ".join(line for line in said if line.startswith("warning: ")), epochs
    finally:
        dist.destroy_process_group()


PARTS, HIDDEN, EVAL_EVERY = 8, 64, 10
REAL_GRAPHS = ("amazon_computers", "coauthor_cs")
SBM = GenerateOptions(nodes=10_000, edges=200_000, features=32, classes=20, inter=0.45, signal=0.6, **SPLITS)

Settings = Mapping[str, Any]
SLOW = 0.003
"""A learning rate with which rows of the epoch before are less stale: weights change less from epoch to epoch."""

DEFAULTS = tuple(name for name in STRATEGIES if name != "cooperative")  # asks for the size of its batches
VARIANTS: dict[str, Settings] = {
    "exchange": {"strategy": "exchange"},
    "budget-0.5": {"strategy": "exchange", "budget": 0.5},
    "dropped": {"strategy": "full", "eas": (0, 1), "eval": "exact"},
    "sancus-e1": {"strategy": "sancus", "eps": 1.0},
    "skip-gradients": {"strategy": "sancus", "eps": 1.0, "skip": "gradients"},
    "pipegcn": {"strategy": "pipegcn"},
    "digest-10": {"strategy": "digest", "sync_every": 10},
    "sancus-e3": {"strategy": "sancus", "eps": 3.0},
    "sancus-gap": {"strategy": "sancus", "bound": "gap"},
    "digest-1": {"strategy": "digest", "sync_every": 1},
    "digest-5": {"strategy": "digest", "sync_every": 5},
    "digest-20": {"strategy": "digest", "sync_every": 20},
    "sat": {"strategy": "sat"},
    "delta-int8": {"strategy": "exchange", "codec": "delta-int8"},
    "sat-linear": {"strategy": "sat", "predictor": "linear"},
    "pipegcn-smooth": {"strategy": "pipegcn", "smooth": 0.95},
    "exchange-slow": {"strategy": "exchange", "lr": SLOW},
    "pipegcn-slow": {"strategy": "pipegcn", "lr": SLOW},
    **{name: {"strategy": name} for name in DEFAULTS},
}
GATED = ("exchange", "budget-0.5", "dropped", "sancus-e1", "pipegcn", "digest-10")
PREDICTING = ("digest-10", "sat", "sat-linear")
SETTLED = 15
"""Synchronisations after which predictions are judged."""
MOST_RATIO = 0.9


@dataclass(frozen=True)
class Bound:
    """What must hold: the median over seeds of ``variant - beside`` is ``least`` points or more, or, with ``or_said``, the
    strategy has warned of it."""

    variant: str
    beside: str
    least: float
    graphs: tuple[str, ...] = ("sbm", *REAL_GRAPHS)
    layers: tuple[int, ...] = (2, 3)
    or_said: bool = False


BUDGETED = ("sbm", "amazon_computers", "tolokers", "facebook_pagepage", "coauthor_cs")
BOUNDS = (
    Bound("budget-0.5", "exchange", -0.5, graphs=tuple(g + cut for g in BUDGETED for cut in ("", "-random"))),
    Bound("sancus-e1", "exchange", -1.0, layers=(2,)),
    Bound("sancus-e1", "skip-gradients", 0.0),
    Bound("digest-10", "dropped", 5.0, graphs=("sbm",), layers=(3,)),
    Bound("digest-10", "exchange", -2.5, graphs=("sbm",), layers=(3,)),
    Bound("pipegcn", "exchange", -0.5),
    Bound("pipegcn-slow", "exchange-slow", -0.5),
    Bound("sat", "digest-10", -0.2),
    Bound("sat-linear", "digest-10", -0.2),
    *(Bound(name, "exchange", -1.5, or_said=True) for name in DEFAULTS if name != "exchange"),
)


def main() -> None:
    """Measure what is asked for and write its record."""
    arguments = arguments_of(
        __file__,
        __doc__,
        data_root=Maybe(Path, "folder of the real graphs"),
        work=(ROOT / "data" / "stale", "where datasets are kept"),
        graphs=("sbm,amazon_computers,coauthor_cs", "-random after one: random parts"),
        layers="2,3",
        seeds=5,
        parts=(PARTS, "parts, and trainers"),
        epochs=120,
        only=(",".join(GATED), "variants, defaults or all"),
        keep=Maybe(Path, "folder that keeps what was measured; what is there is not measured"),
        kept_only=(False, "measure nothing: record what is in --keep"),
        sat=(False, "compare predicted and stale rows instead"),
    )
    if arguments.kept_only:
        if arguments.keep is None or not (cells := kept_cells(arguments.keep, arguments.epochs, sat=arguments.sat)):
            raise SystemExit("--kept-only: --keep names no folder with runs of --epochs")
        (record_predictions if arguments.sat else record)(cells, arguments.epochs, arguments.typed, arguments.out)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    with TrainerPool(arguments.parts) as pool, tempfile.TemporaryDirectory() as folder:
        if arguments.sat:
            arguments.only = ",".join(PREDICTING)
        cells = measured(pool, arguments, arguments.keep or Path(folder))
        write_record = record_predictions if arguments.sat else record
        write_record(cells, arguments.epochs, arguments.typed, arguments.out)


def available(variants: Mapping[str, Settings]) -> dict[str, Settings]:
    """The variants that this version of Atta has; says which it has not."""
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    found = {n: s for n, s in variants.items() if s["strategy"] in STRATEGIES and known.issuperset(s)}
    if missing := [name for name in variants if name not in found]:
        print(f"left out, because this version of Atta lacks them: {', '.join(missing)}", file=sys.stderr)
    return found


def config_of(settings: Settings, *, layers: int, hidden: int, epochs: int, seed: int) -> TrainConfig:
    """The configuration of a run; the pool knows the daemons."""
    own: Settings = {"trainers_per_server": 1}
    if "trainers_per_server" not in STRATEGIES[settings["strategy"]].own_settings:
        own = {}
    return TrainConfig(
        cluster="of the pool",
        model="gcn",
        layers=layers,
        hidden=hidden,
        epochs=epochs,
        seed=seed,
        dropout=0.0,
        eval_every=EVAL_EVERY,
        device="cpu",
        verbose=False,
        **own,
        **settings,
    )


# -- accuracy ----------------------------------------------------------------------------------------------------------


def measured(pool: TrainerPool, arguments: argparse.Namespace, kept: Path) -> list[dict[str, Any]]:
    """The runs of all cells, in the order of graph, layers, seed and variant; keeps each run as soon as it ends.

    Raises SystemExit: ``--only`` names something unknown.
    """
    names = {"all": [*VARIANTS], "defaults": [*DEFAULTS]}.get(arguments.only) or arguments.only.split(",")
    if unknown := set(names) - set(VARIANTS):
        raise SystemExit(f"--only {','.join(sorted(unknown))}: not one of {', '.join(VARIANTS)}")
    variants = available({name: VARIANTS[name] for name in names})
    kept.mkdir(parents=True, exist_ok=True)
    depths = [int(layers) for layers in arguments.layers.split(",")]
    cells: list[dict[str, Any]] = []
    for graph in arguments.graphs.split(","):
        data = partitioned(graph, SBM, arguments.data_root, arguments.work, arguments.parts)
        todo = {}
        for layers, seed, name in itertools.product(depths, range(arguments.seeds), variants):
            config = config_of(
                {**variants[name], "trainers": arguments.parts},
                layers=layers,
                hidden=HIDDEN,
                epochs=arguments.epochs,
                seed=seed,
            )
            file = kept / f"{graph}-{layers}-layers-{arguments.epochs}-epochs-{name}-{seed}.json"
            todo[file] = (
                config,
                {"graph": graph, "layers": layers, "seed": seed, "variant": name, "parts": arguments.parts},
            )
        cells += runs_of(pool, graph, data, todo)
    return cells


def kept_cells(folder: Path, epochs: int, *, sat: bool) -> list[dict[str, Any]]:
    """What earlier comparisons have kept, in the order of graph, layers, variant and seed.

    ``sat``: the runs beside which predictions are judged, and no others.
    """
    cells = [json.loads(file.read_text()) for file in folder.glob(f"*-layers-{epochs}-epochs-*.json")]
    order = [*PREDICTING] if sat else [*VARIANTS]
    cells = [cell for cell in cells if cell["variant"] in order]
    return sorted(cells, key=lambda cell: (cell["graph"], cell["layers"], order.index(cell["variant"]), cell["seed"]))


def runs_of(
    pool: TrainerPool, graph: str, data: Path, todo: Mapping[Path, tuple[TrainConfig, Mapping[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The runs on one graph: those whose file does not exist yet are made, with one set of daemons for all."""
    import atta

    if not all(file.exists() for file in todo):
        with atta.local(data, threads=1, log_level="error") as cluster:
            for file, (config, names) in todo.items():
                if file.exists():
                    continue
                start = time.time()
                said, epochs = pool.fit(config, cluster.addresses)
                found = {**names, **summary(epochs), "evaluation": config.evaluation, "said": said}
                found["seconds"] = round(time.time() - start, 2)
                file.write_text(json.dumps(found))
                print(f"{file.stem}: {found['test']:.2f} % in {found['seconds']:.1f} s", flush=True)
    for file in todo:
        yield json.loads(file.read_text())


def summary(epochs: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a run: accuracies in percent, and payload."""
    reports = [EpochReport.from_dict(epoch) for epoch in epochs]
    best = best_epoch(reports)
    assert best is not None
    assert best.val_accuracy is not None
    assert best.test_accuracy is not None
    curve = [(e.epoch + 1, round(100 * e.test_accuracy, 3)) for e in reports if e.test_accuracy is not None]
    return {
        "best_epoch": best.epoch + 1,
        "val": 100 * best.val_accuracy,
        "test": 100 * best.test_accuracy,
        "last": curve[-1][1],
        "curve": curve,
        "loss": reports[-1].loss,
        "payload_bytes": sum(e.crossed_bytes for e in reports),
        "epoch_s": statistics.median(e.seconds for e in reports),
        "errors": [
            (e.epoch + 1, layer.layer, layer.predicted_error, layer.stale_error)
            for e in reports
            if e.rows is not None
            for layer in e.rows.layers
            if layer.stale_error
        ],
    }


def differences(cells: list[dict[str, Any]], graph: str, layers: int, variant: str, beside: str) -> list[float]:
    """Points by which a variant is better, for each seed that both have."""
    tests = {
        (cell["variant"], cell["seed"]): cell["test"]
        for cell in cells
        if (cell["graph"], cell["layers"]) == (graph, layers)
    }
    return [
        test - tests[beside, seed]
        for (name, seed), test in tests.items()
        if name == variant and (beside, seed) in tests
    ]


def verdicts(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each bound on each graph and depth that was measured."""
    found = []
    for bound in BOUNDS:
        for graph in bound.graphs:
            for layers in bound.layers:
                paired = differences(cells, graph, layers, bound.variant, bound.beside)
                if paired:
                    median = statistics.median(paired)
                    runs = grouped(cells)[graph, layers, bound.variant]
                    said = bound.or_said and next((run["said"] for run in runs if run.get("said")), "")
                    entry = dataclasses.asdict(bound) | {"graph": graph, "layers": layers, "said": said or ""}
                    found.append(entry | {"median": median, "holds": median >= bound.least or bool(said)})
    return found


def grouped(cells: list[dict[str, Any]]) -> dict[tuple[str, int, str], list[dict[str, Any]]]:
    """The runs by graph, layers and variant."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["graph"], cell["layers"], cell["variant"]), []).append(cell)
    return groups


def parts_of(cells: list[dict[str, Any]]) -> str:
    """Numbers of parts of the runs; runs that were kept long ago do not say theirs."""
    return ", ".join(map(str, sorted({cell.get("parts", PARTS) for cell in cells})))


def record(cells: list[dict[str, Any]], epochs: int, typed: str, out: Path) -> None:
    """Write stale-accuracy.json and stale-accuracy.md."""
    held = verdicts(cells)
    found = document("stale-accuracy", command=typed, results=cells) | {"epochs": epochs, "bounds": held}
    rows, groups = [], grouped(cells)
    for (graph, layers, variant), runs in groups.items():
        paired = differences(cells, graph, layers, variant, "exchange")
        sent, exact = (
            statistics.median(run["payload_bytes"] for run in found)
            for found in (runs, groups.get((graph, layers, "exchange"), runs))
        )
        less = spread(paired, "+.1f") if paired and variant != "exchange" else ""
        test, last = (spread([run[name] for run in runs], ".1f") for name in ("test", "last"))
        share = f"{sent / exact:.2f}" if exact else ""
        rows.append((graph, layers, variant, test, less, last, f"{sent / 2**20:,.1f}", share, runs[0]["evaluation"]))
    lines = [
        *head("Accuracy with stale rows", found),
        f"Test accuracy in percent at the epoch with the best validation accuracy, median (minimum to maximum) of "
        f"{len({cell['seed'] for cell in cells})} seeds.",
        f"GCN, {HIDDEN} hidden columns, Adam 0.01, no dropout, {epochs} epochs, evaluated every {EVAL_EVERY}; {parts_of(cells)} parts and",
        "trainers, each a server. Differences are paired by seed. Real graphs have features that a random projection",
        f"makes 128 wide, and 30 % of the vertices train. `-slow`: Adam {SLOW}.",
        "",
        *rows_of(
            ("bound", "graph", "layers", "median difference", "holds"),
            *(
                (
                    f"{v['variant']} ≥ {v['beside']} {v['least']:+g}",
                    v["graph"],
                    v["layers"],
                    f"{v['median']:+.2f}",
                    said,
                )
                for v in held
                for said in (f"{yes_or_no(v['holds'])}{', said: ' * bool(v['said'])}{v['said']}",)
            ),
        ),
        "",
        *rows_of(
            (
                "graph",
                "layers",
                "variant",
                "test",
                "less exchange",
                "last epoch",
                "MiB sent",
                "of exchange's",
                "evaluated on",
            ),
            *rows,
        ),
    ]
    write(out / "stale-accuracy.json", found, lines)


# -- predictions -------------------------------------------------------------------------------------------------------


def ratios(run: Mapping[str, Any], sync_every: int = 10) -> dict[int, float]:
    """Mean distance of predicted rows by that of stale rows, by layer, in the epochs after ``SETTLED`` synchronisations."""
    of_layer: dict[int, list[float]] = {}
    for epoch, layer, predicted, stale in run["errors"]:
        if epoch > SETTLED * sync_every:
            of_layer.setdefault(layer, []).append(predicted / stale)
    return {layer: statistics.fmean(found) for layer, found in sorted(of_layer.items())}


def record_predictions(cells: list[dict[str, Any]], epochs: int, typed: str, out: Path) -> None:
    """Write stale-sat.json and stale-sat.md."""
    errors, tests = [], []
    for (graph, layers, variant), runs in grouped(cells).items():
        found = [ratios(run) for run in runs]
        for layer in sorted({layer for of_run in found for layer in of_run}):
            values = [of_run[layer] for of_run in found if layer in of_run]
            holds = statistics.fmean(values) <= MOST_RATIO
            errors.append((graph, layers, variant, layer, spread(values, ".3f"), yes_or_no(holds)))
        paired = differences(cells, graph, layers, variant, "digest-10")
        less = spread(paired, "+.1f") if paired and variant != "digest-10" else ""
        times = f"{1000 * statistics.median(run['epoch_s'] for run in runs):,.0f}"
        tests.append((graph, layers, variant, spread([run["test"] for run in runs], ".1f"), less, times))
    document_ = document("stale-sat", command=typed, results=cells) | {"epochs": epochs, "bounds": verdicts(cells)}
    lines = [
        *head("Predicted rows beside stale rows", document_),
        f"GCN, {HIDDEN} hidden columns, Adam 0.01, no dropout, {epochs} epochs, {parts_of(cells)} parts and trainers, each a server;",
        "synchronisations and steps of the predictor every 10 epochs. Median (minimum to maximum) of",
        f"{len({cell['seed'] for cell in cells})} seeds. Distances are those of HALO rows to the rows of",
        f"the next synchronisation, after {SETTLED} synchronisations.",
        "",
        *rows_of(("graph", "layers", "variant", "layer", "predicted / stale", f"at most {MOST_RATIO}"), *errors),
        "",
        *rows_of(("graph", "layers", "variant", "test in percent", "less digest", "ms per epoch"), *tests),
    ]
    write(out / "stale-sat.json", document_, lines)


if __name__ == "__main__":
    main()
