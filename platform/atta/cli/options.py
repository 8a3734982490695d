"""Options of commands: made from the fields of a settings dataclass, shown in groups, and filled by ``--config
FILE.toml``. A value comes from the command line, else from the file, else from the dataclass, which is the only place
with a default."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import click

from atta.cli.output import DURATION, INTS, MILLISECONDS, NAMES, NUMBERS, PARTS, RATE, SIZE, Parsed, tell
from atta.errors import ConfigError, UnknownNameError, blaming, known_name
from atta.observe.plugins import OpenRegistry, unknown_name, use
from atta.observe.settings import Option, Setting, SettingField, named_settings, settings_of
from atta.wire.parts import AUTO, read_toml

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_QUANTITIES = {"bytes": SIZE, "s": DURATION, "ms": MILLISECONDS, "rate": RATE}
_LIST_TYPES = {int: INTS, float: NUMBERS, str: NAMES}
_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_LEFT = 24
"""Columns of help that options take; a longer one has a line of its own."""
_SILENT: tuple[Any, ...] = (None, "", (), {})
"""Defaults that help does not show."""
_METAVARS = {
    "integer": "N", "integer range": "N", "float": "X", "float range": "X", "integers": "N,N", "numbers": "X,X",
    "choice": "NAME", "names": "A,B",
    "duration": "TIME", "partitions": "PARTS", "directory": "DIR", "picture": "FILE",
}  # fmt: skip


def _auto_or_duration(value: Any) -> str:
    """``auto``, or a duration, which becomes its number of seconds as a text."""
    return AUTO if value == AUTO else f"{DURATION.convert(value, None, None):g}"


class _Percent(click.FloatRange):
    """A number in percent, stored as a share: text is divided by 100, numbers (defaults) are shares already."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return value if isinstance(value, float) else float(super().convert(value, param, ctx)) / 100


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups, in a line or two each. ``groups``: the names of options by
    heading, most used first. Options that no group names come last; commands may share groups, and each has some of the
    options."""

    def __init__(self, *about: Any, groups: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*about, **more)
        self.groups = {heading: names.split() for heading, names in (groups or {}).items()}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per group."""
        options = {_key(p): p for p in self.get_params(ctx) if isinstance(p, click.Option) and not p.hidden}
        grouped = {name for names in self.groups.values() for name in names}
        rest = [name for name in options if name not in grouped]
        for heading, names in {**self.groups, "Other options" if grouped else "Options": rest}.items():
            if rows := [_row(options[name], ctx) for name in names if name in options]:
                with formatter.section(heading):
                    _write_rows(formatter, rows)


class CommandGroup(click.Group):
    """A group of such commands."""

    command_class = GroupedCommand


def command(
    name: str | None = None, groups: Mapping[str, str] | None = None, cls: Any = GroupedCommand, **about: Any
) -> Callable[[Any], Any]:
    """Make a ``GroupedCommand`` of a function, as ``click.command`` does."""
    return click.command(name, cls=cls, groups=groups, **about)


