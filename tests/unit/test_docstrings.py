"""Public methods have a docstring, unless a base class, a protocol or the file of a service says what they do."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from atta.wire.rpc import METHODS
from tests.unit.test_layers import sources

_Function = ast.FunctionDef | ast.AsyncFunctionDef
ELSEWHERE = {"Bounded": "socketserver", "StoreGroup": "torch", "FoundRows": "the docstring of the class"}
"""Classes whose methods are described elsewhere, and where."""


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found = defaultdict(list)
    for tree in sources().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(node)
    return found


@cache
def bases(name: str) -> set[str]:
    """Names of the classes that a class names as its bases, and of theirs."""
    found, left = set(), [name]
    while left:
        for kind in classes().get(left.pop(), ()):
            named = {re.split(r"[.\[]", ast.unparse(base).partition("[")[0])[-1] for base in kind.bases}
            left += named - found
            found |= named
    return found


def methods(kind: ast.ClassDef) -> Iterator[_Function]:
    return (node for node in kind.body if isinstance(node, _Function))


@cache
def documenting() -> dict[str, set[str]]:
    """By name of a method: the classes that say what it does."""
    found = defaultdict(set)
    for name, kinds in classes().items():
        for method in (method for kind in kinds for method in methods(kind)):
            if ast.get_docstring(method):
                found[method.name].add(name)
    return found


@cache
def is_documented(name: str, method: str) -> bool:
    if f"{name}.{method.title().replace('_', '')}" in METHODS:
        return True
    others = documenting()[method] - {name}
    return bool(others & bases(name)) or any({"Protocol", "ABC"} & bases(other) for other in others)


def test_public_methods_say_what_they_do() -> None:
    lacking = []
    for name, kinds in classes().items():
        for method in (method for kind in kinds for method in methods(kind)):
            private = name in ELSEWHERE or name.startswith("_") or method.name.startswith("_")
            setter = any(ast.unparse(how).endswith(".setter") for how in method.decorator_list)
            if not private and not setter and not ast.get_docstring(method) and not is_documented(name, method.name):
                lacking.append(f"{name}.{method.name}")
    assert lacking == []
