"""The control groups (version 1 or 2) of this process. In a container the machine's own figures are misleading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
"""Where these file systems are mounted."""


def own_groups(controller: str, proc: Path, groups: Path) -> Iterator[tuple[int, Path]]:
    """Version and folder of each group for ``controller`` (``"cpu"``, ``"memory"``), from the innermost outwards."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            yield from ((2, folder) for folder in _upwards(groups, name))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _upwards(groups / controller, name))


def _upwards(root: Path, name: str) -> Iterator[Path]:
    """The folder of a group and its parents. In a container the group's own folder is mounted at the root."""
    folder = root / name.lstrip("/")
    while folder != root:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield root


def words(path: Path) -> list[str]:
    """The words of a file; none if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
