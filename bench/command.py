"""``atta bench``: its group, the options that benchmarks share, and handing out their reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from atta.cli.figures import Report, hand_out
from atta.cli.output import NAMES, json_option, plot_option, quiet_option, teller

if TYPE_CHECKING:
    from atta_bench.lab.workload import BenchWorkload

Run = Callable[[Any, Callable[[str], None]], Report]
"""Runs a benchmark with these settings; the second argument is told what happens."""

COUNT = click.IntRange(1)
SEED = click.IntRange(0, 2**63 - 1)
BATCH = click.IntRange(1, 1 << 20)
"""Seeds of a batch; daemons make no larger ones."""
THREADS = click.IntRange(1, 1024)
"""Threads of a process, as many as a daemon takes."""


# Options of every benchmark that runs beside a peer.
vs_option = click.option("--vs", type=NAMES, default=(), help="Peers to compare with: dgl (needs root and atta[dgl]).")
split_option = click.option("--split", default="train", show_default=True, help="Split whose vertices are the seeds.")
netns_option = click.option(
    "--netns",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="A network namespace per partition, which needs root; auto: where possible.",
)
link_option = click.option("--link", metavar="RATE", help="Rate of the links between namespaces, e.g. 1gbit.")
work_option = click.option(
    "--work", metavar="DIR", help="Keep converted graphs here  [default: atta in the user's cache folder]."
)


def workload(options: dict[str, Any], **more: Any) -> BenchWorkload:
    """The workload that ``options`` describe, which leave the mapping."""
    from atta_bench.lab.workload import BenchWorkload

    return BenchWorkload(**{f.name: options.pop(f.name) for f in fields(BenchWorkload) if f.name in options}, **more)


def measured(drawn: str) -> Callable[[Callable[..., tuple[Run, Any]]], Callable[..., None]]:
    """Make a command of a function that takes its options and returns a benchmark's ``run`` and settings.

    The command gets ``--plot``, ``--json`` and ``--quiet``, tells on standard error what it does, and hands out the
    report. ``drawn`` says what ``--plot`` draws.
    """

    def command_of(prepare: Callable[..., tuple[Run, Any]]) -> Callable[..., None]:
        @wraps(prepare)
        def command(*, json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
            run, settings = prepare(**options)
            hand_out(run(settings, teller(quiet)), json_file, plot, quiet=quiet)

        made: Callable[..., None] = plot_option(drawn)(json_option(quiet_option(command)))
        return made

    return command_of


_COMMANDS = {
    "loader": "loader.benchmark:loader",
    "scale": "scale.benchmark:scale",
    "scheduler": "loader.scheduler:scheduler",
    "train": "train.benchmark:train",
    "strategies": "train.strategies:strategies",
    "sampling": "pieces.sampling:sampling",
    "partition": "pieces.partition:partition_",
    "kv": "pieces.kv:kv",
    "cache": "pieces.cache:cache_",
}
"""By name: the module of a command in this package, and what it is called there."""


class _Benchmarks(click.Group):
    """Imports a benchmark when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, command = _COMMANDS[name].partition(":")
        found: click.Command = getattr(import_module(f"atta_bench.{module}"), command)
        return found


@click.group(cls=_Benchmarks)
def bench() -> None:
    """Measure Atta, physical limits and peers in one run.

    Example: atta bench loader --data data/demo-2p --num-neighbors 15,10,5 --json loader.json
    """
