"""``atta train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from atta.cli.options import (
    GroupedCommand,
    config_option,
    parse_settings,
    rows_of_settings,
    settings_options,
    write_rows,
)
from atta.cli.output import NODE_RANK, check_folder, echo, json_option, quiet_option, write_json
from atta.errors import ConfigError, UnknownNameError
from atta.observe.extras import need
from atta.observe.settings import Setting, SettingField, settings_of
from atta.train.config import TrainConfig
from atta.train.strategies import STRATEGIES, strategies_with

if TYPE_CHECKING:
    from atta.train import TrainReport

__all__ = ["COMMANDS", "OPTION_GROUPS"]

OPTION_GROUPS = {
    "Data": "data cluster task target class-weights regression-loss edge-type reverse-type edge-split split-by",
    "Model": "model layers hidden heads dropout decoder checkpoint-layers",
    "Optimisation": "epochs batch-size lr weight-decay lr-schedule lr-every lr-factor embedding-lr clip-grad-norm "
    "accumulate precision compile eval-every patience early-stop seed",
    "Sampling": "strategy num-neighbors num-neighbors-by-type eval-num-neighbors eval-batch-size seed-policy negatives "
    "negatives-per-edge walk-length eval-negatives evaluate-by",
    "Cluster": "trainers trainers-per-server device threads nnodes node-rank rdzv-endpoint rank-timeout",
    "Checkpoints": "checkpoint resume checkpoint-every checkpoint-steps max-restarts init-from",
    "Output": "json quiet logger metrics config help",
}


class _StrategyType(click.ParamType[dict[str, Any]]):
    """``NAME:SETTING=VALUE,...``: the strategy and its settings, by field of ``TrainConfig``."""

    name = "strategy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        name, colon, given = str(value).partition(":")
        try:
            if name not in STRATEGIES:
                raise UnknownNameError.of("strategy", name, STRATEGIES)
            settings = parse_settings(given, _settings_of(name), _settings_elsewhere(name)) if colon else {}
            return {"strategy": name, **settings}
        except ConfigError as error:
            self.fail(f"{value}: {error}" if colon else str(error), param, ctx)


def _settings_of(strategy: str) -> list[SettingField]:
    return [s for s in settings_of(STRATEGIES[strategy].settings) if isinstance(s.option, Setting)]


def _settings_elsewhere(strategy: str) -> dict[str, str]:
    """Where the settings are given that ``strategy`` does not have."""
    said = {}
    for setting in settings_of(TrainConfig):
        owners = f"belongs to --strategy {' or '.join(strategies_with(setting.field))}, not {strategy}"
        said[setting.name] = owners if isinstance(setting.option, Setting) else f"is an option: --{setting.name}"
    return said


class _TrainCommand(GroupedCommand):
    """``atta train``, whose help tells the settings of a strategy if one is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As ``click.Command.parse_args``; keeps the strategy for help, and tells where a setting belongs."""
        try:
            given = self.make_parser(ctx).parse_args(list(args))[0]
        except click.NoSuchOption as error:
            owners = [
                name for name in STRATEGIES if any(f"--{s.name}" == error.option_name for s in _settings_of(name))
            ]
            if owners:
                setting = error.option_name.removeprefix("--")
                raise click.UsageError(
                    f"{error.option_name}: is a setting of {' or '.join(owners)}: --strategy {owners[0]}:{setting}=..."
                ) from None
            raise
        ctx.meta[__name__] = str(given.get("strategy", "")).partition(":")[0]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the command, or that of the strategy that is named."""
        name = ctx.meta.get(__name__)
        if name in STRATEGIES:
            _write_strategy(name, formatter)
        else:
            super().format_help(ctx, formatter)


def _write_strategy(name: str, formatter: click.HelpFormatter) -> None:
    strategy, settings = STRATEGIES[name], _settings_of(name)
    formatter.write_usage("atta train", f"--strategy {name}{':SETTING=VALUE,...' if settings else ''} [OPTIONS]")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(f"{strategy.sentence[:1].upper()}{strategy.sentence[1:]}.")
    if settings:
        with formatter.section("Settings"):
            write_rows(formatter, rows_of_settings(settings))
    own = [f"--{s.name}" for s in settings_of(strategy.settings)
           if s.field in strategy.own_settings and not isinstance(s.option, Setting)]  # fmt: skip
    with formatter.section("Options that not every strategy has"):
        formatter.write_text(", ".join(own))
    formatter.write_paragraph()
    formatter.write_text("All options: atta train --help")


@click.command(cls=_TrainCommand, groups=OPTION_GROUPS)
@config_option
@settings_options(TrainConfig)
@click.option(
    "--strategy",
    type=_StrategyType(),
    default=TrainConfig.strategy,
    show_default=True,
    metavar="NAME[:SETTING=VALUE,...]",
    help=f"{', '.join(STRATEGIES)}; atta train --strategy NAME --help says more.",
)
@click.option("--nnodes", type=int, default=1, show_default=True, help="Machines; give this command on each.")
@click.option(
    "--node-rank",
    type=NODE_RANK,
    default="0",
    show_default=True,
    help="Which; auto: by Kubernetes, Slurm, host name.",
)
@click.option("--rdzv-endpoint", metavar="HOST:PORT", help="Where machines meet, on machine 0.")
@json_option
@quiet_option
def train(
    *,
    settings: dict[str, Any],
    strategy: dict[str, Any],
    json_file: str | None,
    quiet: bool,
    nnodes: int,
    node_rank: int,
    rdzv_endpoint: str | None,
) -> None:
    """Train a model on sampled mini-batches, or on whole servers.

    \b
    Example: atta train --data data/demo-2p --trainers 2 --num-neighbors 15,10,5
             atta train --data data/demo-2p --strategy full:eas=1,15 --trainers 4
             atta train --cluster cluster.toml --trainers 4 --nnodes 2 --node-rank 0 \\
                 --rdzv-endpoint 10.0.0.1:29400
    """
    need("training", "torch", "torch_geometric")
    from atta.train import Nodes, fit

    # An engine that numbers the machines also starts daemons and trainers in any order.
    placed = click.get_current_context().get_parameter_source("node_rank") is not ParameterSource.DEFAULT
    nodes = Nodes(nnodes, node_rank, rdzv_endpoint, wait=placed)
    if settings["checkpoint"] and node_rank == 0:
        check_folder("--checkpoint", settings["checkpoint"])
    report = fit(TrainConfig(**settings, **strategy, verbose=not quiet), nodes)
    if not quiet and json_file != "-":
        _print(report)
    write_json(json_file, report.to_json())


def _print(report: TrainReport) -> None:
    best = report.best
    found = best.metric(report.watched.metric)
    if report.config.task == "classes" and best.test_accuracy is not None:
        validated = "" if best.val_accuracy is None else f"val {best.val_accuracy:.4f}, "
        which = "best" if validated else "last"
        echo(f"{which} epoch {best.epoch}: {validated}test accuracy {best.test_accuracy:.4f}")
    elif found is not None:
        tested = [f"{name[5:]} {value:.4f}" for name, value in best.metrics.items() if name.startswith("test_")]
        test = f"; test {', '.join(tested)}" if tested else ""
        echo(f"best epoch {best.epoch}: {report.watched.metric} {found:.4f}{test}")
    rates = sorted(e.seeds_per_s for e in report.epochs)
    counted = STRATEGIES[report.config.strategy].counted
    echo(f"median throughput {rates[len(rates) // 2]:,.0f} {counted}/s over {len(rates)} epochs")


COMMANDS = [train]
