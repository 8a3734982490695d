"""One meaning per word, and public methods say what they do: unless a base class, a protocol or the file of a service does."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from atta.wire.rpc import METHODS
from tests.unit.test_layers import module_of, sources

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/reference/glossary.md"
SOURCES = [
    path
    for folder in ("platform/atta", "samplers", "partition")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.stem.endswith("_pb2")
]
ENTRY = re.compile(r"- \*\*(.+?)\*\*: (.+)\. \*([^*]+)\*")

SERVER_MEANS_A_MACHINE = (
    "platform/atta/train/",
    "platform/atta/client/loaders/server.py",
    "platform/atta/cli/train.py",
    "platform/atta/cli/strategy.py",
    "platform/atta/cli/graphs/data.py",  # atta inspect --trainers-per-server
    "samplers/local/server.py",
    "samplers/local/predict.py",
    "samplers/operators/server.py",
    "samplers/seed_plan.py",
)
SERVER_OF_GRPC = {"server", "add_insecure_port", "ServerInterceptor", "ServicerContext", "server_pb2", "_server"}
SERVER_NAMES = {
    "ServerLoader", "server_subgraph",  # atta exports these of GraNNDis' servers
}  # fmt: skip
GROWTH_MEANS_VERTICES = (
    "samplers/",
    "platform/atta/daemon/engine/",
    "platform/atta/scheduler/events.py",
    "platform/atta/simulate/",
    "platform/atta/train/planning/",  # D^alpha of the paper: counts vertices, too
)
FANCIFUL = {"troupe", "lesson", "outlets", "outlet"}
FANCIFUL_MODULES = {"beside"}
SAME_NAME_ALLOWED: dict[str, str] = {
    # class name: why several classes have it
    "DistEmbedding": "atta.compat.dgl has DGL's",
    "DistTensor": "atta.compat.dgl has DGL's",
    "Uniform": "atta.compat.dgl has DGL's negative sampler",
}


def entries() -> list[tuple[str, str, str]]:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("- ")]
    found = [ENTRY.fullmatch(line) for line in lines]
    assert [line for line, match in zip(lines, found, strict=True) if match is None] == []
    return [match.groups() for match in found if match is not None]  # type: ignore[misc]


def tree(path: Path) -> ast.Module:
    return sources()[module_of(path)]


def bound(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


@cache
def identifiers(path: Path) -> list[tuple[str, int]]:
    return [*bound(path)]


@cache
def words(name: str) -> set[str]:
    """``_ServerGraph`` and ``server_graph`` consist of server and graph."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def using(unwanted: set[str], allowed: tuple[str, ...] = (), names_allowed: set[str] | None = None) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in SOURCES
        if not str(path.relative_to(ROOT)).startswith(allowed)
        for name, line in identifiers(path)
        if words(name) & unwanted and name not in (names_allowed or ())
    ]


def test_the_glossary_is_sorted_and_names_each_term_once() -> None:
    terms = [term for term, _, _ in entries()]
    assert 60 <= len(terms) <= 100
    assert [(a, b) for a, b in pairwise(terms) if a.lower() >= b.lower()] == []
    of_code = {"seed", "fan-out", "hop", "block", "core vertex", "HALO vertex", "owner", "DAG", "task", "lane", "slot"}
    assert {*of_code, "session"} <= set(terms)
    assert [term for term, meaning, source in entries() if len(meaning) < 10 or not source.strip()] == []


def test_words_have_one_meaning_and_fanciful_ones_are_gone() -> None:
    assert using({"server", "servers"}, SERVER_MEANS_A_MACHINE, SERVER_OF_GRPC | SERVER_NAMES) == []
    assert using({"growth", "growths"}, GROWTH_MEANS_VERTICES) == []
    assert using(FANCIFUL) == []
    assert [str(path.relative_to(ROOT)) for path in SOURCES if path.stem in FANCIFUL | FANCIFUL_MODULES] == []
    stems = [path.stem for path in SOURCES]
    assert {name: stems.count(name) for name in ("report", "seeds") if stems.count(name) > 1} == {}


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    doubles = {name: places for name, places in homes.items() if len(places) > 1 and name not in SAME_NAME_ALLOWED}
    assert doubles == {}
    assert [name for name in SAME_NAME_ALLOWED if len(homes[name]) < 2] == []


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
