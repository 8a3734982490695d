"""Samplers of whole batches, written as programs over ``atta.samplers.requests``: frozen dataclasses of their options.
A result is a function of the batch's seed, epoch and number and of user ids. Everything that an operator of your own
needs can be imported from here (docs/guide/own-parts.md)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from atta.errors import ConfigError, blaming, known_name
from atta.observe.plugins import OpenRegistry
from atta.samplers.operators.base import Batch, Bounds, Operator, Sampled, Subgraph, first_seen, sample_locally
from atta.samplers.operators.layers import FastGcn, Ladies
from atta.samplers.operators.server import Closure, ExpansionAware
from atta.samplers.operators.subgraphs import Induced, SaintEdges, SaintNodes, SaintWalks, Shadow, induced_subgraph
from atta.samplers.operators.walks import PageRank, PinSage, Walks
from atta.samplers.requests import Contains, Degrees, DegreeSums, Expand, Neighbors, Program, Request, Step

__all__ = [
    "OPERATORS",
    "Batch",
    "Bounds",
    "Closure",
    "Contains",
    "DegreeSums",
    "Degrees",
    "Expand",
    "ExpansionAware",
    "FastGcn",
    "Induced",
    "Ladies",
    "Neighbors",
    "Operator",
    "PageRank",
    "PinSage",
    "Program",
    "Request",
    "SaintEdges",
    "SaintNodes",
    "SaintWalks",
    "Sampled",
    "Shadow",
    "Step",
    "Subgraph",
    "Walks",
    "first_seen",
    "induced_subgraph",
    "make_operator",
    "sample_locally",
]

OPERATORS: OpenRegistry[type] = OpenRegistry(
    "operator",
    "atta.operators",
    {
        "shadow": Shadow,
        "saint-nodes": SaintNodes,
        "saint-edges": SaintEdges,
        "saint-walks": SaintWalks,
        "induced": Induced,
        "ladies": Ladies,
        "fastgcn": FastGcn,
        "walks": Walks,
        "pinsage": PinSage,
        "pagerank": PageRank,
        "closure": Closure,
        "expansion-aware": ExpansionAware,
    },
    "a class with run and bounds",
    lambda part: hasattr(part, "run") and hasattr(part, "bounds"),
)
"""By the names that daemons know."""
MAX_OPTIONS = 64 << 10
"""At most this many characters of options are accepted."""


def make_operator(name: str, options: str) -> Operator:
    """The operator ``name`` with ``options``, a JSON object. Raises UnknownNameError: no such operator is installed
    here, or it has no such option; ConfigError: the options are not a JSON object, one is missing or out of range, or
    (PluginError) the operator's package does not load."""
    kind: Any = OPERATORS[name]
    if len(options) > MAX_OPTIONS:
        raise ConfigError(f"operator {name!r}: {len(options)} characters of options, at most {MAX_OPTIONS}")
    with blaming(ConfigError, f"operator {name!r}: its options are not JSON", of=(ValueError, RecursionError)):
        given = json.loads(options or "{}")
    if not isinstance(given, dict):
        raise ConfigError(f"operator {name!r}: its options are not a JSON object")
    _check_options(name, kind, given)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    with blaming(ConfigError, f"operator {name!r}", of=TypeError):
        operator: Operator = kind(**values)
    return operator


def _check_options(name: str, kind: Any, given: Mapping[str, object]) -> None:
    if not dataclasses.is_dataclass(kind):
        return
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for option in given:
        known_name(f"option of operator {name!r}:", option, fields)
    for option, field in fields.items():
        if field.default is field.default_factory is dataclasses.MISSING and option not in given:
            raise ConfigError(f"operator {name!r}: option {option!r} is missing")
