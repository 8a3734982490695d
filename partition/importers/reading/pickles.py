"""Reads pickles, and files of ``torch.save``, and calls nothing that they name but torch's own builders of tensors.

A pickle is a program that may call any function it names. Here names stand for inert classes of this module, which collect
the pickled fields. ``load_inert`` ends at a name that it does not know; ``load_torch`` gives a ``Foreign`` for an object of
any class, so that a strange attribute can be named. Names that other packages have admitted for ``torch.load`` do not count.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array

from atta.errors import DataError
from atta.observe.packages import load
from atta.partition.importers.reading.rows import as_csr
from atta.partition.importers.reading.source import Array, first_line

_ARCHIVE = b"PK\x03\x04"
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NOT_ADMITTED = re.compile(r"GLOBAL (\S+) was not an allowed global")
_ADVICE = re.compile(r"\s*In PyTorch \d.*")


class Foreign:
    """Stands in for an object of another class. ``args`` and ``state`` are what its pickle holds of it. Each class of a
    file that is not admitted has a subclass of its own, whose ``kind`` is the full name of the class."""

    kind: ClassVar[str] = ""
    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def fields(self) -> Mapping[Any, Any]:
        """The object's attributes by name."""
        return self.state if isinstance(self.state, dict) else {}


def foreign(name: str) -> type[Foreign]:
    """Return the class whose objects stand for objects of the class ``name``."""
    name = _printable(name)
    module, _, last = name.rpartition(".")
    return type(last, (Foreign,), {"kind": name, "__module__": module})


def _text(value: Any) -> Any:
    return value.decode("ascii") if isinstance(value, bytes) else value


class _Dtype(Foreign):
    """Stands in for ``numpy.dtype``: a plain number type, byte order from the pickled state."""

    def real(self) -> np.dtype[Any]:
        code, order = _text(self.args[0] if self.args else None), _text(self.state[1]) if self.state else "|"
        if not isinstance(code, str) or code[:1] not in "biuf" or not code[1:].isdigit():
            raise ValueError(f"arrays of dtype {code!r} are not read")
        return np.dtype((order if order in "<>" else "<") + code)


class _Array(Foreign):
    """Stands in for ``numpy.ndarray``."""

    def real(self) -> Array:
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype):
            raise ValueError("an array without a dtype")
        raw: Any = data.encode("latin1") if isinstance(data, str) else data
        if type(raw) is not bytes:
            raise ValueError("an array of objects")
        flat = np.frombuffer(raw, dtype.real())
        return flat.reshape(tuple(int(n) for n in shape), order="F" if fortran else "C")


class _Scalar(Foreign):
    """Stands in for ``numpy.core.multiarray.scalar``, the number inside an adjacency list."""

    def real(self) -> Any:
        dtype, data = self.args
        return np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, dtype.real())[0].item()


class _Matrix(Foreign):
    """Stands in for ``scipy.sparse.csr_matrix``."""

    def real(self, path: Path) -> csr_array:
        fields = {_text(name): value for name, value in dict(self.state or {}).items()}
        shape = fields.get("_shape", fields.get("shape"))
        arrays = {name: fields[name].real() for name in ("data", "indices", "indptr")}
        return as_csr({**arrays, "shape": np.array(shape)}, path)


class _Function:
    """A callable stand-in; unlike a plain function it has no attributes that a pickle could set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function with a state")


def _rebuild(kind: Any, *_: Any) -> _Matrix:
    if kind is not _Matrix:
        raise pickle.UnpicklingError("it rebuilds an object that is not a CSR matrix")
    return _Matrix()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an unknown encoding")
    return text.encode("latin1")


_DICTIONARY = _Function(lambda *_: {})
"""Stands in for ``collections.defaultdict``; its factory is ignored."""
_NOTHING = _Function(lambda *_: None)
"""Stands in for names that appear only as arguments, such as ``list`` of a ``defaultdict``."""
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    **{(module, "_reconstruct"): _Function(lambda *_: _Array()) for module in _MULTIARRAY},
    **{(module, "scalar"): _Scalar for module in _MULTIARRAY},
    ("scipy.sparse.csr", "csr_matrix"): _Matrix,
    ("scipy.sparse._csr", "csr_matrix"): _Matrix,
    ("copy_reg", "_reconstructor"): _Function(_rebuild),
    ("copyreg", "_reconstructor"): _Function(_rebuild),
    ("collections", "defaultdict"): _DICTIONARY,
    **{(module, name): _NOTHING for module in ("__builtin__", "builtins") for name in ("list", "object")},
    ("_codecs", "encode"): _Function(_encode),
}
NUMPY = {f"{module}.{name}": call for (module, name), call in _ALLOWED.items() if module.startswith("numpy")}
"""The stand-ins for what pickles of numpy's arrays and numbers name, by its full name."""


