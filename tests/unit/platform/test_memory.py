"""Free memory in containers: control groups of both versions, imitated in a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from atta.observe.machine.claims import claim, machine_room, promised_bytes
from atta.observe.machine.memory import available_bytes, total_bytes

MACHINE = SimpleNamespace(available=1000, total=4000)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.observe.machine.memory.psutil.virtual_memory", lambda: MACHINE)


def figures(folder: Path, group: str, files: dict[str, str]) -> tuple[int, int]:
    """Available and total memory of a process in ``group``."""
    for path, text in {"proc/self/cgroup": group, **{f"groups/{name}": text for name, text in files.items()}}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return tuple(f(folder / "proc", folder / "groups") for f in (available_bytes, total_bytes))  # type: ignore[return-value]


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    files = {
        **{"jobs/mine/memory.max": "max\n", "jobs/mine/memory.current": "100\n"},
        **{
            "jobs/memory.max": "700\n",
            "jobs/memory.current": "650\n",
            "jobs/memory.stat": "anon 400\ninactive_file 100\nactive_file 50\n",
        },
        **{"memory.max": "900\n", "memory.current": "660\n", "memory.stat": "inactive_file 10\n"},
    }
    assert figures(tmp_path, "0::/jobs/mine\n", files) == (200, 700)


def test_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        **{"memory/m/memory.limit_in_bytes": "2000\n", "memory/m/memory.usage_in_bytes": "1900\n"},
        **{"memory/m/memory.stat": "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 200\n"},
        **{"memory/memory.limit_in_bytes": f"{1 << 62}\n", "memory/memory.usage_in_bytes": "5\n"},
    }
    assert figures(tmp_path, "4:memory:/m\n3:cpu:/other\n", files) == (400, 2000)


@pytest.mark.parametrize("group", ["0::/\n", "0::/elsewhere\n", "3:cpu:/\n", ""])
def test_without_limits_the_machine_counts(tmp_path: Path, group: str) -> None:
    assert figures(tmp_path, group, {}) == (1000, 4000)


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    assert figures(tmp_path, "0::/\n", {"memory.max": "10\n", "memory.current": "30\n"}) == (0, 10)


# -- what daemons have claimed -----------------------------------------------------------------------------------------


def process(proc: Path, pid: int, *, started: int, private_kib: int = 0, state: str = "S") -> None:
    """Imitate a process in a folder like /proc. Its name has a blank and a bracket."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = " ".join(map(str, [state, *range(18), started, 0, 0]))
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b) {fields}\n")
    (proc / str(pid) / "status").write_text(f"Name:\ta\nRssAnon:\t{private_kib} kB\nRssFile:\t9 kB\nRssShmem:\t1 kB\n")


def test_claims_count_as_far_as_they_are_not_taken(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "claims"
    folder.mkdir()
    process(proc, 11, started=5, private_kib=3)
    process(proc, 12, started=6, private_kib=1000)
    process(proc, 13, started=7)
    process(proc, 14, started=8, state="Z")
    claims = {"11-5": "10240", "12-6": "2048", "13-6": "100000", "14-8": "7", "15-9": "9", "11-x": "3", "lock": ""}
    for name, text in claims.items():
        (folder / name).write_text(text)
    assert promised_bytes(folder, proc) == 10240 - 4 * 1024  # of 11 alone: 12 has more, the others are not these
    assert {path.name for path in folder.iterdir()} == {"11-5", "12-6", "lock"}, "stale claims are removed"


def test_another_process_reads_a_claim_until_its_process_ends(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        claim(1 << 40, tmp_path, other.pid)
        with machine_room(tmp_path) as (total, free):
            assert (total, free) == (MACHINE.total, 0)
        other.kill()
        other.wait()
        with machine_room(tmp_path) as (_, free):
            assert free == MACHINE.available
    claim(1 << 40, tmp_path)
    with machine_room(tmp_path) as (_, free):
        assert free == MACHINE.available, "one's own claim does not count"
    claim(0, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_without_a_folder_the_others_are_not_known(tmp_path: Path) -> None:
    with machine_room(tmp_path / "missing") as room:
        assert room == (MACHINE.total, MACHINE.available)
