"""Reads pickles of numpy arrays, CSR matrices and adjacency lists without running the functions that they name.

A pickle is a program that may call any function it names. Here every name is looked up in a short table of inert
stand-ins from this file. No class or function of numpy, scipy or any other module is ever reached. The stand-ins
collect the pickled fields, which are then checked and turned into real arrays. A name outside the table ends the
reading.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from atta.errors import DataError
from atta.partition.importers.reading.common import as_csr, first_line

__all__ = ["NUMPY", "load_inert", "real_numbers"]

_ARCHIVE = b"PK\x03\x04"


class _Dtype:
    """Stands in for ``numpy.dtype``: a plain number type, byte order from the pickled state."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        self.order = order.decode("ascii") if isinstance(order, bytes) else order

    def real(self) -> np.dtype[Any]:
        if not isinstance(self.code, str) or self.code[:1] not in "biuf" or not self.code[1:].isdigit():
            raise ValueError(f"arrays of dtype {self.code!r} are not read")
        return np.dtype((self.order if self.order in "<>" else "<") + self.code)


class _Array:
    """Stands in for ``numpy.ndarray``."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def real(self) -> npt.NDArray[Any]:
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype):
            raise ValueError("an array without a dtype")
        raw: Any = data.encode("latin1") if isinstance(data, str) else data
        if type(raw) is not bytes:
            raise ValueError("an array of objects")
        flat = np.frombuffer(raw, dtype.real())
        return flat.reshape(tuple(int(n) for n in shape), order="F" if fortran else "C")


class _Scalar:
    """Stands in for ``numpy.core.multiarray.scalar``, the number inside an adjacency list."""

    def __init__(self, dtype: Any, data: Any) -> None:
        self.dtype, self.data = dtype, data

    def real(self) -> Any:
        raw = self.data.encode("latin1") if isinstance(self.data, str) else self.data
        return np.frombuffer(raw, self.dtype.real())[0].item()


class _Matrix:
    """Stands in for ``scipy.sparse.csr_matrix``; its fields arrive in ``__dict__``."""

    def __init__(self, *_: Any) -> None:
        self.fields: dict[Any, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.fields = dict(state)

    def real(self, path: Path) -> csr_array:
        fields = {k.decode() if isinstance(k, bytes) else k: v for k, v in self.fields.items()}
        shape = fields.get("_shape", fields.get("shape"))
        arrays = {name: fields[name].real() for name in ("data", "indices", "indptr")}
        return as_csr({**arrays, "shape": np.array(shape)}, path)


class _Lists(dict[Any, Any]):
    """Stands in for ``collections.defaultdict``; its factory is ignored."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a dictionary with a state")


class _Function:
    """A callable stand-in; unlike a plain function it has no attributes that a pickle could set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function with a state")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _rebuild(kind: Any, *_: Any) -> _Matrix:
    if kind is not _Matrix:
        raise pickle.UnpicklingError("it rebuilds an object that is not a CSR matrix")
    return _Matrix()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Stand in for ``_codecs.encode``, with which newer pickles of old protocols write bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an unknown encoding")
    return text.encode("latin1")


def _nothing(*_: Any) -> None:
    """Stand in for names that appear only as arguments, such as ``list`` of a ``defaultdict``."""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy._core.multiarray", "scalar"): _Scalar,
    ("scipy.sparse.csr", "csr_matrix"): _Matrix,
    ("scipy.sparse._csr", "csr_matrix"): _Matrix,
    ("copy_reg", "_reconstructor"): _Function(_rebuild),
    ("copyreg", "_reconstructor"): _Function(_rebuild),
    ("collections", "defaultdict"): _Lists,
    ("__builtin__", "list"): _Function(_nothing),
    ("builtins", "list"): _Function(_nothing),
    ("__builtin__", "object"): _Function(_nothing),
    ("builtins", "object"): _Function(_nothing),
    ("_codecs", "encode"): _Function(_encode),
}


NUMPY = {f"{module}.{name}": call for (module, name), call in _ALLOWED.items() if module.startswith("numpy")}
"""The stand-ins for what pickles of numpy's arrays and numbers name, by its full name."""


def real_numbers(value: Any) -> Any:
    """Return the array or number that a stand-in of ``NUMPY`` stands for, every other value as it is.

    Raises ValueError for arrays of other things than numbers, and for damaged ones.
    """
    return value.real() if isinstance(value, _Array | _Scalar) else value


class _InertUnpickler(pickle.Unpickler):
    """Looks up names only in ``_ALLOWED``. Refuses persistent ids and extension codes, too."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed") from None


def load_inert(path: Path) -> Any:
    """Return the arrays, CSR matrices, numbers and strings, in dictionaries and lists of any depth, that a pickle holds.

    path: of a pickle, or of an archive that ``torch.save`` wrote, from which no tensors are read; see ``load_torch``.

    Raises:
        DataError: the file is missing, damaged, or holds anything else.
    """
    try:
        return _plain(_InertUnpickler(io.BytesIO(_pickle_of(path)), encoding="latin1").load(), path)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except DataError:
        raise
    except Exception as error:  # a damaged pickle makes the reader raise nearly any type
        raise DataError(path, f"refused: {first_line(error)}") from None


def _pickle_of(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(_ARCHIVE):
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entry = next((e for e in archive.infolist() if e.filename.endswith("/data.pkl")), None)
        if entry is None:
            raise ValueError("it is an archive that torch.save did not write")
        if entry.file_size > len(content):  # torch.save compresses nothing
            raise ValueError(f"{entry.filename} would be larger than the whole file")
        return archive.read(entry)


def _plain(value: Any, path: Path) -> Any:
    """Put real arrays, matrices and numbers in the places of their stand-ins."""
    if isinstance(value, _Array | _Scalar):
        return value.real()
    if isinstance(value, _Matrix):
        return value.real(path)
    if isinstance(value, dict):
        return {_plain(key, path): _plain(each, path) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, path) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"it holds a {type(value).__name__.strip('_')}")
