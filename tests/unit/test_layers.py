"""Boundaries of the architecture, read from the sources: layers, purity, no torch below training, no foreign code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from atta import _native

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "atta": ROOT / "platform/atta",
    **{f"atta.{name}": ROOT / name for name in ("samplers", "partition", "protos")},
    "atta_bench": ROOT / "bench",
}
LAYERS = (
    ("atta.errors", "atta.protos", "atta._native", "atta.observe"),
    ("atta.partition",),
    ("atta.samplers",),
    ("atta.scheduler", "atta.kvstore"),
    ("atta.wire",),
    ("atta.daemon",),
    ("atta.client", "atta.nn"),
    ("atta",),  # the front door, ``import atta``: its names come from below, and layers above may use it
    ("atta.train", "atta.compat", "atta.ray"),
    ("atta.simulate",),
    ("atta.cli",),
    ("atta_bench",),  # the laboratory, a package of its own
)
PURE = (
    *("atta.scheduler", "atta.kvstore.parameters", "atta.kvstore.parameter_jobs", "atta.wire.identity"),
    "atta.client.sessions.cursor",
    *("atta.train.dorylus.hand_out", "atta.train.dorylus.progress", "atta.train.exchange.policies"),
    *("atta.samplers.dag", "atta.samplers.seed_plan", "atta_bench.chaos.invariants", "atta.cli.cluster.rolling"),
)
IMPURE_MODULES = {"socket", "threading", "time", "asyncio", "grpc", "random", "datetime", "concurrent", "subprocess"}
TORCH_ALLOWED = (
    *("atta.nn", "atta.train", "atta_bench", "atta.compat.dgl", "atta.client.tables.embedding"),
    *(f"atta.client.loaders.{name}" for name in ("minibatch", "prefetch", "dgl", "pyg", "pyg_data")),
    *(f"atta.partition.importers.{name}" for name in ("pyg", "dgl", "reading.pyg_objects", "reading.pickles")),
    *(f"atta.partition.exporters.{name}" for name in ("pyg", "dgl", "pyg_parts")),
)


@cache
def sources() -> dict[str, ast.Module]:
    found = {}
    for folder in FOLDERS.values():
        for path in sorted(folder.rglob("*.py")):
            if path.stem.endswith("_pb2"):
                continue
            found[module_of(path)] = ast.parse(path.read_text(), filename=str(path))
    return found


def module_of(path: Path) -> str:
    package, folder = next(home for home in FOLDERS.items() if path.is_relative_to(home[1]))
    return ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")


def imports(tree: ast.Module) -> set[str]:
    """Every module or member that the file imports anywhere, also for type checking only."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def imported_modules(name: str) -> set[str]:
    """The modules of Atta that a module imports.

    ``from a.b import c`` gives ``a.b.c`` if it is a module, else ``a.b``.
    """
    named = {other for other in imports(sources()[name]) if not within(other, ("atta._native",))}
    return ({other if other in sources() else other.rpartition(".")[0] for other in named} & set(sources())) - {name}


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def layer(name: str) -> int | None:
    """The layer whose package is the name itself or its longest prefix. ``atta`` stands only for itself."""
    found = [
        (len(p), i)
        for i, packages in enumerate(LAYERS)
        for p in packages
        if name == p or (p != "atta" and within(name, (p,)))
    ]
    return max(found)[1] if found else None


def test_no_layer_imports_a_higher_one() -> None:
    assert len(sources()) > 80
    unplaced = [name for name in sources() if layer(name) is None]
    assert unplaced == []
    upward = [
        f"{name} imports {other}"
        for name in sources()
        for other in imported_modules(name)
        if layer(other) > layer(name)
    ]
    assert upward == []
    # What all of them decide alike stands below: in the scheduler, in ``atta.wire``.
    above = [name for name in sources() if within(name, ("atta.client", "atta.simulate"))]
    known = {name: sorted(m for m in imported_modules(name) if within(m, ("atta.daemon",))) for name in above}
    assert not [(name, modules) for name, modules in known.items() if modules]


