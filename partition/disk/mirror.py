"""A folder of this machine that stands for one on object storage: files are written here, then sent whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from atta.partition.disk.store import RemoteFolder, is_url

__all__ = ["Mirror", "cache_folder"]


def cache_folder(*names: str) -> Path:
    """A folder below that of caches of this user: ``$XDG_CACHE_HOME/atta``, or ``~/.cache/atta``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "atta", *names)


class Mirror:
    """What a folder is to those who write and read files in it, wherever it lies.

    For a path of this machine ``path`` is that folder, and nothing is sent or fetched.

    Attributes:
        path: where files are written and read.
        remote: whether the folder lies on object storage.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises ConfigError: what the kind of storage needs is not installed."""
        self._store = RemoteFolder(str(folder)) if is_url(folder) else None
        self.path, self.remote = Path(folder), self._store is not None
        if self._store is not None:
            self.path = cache_folder("mirrors", hashlib.blake2b(self._store.url.encode(), digest_size=8).hexdigest())
            self.path.mkdir(parents=True, exist_ok=True)

    def check_writable(self) -> None:
        """Try whether object storage takes a file; raises DataError. It is removed again."""
        if self._store is not None:
            probe = self.path / f"probe-{os.getpid()}"
            probe.write_bytes(b"")
            self.push(probe.name)
            self.remove(probe.name)

    def pull(self, name: str) -> Path:
        """Bring a file, as it is now; it is absent here if it is absent there. Returns its path here."""
        path = self.path / name
        if self._store is not None:
            if self._store.version(name):
                partial = path.with_name(f"{name}.{os.getpid()}.partial")
                partial.write_bytes(self._store.read(name))
                partial.rename(path)
            else:
                path.unlink(missing_ok=True)
        return path

    def push(self, name: str) -> None:
        """Send a file that is complete here."""
        if self._store is not None:
            self._store.write(self.path / name, name)

    def remove(self, name: str) -> None:
        """Remove a file, here and there."""
        if self._store is not None:
            self._store.remove(name)
        (self.path / name).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Whether the file is there, whole."""
        return bool(self._store.version(name)) if self._store is not None else (self.path / name).is_file()

    def version(self, name: str) -> str:
        """A text that changes when the file is written anew; empty: there is none."""
        if self._store is not None:
            return self._store.version(name)
        try:
            found = (self.path / name).stat()
        except OSError:
            return ""
        return f"{found.st_dev} {found.st_ino} {found.st_mtime_ns} {found.st_size}"

    def names(self) -> list[str]:
        """The names of all files in the folder itself, where it lies."""
        if self._store is not None:
            return [name for name in self._store.names() if "/" not in name]
        return sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