def real_numbers(value: Any) -> Any:
    """Return the array or number that a stand-in of ``NUMPY`` stands for, every other value as it is. Raises ValueError
    for arrays of other things than numbers, and for damaged ones."""
    return value.real() if isinstance(value, _Array | _Scalar) else value


class _InertUnpickler(pickle.Unpickler):
    """Looks up names only in ``_ALLOWED``. Refuses persistent ids and extension codes, too."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed") from None


def load_inert(path: Path) -> Any:
    """Return the arrays, CSR matrices, numbers and strings, in dictionaries and lists of any depth, that a pickle
    holds. path: of a pickle, or of an archive that ``torch.save`` wrote, from which no tensors are read; see
    ``load_torch``. Raises DataError: the file is missing, damaged, or holds anything else."""
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


def load_torch(
    path: Path, admitted: Mapping[str, Any] | None = None, names: Iterable[str] = (), *, mapped: bool = False
) -> Any:
    """Return what ``torch.save`` wrote: tensors on the CPU, plain containers and numbers as they are, ``Foreign``
    objects, and the stand-ins of ``NUMPY``. A ``defaultdict`` comes as a ``dict``. ``admitted``: inert classes and
    functions that some names of the file stand for. ``names``: classes that files from before torch 1.6 may name.
    ``mapped``: map tensors of newer files. Raises DataError: the file is missing, damaged, or holds an object that
    needs more than its fields."""
    torch = load("reading tensors", "torch")

    held: list[str] = []
    try:
        with _without_globals(), warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants():
            warnings.simplefilter("ignore")
            held = _names_in(path)
            known = {"collections.defaultdict": _DICTIONARY, **NUMPY, **(admitted or {})}
            known |= {name: foreign(name) for name in (*held, *names) if name not in known}
            torch.serialization.add_safe_globals([(call, name) for name, call in known.items()])
            return torch.load(path, map_location="cpu", mmap=mapped and zipfile.is_zipfile(path), weights_only=True)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except Exception as error:  # torch raises half a dozen types for damaged or refused files
        raise DataError(path, f"refused by torch.load(weights_only=True): {_cause(error, held)}") from None


def load_tensor(path: Path, *, mapped: bool = False) -> Array:
    """Return the only tensor that ``torch.save`` wrote; raises DataError as ``load_torch`` does."""
    return as_array(path, load_torch(path, mapped=mapped))


def as_array(path: Path, value: Any) -> Array:
    """A tensor in a file as an array; raises DataError if it is none, or numpy lacks its dtype."""
    try:
        return np.asarray(value.detach().numpy())
    except (AttributeError, TypeError, RuntimeError):
        raise DataError(path, f"holds {type(value).__name__} where a tensor is wanted") from None


@contextmanager
def _without_globals() -> Iterator[None]:
    """Admit none of the names that other packages registered with torch, until the block ends."""
    from torch import serialization

    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def _names_in(path: Path) -> list[str]:
    """The names in a file that torch does not admit; none for files from before torch 1.6, which it cannot search."""
    from torch import serialization

    try:
        return sorted(serialization.get_unsafe_globals_in_checkpoint(path))
    except FileNotFoundError:
        raise
    except Exception:  # damaged, or older: the reading itself says what is wrong
        return []


def _cause(error: Exception, held: Iterable[str]) -> str:
    """The cause of torch's refusal in one line, and the classes that the file names besides. torch wraps the cause in
    advice, among it to load unsafely. The error beneath has the cause alone."""
    cause = first_line(error.__context__ if isinstance(error.__context__, pickle.UnpicklingError) else error)
    cause = _ADVICE.sub("", cause)
    if found := _NOT_ADMITTED.search(cause):
        return _printable(f"it holds a {found[1]}, which is not admitted")
    if " " not in cause:
        cause += " (it is damaged, or torch.save did not write it)"
    elif cause.startswith("Unsupported operand"):
        cause += ", which only other pickle protocols than that of torch.save have"
    strange = [name for name in held if name not in cause and not name.startswith(("torch_geometric.", "numpy."))]
    return _printable(cause + (f" (it names {', '.join(strange[:3])})" if strange else ""))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
