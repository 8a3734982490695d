"""Free memory in containers: control groups of both versions, imitated in a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

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
            "jobs/memory.stat": "anon 400\ninactive_file 150\n",
        },
        **{"memory.max": "900\n", "memory.current": "660\n", "memory.stat": "inactive_file 10\n"},
    }
    assert figures(tmp_path, "0::/jobs/mine\n", files) == (200, 700)


def test_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        **{"memory/m/memory.limit_in_bytes": "2000\n", "memory/m/memory.usage_in_bytes": "1900\n"},
        **{"memory/m/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n"},
        **{"memory/memory.limit_in_bytes": f"{1 << 62}\n", "memory/memory.usage_in_bytes": "5\n"},
    }
    assert figures(tmp_path, "4:memory:/m\n3:cpu:/other\n", files) == (400, 2000)


@pytest.mark.parametrize("group", ["0::/\n", "0::/elsewhere\n", "3:cpu:/\n", ""])
def test_without_limits_the_machine_counts(tmp_path: Path, group: str) -> None:
    assert figures(tmp_path, group, {}) == (1000, 4000)


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    assert figures(tmp_path, "0::/\n", {"memory.max": "10\n", "memory.current": "30\n"}) == (0, 10)