def test_benchmarks_import_no_tests_and_are_installed_whole() -> None:
    imported = {path: imports(ast.parse(path.read_text())) for path in (ROOT / "bench").rglob("*.py")}
    assert len(imported) > 40
    assert [path.name for path, names in imported.items() if any(within(name, ("tests",)) for name in names)] == []
    about = tomllib.loads((ROOT / "bench/pyproject.toml").read_text())
    folders = {name.rpartition(".")[0] for name in sources() if within(name, ("atta_bench",))} - {""}
    assert set(about["tool"]["setuptools"]["packages"]) == folders
    assert about["project"]["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_imports_make_no_circle() -> None:
    unseen = {name: imported_modules(name) for name in sources()}
    while free := [name for name, others in unseen.items() if not others & unseen.keys()]:
        for name in free:
            del unseen[name]
    circles = {name: sorted(others & unseen.keys()) for name, others in unseen.items()}
    assert circles == {}


@pytest.mark.parametrize("package", PURE)
def test_decisions_know_no_clock_socket_or_thread(package: str) -> None:
    guilty = {
        name: sorted(used)
        for name, tree in sources().items()
        if within(name, (package,))
        if (used := {i.split(".")[0] for i in imports(tree)} & IMPURE_MODULES)
    }
    assert guilty == {}


def test_torch_is_imported_only_where_it_is_needed() -> None:
    roots = {"torch", "torch_geometric", "dgl"}
    guilty = [
        name
        for name, tree in sources().items()
        if not within(name, TORCH_ALLOWED) and {i.split(".")[0] for i in imports(tree)} & roots
    ]
    assert guilty == []


def places(is_guilty: Callable[[Any], Any], *packages: str) -> list[str]:
    """Where sources, or those of some packages, have a node that is guilty."""
    return [
        f"{name}:{node.lineno}"
        for name, tree in sources().items()
        if not packages or within(name, packages)
        for node in ast.walk(tree)
        if is_guilty(node)
    ]


def test_nothing_from_outside_is_executed() -> None:
    forbidden = {"eval", "exec", "compile"}
    unpickle = {
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
        *("send_object_list", "recv_object_list"),  # of torch.distributed
        *("pickle.load", "pickle.loads", "marshal.loads"),
    }
    safe = {"allow_pickle": "False", "weights_only": "True"}

    def executes(node: Any) -> bool:
        if not isinstance(node, ast.Call):
            return False
        name = ast.unparse(node.func)
        return (
            (isinstance(node.func, ast.Name) and name in forbidden)
            or any(ast.unparse(k.value) != safe[k.arg] for k in node.keywords if k.arg in safe)
            or bool({name, name.rpartition(".")[2]} & unpickle)
            or (name == "torch.load" and "weights_only" not in {k.arg for k in node.keywords})
        )

    assert places(executes) == []


def test_torch_s_meeting_that_unpickles_is_not_used() -> None:
    """Its launcher keeps pickled state in a store that listens on all addresses."""
    meeting = re.compile(r"c10d$|torch\.distributed\.(elastic|launcher)")
    assert (
        places(
            lambda node: (
                isinstance(node, ast.ImportFrom | ast.Constant)
                and meeting.match(str(getattr(node, "module", getattr(node, "value", ""))))
            )
        )
        == []
    )


def test_commands_print_what_terminals_do_not_obey() -> None:
    """They print by what escapes the names, errors and data of others: ``echo``, ``printer`` and ``teller``."""

    def prints(node: Any) -> bool:
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        plain = name == "print" and not ast.unparse(node.args[0]).startswith("printable(")
        return plain or name in {"click.echo", "click.secho", "Console"}

    assert [place for place in places(prints, "atta.cli") if not place.startswith("atta.cli.output:")] == []


def test_native_module_links_no_torch() -> None:
    binary = Path(_native.__file__).read_bytes()
    assert b"libc.so" in binary
    assert b"libtorch" not in binary
    assert b"libc10" not in binary
