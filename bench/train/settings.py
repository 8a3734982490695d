"""Settings of ``atta bench strategies``, the systems that it knows by name, and its command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource

from atta.cli.train import train
from atta.errors import ConfigError, UnknownNameError
from atta.train.config import TrainConfig, option_words
from atta.train.planning.value import PriceList
from atta.train.strategies import STRATEGIES as TRAINING
from atta_bench.lab.netlab import bits_per_s
from atta_bench.lab.rounds import PEERS
from atta_bench.train.run import StopPattern

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_OF_THE_BENCHMARK = frozenset(
    {
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
    }
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
    """Settings of the benchmark.

    Attributes:
        data: partitioned dataset, as many partitions as servers.
        servers, trainers_per_server: numbers of servers and of trainers; each server is a host of its own if namespaces
            are possible.
        strategies: some of ``STRATEGIES``; ratios are about ``cooperative`` or else about the first system.
        variants: measured beside the strategies, in this order after them.
        vs: peers: dgl.
        model, layers, hidden, lr, dropout, seed: as for ``atta train``.
        eas: expansion-aware sampling of ``cooperative``: (hops, new neighbours per vertex).
        co_batches: steps per epoch of ``cooperative``.
        num_neighbors, batch_size: settings of ``minibatch`` and DistDGL.
        external_share: shape the links so that ``share_of`` spends this share of its time in them; None: see ``link``.
        share_of: name of a strategy or variant.
        link: rate of the links, e.g. ``"100mbit"``; None: unshaped, unless there is an ``external_share``.
        eval_every: epochs between evaluations; None: only after the last one.
        target: a test accuracy; the time until it was reached is reported. None: it is not.
        prices: what machines and workers cost; None: no cost and no value are reported.
        stop: a trainer that is stopped and continued from outside, seeded by the round's seed.
        worker_faults: of the workers of dorylus, as ``WorkerFaults`` reads them, seeded likewise; None: none.
        runs: number of rounds; systems alternate within a round, and each round has another seed.
        warm_up, epochs: epochs per round before measuring, and measured epochs.
        timeout_s: a system that takes longer has failed.
        work: folder that keeps graphs converted for peers; None: ``atta`` in the user's cache folder.
    """

    data: str
    servers: int = 2
    trainers_per_server: int = 2
    strategies: tuple[str, ...] = ("cooperative", "full", "minibatch")
    variants: tuple[Variant, ...] = ()
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
    share_of: str = "full"
    link: str | None = None
    eval_every: int | None = None
    target: float | None = None
    prices: PriceList | None = None
    stop: StopPattern | None = None
    worker_faults: str | None = None
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
        if not self.names:
            raise ConfigError("--strategies: name at least one")
        for name in ("servers", "trainers_per_server", "runs", "warm_up", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        self._check_share()
        if self.link is not None:
            bits_per_s(self.link)
        if self.target is not None and not 0 < self.target <= 1:
            raise ConfigError(f"--target {self.target}: must lie between 0 and 1")
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
            from atta.train.dorylus.faults import WorkerFaults

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


VARIANT = _VariantType()
SHARE = _ShareType()
