"""Option values of ``atta bench strategies``: options of ``atta train`` under a name, and a share of some strategy."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from atta.cli.train import train
from atta.errors import ConfigError

if TYPE_CHECKING:
    from atta_bench.strategies import Variant

_OF_THE_COMMAND = frozenset({"config", "json_file", "quiet", "nnodes", "node_rank", "rdzv_endpoint"})
"""Options of ``atta train`` that are not settings of a run."""


class _VariantType(click.ParamType["Variant"]):
    """``NAME=OPTIONS``, read as ``atta train`` reads them."""

    name = "variant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Variant:
        """Return the name with the options and their values; raises ConfigError, which names the variant."""
        from atta_bench.strategies import Variant

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
