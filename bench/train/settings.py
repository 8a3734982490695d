"""Settings of ``atta bench strategies``, the systems that it knows by name, and its command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import click
from click.core import ParameterSource

from atta.cli.train import train
from atta.errors import ConfigError, UnknownNameError
from atta.observe.settings import NoOption, Option, Setting, check_bounds, settings_of
from atta.train.config import TrainConfig
from atta.train.settings.common import MODELS
from atta.train.strategies import STRATEGIES as TRAINING
from atta_bench.lab.netlab import bits_per_s
from atta_bench.lab.rounds import PEERS
from atta_bench.lab.workload import BatchSize
from atta_bench.train.run import StopPattern
from atta_bench.train.value import PriceList

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_OF_THE_BENCHMARK = frozenset(
    (
        "data",
        "cluster",
        "trainers",
        "epochs",
        "eval_every",
        "patience",
        "seed",
        "device",
        "threads",
        "checkpoint",
        "resume",
    )
)
"""Settings of ``atta train`` that every system of a round shares, or that the benchmark has no use for."""


@dataclass(frozen=True)
class Variant:
    """A name for options of ``atta train``.

    Attributes:
        name: letters, digits, dots, dashes and underscores.
        words: the options as they were typed.
        settings: the same as settings of ``TrainConfig``, by name; those that were typed and no others.
    """

    name: str
    words: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"--variant {self.name!r}: a name has 1 to 32 letters, digits, dots, dashes, underscores")
        if self.name in STRATEGIES or self.name in PEERS:
            raise ConfigError(f"--variant {self.name}: this name is taken, {self.name} is a system of the benchmark")
        for given in sorted(self.settings.keys() & _OF_THE_BENCHMARK):
            raise ConfigError(f"--variant {self.name}: --{given.replace('_', '-')} is the same for all systems")


@dataclass(frozen=True)
class StrategiesBench:
    """Settings of the benchmark. Each server is a host of its own if namespaces are possible.

    Attributes:
        variants: measured beside the strategies, in this order after them.
        external_share: shape the links so that ``share_of`` spends this share of its time in them; None: see ``link``.
        share_of: name of a strategy or variant.
        prices: what machines and workers cost; None: no cost and no value are reported.
        stop: a trainer that is stopped and continued from outside, seeded by the round's seed.
    """

    data: Annotated[str, Option("Partitioned dataset; a server per partition.")]
    servers: Annotated[int, Option("Number of servers.", at_least=1)] = 2
    trainers_per_server: Annotated[int, Option("Trainers of each server.", at_least=1)] = 2
    strategies: Annotated[
        tuple[str, ...],
        Option(
            "Also: preload. full exchanges rows between servers. Ratios are about cooperative, or else about the first."
        ),
    ] = ("cooperative", "full", "minibatch")
    variants: Annotated[tuple[Variant, ...], NoOption("an option of the command")] = ()
    vs: Annotated[tuple[str, ...], Option("Peers to compare with: dgl (needs root and atta[dgl]).", choices=PEERS)] = ()
    model: Annotated[str, Option("As for atta train.", choices=MODELS)] = "sage"
    layers: Annotated[int, Option("As for atta train.", at_least=1)] = 3
    hidden: Annotated[int, Option("As for atta train.", at_least=1)] = 64
    lr: Annotated[float, Option("As for atta train.")] = 0.01
    dropout: Annotated[float, Option("As for atta train.")] = 0.0
    eas: Annotated[tuple[int, ...], Option("Expansion-aware sampling of cooperative.", metavar="MAX_HOP,FANOUT")] = (
        1,
        15,
    )
    co_batches: Annotated[int, Option("Steps per epoch of cooperative.", at_least=1)] = 1
    num_neighbors: Annotated[tuple[int, ...], Option("Fan-outs of mini-batches: one per layer, or one for all.")] = (
        10,
    )
    batch_size: BatchSize = 1024
    external_share: Annotated[float | None, NoOption("an option of the command")] = None
    share_of: Annotated[str, NoOption("an option of the command")] = "full"
    link: Annotated[
        str | None, Option("Rate of the links between servers, e.g. 100mbit; needs root.", metavar="RATE")
    ] = None
    eval_every: Annotated[int | None, Option("Epochs between evaluations.", at_least=1, unset="after the last one")] = (
        None
    )
    target: Annotated[
        float | None, Option("Report the time until an evaluation finds this test accuracy.", at_least=1e-9, at_most=1)
    ] = None
    prices: Annotated[PriceList | None, NoOption("an option of the command")] = None
    stop: Annotated[StopPattern | None, NoOption("an option of the command")] = None
    worker_faults: Annotated[
        str | None,
        Option(
            "Links, delays and deaths of the workers of dorylus, seeded, e.g. "
            "link=20e6,delay=0.005:0.05,kill=0.1,late=0.1:2.",
            metavar="FAULTS",
        ),
    ] = None
    runs: Annotated[int, Option("Rounds; strategies alternate within a round.", at_least=1)] = 3
    warm_up: Annotated[int, Option("Epochs before measuring, per round.", at_least=1)] = 2
    epochs: Annotated[int, Option("Measured per round.", at_least=1)] = 10
    timeout_s: Annotated[float, Option("Per strategy and round.", name="timeout", unit="s")] = 600.0
    seed: Annotated[int, Option("Of the first round; each round takes the next.", at_least=0, at_most=2**63 - 1)] = 0
    work: Annotated[
        str | None, Option("Keep converted graphs here.", metavar="DIR", unset="atta in the user's cache folder")
    ] = None

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in self.strategies:
            if name not in STRATEGIES:
                raise UnknownNameError.of("strategy", name, STRATEGIES)
        if not self.names:
            raise ConfigError("--strategies: name at least one")
        self._check_share()
        if self.link is not None:
            bits_per_s(self.link)
        self._check_faults()
        if self.vs and self.model != "sage":
            raise ConfigError(f"--vs dgl: trains sage here, not {self.model}")
        for name in self.strategies:
            TrainConfig(data=self.data, **self.settings(name))  # type: ignore[arg-type]
        for variant in self.variants:
            self._check_variant(variant)

    def _check_variant(self, variant: Variant) -> None:
        if self.names.count(variant.name) > 1:
            raise ConfigError(f"--variant {variant.name}: this name is given twice")
        try:
            config = TrainConfig(data=self.data, **self.settings(variant.name))  # type: ignore[arg-type]
            config.check_parts(self.servers)
        except ConfigError as error:
            raise ConfigError(f"--variant {variant.name}: {error}") from error

    def _check_faults(self) -> None:
        trainers = self.servers * self.trainers_per_server
        if self.stop is not None and self.stop.trainer >= trainers:
            raise ConfigError(f"--stop: there is no trainer {self.stop.trainer}; there are {trainers}, from 0")
        if self.worker_faults is not None:
            from atta.train.dorylus.worker import WorkerFaults

            if "seed" in self.worker_faults:
                raise ConfigError("--worker-faults: the seed is that of the round (--seed)")
            WorkerFaults.parse(self.worker_faults)

    def _check_share(self) -> None:
        if self.external_share is None:
            return
        if self.link is not None:
            raise ConfigError("--external-share and --link: give one of them, the first finds the second")
        if not 0 < self.external_share < 1:
            raise ConfigError(f"--external-share {self.external_share}: must lie between 0 and 1")
        if self.share_of not in self.names or self.servers == 1:
            raise ConfigError(
                f"--external-share: the share of `{self.share_of}` between servers, so name it and take at least 2 servers"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all strategies and variants."""
        return (*self.strategies, *(variant.name for variant in self.variants))

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """Fan-outs of mini-batches, one per layer."""
        return self.num_neighbors * self.layers if len(self.num_neighbors) == 1 else self.num_neighbors

    def settings(self, name: str) -> dict[str, object]:
        """Settings of ``TrainConfig`` for a strategy or variant."""
        common = {
            **{name: getattr(self, name) for name in ("model", "layers", "hidden", "lr", "dropout")},
            "trainers": self.servers * self.trainers_per_server,
            "epochs": self.warm_up + self.epochs,
            "eval_every": self.eval_every or self.warm_up + self.epochs,
        }
        variant = self._variant(name)
        if variant is None:
            return common | STRATEGIES[name](self)
        return common | self._servers_of(variant) | dict(variant.settings)

    def options(self, name: str, seed: int) -> list[str]:
        """Options of ``atta train`` for a strategy or variant."""
        variant = self._variant(name)
        typed = {} if variant is None else variant.settings
        shared = {k: v for k, v in self.settings(name).items() if k != "trainers" and k not in typed}
        return ["--seed", str(seed), *option_words(shared), *(() if variant is None else variant.words)]

    def _variant(self, name: str) -> Variant | None:
        return next((variant for variant in self.variants if variant.name == name), None)

    def _servers_of(self, variant: Variant) -> dict[str, object]:
        """The size of a server, for variants whose strategy has servers: each host is one."""
        known = (
            "trainers_per_server" in TRAINING[str(variant.settings.get("strategy", TrainConfig.strategy))].own_settings
        )
        return {"trainers_per_server": self.trainers_per_server} if known else {}


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


