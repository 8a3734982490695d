"""Processors and memory in containers: control groups of both versions, imitated in a folder; what daemons share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from atta.client import local as starting
from atta.client.local import divided_memory
from atta.daemon import graph as loading
from atta.daemon.config import DaemonConfig
from atta.daemon.graph import OpenedData
from atta.errors import ConfigError
from atta.observe.machine.memory import available_bytes, claim, machine_room, promised_bytes, total_bytes
from atta.observe.machine.processor import ProcessorLoad, usable_cores
from atta.observe.machine.threads import timer_lateness_s, wake_s
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import LEAST_BYTES

MACHINE = SimpleNamespace(available=1000, total=4000)


class System:
    def __init__(self, folder: Path, group: str, files: Mapping[str, str]) -> None:
        self.folder, self.mounts, self.now = folder, (folder / "proc", folder / "groups"), 0.0
        for mount in self.mounts:
            mount.mkdir()
        self.write({"../proc/self/cgroup": group, **files})

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = Path(os.path.normpath(self.mounts[1] / name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def memory(self) -> tuple[int, int]:
        return available_bytes(*self.mounts), total_bytes(*self.mounts)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: MACHINE)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {percpu: psutil.cpu_times(percpu=percpu) for percpu in (False, True)}
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: times[percpu])


QUOTA_1 = {"cpu/m/cpu.cfs_quota_us": "200000\n", "cpu/m/cpu.cfs_period_us": "100000\n"}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("group", "limits", "usage", "steps", "cores"),
    [
        ("0::/j/m\n", {"j/m/cpu.max": "150000 100000\n"}, "j/m/cpu.stat", [(2.0, 1.5, 50), (3.0, 3.0, 100)], 2),
        (
            "0::/j/m\n",
            {"j/m/cpu.max": "max 100000\n", "j/cpu.max": "50000 100000\n"},
            "j/cpu.stat",
            [(1.0, 0.4, 80)],
            1,
        ),
        ("4:memory:/m\n3:cpu,cpuacct:/m\n0::/\n", QUOTA_1, "cpuacct/m/cpuacct.usage", [(1.0, 0.5, 25)], 2),
    ],
    ids=["quota", "tightest", "version 1"],
)
def test_a_group_that_uses_its_quota_is_full_although_the_machine_idles(
    tmp_path: Path, group: str, limits: dict[str, str], usage: str, steps: list[tuple[float, float, int]], cores: int
) -> None:
    system = System(tmp_path, group, limits)
    told = "{}000\n" if usage.endswith("usage") else "usage_usec {}\nuser_usec 1\n"
    system.write({usage: told.format(0)})
    load = ProcessorLoad(*system.mounts, lambda: system.now)
    for system.now, seconds, percent in steps:
        system.write({usage: told.format(round(1e6 * seconds))})
        assert load.percent() == pytest.approx(percent)
    assert usable_cores(*system.mounts) == min(cores, len(os.sched_getaffinity(0)))


def is_busy(load: ProcessorLoad) -> bool:
    stop = time.monotonic() + 0.1
    while time.monotonic() < stop:
        pass
    return 0 < load.percent() <= 100


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("group", ["0::/\n", "0::/elsewhere\n", "3:cpu:/\n", ""])
def test_without_limits_the_machine_counts(tmp_path: Path, group: str) -> None:
    system = System(tmp_path, group, {})
    assert usable_cores(*system.mounts) == len(os.sched_getaffinity(0))
    assert is_busy(ProcessorLoad(*system.mounts))
    assert system.memory() == (1000, 4000)


@pytest.mark.parametrize("cores", [1, None])
def test_this_machine(cores: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cores``: how many of them this process may use; None: all."""
    allowed = set(sorted(os.sched_getaffinity(0))[:cores])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert 1 <= usable_cores() <= len(allowed)
    assert is_busy(ProcessorLoad())


def limits_1(folder: str, limit: int, usage: int) -> dict[str, str]:
    return {f"{folder}/memory.limit_in_bytes": f"{limit}\n", f"{folder}/memory.usage_in_bytes": f"{usage}\n"}


