"""``atta plan --strategy auto``: the fastest strategy of ``atta train`` for some machines, and its figures."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from atta.cli import output
from atta.errors import ConfigError
from atta.observe.machine.memory import total_bytes

if TYPE_CHECKING:
    from atta.train.planning.count import Question
    from atta.train.planning.explain import Advice
    from atta.train.planning.forecast import Forecast
    from atta.train.planning.sizes import Expansion, PlannedModel, Sizes

_FAN_OUTS: tuple[int, ...] = (15, 10, 5)
_FEW_CLASSES = 1000
"""So many outputs are planned for whatever the number of vertices."""


def plan_strategy(data: str | None, *, json_file: str | None, quiet: bool, **options: Any) -> None:
    """Count, measure, predict and print; ``options`` are those of ``atta plan``, by name. Raises ConfigError: an option
    is missing or makes no sense, or no strategy fits into memory; DataError: the dataset is damaged."""
    if data is None:
        raise ConfigError("--strategy: needs --data, a partitioned dataset (without one, see --nodes and --edges)")
    servers, trainers = options["servers"], options["trainers_per_server"]
    link = options["link"]
    if link is None and servers > 1:
        raise ConfigError("--strategy: needs --link, what one server's link carries, such as 1gbit")
    if link == 0:
        raise ConfigError("--link: must be more than 0")
    if not options["probe"] > 0:
        raise ConfigError("--probe: must be more than 0")
    output.need_torch("planning a strategy", quiet=quiet)
    from atta.partition.dataset import Dataset

    dataset = Dataset.open(data, verify=False)
    from atta.train.planning.count import count_sizes, fitted_alpha, open_servers
    from atta.train.planning.explain import advise, forecasts, recorded_losses
    from atta.train.planning.probe import device_here, disk_rows_per_s, measure
    from atta.train.planning.sizes import Machines

    network, device = _network(dataset, options), device_here()
    question = _question(options)
    question = replace(question, sums=_sums(dataset, network, question, options["aggregate"], device == "cuda"))
    memory = options["memory"] or total_bytes() / trainers
    machines = Machines(servers, trainers, memory, device)
    whole = open_servers(dataset, servers)
    sizes = count_sizes(whole, question)
    rates = measure(whole, question, network, link=link or math.inf, seconds=options["probe"])
    if options["daemon_memory"]:
        rates = replace(rates, disk=disk_rows_per_s(dataset, options["daemon_memory"]))
    ranked = forecasts(sizes, machines, network, rates, recorded_losses())
    advice = advise(ranked)
    alpha = fitted_alpha(sizes.closure_by_hop, sizes.vertices, sizes.edges / max(1, sizes.vertices))
    command = _command(data, advice.chosen, network, servers * trainers, options["aggregate"])
    document = {
        "schema": 1,
        "data": data,
        "machines": _plain(asdict(machines)),
        "network": asdict(network),
        "sizes": _sizes(sizes) | {"alpha": alpha},
        "rates": _plain(asdict(rates)),
        "strategies": [_plain(asdict(f)) | {"seconds": f.seconds, "to_accuracy": f.to_accuracy} for f in ranked],
        "chosen": advice.chosen.name,
        "because": list(advice.sentences),
        "command": command,
    }
    output.write_json(json_file, document)
    if not quiet and json_file != "-":
        _print(ranked, advice, sizes, alpha)
        for reason in _left_out(options, sizes):
            output.echo(reason)
        for line in _of_batches(sizes, servers, options["aggregate"]):
            output.echo(line)
        output.echo(command)
        if servers > 1:
            output.echo(
                f"# on {servers} machines, each with a running daemon: --cluster FILE instead of --data, and on each of them\n"
                f"# --nnodes {servers} --node-rank N --rdzv-endpoint HOST:PORT, with the address of the first"
            )


def _network(dataset: Any, options: dict[str, Any]) -> PlannedModel:
    from atta.train.planning.sizes import PlannedModel

    tables = dataset.schema.node_tables[dataset.schema.node_types[0]]
    shape: tuple[int, ...] = tables["x"].row_shape if "x" in tables else ()
    if len(shape) != 1:
        raise ConfigError(f"{dataset.path}: has no features (a node table x with one row of numbers per vertex)")
    classes, vertices = dataset.schema.num_classes or 2, sum(dataset.schema.node_counts.values())
    if classes > max(_FEW_CLASSES, vertices // 2):
        raise ConfigError(
            f"{dataset.path}: table y has {classes} classes for {vertices} vertices, so they are no classes; numbers of "
            "another kind belong into a y of floats, for --task regression"
        )
    return PlannedModel(options["model"], options["layers"], options["hidden"], shape[0], classes)


def _question(options: dict[str, Any]) -> Question:
    from atta.train.planning.count import EXPANSIONS, Question

    layers = options["layers"]
    fan_outs = options["num_neighbors"] or (_FAN_OUTS if layers == len(_FAN_OUTS) else _FAN_OUTS[1:2])
    return Question(
        servers=options["servers"],
        trainers=options["trainers_per_server"],
        layers=layers,
        settings=_settings(options["eas"]) or EXPANSIONS,
        co_batches=options["co_batches"],
        num_neighbors=fan_outs * layers if len(fan_outs) == 1 else fan_outs,
        batch_size=options["batch_size"],
    )


def _sums(dataset: Any, network: PlannedModel, question: Question, wanted: str, gpu: bool) -> bool:
    """Whether owners sum rows of mini-batches, by the rule of ``atta train --aggregate``."""
    from atta.train.settings.minibatch import MinibatchSettings
    from atta.train.steps.minibatch import aggregate_of

    (node_type,) = dataset.schema.node_types
    settings = MinibatchSettings(
        model=network.model, layers=network.layers, num_neighbors=tuple(question.num_neighbors),
        batch_size=question.batch_size, aggregate=wanted,
    )  # fmt: skip
    features, vertices = dataset.schema.node_tables[node_type]["x"], dataset.schema.node_counts[node_type]
    return aggregate_of(settings, features, vertices, gpu=gpu) is not None


def _of_batches(sizes: Sizes, servers: int, aggregate: str) -> list[str]:
    """What is known of the rows of mini-batches."""
    batch, said = sizes.mini_batch, f"mini-batches: --aggregate {aggregate} has "
    if batch is None:
        return []
    if batch.summed is None:
        said += "rows of the last hop come as they are"
    else:
        said += (
            f"owners sum the last hop's rows: of {batch.remote:,.0f} remote rows of a batch the bytes of "
            f"{batch.summed:,.0f} cross"
        )
    unknown = "not counted: rows that daemons keep (--cache, --window); `atta simulate --measure` tells their worth"
    return [said, unknown] if servers > 1 else [said]


def _settings(given: tuple[tuple[int, ...], ...]) -> list[Expansion]:
    from atta.samplers.operators.server import ExpansionAware
    from atta.train.planning.sizes import Expansion

    for pair in given:
        if len(pair) != 2:
            raise ConfigError(f"--eas {','.join(map(str, pair))}: give MAX_HOP,FANOUT, such as 1,15")
        ExpansionAware(*pair)  # refuses what is out of range
    return [Expansion(*pair) for pair in given]


def _left_out(options: dict[str, Any], sizes: Sizes) -> list[str]:
    """Why some of what the options ask for is not in the table."""
    layers = options["layers"]
    said = [
        f"--eas {max_hop},{fanout}: left out, it has more hops than the model has layers ({layers})"
        for max_hop, fanout in dict.fromkeys(options["eas"])
        if max_hop > layers
    ]
    if many := [str(n) for n in dict.fromkeys(options["co_batches"]) if n not in sizes.co_batches]:
        said.append(f"--co-batches {','.join(many)}: left out, no server has as many vertices to train on")
    return said


def _command(data: str, chosen: Forecast, network: PlannedModel, trainers: int, aggregate: str) -> str:
    sums = ("--aggregate", aggregate) if chosen.kind == "mini-batch" and aggregate != "auto" else ()
    model = ("--model", network.model, "--layers", str(network.layers), "--hidden", str(network.hidden))
    return shlex.join(("atta", "train", "--data", data, *model, "--trainers", str(trainers), *chosen.options, *sums))


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures as JSON allows them: None instead of infinity."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()}


def _sizes(sizes: Sizes) -> dict[str, Any]:
    plain = asdict(sizes)
    plain["sampled"] = [
        {"max_hop": s.max_hop, "fanout": s.fanout} | asdict(share) for s, share in sizes.sampled.items()
    ]
    plain["co_batches"] = [{"co_batches": n} | asdict(share) for n, share in sizes.co_batches.items()]
    return plain


def _stale_rows(forecast: Forecast) -> tuple[str, str]:
    """MiB of rows per epoch into the busiest server, and their ages; empty where no rows cross."""
    if not forecast.row_bytes:
        return "", ""
    return f"{forecast.row_bytes / 2**20:.3g}", "-".join(
        "any" if age is None else str(age) for age in dict.fromkeys(forecast.ages)
    )


def _print(ranked: list[Forecast], advice: Advice, sizes: Sizes, alpha: float | None) -> None:
    table = Table(
        "strategy", "gradients", "steps", "epochs", "s/epoch", "compute", "internal", "external", "sampling", "disk",
        "redundancy", "MiB of rows", "ages", "memory per trainer", "fits",
        title="Predicted; what fits and is soonest as far as an exact epoch first (epochs times s/epoch)",
    )  # fmt: skip
    for f in ranked:
        figures = (f.seconds, f.compute, f.internal, f.external, f.sampling, f.disk)
        exact, fits = "exact" if f.exact else "stale" if f.risk else "sampled", "yes" if f.fits else "no"
        texts = (f"{value:.3g}" for value in figures)
        table.add_row(
            f.name,
            exact,
            str(f.steps),
            f"{f.epochs:.2g}",
            *texts,
            f"{f.redundancy:.2f}",
            *_stale_rows(f),
            output.size(f.memory),
            fits,
        )
    console = output.printer()
    console.print(table)
    grown = ", ".join(f"{n / max(1.0, sizes.closure_by_hop[0]):.2f}" for n in sizes.closure_by_hop[1:6])
    fit = "" if alpha is None else f" (alpha {alpha:.2f})"
    console.print(f"a server's vertices grow to {grown} times as many within 1, 2, ... hops{fit}")
    if not sizes.whole_split:
        console.print(
            "large graph: METIS saw some of its edges, so rows between trainers of a server are rather too many"
        )
    console.print(" ".join(advice.sentences))
