"""One meaning per word: the glossary is in order, and the sources use its words."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

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
SAME_FILE_ALLOWED = {"__init__", "__main__"}


def entries() -> list[tuple[str, str, str]]:
    """(term, meaning, source) of every line of the list."""
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("- ")]
    found = [ENTRY.fullmatch(line) for line in lines]
    assert [line for line, match in zip(lines, found, strict=True) if match is None] == []
    return [match.groups() for match in found if match is not None]  # type: ignore[misc]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def identifiers(path: Path) -> Iterator[tuple[str, int]]:
    """Every name that a source defines or binds, and its line."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def words(name: str) -> set[str]:
    """``_ServerGraph`` and ``server_graph`` consist of server and graph."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def using(word: str, allowed: tuple[str, ...], names_allowed: frozenset[str] | set[str] = frozenset()) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in SOURCES
        if not str(path.relative_to(ROOT)).startswith(allowed)
        for name, line in identifiers(path)
        if name not in names_allowed and words(name) & {word, word + "s"}
    ]


def test_the_glossary_is_sorted_and_names_each_term_once() -> None:
    terms = [term for term, _, _ in entries()]
    assert 60 <= len(terms) <= 100
    assert [(a, b) for a, b in pairwise(terms) if a.lower() >= b.lower()] == []


def test_every_term_has_a_meaning_and_a_source() -> None:
    assert [term for term, meaning, source in entries() if len(meaning) < 10 or not source.strip()] == []


@pytest.mark.parametrize(
    "term",
    [
        "seed",
        "fan-out",
        "hop",
        "block",
        "core vertex",
        "HALO vertex",
        "owner",
        "DAG",
        "task",
        "lane",
        "session",
        "slot",
    ],
)
def test_the_words_of_the_code_are_explained(term: str) -> None:
    assert term in {name for name, _, _ in entries()}


def test_server_means_a_machine_of_cooperative_training() -> None:
    assert using("server", SERVER_MEANS_A_MACHINE, SERVER_OF_GRPC | SERVER_NAMES) == []


def test_growth_means_new_vertices() -> None:
    assert using("growth", GROWTH_MEANS_VERTICES) == []


def test_fanciful_names_are_gone() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in SOURCES for name, line in identifiers(path)
             if words(name) & FANCIFUL]  # fmt: skip
    assert found + [str(path.relative_to(ROOT)) for path in SOURCES if path.stem in FANCIFUL | FANCIFUL_MODULES] == []


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    doubles = {name: places for name, places in homes.items() if len(places) > 1 and name not in SAME_NAME_ALLOWED}
    assert doubles == {}
    assert [name for name in SAME_NAME_ALLOWED if len(homes[name]) < 2] == []


def test_no_two_modules_are_called_report_or_seeds() -> None:
    stems = [path.stem for path in SOURCES]
    assert {name: stems.count(name) for name in ("report", "seeds") if stems.count(name) > 1} == {}