NESTED = {
    **{"j/m/memory.max": "max\n", "j/m/memory.current": "100\n", "j/memory.max": "700\n", "j/memory.current": "650\n"},
    "j/memory.stat": "anon 400\ninactive_file 100\nactive_file 50\n",
    **{"memory.max": "900\n", "memory.current": "660\n", "memory.stat": "inactive_file 10\n"},
}
NESTED_1 = {
    **limits_1("memory/m", 2000, 1900),
    **limits_1("memory", 1 << 62, 5),
    "memory/m/memory.stat": "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 200\n",
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("group", "files", "found"),
    [
        ("0::/j/m\n", NESTED, (200, 700)),
        ("4:memory:/m\n3:cpu:/other\n", NESTED_1, (400, 2000)),
        ("0::/\n", {"memory.max": "10\n", "memory.current": "30\n"}, (0, 10)),  # beyond its limit
    ],
)
def test_the_tightest_group_counts(tmp_path: Path, group: str, files: dict[str, str], found: tuple[int, int]) -> None:
    assert System(tmp_path, group, files).memory() == found


def test_claims_count_as_far_as_they_are_not_taken(tmp_path: Path) -> None:
    for pid, private_kib in ((11, 3), (12, 1000)):
        (tmp_path / str(pid)).mkdir()
        status = f"Name:\ta\nRssAnon:\t{private_kib} kB\nRssFile:\t9 kB\nRssShmem:\t1 kB\n"
        (tmp_path / str(pid) / "status").write_text(status)
    mine = os.getuid()
    names = [f"{mine}-11-10240", f"{mine}-12-2048", f"{mine + 1}-13-77"]
    names += [f"{mine}-{os.getpid()}-99", f"{mine}-x-3", "look-0"]
    (tmp_path / "net").mkdir()
    lines = [f"0000: 00000002 00000000 00000000 0002 01 99 @atta-claim-{name}" for name in names]
    (tmp_path / "net" / "unix").write_text("\n".join(["Num RefCount Protocol Flags Type St Inode Path", *lines]))
    assert promised_bytes(tmp_path) == 10240 - 4 * 1024  # of 11 alone: 12 has more, the others are not meant


@pytest.mark.usefixtures("small")
def test_another_process_is_reckoned_with_until_it_ends() -> None:
    """Also if it is killed. Who looks at the same time waits."""
    script = (
        "import sys; from atta.observe.machine.memory import claim, machine_room\n"
        "with machine_room():\n    claim(1 << 50); print('up', flush=True); sys.stdin.readline()\n"
        "print('done', flush=True); sys.stdin.readline()"
    )
    before = promised_bytes()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as other:
        assert other.stdout.readline() == "up\n"
        threading.Timer(0.3, other.stdin.write, ["go\n"]).start()
        with machine_room() as room:
            assert other.stdout.readline() == "done\n"
            assert room == (MACHINE.total, 0)
        assert promised_bytes() > 1 << 49
        other.kill()
        other.wait()
    assert promised_bytes() < before + (1 << 49)
    claim(1 << 50)
    assert promised_bytes() < before + (1 << 49), "one's own claim does not count"
    claim(0)


