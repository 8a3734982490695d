"""Options of a command made from the fields of its settings dataclass, and ``--config`` with a TOML file that fills the
same.

A value comes from the command line, else from the file, else from the dataclass, which is the only place with a
default.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from atta.cli.output import DURATION, INTS, NAMES, PARTS, SIZE
from atta.errors import ConfigError, UnknownNameError
from atta.observe.settings import Option, SettingField, settings_of
from atta.wire.parts import AUTO

__all__ = ["config_option", "settings_options"]

Command = TypeVar("Command", bound=Callable[..., Any])
_LIST_TYPES = {int: INTS, str: NAMES}
_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class _AutoOrDuration(click.ParamType[str]):
    """``auto``, or a duration, which becomes its number of seconds as a text."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return AUTO if value == AUTO else f"{DURATION.convert(value, param, ctx):g}"


class _Percent(click.FloatRange):
    """A number in percent, stored as a share: text is divided by 100, numbers (defaults) are shares already."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        return float(super().convert(value, param, ctx)) / 100


def settings_options(
    config: type, *, defaults: Mapping[str, Any] | None = None, groups: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """Decorate a command with one option per field of ``config``; it gets their values by field as the argument
    ``settings``.

    ``defaults``: what the command line gives where it differs from Python, by field. A ``NoOption`` field is left out,
    so the command may give it a value of its own. ``groups``: what help says before the text of some fields, by field.
    """
    settings = [s for s in settings_of(config) if isinstance(s.option, Option)]
    differing, before = defaults or {}, groups or {}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            return command(settings={s.field: values.pop(s.field) for s in settings}, **values)

        decorated: Any = run
        for s in reversed(settings):
            default = differing.get(s.field, s.default)
            required = s.required and s.field not in differing
            decorated = _option(s, default, required, before.get(s.field, ""))(decorated)
        return decorated  # type: ignore[no-any-return]  # click returns what it was given

    return decorate


def _described(setting: SettingField) -> Option:
    assert isinstance(setting.option, Option)
    return setting.option


def _option(setting: SettingField, default: Any, required: bool, group: str) -> Callable[[Any], Any]:
    about, name = _described(setting), f"--{setting.name}"
    common: dict[str, Any] = {"help": _help(about, group)}
    if setting.kind is bool:
        if default:
            return click.option(f"{name}/--no-{setting.name}", setting.field, default=True, show_default=True, **common)
        return click.option(name, setting.field, is_flag=True, default=False, **common)
    kind = _type(setting)
    shown = default not in (None, "") and not about.unset  # one default, in words where there are some
    if shown and kind.name in ("size", "duration", "integers", "names") and default != AUTO:
        default = _text(kind.name, default)  # what help shows
    if not required:
        common["default"] = default
    return click.option(
        name,
        setting.field,
        type=kind,
        required=required,
        show_default=shown,
        metavar=about.metavar,
        **common,
    )


def _help(about: Option, group: str) -> str:
    text = f"{group}: {about.help[:1].lower()}{about.help[1:]}" if group else about.help
    return f"{text}  [default: {about.unset}]" if about.unset else text


def _type(setting: SettingField) -> click.ParamType[Any]:
    about = _described(setting)
    if about.choices:
        return click.Choice(about.choices)
    if setting.listed:
        return _LIST_TYPES[setting.kind]
    if about.unit == "s" and setting.kind is str:
        return _AutoOrDuration()
    if about.unit in ("bytes", "s"):
        quantity = SIZE if about.unit == "bytes" else DURATION
        return quantity.at_least(_text(quantity.name, about.at_least)) if about.at_least else quantity
    if about.unit == "parts":
        return PARTS
    if about.unit == "percent":
        low, high = (None if bound is None else 100 * bound for bound in (about.at_least, about.at_most))
        return _Percent(low, high)
    if about.path:
        return click.Path(file_okay=about.path == "file", dir_okay=about.path == "folder")
    return _plain_type(setting.kind, about)


def _plain_type(kind: type, about: Option) -> click.ParamType[Any]:
    bounded = about.at_least is not None or about.at_most is not None
    if kind is int:
        return click.IntRange(_whole(about.at_least), _whole(about.at_most)) if bounded else click.INT
    if kind is float:
        return click.FloatRange(about.at_least, about.at_most) if bounded else click.FLOAT
    return click.STRING


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _text(kind: str, value: Any) -> str:
    """A default as somebody would type it: ``4GiB``, ``500ms``, ``15,10,5``."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if kind == "size":
        unit, size = next(((u, s) for u, s in _SIZES if value and value % s == 0), ("", 1))
        return f"{value // size}{unit}"
    return f"{1000 * value:g}ms" if 0 < value < 1 else f"{value:g}s"


def config_option(command: Command) -> Command:
    """The option ``--config FILE.toml`` of a command whose other options become the keys of the file."""
    option = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE.toml",
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="TOML file with these options, such as batch-size = 512; the command line wins over it.",
    )
    return option(command)


def _read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None
    options = {_key(p): p for p in ctx.command.params if p.name not in ("config", "help") and p.name}
    found: dict[str, Any] = {}
    for key, value in document.items():
        option = options.get(key.replace("_", "-"))
        if option is None or option.name is None:
            raise UnknownNameError.of(f"key of {path}", key, options)
        if option.name in found:
            raise ConfigError(f"{path}: {key}: is given twice")
        found[option.name] = _value(f"{path}: {key}", value, option, ctx)
    ctx.default_map = {**(ctx.default_map or {}), **found}


def _key(option: click.Parameter) -> str:
    return option.opts[0].lstrip("-")


def _value(where: str, value: Any, option: click.Parameter, ctx: click.Context) -> Any:
    """The value of a key, as the option gives it.

    Raises:
        ConfigError: it has the wrong type, or the option refuses it.
    """
    wanted = _wanted(option.type)
    kinds = wanted[1]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ConfigError(f"{where}: {value!r} is not {wanted[0]}")
    if isinstance(value, list):
        if any(isinstance(entry, bool | list | dict) for entry in value):
            raise ConfigError(f"{where}: {value!r} is not {wanted[0]}")
        value = ",".join(map(str, value))
    try:
        # Option types pass numbers through, for those are defaults; text is checked.
        return option.type.convert(value if isinstance(value, bool) else str(value), option, ctx)
    except click.BadParameter as error:
        raise ConfigError(f"{where}: {error.message}") from None


def _wanted(kind: click.ParamType[Any]) -> tuple[str, tuple[type, ...]]:
    """What a TOML value of the option must be: in words, and the Python types."""
    if kind.name == "boolean":
        return "true or false", (bool,)
    if kind.name in ("size", "duration", "rate"):
        return "a number or a text with a unit", (int, float, str)
    if kind.name in ("integers", "names"):
        return "a list", (list,)
    if kind.name == "partitions":
        return "a partition, a list of them, or a text such as '0-2'", (int, list, str)
    if isinstance(kind, click.types.IntParamType):
        return "a whole number", (int,)
    if isinstance(kind, click.types.FloatParamType):
        return "a number", (int, float)
    return "a text in quotes", (str,)
