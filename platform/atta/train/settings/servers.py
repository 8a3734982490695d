"""Settings of the strategies whose trainers form servers: all but ``minibatch``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from atta.errors import ConfigError
from atta.observe.settings import Option, Setting, check_bounds, settings_of
from atta.train.settings.common import BATCH_SIZE, DEFAULT_BATCH, PROCESSES, TrainSettings

if TYPE_CHECKING:
    from atta.samplers.local.server import Rule


EVALS = ("trained", "exact")


@dataclass(frozen=True)
class ServerSettings(TrainSettings):
    """What strategies have whose trainers form servers."""

    trainers_per_server: Annotated[
        int | None, Option("Consecutive trainers that share a subgraph.", unset="all", **PROCESSES)
    ] = None

    @property
    def server_size(self) -> int:
        """Trainers per server."""
        return self.trainers_per_server or self.trainers

    @property
    def servers(self) -> int:
        """How many servers the trainers form."""
        return self.trainers // self.server_size

    @property
    def steps(self) -> int:
        """Steps of each trainer, where an epoch is one."""
        return self.epochs


@dataclass(frozen=True)
class FullSettings(ServerSettings):
    """What strategies have whose trainers share all that their server's vertices depend on (GraNNDis)."""

    eas: Annotated[
        tuple[int, int] | None,
        Setting(
            "Expansion-aware sampling outside a server's own vertices: hops and new neighbours per vertex, such as 1,15.",
            metavar="MAX_HOP,FANOUT",
            unset="exact closure",
        ),
    ] = None
    resample_every: Annotated[int, Setting("Epochs after which eas draws anew; 0 = never.", at_least=0)] = 0
    eval: Annotated[
        str,
        Setting(
            "What val and test are predicted from: trained = as in training, exact = the whole graph, and rows travel.",
            choices=EVALS,
        ),
    ] = "trained"

    def rule(self, epoch: int) -> Rule:
        """Which vertices join a server's own in this epoch; raises ConfigError for ``eas`` out of range."""
        from atta.samplers.operators.server import Closure, ExpansionAware

        if self.eas is None:
            return Closure(self.depth)
        max_hop, fanout = self.eas
        return ExpansionAware(max_hop, fanout, resample=epoch // self.resample_every if self.resample_every else 0)


@dataclass(frozen=True)
class CooperativeSettings(FullSettings):
    """What the strategy with co-batches has."""

    co_batches: Annotated[
        int | None, Setting("Steps per epoch; with 1 the subgraph stays on the device.", at_least=1)
    ] = None
    memory: Annotated[
        int | None, Setting("Memory per trainer, from which co-batches follows.", unit="bytes", at_least=1)
    ] = None


ROWS = ("halo", "all")
ACROSS = ("servers", "trainers")
MESSAGE_CODECS = ("none", "bf16", "fp16", "int8", "delta-int8")


@dataclass(frozen=True)
class ExchangeSettings(ServerSettings):
    """What strategies have whose servers read each other's rows."""

    rows: Annotated[
        str, Setting("Which rows trainers send: those that others read, or all, as CAGNET does.", choices=ROWS)
    ] = "halo"
    codec: Annotated[
        str,
        Setting("How rows and gradients travel; delta-int8: differences to what readers have.", choices=MESSAGE_CODECS),
    ] = "none"
    send_features: Annotated[bool, Setting("Send features in every epoch, as CAGNET does; else readers keep them.")] = (
        False
    )


@dataclass(frozen=True)
class BudgetSettings(ExchangeSettings):
    """What ``exchange`` has."""

    budget: Annotated[
        float,
        Option(
            "exchange: points of accuracy that cheaper rows may cost; 0: rows are exact.",
            name="accuracy-loss",
            metavar="POINTS",
            at_least=0,
            at_most=100,
        ),
    ] = 0.0


@dataclass(frozen=True)
class StaleSettings(ExchangeSettings):
    """What strategies have whose trainers read stale rows."""

    stale_across: Annotated[
        str, Setting("Whose rows may be stale: those of other servers, or of all other trainers.", choices=ACROSS)
    ] = "servers"


BOUNDS = ("epoch", "adaptive", "gap")
SKIPS = ("rows", "gradients")
PHASES = ("early", "paper")
PREDICTORS = ("lstm", "linear")
HISTORY_CODECS = ("none", "bf16", "polyline:P")
_MOST_VERSIONS = 64
WARMUP = Setting("First epochs, in which rows are sent every time.", unset="half of the epochs, at most 50", at_least=0)
SYNC_EVERY = Setting(
    "Epochs between synchronisations of rows.", unset="a fifth of the epochs, from 1 to 10", at_least=1
)
TRAIN_EVERY = Setting("Epochs between steps of the predictor.", unset="a fifth of the epochs, from 1 to 10", at_least=1)
FOLLOWING: Mapping[str, Callable[[int], int]] = {
    "warmup": lambda steps: min(50, steps // 2),
    "sync_every": lambda steps: min(10, max(1, steps // 5)),
    "train_every": lambda steps: min(10, max(1, steps // 5)),
}
"""Settings that follow the number of steps where nobody gives them."""


@dataclass(frozen=True)
class SancusOptions:
    """What SANCUS asks for (Peng et al., VLDB 2022)."""

    bound: Annotated[
        str,
        Setting(
            "What is bounded: the age of copies, their age with how far a slow owner lags, or the change.",
            choices=BOUNDS,
        ),
    ] = "epoch"
    skip: Annotated[
        str, Setting("What is not sent in every epoch: rows, or their gradients in place of them.", choices=SKIPS)
    ] = "rows"
    eps: Annotated[
        float | None,
        Setting("The bound: epochs, or with bound=gap the mean change of a number.", unset="1, or 0.03", at_least=0),
    ] = None
    warmup: Annotated[int | None, WARMUP] = None
    clip_grad: Annotated[
        float | None,
        Setting("Clip each trainer's gradient to this norm divided by the root of their number.", unset="never"),
    ] = None


@dataclass(frozen=True)
class PipeGcnOptions:
    """What PipeGCN asks for (Wan et al., ICLR 2022)."""

    smooth: Annotated[
        float | None, Setting("Read a moving mean of rows and gradients with this decay, such as 0.95.", unset="off")
    ] = None


@dataclass(frozen=True)
class DigestOptions:
    """What DIGEST asks for (Chai et al., 2022)."""

    sync_every: Annotated[int | None, SYNC_EVERY] = None
    phase: Annotated[
        str,
        Setting("When rows are pulled: early, the epoch after a push; paper, the one before the next.", choices=PHASES),
    ] = "early"
    grad_sync_every: Annotated[
        int | None,
        Setting("Epochs between synchronisations of gradients.", unset="gradients end at the cut", at_least=1),
    ] = None
    normalize_rows: Annotated[bool, Setting("Divide rows by their length before they are pushed.")] = False
    average: Annotated[str, Setting("What trainers average after an epoch.", choices=("gradients", "weights"))] = (
        "gradients"
    )
    loss: Annotated[
        str, Setting("Mean over all training vertices, or over each trainer's.", choices=("global", "local"))
    ] = "global"


@dataclass(frozen=True)
class SatOptions(DigestOptions):
    """What SAT asks for (Zhang et al., 2024)."""

    window: Annotated[
        int, Setting("Synchronisations that a prediction is made from.", at_least=2, at_most=_MOST_VERSIONS)
    ] = 5
    predictor: Annotated[
        str, Setting("What predicts rows: an LSTM with two GCN layers, or linear extrapolation.", choices=PREDICTORS)
    ] = "lstm"
    train_every: Annotated[int | None, TRAIN_EVERY] = None
    guard: Annotated[
        float,
        Setting(
            "Read predictions where they were at most this part as far from newly pulled rows as older rows.",
            at_least=0,
        ),
    ] = 0.5
    history_codec: Annotated[str, Setting(f"How past rows are kept: {', '.join(HISTORY_CODECS)}.")] = "none"


@dataclass(frozen=True)
class AsyncOptions:
    """What training without barriers asks for."""

    max_delay: Annotated[
        int | None,
        Setting("Steps that a trainer may be ahead of the slowest.", unset="no bound", at_least=0, at_most=1 << 20),
    ] = None
    lr_scale: Annotated[
        float | None, Setting("Multiply the learning rate by this.", unset="1 divided by the number of trainers")
    ] = None
    max_updates: Annotated[
        int | None, Setting("Stop after this many updates.", unset="epochs times trainers", at_least=1, at_most=1 << 40)
    ] = None
    eval_interval: Annotated[
        float, Setting("Time between copies of the weights, which are evaluated after the run.", unit="s")
    ] = 10.0
    lease: Annotated[float, Setting("How long a silent trainer may hold up others at most.", unit="s")] = 30.0
    restarts: Annotated[
        int | None,
        Setting(
            "How often a trainer that died is started again.",
            unset="3, or 0 with --trainers-per-server above 1",
            at_least=0,
            at_most=1000,
        ),
    ] = None


@dataclass(frozen=True)
class SancusSettings(StaleSettings, SancusOptions):
    """What ``sancus`` has."""


@dataclass(frozen=True)
class PipeGcnSettings(StaleSettings, PipeGcnOptions):
    """What ``pipegcn`` has."""


@dataclass(frozen=True)
class DigestSettings(StaleSettings, DigestOptions):
    """What ``digest`` has."""


@dataclass(frozen=True)
class SatSettings(DigestSettings, SatOptions):
    """What ``sat`` has."""


@dataclass(frozen=True)
class AsyncDigestSettings(DigestSettings, AsyncOptions):
    """What ``digest-async`` has."""

    @property
    def steps(self) -> int:
        """Steps of each trainer, if all are as fast."""
        return self.epochs if self.max_updates is None else -(-self.max_updates // self.trainers)


Given = TypeVar("Given", bound=ServerSettings)


def followed(settings: Given) -> Given:
    """The settings with a value for each of ``FOLLOWING`` that they have."""
    unset = [name for name in FOLLOWING if name in vars(settings) and getattr(settings, name) is None]
    values: dict[str, Any] = {name: FOLLOWING[name](settings.steps) for name in unset}
    return replace(settings, **values)


def check_options(options: Any) -> None:
    """Refuse options outside their bounds or choices, and numbers that are not finite. Raises ConfigError: names the
    option; one line."""
    check_bounds(options)
    for setting in settings_of(type(options)):
        value = getattr(options, setting.field)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{setting.given(value)}: must be a finite number")


HISTORICAL_MODELS = ("sage", "gcn")
"""Models whose layers only add up rows of neighbours."""


@dataclass(frozen=True)
class HistoricalSettings(StaleSettings):
    """What ``historical`` has."""

    batch_size: Annotated[int, BATCH_SIZE] = DEFAULT_BATCH
    fan_out: Annotated[
        int, Setting("In-neighbours per vertex and hop whose rows a batch computes; -1: all.", at_least=-1)
    ] = 5
    max_age: Annotated[
        int, Setting("Epochs after which a stale row is computed anew; 0: none is read.", at_least=0)
    ] = 1
    momentum: Annotated[float, Setting("How far a stale row moves towards a new one; 1: it is replaced.")] = 1.0


AUTO = "auto"
PIPELINE_MODES = ("nopipe", "pipe", "async")
DORYLUS_MODELS = ("gcn", "sage", "gat")
"""Models that can be split into gather and apply."""
MOST_WORKERS = 256


@dataclass(frozen=True)
class DorylusSettings(ServerSettings):
    """What ``dorylus`` has (Thorpe et al., OSDI 2021)."""

    intervals: Annotated[
        int, Setting("Intervals that each trainer divides its vertices into.", at_least=1, at_most=4096)
    ] = 16
    mode: Annotated[
        str | None,
        Setting(
            "What overlaps: nothing; everything between two layers; or all, and rows may be of earlier epochs.",
            choices=PIPELINE_MODES,
            unset="pipe; async with a staleness",
        ),
    ] = None
    staleness: Annotated[
        int, Setting("Epochs that an interval may be ahead of the slowest, with mode=async.", at_least=0, at_most=64)
    ] = 0
    workers: Annotated[
        str, Setting("Most worker processes of a trainer; auto: 4 per core, shared among trainers.", metavar="auto|N")
    ] = AUTO
    worker_timeout: Annotated[
        str,
        Setting(
            "After how long another worker does a task too; auto: five times the mean, at least 500ms.",
            metavar="auto|DURATION",
            unit="s",
        ),
    ] = AUTO
    max_relaunch: Annotated[
        int, Setting("How often a task is done again before the run fails.", at_least=0, at_most=1000)
    ] = 5
    interval_trace: Annotated[
        str | None, Setting("Each trainer writes what its intervals did into this folder, for Perfetto.", metavar="DIR")
    ] = None

    @property
    def most_workers(self) -> int | None:
        """``workers`` as a number; None: auto. Raises ConfigError for anything else."""
        if self.workers == AUTO:
            return None
        if not (self.workers.isascii() and self.workers.isdecimal() and 1 <= int(self.workers) <= MOST_WORKERS):
            raise ConfigError(f"workers={self.workers}: must be {AUTO}, or a number from 1 to {MOST_WORKERS}")
        return int(self.workers)

    @property
    def timeout_s(self) -> float | None:
        """``worker_timeout`` as a number; None: auto. Raises ConfigError for anything else."""
        if self.worker_timeout == AUTO:
            return None
        try:
            found = float(self.worker_timeout)
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            raise ConfigError(f"worker-timeout={self.worker_timeout}: must be {AUTO}, or seconds above 0")
        return found

    @property
    def pipeline(self) -> str:
        """``mode``, or the one that the staleness asks for."""
        return self.mode or ("async" if self.staleness else "pipe")
