"""Shared by all tests: randomness that can be replayed, real graphs and network namespaces where they exist."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.util
import inspect
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from tests.addresses import let_go_of_addresses
from tests.preloaded.commands import Commands

__all__ = ["let_go_of_addresses"]

ROOT = Path(__file__).parents[1]
SEED = int(os.environ.setdefault("ATTA_SEED", str(random.SystemRandom().randrange(2**31))))  # workers inherit it

# ``ATTA_NATIVE=path/to/_native.so`` runs the tests on another build, e.g. the sanitised one. This comes before anything
# imports Atta.
if native := os.environ.get("ATTA_NATIVE"):
    assert "atta" not in sys.modules, "another build would not be used"
    spec = importlib.util.spec_from_file_location("atta._native", native)
    sys.modules["atta._native"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["atta._native"])

# Tests run side by side, and so do the trainers that they start. A thread that spins would take a core from others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell that starts the tests in the background makes them ignore Ctrl-C. The programs that they interrupt would, too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("atta", deadline=None, print_blob=True)  # a busy machine is not a failure
settings.register_profile("quick", settings.get_profile("atta"), max_examples=10)
settings.load_profile("atta")


_NEEDS_TORCH = re.compile(r"^ *(?:from|import) (?:torch|atta\.nn|atta\.train|atta_bench)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Where torch is missing, leave out the files that import it, or a package that does. All others need no torch."""
    if collection_path.suffix != ".py" or importlib.util.find_spec("torch"):
        return None
    return _NEEDS_TORCH.search(collection_path.read_text()) is not None or None


def pytest_report_header() -> str:
    return f"random tests use ATTA_SEED={SEED}; set it to replay this run"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes name no test: compressed ones hold the time, and workers that collect at other seconds would disagree."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give hypothesis the same seed, unless it has one of its own, and fewer examples where slow tests are left out."""
    if "not slow" in config.getoption("-m"):
        settings.load_profile("quick")
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Where slow tests are left out, seeds are mostly the same: properties get no more examples than the profile has."""
    most, made = settings.default.max_examples, getattr(item, "cls", None)
    if "not slow" not in item.config.getoption("-m"):
        return
    for owner, name in ((getattr(item, "obj", None), "_hypothesis_internal_use_settings"), (made, "settings")):
        if isinstance(own := getattr(owner, name, None), settings) and own.max_examples > most:
            setattr(owner, name, settings(own, max_examples=most))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines, each on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**given))
    return True


def _freeze() -> None:
    """From here on the garbage collector leaves out what there is. It took seconds to visit all modules and tests."""
    gc.collect()
    gc.freeze()


def pytest_collection() -> None:
    """Nothing that is collected goes away before the tests: the garbage collector would visit it in vain."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.enable()
    _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[object]:
    """Freeze what a file of tests leaves behind, such as reports and imported modules."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _freeze()
    return result


@pytest.fixture(scope="session", autouse=True)
def forked_commands() -> Iterator[Commands]:
    """Commands and daemons of tests are forked from a process that has imported Atta, see ``tests/preloaded``."""
    commands = Commands()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", commands.popen)
        yield commands
    commands.close()


@pytest.fixture
def own_interpreters(forked_commands: Commands) -> Iterator[None]:
    """Commands that a test itself starts have their own interpreters. A fork's memory would not be all its own."""
    forked_commands.wanted = False
    yield
    forked_commands.wanted = True


@pytest.fixture(scope="session")
def preloaded_trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """From here on ``fit`` forks trainers from a process that has imported torch and PyG, see ``tests/preloaded``."""
    here = Path(__file__).parent / "preloaded"
    folder = tmp_path_factory.mktemp("preloaded")
    words = [sys.executable, str(folder / "socket")]
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-IS", str(here / "caller.py"), *words])} "$@"\n')
    python.chmod(0o755)
    quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # trainers set it, too, before they import torch
    command = [words[0], "-m", "tests.preloaded.parent", words[1]]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=quiet, **pipes) as parent:
        assert parent.stdout.readline() == "ready\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(python))
            yield
        parent.stdin.close()
        assert parent.wait(20) == 0


@pytest.fixture
def seed() -> int:
    """A number that differs in every run, unless ATTA_SEED is set."""
    return SEED


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _shared_data() -> Path:
    return Path(os.environ.get("ATTA_SHARED_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs. Without one, the test is skipped."""
    folder = _shared_data()
    if not folder.is_dir():
        pytest.skip(f"no real graphs at {folder}; set ATTA_SHARED_DATA")
    return folder


@functools.cache
def _no_namespaces() -> str | None:
    """Return why network namespaces cannot be used here, None when they can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if shutil.which("ip") is None:
        return "needs the command ip (iproute2)"
    name = f"atta-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("netns") and (reason := _no_namespaces()):
        pytest.skip(reason)
    if item.get_closest_marker("shared_data") and not _shared_data().is_dir():
        pytest.skip(f"no real graphs at {_shared_data()}; set ATTA_SHARED_DATA")
