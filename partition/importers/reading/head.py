"""The beginning of a file, by which importers recognise what it holds."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from atta.errors import DataError
from atta.partition.disk.files import open_regular
from atta.partition.importers.reading.common import first_line

__all__ = ["HEAD_BYTES", "head_of", "open_content"]

HEAD_BYTES = 64 << 10
"""How much of a file an importer is shown to recognise it."""
_GZIP = b"\x1f\x8b"


@contextlib.contextmanager
def open_content(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, which are decompressed while they are read if it is gzip, whatever its name is.

    Raises:
        DataError: it cannot be opened, or is damaged or cut short where the block reads it.
    """
    with open_regular(path) as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        try:
            if packed:
                with gzip.open(file) as content:
                    yield cast(BinaryIO, content)
            else:
                yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(path, f"not readable as gzip: {first_line(error)}") from None


def head_of(path: Path) -> bytes:
    """The first 64 KiB of a file, decompressed; ``b""`` for a folder; raises DataError."""
    if path.is_dir():
        return b""
    with open_content(path) as content:
        return content.read(HEAD_BYTES)
