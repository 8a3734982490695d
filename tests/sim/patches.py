"""Where the simulation takes the place of the system: time, threads, queues, random names, gRPC and the disk.

The code under test is what ships. Only the modules that it has imported by these names are exchanged, in ``atta`` and
in ``concurrent.futures``, and put back afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from types import CellType, FunctionType, ModuleType
from typing import Any

import grpc
import structlog

import atta.client.cluster
import atta.client.loaders.neighbor  # all that the simulation needs, before anything is exchanged
import atta.daemon.daemon
import atta.partition.dataset
from tests.sim.channels import AioChannel, SyncChannel
from tests.sim.disk import Disk, DiskModule, FilesModule, FoldersModule
from tests.sim.loop import NODE, VirtualLoop
from tests.sim.network import Network, SimServer
from tests.sim.threads import QueueModule, ThreadingModule, current

MEMORY_BYTES = 4 << 30
"""What every simulated machine has left."""
ON_DISK = (*(f"atta.kvstore.durable.{name}" for name in ("logfile", "store", "backup")), "atta.partition.disk.staging")


class TimeModule:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return self._loop.now

    perf_counter = process_time = thread_time = monotonic

    def monotonic_ns(self) -> int:
        return int(self._loop.now * 1e9)

    perf_counter_ns = monotonic_ns

    def time(self) -> float:
        node = NODE.get()
        return 1.8e9 + self._loop.now + (node.clock_s if node is not None else 0.0)

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        current().park(seconds)


class SecretsModule:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(secrets, name)

    def token_bytes(self, nbytes: int = 32) -> bytes:
        return self._rng.randbytes(nbytes)

    def token_hex(self, nbytes: int = 32) -> str:
        return self._rng.randbytes(nbytes).hex()

    def randbits(self, k: int) -> int:
        return self._rng.getrandbits(k)


@cache
def _clock_cells() -> list[tuple[CellType, str]]:
    """Where the functions of a class keep a clock as the default of a field."""
    found = []
    for name, module in list(sys.modules.items()):
        if name.startswith("atta."):
            for kind in vars(module).values():
                function = vars(kind).get("__init__") if isinstance(kind, type) else None
                for cell in getattr(function, "__closure__", None) or ():
                    with contextlib.suppress(ValueError):
                        if cell.cell_contents is time.monotonic:
                            found.append((cell, "monotonic"))
    return found


@cache
def _clock_defaults() -> list[tuple[FunctionType, Any, Any]]:
    """Functions with a clock as the default of a parameter, and their defaults."""
    found = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("atta."):
            continue
        for value in vars(module).values():
            members = vars(value).values() if isinstance(value, type) else (value,)
            for function in members:
                if isinstance(function, FunctionType):
                    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
                    if any(one in (time.monotonic, time.perf_counter) for one in given if callable(one)):
                        found.append((function, function.__defaults__, function.__kwdefaults__))
    return found


_OPENED = {"map_array": cache(atta.partition.dataset.map_array), "check_file": cache(atta.partition.dataset.check_file)}


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class _NoLoad:
    def percent(self) -> float:
        return 0.0


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


@contextlib.contextmanager
def installed(loop: VirtualLoop, network: Network, disk: Disk) -> Iterator[None]:
    clock = TimeModule(loop)
    instead: dict[int, Any] = {
        id(time): clock,
        id(sys.modules["threading"]): ThreadingModule(loop),
        id(sys.modules["queue"]): QueueModule(),
        id(secrets): SecretsModule(loop.rng),
    }
    undo: list[Callable[[], None]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    for name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and name.startswith(("atta.", "concurrent.futures.")):
            for attribute, value in list(vars(module).items()):
                if id(value) in instead:
                    put(module, attribute, instead[id(value)])
    for name in ON_DISK:
        put(sys.modules[name], "os", DiskModule(disk))
        if hasattr(sys.modules[name], "shutil"):
            put(sys.modules[name], "shutil", FoldersModule())
    put(sys.modules["atta.partition.disk.files"], "os", FilesModule(disk))
    # Daemons that are killed here stay in this process, and so would the locks by which they say that they read.
    put(sys.modules["atta.partition.disk.watching"], "Reading", lambda marker: None)
    for cell, _ in _clock_cells():
        put(cell, "cell_contents", clock.monotonic)
    for function, plain, named in _clock_defaults():
        clocks = {time.monotonic: clock.monotonic, time.perf_counter: clock.monotonic}
        swap = lambda one: clocks.get(one, one) if callable(one) else one  # noqa: B023, E731
        put(function, "__defaults__", plain and tuple(map(swap, plain)))
        put(function, "__kwdefaults__", named and {key: swap(value) for key, value in named.items()})
    for name in ("atta.client.cluster", "atta.daemon.services.control"):
        put(sys.modules[name], "machine_id", lambda: getattr(NODE.get(), "machine", ""))
    for name in ("atta.client.sessions.resuming", "atta.client.control"):
        put(sys.modules[name], "_JITTER", random.Random(loop.rng.random()))
    put(sys.modules["atta.daemon.engine.engine"], "ProcessorLoad", _NoLoad)
    put(sys.modules["atta.daemon.engine.engine"], "UTILISATION_PERIOD_S", 60.0)  # there is none: looking costs steps
    for name in ("atta.daemon.engine.slots", "atta.daemon.services.opening", "atta.daemon.graph"):
        put(sys.modules[name], "available_bytes", lambda: MEMORY_BYTES)  # what the real machine has is no seed's choice
    room = lambda: contextlib.nullcontext((MEMORY_BYTES, MEMORY_BYTES))  # noqa: E731
    put(sys.modules["atta.daemon.graph"], "machine_room", room)
    put(sys.modules["atta.daemon.graph"], "claim", lambda _: None)
    put(sys.modules["atta.daemon.filling"], "aside", _at_once)  # a real thread would be done at a moment of its own
    # Threads of a run are this one, and it would keep their niceness.
    for name in ("atta.daemon.filling", "atta.observe.machine.threads"):
        put(sys.modules[name], "yield_processor", lambda _: None)
    for name, cached in _OPENED.items():  # daemons start again and again, and their files never change
        put(sys.modules["atta.partition.dataset"], name, cached)
    put(grpc, "insecure_channel", lambda address, options=None: SyncChannel(network, address))
    put(grpc.aio, "insecure_channel", lambda address, options=None: AioChannel(network, address))
    put(grpc.aio, "server", lambda **_: SimServer(network, NODE.get()))  # type: ignore[arg-type]
    put(logging.getLogger("concurrent.futures"), "disabled", True)
    logged = structlog.get_config()["processors"]
    before = list(logged)
    logged[:] = [_drop]
    collecting = gc.isenabled()
    gc.disable()  # it would call finalizers at moments that no seed decides
    gc.freeze()  # in the end, all that the simulation has made is collected, and nothing else is looked at
    try:
        yield
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
        logged[:] = before
        for one in reversed(undo):
            one()
