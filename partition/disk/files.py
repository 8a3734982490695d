"""Plain ``.npy`` files, written in a stream and memory-mapped, and manifests with a record of each: its size, checksum,
dtype and shape. A file that differs from its record is refused, and so are object arrays. Nothing is ever pickled or
unpickled."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import mmap
import os
import resource
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from atta import _native
from atta.errors import DataError, QuotaExceededError, blaming, near_path
from atta.partition.disk.staging import recover

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t
)  # fmt: skip
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value
_mapped: dict[int, tuple[str, int]] = {}
"""Path and number of bytes of the files that are mapped, by address."""
_advised: set[int] = set()
"""What the system is told of each."""


def map_bytes(file: BinaryIO, size: int) -> memoryview:
    """Map the first ``size`` bytes of a file, at least one, read-only. The map goes when nothing refers to its bytes.
    Raises OSError: the system refuses."""
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    assert address is not None
    held = (ctypes.c_char * size).from_address(address)
    _mapped[address] = str(file.name), size
    _advise(address, size)
    _native.note_map(address, size)
    # Not at exit: threads may still read then, and the map goes with the process.
    weakref.finalize(held, _unmap, address, size).atexit = False
    return memoryview(held).toreadonly().cast("B")


def _unmap(address: int, size: int) -> None:
    _native.forget_map(address)
    _mapped.pop(address, None)
    _LIBC.munmap(address, size)


def read_page_by_page(*, forget: bool = False) -> None:
    """Have the system read no more than the page that is asked for, from every file that is mapped now or later. Random
    reads of files that do not stay in memory are slow otherwise: around each row the system reads up to hundreds of
    KiB, which push out what others need. ``forget``: give back the pages that have been read so far."""
    _advised.add(mmap.MADV_RANDOM)
    for address, (path, size) in list(_mapped.items()):
        _advise(address, size)
        if forget:
            _LIBC.madvise(address, size, mmap.MADV_DONTNEED)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _advise(address: int, size: int) -> None:
    for advice in _advised:  # a system that does not take it reads as before
        _LIBC.madvise(address, size, advice)


def torn_files() -> list[str]:
    """Mapped files that were found too short, or unreadable, when they were read: the reader got zeros instead. Only in
    a process that has called ``_native.outlive_torn_maps``. Others are killed by SIGBUS."""
    return [_mapped[address][0] for address in _native.torn_maps() if address in _mapped]


Array = npt.NDArray[Any]

_BLOCK = 16 << 20
_SEAL, _NO_SEAL = "checksum", "0" * 16
_OTHERS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_PARSES = 100
"""How often the header of an array is parsed before it counts as damaged."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class FileRecord:
    """What a manifest says about one ``.npy`` file: bytes of the whole file, xxh3_64 of them as 16 hex digits, numpy's
    dtype string, and shape."""

    size: int
    xxh3: str
    dtype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict for the manifest."""
        return {"size": self.size, "xxh3": self.xxh3, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Any, manifest: Path, name: str) -> FileRecord:
        """Read one entry of a manifest's ``files``; raises DataError naming the manifest."""
        try:
            shape = tuple(int(s) for s in value["shape"])
            record = cls(int(value["size"]), str(value["xxh3"]), str(value["dtype"]), shape)
        except (KeyError, TypeError, ValueError):
            raise DataError(manifest, f"the entry of file {name!r} is malformed") from None
        return record


