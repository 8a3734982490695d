"""``atta bench``: its group, and how a benchmark's settings become a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from atta.cli.figures import Report, hand_out
from atta.cli.options import command, settings_options
from atta.cli.output import json_option, plot_option, quiet_option, teller

GROUPS = {
    "What is measured": "data dataset graph nodes edges features method dependency num-neighbors batch-size batch-sizes "
    "frontier deliver split seeds rows dim batch parts variants policies depths think",
    "Systems": "vs only against caches cache-share cache-rank threads hidden lr seed work",
    "How long": "runs rounds warm-up epochs seconds batches repeats profiled filled timeout",
    "Network": "netns link rtt",
    "Output": "plot json quiet help",
}
"""Options of benchmarks by heading. Each benchmark has some of them."""


def measured(
    config: Any, run: Callable[..., Report], drawn: str, *, groups: Mapping[str, str] = GROUPS, **about: Any
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a benchmark. Its options are the fields of ``config``.

    It also gets ``--plot``, ``--json`` and ``--quiet``, tells on standard error what it does, and hands out the report.

    Args:
        config: the class of its settings.
        run: runs it with such settings; the second argument is told what happens.
        drawn: what ``--plot`` draws.
        groups: options by heading.
        about: further arguments of ``click.Command``.
    """

    def command_of(described: Callable[..., None]) -> click.Command:
        def measure(*, settings: dict[str, Any], json_file: str | None, plot: str | None, quiet: bool) -> None:
            hand_out(run(config(**settings), teller(quiet)), json_file, plot, quiet=quiet)

        decorated = settings_options(config)(plot_option(drawn)(json_option(quiet_option(measure))))
        name = described.__name__.rstrip("_")
        made: click.Command = command(name, groups, help=described.__doc__, **about)(decorated)
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
