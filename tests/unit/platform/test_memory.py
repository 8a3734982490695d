"""Free memory in containers: control groups of both versions, imitated in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from atta.observe.machine.memory import available_bytes, claim, machine_room, promised_bytes, total_bytes

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


def test_claims_count_as_far_as_they_are_not_taken(tmp_path: Path) -> None:
    for pid, private_kib in ((11, 3), (12, 1000)):
        (tmp_path / str(pid)).mkdir()
        status = f"Name:\ta\nRssAnon:\t{private_kib} kB\nRssFile:\t9 kB\nRssShmem:\t1 kB\n"
        (tmp_path / str(pid) / "status").write_text(status)
    mine = os.getuid()
    names = [
        f"{mine}-11-10240",
        f"{mine}-12-2048",
        f"{mine + 1}-13-77",
        f"{mine}-{os.getpid()}-99",
        f"{mine}-x-3",
        "look-0",
    ]
    (tmp_path / "net").mkdir()
    lines = [f"0000: 00000002 00000000 00000000 0002 01 99 @atta-claim-{name}" for name in names]
    (tmp_path / "net" / "unix").write_text("\n".join(["Num RefCount Protocol Flags Type St Inode Path", *lines]))
    assert promised_bytes(tmp_path) == 10240 - 4 * 1024  # of 11 alone: 12 has more, the others are not meant


def test_another_process_is_reckoned_with_until_it_ends() -> None:
    """Also if it is killed. Who looks at the same time waits."""
    script = (
        "import sys; from atta.observe.machine.memory import claim, machine_room\n"
        "with machine_room():\n    claim(1 << 50); print('up', flush=True); sys.stdin.readline()\n"
        "print('done', flush=True); sys.stdin.readline()"
    )
    before = promised_bytes()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as other:  # type: ignore[call-overload]
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