def chunks(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield ``(lo, hi)`` ranges of at most ``size`` that cover ``range(total)``."""
    for lo in range(0, total, size):
        yield lo, min(lo + size, total)


class NpyAppender(contextlib.AbstractContextManager["NpyAppender"]):
    """Writes one ``.npy`` file row by row without holding it in memory. ``close`` completes the header."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        if self.dtype.hasobject:
            raise TypeError(f"{path}: arrays of Python objects are not stored")
        self.row_shape = row_shape
        self.rows = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = path.open("wb")
        self._write_header()
        self._header_bytes = self._file.tell()

    def append(self, rows: npt.ArrayLike) -> None:
        """Append rows of shape ``[n, *row_shape]``, cast to the file's dtype."""
        array = np.ascontiguousarray(rows, dtype=self.dtype)
        if array.shape[1:] != self.row_shape:
            raise ValueError(f"{self.path}: rows of shape {array.shape[1:]} do not fit {self.row_shape}")
        assert self._file is not None, "the file is closed"
        self._file.write(array.data if array.size else b"")
        self.rows += len(array)

    def written(self) -> Array:
        """Memory-map the rows appended so far, read-only."""
        assert self._file is not None, "the file is closed"
        self._file.flush()
        if not self.rows:
            return np.empty((0, *self.row_shape), self.dtype)
        shape = (self.rows, *self.row_shape)
        return np.asarray(np.memmap(self.path, self.dtype, "r", offset=self._header_bytes, shape=shape))

    def close(self) -> None:
        """Write the final header; calling it twice does nothing."""
        if self._file is None:
            return
        try:
            self._file.seek(0)
            self._write_header()
            # numpy pads headers so that the first dimension can grow in place.
            assert self._file.tell() == self._header_bytes
            self._file.flush()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the file as it is. An open file takes space on the disk even after it was removed."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # it could not be written before either
                file.close()

    def _write_header(self) -> None:
        assert self._file is not None
        shape = (self.rows, *self.row_shape)
        descr = np.lib.format.dtype_to_descr(self.dtype)
        np.lib.format.write_array_header_1_0(self._file, {"descr": descr, "fortran_order": False, "shape": shape})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class NpyReader(contextlib.AbstractContextManager["NpyReader"]):
    """Reads rows of an ``.npy`` file. Short runs of rows are read faster than mapped."""

    def __init__(self, path: Path) -> None:
        """Raises DataError: it cannot be read."""
        self.path, self._file = path, open_regular(path)
        self.dtype, self.shape = _read_header(path, self._file)
        self._start = self._file.tell()

    def read(self, first: int, out: Array) -> None:
        """Fill ``out``, contiguous rows, with those from ``first`` on. Raises DataError: the file ends before."""
        wanted = (self.dtype, self.shape[1:])
        if (out.dtype, out.shape[1:]) != wanted:
            raise DataError(self.path, f"holds rows of {wanted}, not {(out.dtype, out.shape[1:])}")
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self._file.seek(self._start + first * row_bytes)
        if out.nbytes and self._file.readinto(out.data.cast("B")) < out.nbytes:  # type: ignore[attr-defined]
            raise DataError(self.path, "truncated")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()


def check_regular(path: Path) -> None:
    """Refuse anything but a regular file or a link to one. Opening a pipe would wait for ever, and a device may react.
    Raises DataError naming the file, also if it is missing."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except OSError as error:
        raise DataError(path, error.strerror or str(error)) from None
    if kind != stat.S_IFREG:
        raise DataError(path, f"{_OTHERS.get(kind, 'something else')} in place of a regular file")


def check_tree(source: Path) -> None:
    """Check that ``source`` is a regular file, or a folder with only regular files and folders; raises DataError."""
    if not source.is_dir():
        check_regular(source)
    for folder, _, names in os.walk(source):
        for name in names:
            if (path := Path(folder, name)).exists():  # a dangling link does not count
                check_regular(path)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises DataError: it is not a regular file or may not be read; QuotaExceededError: as many
    files are open as may be."""
    check_regular(path)
    try:
        return path.open("rb")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise QuotaExceededError(
                f"{path}: too many files are open; this process may have {limit} (ulimit -n)"
            ) from None
        raise DataError(path, error.strerror or str(error)) from None


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write one whole array as ``.npy``."""
    with NpyAppender(path, array.dtype, array.shape[1:]) as out:
        out.append(array)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write readable JSON and force it to disk."""
    _write_text(path, json.dumps(value, indent=1) + "\n")


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a manifest as readable JSON that begins with a checksum of the whole file, and force it to disk."""
    text = json.dumps({_SEAL: _NO_SEAL, **value}, indent=1) + "\n"
    _write_text(path, text.replace(_NO_SEAL, xxhash.xxh3_64(text.encode()).hexdigest(), 1))


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_sealed(path: Path, what: str, fmt: str, version: int) -> dict[str, Any]:
    """Read what ``write_sealed`` wrote; raises DataError naming the file if any byte differs. First finish or undo a
    replacement of the folder that was cut short."""
    recover(path.parent)
    if not (folder := path.parent).is_dir():
        raise DataError(folder, f"no such folder, so not {what}{near_path(folder, path.name)}")
    try:
        with open_regular(path) as file:
            content = file.read()
    except DataError as error:
        if [*path.parent.glob("*.csv"), *path.parent.glob("*.parquet")]:  # none where it may not be read
            steps = "schema, import and partition" if what.endswith("dataset") else "schema and import"
            raise DataError(path.parent, f"a folder of tables, not {what}: run atta {steps} first") from None
        raise DataError(path, f"{error.cause}; not {what}") from None
    value = _parsed(path, content, what, fmt, version)
    found = value.pop(_SEAL, None)
    text = content.replace(str(found).encode(), _NO_SEAL.encode(), 1)
    if found != xxhash.xxh3_64(text).hexdigest():
        raise DataError(path, "altered: its checksum differs from its content")
    return value


def _parsed(path: Path, content: bytes, what: str, fmt: str, version: int) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise DataError(path, "not valid JSON") from None
    found = value.get("format") if isinstance(value, dict) else None
    if found != fmt:
        raise DataError(path, f"format {found!r} instead of {fmt!r}; not {what}")
    if value.get("version") != version:
        raise DataError(path, f"format version {value.get('version')!r}; this release reads version {version}")
    return dict(value)


def describe_file(path: Path) -> FileRecord:
    """Measure a finished ``.npy`` file: size, checksum, dtype and shape."""
    with path.open("rb") as file:
        dtype, shape = _read_header(path, file)
        return FileRecord(path.stat().st_size, _checksum(file), dtype.str, shape)


def check_file(path: Path, record: FileRecord, *, verify: bool) -> None:
    """Compare a file with its record. Size and array header are always compared, the checksum only with ``verify``.
    Raises DataError naming the file."""
    with blaming(DataError, path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != record.size:
            state = "truncated" if size < record.size else "altered"
            raise DataError(path, f"{state}: {size} bytes instead of {record.size}")
        dtype, shape = _read_header(path, file)
        if (dtype.str, shape) != (record.dtype, record.shape):
            have, want = f"{dtype.str}{list(shape)}", f"{record.dtype}{list(record.shape)}"
            raise DataError(path, f"altered: holds {have} instead of {want}")
        if verify and _checksum(file) != record.xxh3:
            raise DataError(path, "altered: its checksum differs from the manifest's")


def map_array(path: Path) -> Array:
    """Memory-map an ``.npy`` file read-only, without keeping it open; raises DataError naming the file."""
    with open_regular(path) as file:
        dtype, shape, fortran = _parse_header(path, file)
        start = file.tell()
        end, size = start + math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size
        if size < end:
            raise DataError(path, f"not a readable array: {size} bytes instead of {end}")
        if end == start:
            return np.empty(shape, dtype)
        with blaming(DataError, path):
            values = np.frombuffer(map_bytes(file, end), dtype, math.prod(shape), start)
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def array_start(path: Path) -> int:
    """The byte of an ``.npy`` file where its values begin; raises DataError naming the file."""
    with open_regular(path) as file:
        _parse_header(path, file)
        return file.tell()


def _read_header(path: Path, file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype, shape, fortran = _parse_header(path, file)
    if fortran:
        raise DataError(path, f"arrays of dtype {dtype} in this order are not read")
    return dtype, shape


def _parse_header(path: Path, file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """The dtype and shape of an array, and whether its first index runs fastest."""
    try:
        read, start = _HEADERS[np.lib.format.read_magic(file)], file.tell()
        # Numpy has Python parse the header. While another thread parses, too, CPython 3.11 may fail with SystemError.
        for _ in range(_PARSES):
            with contextlib.suppress(SystemError):
                shape, fortran, dtype = read(file)
                break
            file.seek(start)
        else:
            raise ValueError
    except Exception:  # numpy's parser lets errors of Python's tokenizer through, among others
        raise DataError(path, "not an .npy file (damaged header)") from None
    if dtype.hasobject or min(shape, default=0) < 0:
        raise DataError(path, f"arrays of dtype {dtype} and shape {list(shape)} are not read")
    return dtype, tuple(shape), fortran


def _checksum(file: BinaryIO) -> str:
    digest = xxhash.xxh3_64()
    file.seek(0)
    while block := file.read(_BLOCK):
        digest.update(block)
    return str(digest.hexdigest())