_OF_THE_COMMAND = frozenset({"config", "json_file", "quiet", "nnodes", "node_rank", "rdzv_endpoint"})
"""Options of ``atta train`` that are not settings of a run."""


class _VariantType(click.ParamType[Variant]):
    """``NAME=OPTIONS``, read as ``atta train`` reads them."""

    name = "variant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Variant:
        """Return the name with the options and their values; raises ConfigError, which names the variant."""
        name, equals, options = str(value).partition("=")
        if not equals:
            raise ConfigError(f"--variant {value}: write NAME='OPTIONS', such as sancus='--strategy sancus:eps=1'")
        try:
            words = shlex.split(options)
            if "--help" in words:
                raise click.UsageError("takes options of a run, not --help")
            found = train.make_context("atta train", list(words))
        except click.ClickException as error:
            raise ConfigError(f"--variant {name}: {' '.join(error.format_message().split())}") from error
        except ValueError as error:
            raise ConfigError(f"--variant {name}: cannot be read as options of atta train: {options}") from error
        typed = {n: v for n, v in found.params.items() if found.get_parameter_source(n) is ParameterSource.COMMANDLINE}
        typed |= typed.pop("strategy", {})
        for given in sorted(typed.keys() & _OF_THE_COMMAND):
            raise ConfigError(
                f"--variant {name}: --{given.removesuffix('_file').replace('_', '-')} is not for variants"
            )
        return Variant(name, tuple(words), typed)


