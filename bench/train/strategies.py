"""``atta bench strategies``: training strategies over a slow link between servers.

Every system is ``atta train`` on the same partitions. Each host is a server with its trainers:

===========  ==================================================================================================
minibatch    each trainer samples its own batches
full         exact full-graph training that exchanges rows before every layer, also between servers: the baseline of
             GraNNDis
preload      exact full-graph training; each server holds all vertices that its own depend on
cooperative  whole servers with expansion-aware sampling, in one step or in co-batches
===========  ==================================================================================================

A *variant* is a name for options of ``atta train``, measured beside them.

Reading order: ``settings`` (what to run), ``figures`` and ``prices`` (what is reported of a run), ``systems`` (a
strategy on the hosts, and the rate of their links), ``distdgl`` (the peer), ``benchmark`` (all rounds).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from atta.cli.figures import hand_out
from atta.cli.options import command, settings_options
from atta.cli.output import json_option, plot_option, quiet_option, teller
from atta.errors import AttaError, ConfigError
from atta.partition.dataset import Dataset
from atta.train.dorylus.worker import FAULTS_VARIABLE
from atta_bench.lab.flow import flow_bytes_per_s
from atta_bench.lab.netlab import Host, NetLab, loopback, no_namespaces
from atta_bench.lab.processes import Measured
from atta_bench.lab.rounds import Say, alternate, need_training, partitions_for_dgl
from atta_bench.lab.workload import BenchWorkload, Recipe
from atta_bench.results import BenchReport
from atta_bench.train.run import Trained, run_training
from atta_bench.train.settings import PRICES, SHARE, STOP, VARIANT, StrategiesBench
from atta_bench.train.value import PriceList, value_of

Figures = dict[str, float]

WAITING = ("wait", "exchange", "sync", "external")
"""Phases in which trainers wait: see ``atta.train.reports.epochs``."""


def figures(trained: Trained, warm_up: int, target: float | None = None) -> Figures:
    """Figures of a run: medians over the epochs after ``warm_up``, and the peak memory of the largest trainer.

    ``link_bytes`` is what the busiest host sent in an epoch, ``set_up_link_bytes`` what it sent before the end of the
    first epoch. Figures of ``payload`` are bytes between servers, sums over all hosts; like those of names with ``mean``
    they are means over epochs, because stale strategies do not send in every epoch. Those of ``pipeline`` are of intervals
    and workers (docs/reference/configuration.md). See ``accuracies`` for the others.
    """
    # Strategies without epochs report as often as they have copied their weights, which may be once only.
    warm_up = min(warm_up, len(trained.epochs) - 1)
    counted, sent = trained.epochs[warm_up:], trained.sent_bytes[warm_up:]
    last = trained.epochs[-1]
    found = {
        "epoch_seconds": statistics.median(e["seconds"] for e in counted),
        "mean_epoch_seconds": statistics.fmean(e["seconds"] for e in counted),
        "waiting_share": _waiting_share(counted),
        "steps": float(last["steps"]),
        "steps_per_s": sum(e["steps"] for e in counted) / sum(e["seconds"] for e in counted),
        "link_bytes": statistics.median(max(hosts) for hosts in sent),
        "set_up_link_bytes": float(max(trained.sent_bytes[0])),
        "exchanged_bytes": float(last["exchanged_bytes"]),
        "peak_memory_bytes": float(max(last["peak_memory_bytes"], default=0)),
        "loss": last["loss"],
    }
    found |= _payload(counted) | _pipeline(counted)
    found["payload/interface_bytes"] = statistics.fmean(sum(hosts) for hosts in sent)
    for phase in counted[0]["breakdown"]:
        found[f"phases/{phase}_s"] = statistics.median(e["breakdown"][phase] for e in counted)
    return found | accuracies(trained.epochs, target)


def _pipeline(epochs: Sequence[Mapping[str, Any]]) -> Figures:
    """Tasks and workers of ``dorylus``: means per epoch; ``workers`` and ``oldest_row`` at the end."""
    did = [e["pipeline"] for e in epochs if e.get("pipeline")]
    if not did:
        return {}
    last = {name: float(did[-1][name]) for name in ("workers", "oldest_row")}
    means = {name: statistics.fmean(d[name] for d in did) for name in did[-1] if name not in last}
    return {f"pipeline/{name}": value for name, value in {**last, **means}.items()}


def _waiting_share(epochs: Sequence[Mapping[str, Any]]) -> float:
    """The share of the epochs' time in which trainers wait for batches, rows, gradients or each other."""
    waited = sum(e["breakdown"].get(phase, 0.0) for e in epochs for phase in WAITING)
    return float(waited / sum(e["seconds"] for e in epochs))


