"""Every setting of a training run: one frozen object for the command line, Python and the trainer processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from atta.errors import ConfigError, UnknownNameError
from atta.observe.settings import NoOption, Setting, check_bounds, settings_of
from atta.train.settings.common import (
    DEEP_MODELS,
    MODEL_OPTION,
    MODELS,
    TYPED_MODELS,
    TrainSettings,
    check_places,
    parse_early_stop,
    parse_logger,
)
from atta.train.settings.minibatch import UNTABLED, MinibatchSettings
from atta.train.settings.servers import (
    AsyncDigestSettings,
    BudgetSettings,
    CooperativeSettings,
    DorylusSettings,
    HistoricalSettings,
    PipeGcnSettings,
    SancusSettings,
    SatSettings,
)
from atta.train.strategies import STRATEGIES, strategies_with
from atta.wire.clusterfile import listening_at
from atta.wire.parts import AUTO

_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("dropout", lambda value: 0 <= value < 1, "must lie in [0, 1)"),
    ("lr", lambda value: 0 < value < math.inf, "must be positive"),
    ("weight_decay", lambda value: 0 <= value < math.inf, "must not be negative"),
    ("clip_grad_norm", lambda value: 0 < value < math.inf, "must be positive"),
    ("lr_factor", lambda value: 0 < value < 1, "must lie between 0 and 1"),
    ("seed", lambda value: 0 <= value < 1 << 63, "must be 0 to 2**63 - 1"),
)


@dataclass(frozen=True)
class TrainConfig(
    CooperativeSettings,
    BudgetSettings,
    SancusSettings,
    PipeGcnSettings,
    SatSettings,
    AsyncDigestSettings,
    HistoricalSettings,
    DorylusSettings,
    MinibatchSettings,
):
    """The settings of a run, with those of all strategies. Raises ConfigError for settings that make no sense. A
    strategy sees only ``own``: the settings that every run has, and its own. ``more``: settings of a plug-in's strategy that
    no other has, by field."""

    model: Annotated[str, MODEL_OPTION] = AUTO
    more: Annotated[dict[str, Any], NoOption("they are written behind the strategy's name")] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if (self.data is None) == (self.cluster is None):
            raise ConfigError("give either --data (a partitioned dataset) or --cluster (running daemons)")
        self._check_belonging()
        self._check_model()
        if self.task in UNTABLED and not STRATEGIES[self.strategy].links:
            able = [name for name, strategy in STRATEGIES.items() if strategy.links]
            raise ConfigError(f"--task {self.task}: goes with --strategy {' or '.join(able)}, not {self.strategy}")
        STRATEGIES[self.strategy].check(self.own)
        if self.metrics:
            listening_at("--metrics", self.metrics)
        for name, holds, said in _RANGES:
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise ConfigError(f"--{name.replace('_', '-')} {value}: {said}")
        self._check_practice()

    def _check_practice(self) -> None:
        if self.resume and self.overwrite:
            raise ConfigError("give either --resume (go on with a run) or --overwrite (replace it)")
        for option in ("resume", "overwrite", "checkpoint_steps", "max_restarts"):
            if getattr(self, option) and self.checkpoint is None:
                raise ConfigError(f"--{option.replace('_', '-')} needs --checkpoint DIR")
        if self.lr_schedule not in ("step", "plateau"):
            for name in ("lr_every", "lr_factor"):
                if (value := getattr(self, name)) != getattr(TrainSettings, name):
                    raise ConfigError(f"--{name.replace('_', '-')} {value}: goes with --lr-schedule step or plateau")
        if self.early_stop is not None:
            if self.patience is not None:
                raise ConfigError("give either --patience (the task's first figure) or --early-stop METRIC:PATIENCE")
            parse_early_stop(self.early_stop)
        for logger in self.logger:
            parse_logger(logger)

    def _check_belonging(self) -> None:
        own = STRATEGIES[self.strategy].own_settings
        for setting in settings_of(type(self)):
            others = strategies_with(setting.field)
            if others and setting.field not in own and getattr(self, setting.field) != setting.default:
                name = setting.name if isinstance(setting.option, Setting) else f"--{setting.name}"
                raise ConfigError(f"{name}: belongs to --strategy {' or '.join(others)}, not {self.strategy}")

    def _check_model(self) -> None:
        if self.model in ("gat", "hetero-gat", "hgt") and self.hidden % self.heads:
            raise ConfigError(
                f"--hidden {self.hidden}: {self.model} divides it among --heads {self.heads}, which does not go"
            )
        able = strategies_with("target")
        if self.model in TYPED_MODELS and "target" not in STRATEGIES[self.strategy].own_settings:
            raise ConfigError(f"--model {self.model}: belongs to --strategy {' or '.join(able)}, not {self.strategy}")
        if self.checkpoint_layers and self.model not in DEEP_MODELS:
            raise ConfigError(f"--checkpoint-layers: only for --model {' and '.join(DEEP_MODELS)}, not {self.model}")

    @property
    def own(self) -> TrainSettings:
        """The settings of the chosen strategy: an instance of the class that its record names."""
        kind, shared = STRATEGIES[self.strategy].settings, vars(self)
        names = [setting.name for setting in dataclasses.fields(kind)]
        for name in self.more:
            if name not in names or name in shared:
                raise UnknownNameError.of("setting", name, {*names, *shared})
        given = {**self.more, **{name: shared[name] for name in names if name in shared}}
        if self.model == AUTO:  # before the graph is known
            typed = self.target or self.num_neighbors_by_type or self.embed or self.embedding_lr is not None
            given["model"] = TYPED_MODELS[0] if typed else MODELS[0]
        made = kind(**given)
        check_bounds(made)
        return made

    def check_named(self) -> None:
        """Refuse loggers and paths that are not there, before torch is loaded. Raises ConfigError, DataError."""
        from atta.train.reports.loggers import check_logger

        for logger in self.logger:
            check_logger(logger)
        weights = None if self.class_weights in ("none", "balanced") else self.class_weights
        check_places(self.data, self.cluster, init_from=self.init_from, class_weights=weights)

    def check_parts(self, parts: int) -> None:
        """Raise ConfigError if the settings do not fit the dataset's number of partitions."""
        STRATEGIES[self.strategy].check_parts(self.own, parts)

    @property
    def evaluation(self) -> str:
        """What validation and test vertices are predicted from, for people."""
        return STRATEGIES[self.strategy].evaluation(self.own)

    def to_dict(self) -> dict[str, Any]:
        """Every setting by name, as plain JSON values and tuples."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> TrainConfig:
        """The inverse of ``to_dict``, also after a round trip through JSON, and from settings of ``own`` that stand beside
        the others. UnknownNameError for an unknown setting."""
        flat = {**settings, **settings.get("more", {})}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in flat.items() if k != "more"}
        known = {f.name for f in dataclasses.fields(cls)}
        more = {name: values.pop(name) for name in [*values] if name not in known}
        return cls(**values, more=more)