class _ShareType(click.ParamType[tuple[str, float]]):
    """``SHARE`` or ``NAME=SHARE``."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return the name of the strategy (``full`` where none is given) and the number."""
        name, equals, number = str(value).rpartition("=")
        try:
            return (name if equals else "full"), float(number)
        except ValueError:
            self.fail(f"{value!r} is not a share such as 0.65 or exchange=0.8", param, ctx)


class _Read(click.ParamType[Any]):
    """What ``read`` makes of a text; it raises ConfigError or DataError."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what was read."""
        return self._read(value)


VARIANT = _VariantType()
SHARE = _ShareType()
PRICES = _Read("file", PriceList.load)
STOP = _Read("pattern", StopPattern.parse)


def option_words(settings: Mapping[str, Any]) -> list[str]:
    """The options of ``atta train`` that give these settings of ``TrainConfig``."""
    words, own = list[str](), list[str]()
    known = {setting.field: setting for setting in settings_of(TrainConfig)}
    for name, value in settings.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if isinstance(known[name].option, Setting):
            own.append(known[name].given(text))
        elif name != "strategy":
            words += [f"--{known[name].name}"] if value is True else [f"--{known[name].name}", text]
    if own or "strategy" in settings:
        name = settings.get("strategy", TrainConfig.strategy)
        words += ["--strategy", f"{name}:{','.join(own)}" if own else name]
    return words
