"""``atta simulate --instances``: how many machines a larger graph needs, which, and what an epoch costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click
from rich.table import Table

from atta.cli.output import DURATION, RATE, SIZE, echo, printer, progress_bars, refuse_given, write_json
from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta.simulate import sizing
from atta.simulate.scenario import Scenario
from atta.wire.parts import read_toml

OTHER_DEGREE = 1.25
"""A mean in-degree that differs by more than this factor from the sample's is warned of."""


class _Count(click.ParamType[int]):
    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse ``1000000000`` or ``1e9``."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number such as 1e9", param, ctx)
        if not 1 <= number <= 1e15 or number != int(number):
            self.fail(f"{value} must be a whole number from 1 to 1e15", param, ctx)
        return int(number)


_COUNT = _Count()
OPTIONS: Mapping[str, tuple[Any, str]] = {
    "vertices": (_COUNT, "Of the larger graph, such as 1e9."),
    "edges": (_COUNT, "Of the larger graph, such as 1e11."),
    "sample": (click.Path(), "Partitioned dataset that the profile was measured on; its manifest tells the memory."),
    "within": (DURATION, "Longest epoch that will do, such as 1h."),
    "cache": (SIZE, "Of each daemon, for rows of others; 1GiB if not given."),
}
"""Type and help of each option besides ``--instances``."""
_REPLACED = ("sweep", "machines", "cores", "link", "threads", "serve_threads")
_GIB = 1 << 30


def sizing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of sizing."""
    for name, (kind, text) in reversed(list(OPTIONS.items())):
        command = click.option(f"--{name}", type=kind, help=text)(command)
    instances = click.option(
        "--instances",
        metavar="FILE",
        help="Kinds of machines with prices: how many of which are needed, and what does an epoch cost?",
    )
    return instances(command)


def check_sizing(instances: str | None) -> None:
    """Refuse options that go with ``--instances`` alone, and those that it replaces."""
    if instances is None:
        refuse_given(OPTIONS, "goes with --instances FILE")
    else:
        refuse_given(_REPLACED, "--instances says that")


def run_sizing(base: Scenario, file: str, given: Mapping[str, Any], json_file: str | None, *, quiet: bool) -> None:
    """Simulate the machines of ``file``, and show what an epoch takes and costs on each."""
    if missing := [f"--{name}" for name in ("vertices", "edges", "sample") if given[name] is None]:
        raise click.UsageError(f"--instances needs {', '.join(missing)}")
    instances = sizing.instances_of(
        read_toml(file), file, size=lambda text: int(_read(SIZE, text)), rate=lambda text: float(_read(RATE, text))
    )
    sample = sizing.sample_bytes(Dataset.described(given["sample"]))
    graph = sizing.GraphCounts(given["vertices"], given["edges"])
    if not quiet:
        _warn(sample, graph, base)
    bounds = {"cache": _GIB if given["cache"] is None else given["cache"], "buffer": base.scheduler.queue_bytes}
    with progress_bars(quiet) as bars:
        shown = bars.add_task("simulating", total=sizing.COUNTS * len(instances))

        def said(name: str, machines: int) -> None:
            bars.update(shown, description=f"{machines} x {name}", advance=1)

        found = list(sizing.choices(base, sample, graph, instances, **bounds, said=said))
    if not found:
        raise ConfigError(f"{file}: no number of these machines has the memory for {graph.vertices:,} vertices")
    chosen = sizing.best(found, given["within"])
    enough = {one.instance.name for one in found}
    too_small = [instance.name for instance in instances if instance.name not in enough]
    if not quiet and json_file != "-":
        _print(found, chosen, given["within"])
        for name in too_small:
            printer().print(f"{name}: no number of these machines has the memory for {graph.vertices:,} vertices")
    document = {
        "schema": 1,
        "graph": asdict(graph),
        "sample": asdict(sample),
        "within_s": given["within"],
        "clusters": [_plain(one) for one in found],
        "too_small": too_small,
        "best": None if chosen is None else {"instance": chosen.instance.name, "machines": chosen.machines},
    }
    write_json(json_file, document)


def _read(kind: click.ParamType[Any], text: str) -> Any:
    try:
        return kind.convert(text, None, None)
    except click.UsageError as error:
        raise ValueError(error.format_message()) from None


def _warn(sample: sizing.SampleBytes, graph: sizing.GraphCounts, base: Scenario) -> None:
    ratio = graph.degree / sample.size.degree
    if not 1 / OTHER_DEGREE < ratio < OTHER_DEGREE:
        echo(
            f"atta: warning: {graph.degree:.0f} edges per vertex, {sample.size.degree:.0f} in the sample: batches are "
            "taken to be as large as the sample's",
            err=True,
        )
    other = replace(base, machines=base.profile.parts + 1, growth=graph.vertices / sample.size.vertices)
    if unknown := other.unknown:
        echo(f"atta: warning: {unknown}", err=True)
    if base.profile.parts == 1:
        echo("atta: warning: the profile is of one partition, so remote vertices are taken to lie at random", err=True)


def _print(found: Sequence[sizing.ClusterChoice], chosen: sizing.ClusterChoice | None, within_s: float | None) -> None:
    shown = Table(title="clusters, simulated")
    for name in ("machines", "of", "GiB each", "seeds/s", "epoch, s", "price of an epoch", "limited by"):
        shown.add_column(name, justify="left" if name in ("of", "limited by") else "right")
    for one in sorted(found, key=lambda one: one.epoch_price):
        out = one.outcome
        shown.add_row(
            str(one.machines), one.instance.name, f"{one.memory / _GIB:,.0f} of {one.instance.memory / _GIB:,.0f}",
            f"{out.seeds_per_s:,.4g}", f"{one.epoch_s:,.4g}", f"{one.epoch_price:,.4g}",
            f"{out.limit}, {out.limit_busy:.0%}",
        )  # fmt: skip
    printer().print(shown)
    limit = "" if within_s is None else f" with an epoch of at most {within_s:,.4g} s"
    if chosen is None:
        fastest = min(one.epoch_s for one in found)
        printer().print(f"none{limit}; the fastest takes {fastest:,.4g} s")
        return
    printer().print(
        f"cheapest{limit}: {chosen.machines} x {chosen.instance.name}, {chosen.epoch_s:,.4g} s and "
        f"{chosen.epoch_price:,.4g} per epoch"
    )


def _plain(one: sizing.ClusterChoice) -> dict[str, Any]:
    return {
        "instance": asdict(one.instance),
        "machines": one.machines,
        "memory_bytes": one.memory,
        "epoch_s": one.epoch_s,
        "epoch_price": one.epoch_price,
        "results": one.outcome.to_dict(),
    }