def _payload(epochs: Sequence[Mapping[str, Any]]) -> Figures:
    """Bytes between servers per epoch, without headers and without the sums of weight gradients."""
    features = statistics.fmean(e["crossed_feature_bytes"] for e in epochs)
    return {
        "payload/rows_bytes": statistics.fmean(e["crossed_bytes"] for e in epochs) - features,
        "payload/features_bytes": features,
        "payload/daemon_bytes": statistics.fmean(e["remote_bytes"] for e in epochs),
    }


def accuracies(epochs: Sequence[Mapping[str, Any]], target: float | None = None) -> Figures:
    """Accuracies of the epoch with the best validation, and the training time and epochs until ``target`` was reached.

    ``epochs`` begin with the first one. Each has ``seconds``, ``val_accuracy`` and ``test_accuracy`` (None: not
    evaluated).
    """
    found: Figures = {}
    evaluated = [e for e in epochs if e["val_accuracy"] is not None]
    if evaluated:
        best = max(evaluated, key=lambda e: float(e["val_accuracy"]))  # of equals the first
        found |= {"val_accuracy": best["val_accuracy"], "test_accuracy": best["test_accuracy"] or 0.0}
    until = itertools.accumulate(float(e["seconds"]) for e in epochs)
    for number, (seconds, epoch) in enumerate(zip(until, epochs, strict=True), 1):
        if target is not None and (epoch["test_accuracy"] or 0.0) >= target:
            return found | {"seconds_to_target": seconds, "epochs_to_target": float(number)}
    return found


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


def values(
    prices: PriceList, servers: int, epochs: Sequence[Mapping[str, Any]], target: float | None = None
) -> Figures:
    """Cost and value of a run, of its training alone: set-up and evaluation are left out.

    With a ``target`` the run counts until the first epoch whose test accuracy reaches it; without one, to its end. A
    run that does not reach its target has neither cost nor value.
    """
    counted = list(epochs)
    if target is not None:
        last = next((n for n, e in enumerate(epochs) if (e["test_accuracy"] or 0.0) >= target), None)
        if last is None:
            return {}
        counted = counted[: last + 1]
    seconds = sum(float(e["seconds"]) for e in counted)
    did = [e.get("pipeline") or {} for e in counted]
    worker_s, tasks = (sum(float(d.get(name, 0.0)) for d in did) for name in ("worker_s", "tasks"))
    cost = prices.cost(seconds, servers, worker_s=worker_s, requests=tasks)
    workers = prices.worker.cost(worker_s, tasks)
    found = {"cost": cost, "workers_cost": workers} if workers else {"cost": cost}
    return found | ({"value": value_of(seconds, cost)} if cost else {})


_KBIT = 1e3
_TRIES = 3
_CALIBRATING = 20
"""Number of epochs that tell how long one takes."""
_CLOSE = 0.02
"""How far the share of external time may lie from the one asked for."""


def external_rate(seconds: float, sent_bytes: float, share: float) -> float:
    """Bits per second of a link that takes ``share`` of an epoch; ``seconds`` is the time of its other work."""
    return 8 * sent_bytes * (1 - share) / (share * seconds)


def calibrated(bench: StrategiesBench, say: Say) -> tuple[float, str]:
    """Seconds of an epoch of ``share_of`` on unshaped links, and the rate with which links take the share asked for.

    The time that a link adds is only about bytes / rate: computing hides a part of it, and messages wait for each
    other. So each try corrects the rate by the time that was measured with it.
    """
    assert bench.external_share is not None
    short = dataclasses.replace(bench, epochs=min(bench.epochs, _CALIBRATING), eval_every=None, target=None)
    with hosts_of_servers(bench, None) as hosts:
        found = _measured(short, bench.share_of, hosts)
    alone = found["epoch_seconds"]
    wanted = alone * bench.external_share / (1 - bench.external_share)  # seconds that the link must add
    rate = external_rate(alone, found["link_bytes"], bench.external_share)
    for _ in range(_TRIES):
        link = f"{max(1, round(rate / _KBIT))}kbit"
        with hosts_of_servers(bench, link) as hosts:
            seconds = _measured(short, bench.share_of, hosts)["epoch_seconds"]
        share = 1 - alone / seconds
        say(f"with {link} {bench.share_of} spends {100 * share:.0f} % of its time in the links")
        if abs(share - bench.external_share) <= _CLOSE:
            break
        rate *= max(0.1, (seconds - alone) / wanted)
    return alone, link


