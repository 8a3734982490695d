"""Fields of a settings dataclass that describe themselves, so that help, command line and TOML files say the same.

A field is annotated with an ``Option``. Its default is in its usual place:

    @dataclass(frozen=True)
    class DaemonConfig:
        data: Annotated[str, Option("Partitioned dataset.")]
        lease_s: Annotated[float, Option("How long a silent session lives.", name="lease", unit="s", at_least=0.5)] = 60.0
        peers: Annotated[Mapping[int, str], NoOption("read from the cluster file")] = field(default_factory=dict)

``atta.cli.options`` makes the options of a command from it. ``check_bounds`` refuses the same values in Python.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from atta.errors import ConfigError
from atta.observe.plugins import unknown_name

SIZES = {"": 1.0, "b": 1.0, **{f"{p}b": 1000.0**i for i, p in enumerate("kmgt", 1)}}
SIZES |= {f"{p}ib": 1024.0**i for i, p in enumerate("kmgt", 1)}
"""Units of memory, in bytes."""
_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-zA-Zµ]*)")

Unit = Literal["", "bytes", "s", "ms", "rate", "percent", "parts"]


@dataclass(frozen=True)
class Option:
    """How a field appears on the command line and in TOML files.

    Attributes:
        help: one sentence for people.
        name: name of the option, without dashes; empty: the field's name.
        also: another name of it; of a switch that is on: the name that turns it off.
        unit: what the field's number counts. ``bytes``, ``s``, ``ms`` and ``rate`` (bytes per second) accept units in
            text (``4GiB``, ``2ms``, ``1gbit``). A field that is a text has ``auto``, or the number of seconds.
            ``percent`` is given in percent and stored as a share: 50 is 0.5. ``parts``: partitions, such as ``0-2``.
        choices: the only values allowed, or the registry that has them; of each entry where the field is a tuple.
        at_least, at_most: bounds of the field's value; of each entry where the field is a tuple.
        too_many: why there is an upper bound, in parentheses at the end of the message.
        metavar: what help shows in place of the type.
        unset: what None means; help shows it as the default.
        path: the value names a ``file`` to read or a ``folder``.
        repeated: the option may be given several times, each with an entry of the field, which is a tuple.
    """

    help: str
    _: KW_ONLY
    name: str = ""
    also: str = ""
    unit: Unit = ""
    choices: Collection[str] = ()
    at_least: float | None = None
    at_most: float | None = None
    too_many: str = ""
    metavar: str | None = None
    unset: str = ""
    path: Literal["", "file", "folder"] = ""
    repeated: bool = False


@dataclass(frozen=True)
class Setting(Option):
    """A field without an option of its own: it is written as ``NAME=VALUE`` behind the choice that it belongs to."""


@dataclass(frozen=True)
class NoOption:
    """Marks a field that a command does not offer as an option; ``reason`` says why."""

    reason: str


@dataclass(frozen=True)
class SettingField:
    """One field of a settings dataclass. ``kind``: type of the value, or of each entry of a tuple (``listed``).
    ``default`` is None if the field may be None or has no default; ``required`` tells which."""

    field: str
    option: Option | NoOption
    kind: type
    listed: bool
    default: Any
    required: bool

    @property
    def name(self) -> str:
        """Name of the option without dashes at its beginning: ``batch-size``."""
        given = self.option.name if isinstance(self.option, Option) else ""
        return given or self.field.replace("_", "-")

    def given(self, value: object) -> str:
        """How somebody gives the field this value: ``--batch-size 512``, or ``sync-every=10`` for a ``Setting``."""
        return f"{self.name}={value}" if isinstance(self.option, Setting) else f"--{self.name} {value}"


def settings_of(config: Any) -> tuple[SettingField, ...]:
    """The fields of a settings dataclass, in order. Raises TypeError for one without ``Option`` or ``NoOption``."""
    return _settings_of(config)


@functools.cache
def _settings_of(config: Any) -> tuple[SettingField, ...]:
    hints = typing.get_type_hints(config, include_extras=True)
    return tuple(_setting(config, field, hints[field.name]) for field in dataclasses.fields(config))


def _setting(config: type, field: dataclasses.Field[Any], hint: Any) -> SettingField:
    described = [d for d in getattr(hint, "__metadata__", ()) if isinstance(d, Option | NoOption)]
    if not described:
        raise TypeError(f"{config.__name__}.{field.name}: annotate it with Option or NoOption")
    kind, listed = _kind(typing.get_args(hint)[0])
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    default = None if field.default is dataclasses.MISSING else field.default
    return SettingField(field.name, described[0], kind, listed, default, required)


def _kind(hint: Any) -> tuple[type, bool]:
    """The type of ``int``, ``int | None``, ``tuple[int, ...]``: (int, whether it is a tuple)."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return typing.get_origin(hint) or hint, False


def check_bounds(config: object) -> None:
    """Refuse values of a settings dataclass that are outside the bounds or choices of their options. Raises
    UnknownNameError: a value is not one of the choices; names the nearest choice; ConfigError: a number is too small or
    too large."""
    for setting in settings_of(type(config)):
        option, value = setting.option, getattr(config, setting.field)
        if isinstance(option, NoOption) or value is None:
            continue
        for entry in value if setting.listed else (value,):
            if option.choices and entry not in option.choices:
                raise unknown_name(setting.field.replace("_", " "), entry, option.choices)
            if entry != entry:  # noqa: PLR0124 - NaN is within no bounds
                raise ConfigError(f"{setting.given(entry)}: must be a finite number")
            if option.at_least is not None and entry < option.at_least:
                raise ConfigError(f"{setting.given(entry)}: must be at least {option.at_least}")
            if option.at_most is not None and entry > option.at_most:
                reason = f" ({option.too_many})" if option.too_many else ""
                raise ConfigError(f"{setting.given(entry)}: must be at most {option.at_most}{reason}")


def named_settings(text: str) -> tuple[str, dict[str, str]]:
    """Read ``NAME`` or ``NAME:KEY=VALUE,KEY=VALUE``: the name, and the values by key. A comma without ``KEY=`` behind it
    belongs to a value. Raises ConfigError."""
    name, colon, given = text.partition(":")
    found: dict[str, str] = {}
    for entry in re.split(r",(?=\s*[\w-]+=)", given) if colon else ():
        key, equals, value = entry.strip().partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{entry!r} is not KEY=VALUE: write it as {name}:KEY=VALUE,KEY=VALUE")
        if key in found:
            raise ConfigError(f"{key}: is given twice")
        found[key] = value
    return name, found


def amount_of(text: str, units: Mapping[str, float]) -> float | None:
    """A text such as ``4GiB`` in the unit whose factor is 1; None if it is no number with one of ``units``."""
    found = _QUANTITY.fullmatch(text.strip())
    scale = units.get(found[2].lower()) if found else None
    if found is None or scale is None or not math.isfinite(amount := float(found[1]) * scale):
        return None
    return amount
