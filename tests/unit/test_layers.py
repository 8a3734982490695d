"""Boundaries of the architecture, read from the sources: layers, purity, no torch below training, no foreign code."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

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
    ("atta.client",),
    ("atta",),  # the front door, ``import atta``: its names come from below, and layers above may use it
    ("atta.train", "atta.compat", "atta.ray"),
    ("atta.simulate",),
    ("atta.cli",),
    ("atta_bench",),  # the laboratory, a package of its own
)
PURE = (
    "atta.scheduler",
    "atta.kvstore.parameters",
    "atta.kvstore.parameter_jobs",
    "atta.wire.identity",
    "atta.train.dorylus.hand_out",
    "atta.train.dorylus.progress",
    "atta.train.exchange.policies",
    "atta.client.sessions.cursor",
    "atta.samplers.dag",
    "atta.samplers.seed_plan",
    "atta_bench.chaos.invariants",
    "atta.cli.cluster.rolling",
)
IMPURE_MODULES = {"socket", "threading", "time", "asyncio", "grpc", "random", "datetime", "concurrent", "subprocess"}
TORCH_ALLOWED = (
    "atta.train",
    "atta_bench",
    "atta.compat.dgl",
    "atta.client.loaders.minibatch",
    "atta.client.loaders.prefetch",
    "atta.client.loaders.dgl",
    "atta.client.loaders.pyg",
    "atta.client.loaders.pyg_data",
    "atta.client.tables.embedding",
    "atta.partition.importers.pyg",
    "atta.partition.importers.dgl",
    "atta.partition.importers.reading.pyg_objects",
    "atta.partition.importers.reading.pickles",
    "atta.partition.exporters.pyg",
    "atta.partition.exporters.dgl",
    "atta.partition.exporters.pyg_parts",
)


@cache
def sources() -> dict[str, ast.Module]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            if path.stem.endswith("_pb2"):
                continue
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(), filename=str(path))
    return found


def imports(tree: ast.Module) -> set[str]:
    """Every module or member that the file imports anywhere, also for type checking only."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


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


def test_all_sources_are_seen() -> None:
    assert len(sources()) > 80
    unplaced = [name for name in sources() if layer(name) is None]
    assert unplaced == []


def test_no_layer_imports_a_higher_one() -> None:
    upward = [
        f"{name} imports {other}"
        for name in sources()
        for other in imported_modules(name)
        if layer(other) > layer(name)
    ]
    assert upward == []


def test_benchmarks_import_no_tests() -> None:
    imported = {path: imports(ast.parse(path.read_text())) for path in (ROOT / "bench").rglob("*.py")}
    assert len(imported) > 40
    assert [path.name for path, names in imported.items() if any(within(name, ("tests",)) for name in names)] == []


def test_the_laboratory_is_installed_whole() -> None:
    about = tomllib.loads((ROOT / "bench/pyproject.toml").read_text())
    folders = {name.rpartition(".")[0] for name in sources() if within(name, ("atta_bench",))} - {""}
    assert set(about["tool"]["setuptools"]["packages"]) == folders
    assert about["project"]["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_clients_and_the_simulator_know_nothing_of_daemons() -> None:
    """What all of them decide alike stands below: in the scheduler, in ``atta.wire``."""
    above = [name for name in sources() if within(name, ("atta.client", "atta.simulate"))]
    known = {name: sorted(m for m in imported_modules(name) if within(m, ("atta.daemon",))) for name in above}
    assert not [(name, modules) for name, modules in known.items() if modules]


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


def test_nothing_from_outside_is_executed() -> None:
    forbidden = {"eval", "exec", "compile"}
    unpickle = {
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
        *("send_object_list", "recv_object_list"),  # of torch.distributed
        *("pickle.load", "pickle.loads", "marshal.loads"),
    }
    guilty = [
        f"{name}:{node.lineno}"
        for name, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in forbidden)
            or any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords)
            or any(k.arg == "weights_only" and ast.unparse(k.value) != "True" for k in node.keywords)
            or {ast.unparse(node.func), ast.unparse(node.func).rpartition(".")[2]} & unpickle
            or (ast.unparse(node.func) == "torch.load" and "weights_only" not in {k.arg for k in node.keywords})
        )
    ]
    assert guilty == []


def test_torch_s_meeting_that_unpickles_is_not_used() -> None:
    """Its launcher keeps pickled state in a store that listens on all addresses."""
    guilty = [
        f"{name}:{node.lineno}"
        for name, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Constant)
        and re.match(
            r"c10d$|torch\.distributed\.(elastic|launcher)", str(getattr(node, "module", getattr(node, "value", "")))
        )
    ]
    assert guilty == []


def test_commands_print_what_terminals_do_not_obey() -> None:
    """They print by what escapes the names, errors and data of others: ``echo``, ``printer`` and ``teller``."""
    guilty = [
        f"{name}:{node.lineno}"
        for name, tree in sources().items()
        if within(name, ("atta.cli",)) and name != "atta.cli.output"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func) in {"click.echo", "click.secho", "Console"}
            or (ast.unparse(node.func) == "print" and not ast.unparse(node.args[0]).startswith("printable("))
        )
    ]
    assert guilty == []


def test_native_module_links_no_torch() -> None:
    binary = Path(_native.__file__).read_bytes()
    assert b"libc.so" in binary
    assert b"libtorch" not in binary
    assert b"libc10" not in binary