def _measured(bench: StrategiesBench, name: str, hosts: Sequence[Host]) -> Figures:
    with tempfile.TemporaryDirectory(prefix=f"atta-bench-{name}-") as folder:
        return system(bench, name, hosts, None)(Path(folder))


def system(bench: StrategiesBench, name: str, hosts: Sequence[Host], alone: float | None) -> Callable[[Path], Figures]:
    """A function that runs a strategy or variant once; ``alone`` is the time of an epoch of ``share_of`` without a slow link."""
    data, seeds = Path(bench.data).resolve(), itertools.count(bench.seed)

    def measure(folder: Path) -> Figures:
        seed = next(seeds)
        faults = bench.worker_faults
        trained = run_training(
            data,
            bench.options(name, seed),
            hosts,
            folder,
            trainers=bench.trainers_per_server,
            timeout_s=bench.timeout_s,
            stop=bench.stop,
            seed=seed,
            env=None if faults is None else {FAULTS_VARIABLE: f"{faults},seed={seed}"},
        )
        found = figures(trained, bench.warm_up, bench.target)
        if bench.prices is not None:
            found |= values(bench.prices, bench.servers, trained.epochs, bench.target)
        if name == bench.share_of and alone is not None:
            found["external_share"] = 1 - alone / found["epoch_seconds"]
        return found

    return measure


@contextlib.contextmanager
def hosts_of_servers(bench: StrategiesBench, link: str | None) -> Iterator[list[Host]]:
    """A host per server, inside the block."""
    if bench.link is None and bench.external_share is None and no_namespaces():
        yield loopback(bench.servers)
        return
    with NetLab(bench.servers, rate=link) as lab:
        yield list(lab.hosts)


def distdgl(
    bench: StrategiesBench, dataset: Dataset, hosts: Sequence[Host], report: BenchReport, say: Say
) -> dict[str, Callable[[Path], Figures]]:
    """DistDGL's mini-batches if they are asked for; if it cannot run, the report says why."""
    if "dgl" not in bench.vs:
        return {}
    from atta_bench.lab.distdgl import run_distdgl
    from atta_bench.train import benchmark as train

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
        partitions = partitions_for_dgl(bench.data, hosts, workload.split, bench.work, say=say)
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


def run(bench: StrategiesBench, say: Say = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises DataError, ConfigError: the dataset or a setting is wrong; AttaError: Atta itself failed; a peer that fails
    only appears with its error in the report.
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


_GROUPS = {
    "What is trained": "data strategies variant eas co-batches num-neighbors batch-size model layers hidden lr dropout",
    "Systems": "servers trainers-per-server vs work",
    "How long": "runs warm-up epochs eval-every target timeout seed",
    "Network": "external-share link",
    "Faults and prices": "stop worker-faults prices",
    "Output": "plot json quiet help",
}


@command("strategies", _GROUPS)
@settings_options(StrategiesBench)
@click.option(
    "--variant",
    "variants",
    type=VARIANT,
    multiple=True,
    metavar="NAME='OPTIONS'",
    help="Also run these options of atta train, under this name; may be given several times.",
)
@click.option(
    "--external-share",
    "share",
    type=SHARE,
    metavar="[NAME=]SHARE",
    help="Shape the links between servers so that a strategy or variant (full) spends this share of its time in them; "
    "needs root.",
)
@click.option(
    "--prices",
    type=PRICES,
    metavar="FILE",
    help="TOML file with prices of machines and workers: report cost, and value 1/(time x cost).",
)
@click.option(
    "--stop",
    type=STOP,
    metavar="TRAINER:STOPPED/EVERY",
    help="Stop this trainer for so many seconds, once in so many seconds, e.g. 3:0.5/2.0; seeded, a ninth more or less.",
)
@plot_option("Draw seconds per epoch.")
@json_option
@quiet_option
def strategies(
    settings: dict[str, Any],
    share: tuple[str, float] | None,
    json_file: str | None,
    plot: str | None,
    quiet: bool,
    **more: Any,
) -> None:
    """Training strategies: mini-batches, the full graph and whole servers, over a slow link between servers.

    Example: atta bench strategies --data data/demo-2p --layers 3 --eas 1,15 --external-share 0.65 --json
        strategies.json

    Example: atta bench strategies --data data/demo-2p --strategies full --variant exchange='--strategy exchange' --variant
        sancus='--strategy sancus:eps=1' --external-share exchange=0.8
    """
    share_of, external_share = share or ("full", None)
    bench = StrategiesBench(**settings, **more, external_share=external_share, share_of=share_of)
    hand_out(run(bench, teller(quiet)), json_file, plot, quiet=quiet)
