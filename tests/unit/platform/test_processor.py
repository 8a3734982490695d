"""Utilisation in containers: control groups of both versions, imitated in a folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from atta.observe.machine.processor import ProcessorLoad, usable_cores


class Machine:
    """File systems as the kernel mounts them, and a clock."""

    def __init__(self, folder: Path, group: str) -> None:
        self.proc, self.groups, self.now = folder / "proc", folder / "groups", 0.0
        self.write("proc/self/cgroup", group, folder)
        self.groups.mkdir()
        self.folder = folder

    def write(self, path: str, text: str, folder: Path | None = None) -> None:
        target = (folder or self.folder) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def used(self, group: str, seconds: float) -> None:
        self.write(f"groups/{group}/cpu.stat", f"usage_usec {round(1e6 * seconds)}\nuser_usec 1\n")

    def load(self) -> ProcessorLoad:
        return ProcessorLoad(self.proc, self.groups, lambda: self.now)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores of the machine are idle."""
    import psutil

    times = {percpu: psutil.cpu_times(percpu=percpu) for percpu in (False, True)}
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: times[percpu])


@pytest.mark.usefixtures("idle")
def test_a_group_that_uses_its_quota_is_full_although_the_machine_idles(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/jobs/mine\n")
    machine.write("groups/jobs/mine/cpu.max", "150000 100000\n")
    machine.used("jobs/mine", 10.0)
    load = machine.load()
    machine.now = 2.0
    machine.used("jobs/mine", 11.5)
    assert load.percent() == pytest.approx(50)
    machine.now = 3.0
    machine.used("jobs/mine", 13.0)
    assert load.percent() == pytest.approx(100)
    assert usable_cores(machine.proc, machine.groups) == min(2, len(os.sched_getaffinity(0)))


@pytest.mark.usefixtures("idle")
def test_the_tightest_of_several_groups_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/jobs/mine\n")
    machine.write("groups/jobs/mine/cpu.max", "max 100000\n")
    machine.write("groups/jobs/cpu.max", "50000 100000\n")
    machine.used("jobs", 0.0)
    load = machine.load()
    machine.now = 1.0
    machine.used("jobs", 0.4)
    assert load.percent() == pytest.approx(80)
    assert usable_cores(machine.proc, machine.groups) == 1


@pytest.mark.usefixtures("idle")
def test_groups_of_version_1(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/m\n3:cpu,cpuacct:/mine\n0::/\n")
    machine.write("groups/cpu/mine/cpu.cfs_quota_us", "200000\n")
    machine.write("groups/cpu/mine/cpu.cfs_period_us", "100000\n")
    machine.write("groups/cpuacct/mine/cpuacct.usage", "0\n")
    load = machine.load()
    machine.now = 1.0
    machine.write("groups/cpuacct/mine/cpuacct.usage", f"{int(0.5e9)}\n")
    assert load.percent() == pytest.approx(25)


@pytest.mark.parametrize("group", ["0::/\n", "0::/elsewhere\n", "3:cpu:/\n", ""])
def test_without_a_quota_the_cores_count(tmp_path: Path, group: str) -> None:
    machine = Machine(tmp_path, group)
    load = ProcessorLoad(machine.proc, machine.groups)
    assert usable_cores(machine.proc, machine.groups) == len(os.sched_getaffinity(0))
    stop = time.monotonic() + 0.3
    while time.monotonic() < stop:
        pass
    assert 0 < load.percent() <= 100


@pytest.mark.parametrize("cores", [1, None])
def test_this_machine(cores: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cores``: how many of them this process may use; None: all."""
    allowed = set(sorted(os.sched_getaffinity(0))[:cores])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert 1 <= usable_cores() <= len(allowed)
    load = ProcessorLoad()
    stop = time.monotonic() + 0.3
    while time.monotonic() < stop:
        pass
    assert 0 < load.percent() <= 100
