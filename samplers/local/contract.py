"""The sampling contract: what this build draws from a small graph that is built in, and its operators, as digests by
name. Daemons with equal contracts draw in the same way, so any of them may go on where another has stopped. It depends
on no data and no machine: only on the code."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from atta.errors import PluginError
from atta.observe.plugins import Plugin
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.sampler import LocalSampler
from atta.samplers.methods import METHODS, Method
from atta.samplers.operators import OPERATORS, make_operator, sample_locally

VERTICES, EDGES, SEEDS = 97, 960, 16
HOPS = (4, 3)
_GOLDEN = {
    "saint-nodes": '{"budget": 20}',
    "saint-edges": '{"budget": 20}',
    "saint-walks": '{"length": 3}',
    "ladies": '{"layers": [12, 12]}',
}
"""Operators of which the contract has a sample: together they use all kinds of draws."""


@cache
def sampling_contract() -> dict[str, str]:
    """By ``draws of``, ``operator`` or ``neighbour method`` NAME: a digest, or the release of the package that brings it.
    Takes tens of milliseconds, once per process, most of them for ``own_operators``."""
    plugins = [(registry.kind, plugin) for registry in (OPERATORS, METHODS) for plugin in registry.plugins().values()]
    announced = {f"{kind} {plugin.name}": _told(plugin) for kind, plugin in plugins}
    return {name: _digest(found) for name, found in _drawn()} | own_operators() | announced


def _drawn() -> Iterator[tuple[str, list[Any]]]:
    graph = golden_graph()
    seeds, times = np.arange(SEEDS) * 5, np.arange(SEEDS) * 3 + 20
    for method in Method:
        sampler, batches = LocalSampler(graph, method=method), list[Any]()
        for replace in (False, True) if method.may_replace else (False,):
            given = times if method.temporal else None
            batches.append(sampler.sample(seeds, HOPS, input_time=given, seed=7, epoch=1, batch=2, replace=replace))
        if method.temporal:
            timed = dataclasses.replace(graph, node_time=np.arange(VERTICES) * 17 % 53)
            batches.append(LocalSampler(timed, method=method).sample(seeds, HOPS, seed=7, epoch=1, batch=2))
        yield f"draws of {method.value}", batches
    for name, options in _GOLDEN.items():
        yield (
            f"draws of {name}",
            [sample_locally(graph, make_operator(name, options), seeds, seed=7, epoch=1, number=2)],
        )


@cache
def own_operators() -> dict[str, str]:
    """Operators of Atta, and of which code. Their source text is read and parsed, the same in each process of a build."""
    return {f"operator {name}": _code(operator) for name, operator in OPERATORS.items()}


def _told(plugin: Plugin) -> str:
    """The release of the package that brings a plug-in, which is not loaded; the code of a module that is named."""
    if plugin.package:
        return f"{plugin.place} of {plugin.package}"
    with contextlib.suppress(PluginError):  # whoever asks for it is told
        plugin.load()
        return _code(sys.modules[plugin.place.partition(":")[0]])
    return str(plugin)


def _code(part: Any) -> str:
    try:
        return hashlib.sha256(code_alone(inspect.getsource(part)).encode()).hexdigest()[:16]
    except OSError:
        return str(getattr(part, "__qualname__", part))


def code_alone(source: str) -> str:
    """Source text without what changes no draw: comments, docstrings and layout."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def golden_graph() -> LocalGraph:
    """A graph with hubs, isolated vertices and parallel edges, by arithmetic alone: no random numbers of a library."""
    at = np.arange(EDGES, dtype=np.int64)
    src = (at * 31 + at * at % 89) % VERTICES
    dst = (at * at * 7 + at * 3) % VERTICES % (1 + at % VERTICES)
    keys = (np.arange(VERTICES, dtype=np.int64) * 7919 + 13) % 10007
    weight = (1 + at % 11).astype(np.float32)
    return LocalGraph.from_edges(src, dst, VERTICES, keys=keys, weight=weight, time=at % 71)


def _digest(batches: list[Any]) -> str:
    found = hashlib.sha256()
    for field, value in (
        (field, getattr(batch, field.name)) for batch in batches for field in dataclasses.fields(batch)
    ):
        if isinstance(value, np.ndarray):
            found.update(f"{field.name} {value.shape}".encode() + value.astype(np.int64).tobytes())
        elif isinstance(value, list):
            found.update(f"{field.name} {value}".encode())
    return found.hexdigest()[:16]
