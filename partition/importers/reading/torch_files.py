"""Reads files of ``torch.save`` with ``weights_only=True``, and calls nothing that they name but torch's own builders
of tensors.

Every other name in a file stands for a class of this module that does nothing. An object of any class comes in as a
``Foreign``: the name of its class and its pickled fields. So a file with one strange attribute can still be read, and
the attribute can be named. The names that other packages have admitted for ``torch.load`` do not count meanwhile.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from atta.errors import DataError
from atta.partition.importers.reading.common import first_line
from atta.partition.importers.reading.inert_pickle import NUMPY

__all__ = ["Foreign", "foreign", "load_torch"]

_NOT_ADMITTED = re.compile(r"GLOBAL (\S+) was not an allowed global")
_ADVICE = re.compile(r"\s*In PyTorch \d.*")


class Foreign:
    """Stands in for an object of a class that is not admitted. ``state`` is what its pickle holds of it.

    Each class of a file has a subclass of its own, whose ``kind`` is the full name of the class.
    """

    kind: ClassVar[str] = ""
    state: Any = None

    def __init__(self, *_: Any) -> None:
        """Take the arguments of any class."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def fields(self) -> Mapping[Any, Any]:
        """The pickled attributes of the object."""
        return self.state if isinstance(self.state, dict) else {}


def load_torch(path: Path, admitted: Mapping[str, Any] | None = None, names: Iterable[str] = ()) -> Any:
    """Return what ``torch.save`` wrote: tensors on the CPU, plain containers and numbers as they are, ``Foreign``
    objects, and the stand-ins of ``inert_pickle.NUMPY``. A ``defaultdict`` comes as a ``dict``.

    Args:
        path: the file.
        admitted: what some names of the file stand for instead; only inert classes and functions.
        names: classes that files from before torch 1.6 may name. Those of newer files are found.

    Raises:
        DataError: the file is missing, damaged, or holds an object that needs more than its fields.
    """
    import torch

    held: list[str] = []
    try:
        with _without_globals(), warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants():
            warnings.simplefilter("ignore")
            held = _names_in(path)
            known = {"collections.defaultdict": _dictionary, **NUMPY, **(admitted or {})}
            known |= {name: foreign(name) for name in (*held, *names) if name not in known}
            torch.serialization.add_safe_globals([(call, name) for name, call in known.items()])
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except Exception as error:  # torch raises half a dozen types for damaged or refused files
        raise DataError(path, f"refused by torch.load(weights_only=True): {_cause(error, held)}") from None


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


def foreign(name: str) -> type[Foreign]:
    """Return the class whose objects stand for objects of the class ``name``."""
    name = _printable(name)
    module, _, last = name.rpartition(".")
    return type(last, (Foreign,), {"kind": name, "__module__": module})


def _dictionary(*_: Any) -> dict[Any, Any]:
    """Stand in for ``collections.defaultdict``, which torch does not fill."""
    return {}


def _cause(error: Exception, held: Iterable[str]) -> str:
    """The cause of torch's refusal in one line, and the classes that the file names besides.

    torch wraps the cause in advice, among it to load unsafely. The error beneath has the cause alone.
    """
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
    """``text`` for a terminal. A damaged file names classes with any bytes."""
    return "".join(c if c.isprintable() else "?" for c in text)
