"""Folders on object storage: ``s3://bucket/folder``, ``gs://...``, ``file:///...`` and whatever else fsspec reads.
fsspec is imported only when such a folder is used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, blaming
from atta.observe.packages import load

_LOCAL = ("file", "local")


class BrokenTransferError(DataError):
    """Object storage did not answer, or broke off. Another try may succeed."""


def is_url(place: object) -> bool:
    """Whether a place is on object storage, not a path of this machine."""
    return isinstance(place, str) and "://" in place


def path_here(place: str | Path, what: str) -> Path:
    """The path of a place that ``what`` reads or writes on this machine. Raises ConfigError: it is a URL. A path made
    of it would name a folder ``s3:`` of the working directory."""
    if is_url(place):
        raise ConfigError(f"{place}: a URL; {what} needs a path of this machine")
    return Path(place)


class RemoteFolder:
    """A folder on object storage. Names are relative to it, with ``/`` between folders. All methods raise DataError
    naming the object: it is missing or may not be accessed; and BrokenTransferError."""

    def __init__(self, url: str) -> None:
        """``url``: of the folder. Raises ConfigError: fsspec is not installed, or what it needs for this kind of
        storage; or there is no such kind."""
        self.url = url.rstrip("/")
        load(url, "fsspec")
        from fsspec.core import url_to_fs

        with blaming(ConfigError, url, of=(ImportError, ValueError)):
            self._files, self._root = url_to_fs(self.url)
        names = self._files.protocol
        self._whole = not {*((names,) if isinstance(names, str) else names)} & {*_LOCAL}

    def read(self, name: str) -> bytes:
        """All bytes of an object."""
        with self._errors(name):
            return bytes(self._files.cat_file(self._path(name)))

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` of an object, without the last; fewer where it ends."""
        with self._errors(name):
            return bytes(self._files.cat_file(self._path(name), start=start, end=end))

    def version(self, name: str) -> str:
        """A text that changes when the object is written anew; empty: there is none."""
        with self._errors(name):
            self._files.invalidate_cache()
            try:
                found: dict[str, Any] = self._files.info(self._path(name))
            except FileNotFoundError:
                return ""
        stamps = (found.get(key) for key in ("ETag", "etag", "mtime", "LastModified", "updated", "created", "ino"))
        return " ".join(map(str, (found.get("size"), *stamps)))

    def names(self) -> list[str]:
        """The names of all objects in the folder."""
        with self._errors(""):
            self._files.invalidate_cache()
            if not self._files.exists(self._root):
                return []
            found = self._files.find(self._root)
        start = len(self._root.rstrip("/")) + 1
        return sorted(path[start:] for path in found)

    def write(self, source: Path, name: str) -> None:
        """Write a file as an object, whole or not at all."""
        with self._errors(name, "cannot be written: there is no such bucket or folder"):
            path = self._path(name)
            if self._whole:  # object storage shows an object when it is complete
                self._files.put_file(str(source), path)
                return
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(source), f"{path}.partial")
            self._files.mv(f"{path}.partial", path)

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""
        with self._errors(name), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def _errors(self, name: str, missing: str = "is missing") -> Iterator[None]:
        place = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except FileNotFoundError:
            raise DataError(place, missing) from None
        except PermissionError as error:
            raise DataError(place, f"may not be accessed: {_line(error)}") from None
        except DataError:
            raise
        except Exception as error:  # each kind of storage has errors of its own
            raise BrokenTransferError(place, _line(error)) from error


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