class NameOf(click.Choice[str]):
    """A name of a registry, a plug-in's among them. Help shows those that come with Atta. ``settings``: it may have some
    behind it, as ``named_settings`` reads them."""

    def __init__(self, registry: OpenRegistry[Any], *, settings: bool = False) -> None:
        super().__init__(sorted(registry))
        self.registry, self.settings = registry, settings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take the text, or say which names there are."""
        try:
            name = named_settings(value)[0] if self.settings else value
            if name in self.registry:
                return str(value)
            self.fail(str(self.registry.unknown(name)), param, ctx)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _used(text: str) -> str:
    """``text``, whose part is known from now on. A value of a file of options is read twice."""
    tell(f"loading {text}")
    use(text)
    return text


def plugin_option(command: Decorated) -> Decorated:
    """Give a command ``--plugin``: what it names is known before all other options are read."""
    about: dict[str, Any] = {"type": Parsed("plugin", _used), "multiple": True, "is_eager": True, "expose_value": False}
    text = "Use a part of your own that is not installed."
    return click.option("--plugin", metavar="MODULE:OBJECT", help=text, **about)(command)


class StrategyHelp(NamedTuple):
    """What a command says of a strategy: a sentence, and the dataclass of its settings."""

    sentence: str
    settings: type


class StrategyCommand(GroupedCommand):
    """A command with ``--strategy NAME:SETTING=VALUE,...``, whose help lists the settings of a strategy that is named.
    ``strategies``: for each a ``StrategyHelp``, or a record with as much."""

    def __init__(self, *about: Any, strategies: Mapping[str, Any], **more: Any) -> None:
        super().__init__(*about, **more)
        self.strategies = strategies

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the strategy for help, and tell where a setting belongs."""
        try:
            given = self.make_parser(ctx).parse_args(list(args))[0]
        except click.NoSuchOption as error:
            name = error.option_name.removeprefix("--")
            if not (owners := self._owners(name)):
                raise
            said = f"{error.option_name}: is a setting of {' or '.join(owners)}: --strategy {owners[0]}:{name}=VALUE"
            raise click.UsageError(said, ctx) from None
        ctx.meta[__name__] = str(given.get("strategy", "")).partition(":")[0]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the command, or that of the strategy that is named."""
        name = str(ctx.meta.get(__name__, ""))
        if not name or name not in self.strategies:
            super().format_help(ctx, formatter)
            return
        sentence, settings = self.strategies[name].sentence, inner_settings(self.strategies[name].settings)
        formatter.write_usage(
            ctx.command_path, f"--strategy {name}{':SETTING=VALUE,...' if settings else ''} [OPTIONS]"
        )
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"{sentence[:1].upper()}{sentence[1:]}.")
        if settings:
            with formatter.section("Settings"):
                _write_rows(formatter, _rows_of_settings(settings, ctx))
        formatter.write_paragraph()
        formatter.write_text(f"{'All' if settings else 'No settings but the'} options: {ctx.command_path} --help")

    def read_strategy(self, text: str) -> dict[str, Any]:
        """The values of ``NAME:SETTING=VALUE,...`` by field; the name is that of ``strategy``. Raises ConfigError."""
        name, colon, given = text.partition(":")
        if name not in self.strategies:
            raise unknown_name("strategy", name, self.strategies)
        options = {_key(option): f"is an option: --{_key(option)}" for option in self.params}
        others = {
            setting.name: f"belongs to --strategy {' or '.join(self._owners(setting.name))}, not {name}"
            for record in self.strategies.values()
            for setting in inner_settings(record.settings)
        }
        own = inner_settings(self.strategies[name].settings)
        return {"strategy": name, **(_parse_settings(given, own, {**options, **others}) if colon else {})}

    def _owners(self, setting: str) -> list[str]:
        known = {name: inner_settings(record.settings) for name, record in self.strategies.items()}
        return [name for name, own in known.items() if any(s.name == setting for s in own)]


class _StrategyType(click.ParamType[dict[str, Any]]):
    name = "strategy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        command = None if ctx is None else ctx.command
        assert isinstance(command, StrategyCommand)
        try:
            return command.read_strategy(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


STRATEGY = _StrategyType()
"""Of the option ``--strategy`` of a ``StrategyCommand`` -> dict, values by field."""


def _write_rows(formatter: click.HelpFormatter, rows: Iterable[tuple[str, str]]) -> None:
    formatter.write_dl([(left.ljust(_LEFT), right) for left, right in rows], col_max=_LEFT)


def _rows_of_settings(settings: Iterable[SettingField], ctx: click.Context) -> list[tuple[str, str]]:
    """What help says of settings that are written as ``NAME=VALUE``."""
    options = (click.Option(names, **about) for names, about in map(_option, settings))
    rows = (_row(option, ctx) for option in options)
    return [(left.removeprefix("--").replace(" ", "=", 1), right) for left, right in rows]


def _row(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """What help says of an option: its names, and its text with the default."""
    key, text = _key(option), (option.help or "").removesuffix(".")
    if option.is_flag:
        off = "".join(option.secondary_opts)
        names = f"--[no-]{key}" if off == f"--no-{key}" else f"--{key} / {off}" if off else f"--{key}"
        values = (("yes", "no") if "[" in names else (key, off.lstrip("-"))) if off else ("", "")
        default = values[0 if option.default is True else 1]
    else:
        choices = tuple(option.type.choices) if isinstance(option.type, click.Choice) else ()
        short = "|".join(choices) if len("|".join(choices)) < _LEFT - len(key) - 2 else ""
        metavar = option.metavar or short or _METAVARS.get(option.type.name, option.type.name.upper())
        if not (short or all(choice in text for choice in choices)):
            text = f"{text}: {', '.join(choices)}" if text else ", ".join(choices)
        names = f"--{key} {metavar}"
        value = option.to_info_dict()["default"]
        default = "required" if option.required else "" if value in _SILENT else str(value)
    default = option.show_default if isinstance(option.show_default, str) else default
    others = [name for name in option.opts if name != f"--{key}"]
    return ", ".join((names, *others)), " ".join(filter(None, (text, f"[{default}]" if default else "")))


def inner_settings(config: type) -> list[SettingField]:
    """The fields of ``config`` that have no option of their own."""
    return [s for s in settings_of(config) if isinstance(s.option, Setting)]


def settings_options(config: type) -> Callable[[Decorated], Decorated]:
    """Decorate a command with one option per field of ``config``; it gets their values by field as the argument
    ``settings``. A ``NoOption`` or ``Setting`` field is left out, so the command may give it a value of its own."""
    settings = [s for s in settings_of(config) if isinstance(s.option, Option) and not isinstance(s.option, Setting)]

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            return command(settings={s.field: values.pop(s.field) for s in settings}, **values)

        decorated: Any = run
        for setting in reversed(settings):
            names, about = _option(setting)
            decorated = click.option(*names, **about)(decorated)
        return decorated  # type: ignore[no-any-return]  # click returns what it was given

    return decorate


def _described(setting: SettingField) -> Option:
    assert isinstance(setting.option, Option)
    return setting.option


def _option(setting: SettingField) -> tuple[list[str], dict[str, Any]]:
    about, name, default = _described(setting), f"--{setting.name}", setting.default
    if setting.kind is bool:
        names = [f"{name}/--{about.also or f'no-{setting.name}'}" if default else name, setting.field]
        return names, {"help": about.help, "default": default, "is_flag": True}
    kind = click.STRING if about.repeated else _type(setting)
    if default not in (None, (), AUTO) and (setting.listed or kind.name in ("size", "duration")):
        default = _text(about.unit, default)  # what help shows
    common: dict[str, Any] = {
        "help": about.help,
        "type": kind,
        "metavar": about.metavar,
        "show_default": about.unset or None,
    }
    names = [name, *([f"--{about.also}"] if about.also else []), setting.field]
    common |= {"multiple": True} if about.repeated else {}
    return names, {**common, **({"required": True} if setting.required else {"default": default})}


def _parse_settings(text: str, settings: Iterable[SettingField], elsewhere: Mapping[str, str]) -> dict[str, Any]:
    """Read ``NAME=VALUE,NAME=VALUE``: the values by field. The name alone turns a setting on that is on or off.
    ``elsewhere``: errors for names that belong somewhere else. Raises UnknownNameError, ConfigError."""
    known, found = {s.name: s for s in settings}, dict[str, str]()
    name = ""
    for entry in text.split(","):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals and found and known[name].listed:
            found[name] += f",{key}"  # 1,15 is one value
            continue
        name = key.replace("_", "-")
        if name not in known and name in elsewhere:
            raise ConfigError(f"{name}: {elsewhere[name]}")
        known_name("setting", name, known)
        if not equals and known[name].kind is not bool:
            raise ConfigError(f"{name}: write it as {name}=VALUE")
        if name in found:
            raise ConfigError(f"{name}: is given twice")
        found[name] = value if equals else "true"
    return {known[name].field: _read_setting(known[name], value) for name, value in found.items()}


def _read_setting(setting: SettingField, text: str) -> Any:
    with blaming(ConfigError, setting.given(text), of=click.BadParameter):
        return (click.BOOL if setting.kind is bool else _type(setting)).convert(text, None, None)


def _type(setting: SettingField) -> click.ParamType[Any]:
    about = _described(setting)
    if setting.listed:
        return _LIST_TYPES[setting.kind]
    if isinstance(about.choices, OpenRegistry):
        return NameOf(about.choices)
    if about.choices:
        return click.Choice(tuple(about.choices))
    if about.unit == "s" and setting.kind is str:
        return Parsed("duration", _auto_or_duration)
    if about.unit in _QUANTITIES:
        quantity = _QUANTITIES[about.unit]
        return quantity.at_least(_text(about.unit, about.at_least)) if about.at_least else quantity
    if about.unit == "parts":
        return PARTS
    if about.unit == "percent":
        low, high = (None if bound is None else 100 * bound for bound in (about.at_least, about.at_most))
        return _Percent(low, high)
    if about.path:
        return click.Path(file_okay=about.path == "file", dir_okay=about.path == "folder")
    bounded = about.at_least is not None or about.at_most is not None
    if setting.kind is int:
        return click.IntRange(_whole(about.at_least), _whole(about.at_most)) if bounded else click.INT
    if setting.kind is float:
        return click.FloatRange(about.at_least, about.at_most) if bounded else click.FLOAT
    return click.STRING


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _text(unit: str, value: Any) -> str:
    """A default as somebody would type it: ``4GiB``, ``500ms``, ``15,10,5``."""
    if isinstance(value, tuple):
        return ",".join(f"{entry:g}" if isinstance(entry, float) else str(entry) for entry in value)
    if unit == "bytes":
        name, size = next(((u, s) for u, s in _SIZES if value and value % s == 0), ("", 1))
        return f"{value // size}{name}"
    if unit == "ms":
        value /= 1000
    return f"{1000 * value:g}ms" if 0 < value < 1 else f"{value:g}s"


def config_option(command: Decorated) -> Decorated:
    """The option ``--config FILE.toml`` of a command whose other options become the keys of the file."""
    option = click.option(
        "--config",
        type=click.Path(dir_okay=False),
        metavar="FILE.toml",
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="TOML file with these options; command line wins.",
    )
    return option(command)


def _read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    document = read_toml(path)
    options = {_key(p): p for p in ctx.command.params if p.name not in ("config", "help") and p.name}
    found: dict[str, Any] = {}
    # Others may name what it brings.
    for key, value in sorted(document.items(), key=lambda entry: entry[0] != "plugin"):
        option = options.get(key.replace("_", "-"))
        if option is None or option.name is None:
            raise UnknownNameError.of(f"key of {path}", key, options)
        if option.name in found:
            raise ConfigError(f"{path}: {key}: is given twice")
        found[option.name] = _value(f"{path}: {key}", value, option, ctx)
    ctx.default_map = {**(ctx.default_map or {}), **found}


def _key(option: click.Parameter) -> str:
    """Name of an option in help, in groups and in files."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def _value(where: str, value: Any, option: click.Parameter, ctx: click.Context) -> Any:
    """The value of a key, as the option gives it. Raises ConfigError: wrong type, or the option refuses it."""
    if option.multiple and isinstance(value, list):
        once = click.Option([f"--{_key(option)}"], type=option.type)
        return [_value(where, entry, once, ctx) for entry in value]
    wanted = ("a list", ()) if option.multiple else _wanted(option.type)
    kinds = wanted[1]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ConfigError(f"{where}: {value!r} is not {wanted[0]}")
    if isinstance(value, list):
        if any(isinstance(entry, bool | list | dict) for entry in value):
            raise ConfigError(f"{where}: {value!r} is not {wanted[0]}")
        value = ",".join(map(str, value))
    with blaming(ConfigError, where, of=click.BadParameter):
        # Option types pass numbers through, for those are defaults; text is checked.
        return option.type.convert(value if isinstance(value, bool) else str(value), option, ctx)


def _wanted(kind: click.ParamType[Any]) -> tuple[str, tuple[type, ...]]:
    """What a TOML value of the option must be: in words, and the Python types."""
    if kind.name == "boolean":
        return "true or false", (bool,)
    if kind.name in ("size", "duration", "rate"):
        return "a number or a text with a unit", (int, float, str)
    if kind.name in ("integers", "numbers", "names"):
        return "a list", (list,)
    if kind.name == "partitions":
        return "a partition, a list of them, or a text such as '0-2'", (int, list, str)
    if isinstance(kind, click.types.IntParamType):
        return "a whole number", (int,)
    if isinstance(kind, click.types.FloatParamType):
        return "a number", (int, float)
    return "a text in quotes", (str,)