MIB, GIB = 1 << 20, 1 << 30
PARTS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("dividing"), np.random.default_rng(1)
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", 4000, tables={"x": np.zeros((4000, 256), np.float32)})
        out.add_edges("node__to__node", rng.integers(0, 4000, 9000), rng.integers(0, 4000, 9000))
    partition_graph(folder / "graph", folder / "parts", parts=PARTS, method="random")
    return folder / "parts"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Memory of the machine, and what was claimed of it last."""
    found = {"limit": 16 * GIB, "free": 16 * GIB}

    def claim(nbytes: int) -> None:
        found["claimed"] = max(nbytes, found.get("claimed", 0))

    for module in (starting, loading):
        monkeypatch.setattr(module, "machine_room", lambda: contextlib.nullcontext((found["limit"], found["free"])))
        monkeypatch.setattr(module, "claim", claim)
    monkeypatch.setattr(starting, "available_bytes", lambda: found["free"])
    return found


def words(data: Path, *options: str, daemons: int = PARTS) -> list[str]:
    groups = [range(PARTS * d // daemons, PARTS * (d + 1) // daemons) for d in range(daemons)]
    with divided_memory(Dataset.open(data), groups, options) as found:
        return found


def test_options_that_are_given_stay_as_they_are(data: Path, machine: dict[str, int], tmp_path: Path) -> None:
    everything = str(GIB)
    assert words(data) == ["--memory", "copy", "--cache", everything]
    assert words(data, "--threads", "2", "--memory", "map") == ["--cache", str(256 * MIB)]
    assert words(data, "--memory=map", "--cache=1MiB") == []
    assert words(data, "--cache", "0") == ["--memory", "copy"]
    assert words(data, "--cache-share", "0") == ["--memory", "copy", "--cache", "0"]
    assert words(data, daemons=2) == ["--cache", everything], "several partitions are always loaded"
    (tmp_path / "serve.toml").write_text('memory = "map"\ncache = "3MiB"\n')
    assert words(data, "--config", str(tmp_path / "serve.toml")) == []
    with pytest.raises(ConfigError, match="--cache much"):
        words(data, "--cache", "much")


def test_a_line_says_what_was_chosen(data: Path, machine: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        words(data)
        assert not caplog.records
        machine |= {"limit": GIB, "free": GIB}
        assert words(data) == ["--memory", "map", "--cache", "0"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("memory: 4 daemons may take 921 MiB (1.0 GiB of 1.0 GiB are free, a tenth of all stays so)")
    assert (
        "So each daemon maps its files, which the system holds in memory, and keeps no rows of other partitions" in line
    )
    assert line.endswith("This works as it is; more free memory makes it faster")
    assert machine["claimed"] >= PARTS * LEAST_BYTES
    machine |= {"free": 300 * MIB}
    with pytest.raises(
        ConfigError, match=r"need 512 MiB .*; 4 daemons may take 197 MiB \(300 MiB of 1\.0 GiB are free"
    ):
        words(data)


def opened(data: Path, **settings: object) -> tuple[bool, int]:
    """Whether a daemon that is started alone loads its partition, and bytes of its cache."""
    found = OpenedData.of(DaemonConfig(str(data), range(1), verify=False, **settings))
    return found.resident, found.memory.cache


def test_a_daemon_alone_takes_what_is_left(data: Path, machine: dict[str, int]) -> None:
    assert opened(data) == (True, GIB)
    machine["free"] = machine["limit"] // 10 + LEAST_BYTES
    assert opened(data) == (False, 0)
    machine["free"] = 0  # others have been promised everything, and may never take it
    assert opened(data) == (False, 0)
    assert opened(data, cache_bytes=MIB) == (False, MIB)
    assert opened(data, memory="copy", cache_bytes=MIB) == (True, MIB), "nothing is left to decide"
    with pytest.raises(ConfigError, match="do not fit into memory"):
        opened(data, memory="copy")


LIBC = """
import ctypes, resource
from pathlib import Path
from atta.observe.machine.memory import give_back_freed, keep_freed
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
keep_freed()
"""
STEPS = """
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)

step()
before = faults()
step()
print(faults() - before)
"""
SCATTERED = """
def resident():
    return next(int(l.split()[1]) >> 10 for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS"))

blocks = []
for _ in range(50):  # a block of 2 MiB, and a small one that stays
    blocks.append(libc.malloc(2 << 20))
    ctypes.memset(blocks[-1], 1, 2 << 20)
    libc.malloc(5000)
for block in blocks:
    libc.free(block)
before = resident()
give_back_freed()
print(before - resident())
"""


def printed(script: str, **env: str) -> int:
    run = [sys.executable, "-c", LIBC + script]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    return int(subprocess.run(run, capture_output=True, text=True, check=True, env=plain | env).stdout)


@pytest.mark.parametrize(
    ("script", "env", "least", "most"),
    [
        (STEPS, {}, 0, 9),  # of 16,384 pages, or of 32 huge pages
        (STEPS, {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}, 32, 1 << 20),  # settings of the environment hold
        (SCATTERED, {}, 91, 1 << 20),  # MiB of 100
    ],
)
def test_freed_memory_is_kept_or_given_back(script: str, env: dict[str, str], least: int, most: int) -> None:
    assert least <= printed(script, **env) <= most


def test_waking_takes_a_moment_and_timers_are_never_early() -> None:
    async def within() -> float:
        return timer_lateness_s(tries=3)

    before = threading.active_count()
    assert 0 < wake_s(tries=5) < 10
    assert threading.active_count() == before
    assert 0 <= asyncio.run(within()) < 10
