"""What ``--logger`` says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError

__all__ = ["LoggerSpec", "parse_logger"]


@dataclass(frozen=True)
class LoggerSpec:
    """A logger and its arguments.

    Attributes:
        name: ``csv``, or the module and name of a class or function that makes a logger.
        arguments: what it is called with.
    """

    name: str
    arguments: Mapping[str, Any]


def parse_logger(text: str) -> LoggerSpec:
    """Read ``NAME KEY=VALUE KEY=VALUE``. A value is JSON, or else a text. Nothing is imported.

    Raises:
        ConfigError: it has another form.
    """
    try:
        name, *given = shlex.split(text)
    except ValueError:
        name, given = "", []
    if name != "csv" and not ("." in name and all(part.isidentifier() for part in name.split("."))):
        raise ConfigError(f"--logger {text!r}: give csv, or MODULE.CLASS, and KEY=VALUE for each argument")
    arguments = {}
    for entry in given:
        key, equals, value = entry.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--logger {text!r}: {entry!r} is not KEY=VALUE")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return LoggerSpec(name, arguments)
