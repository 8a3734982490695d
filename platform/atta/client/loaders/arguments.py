"""Keywords of loaders: those that several share are declared once, and those that only PyTorch's and PyG's loaders need are
taken, so that a script written for those runs."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from atta.samplers.arguments import did_you_mean

_WHY = {
    "num_workers": "the daemons sample ahead, there are no worker processes",
    "persistent_workers": "there are no worker processes",
    "worker_init_fn": "there are no worker processes",
    "multiprocessing_context": "there are no worker processes",
    "timeout": "there are no worker processes, and every call to a daemon has a deadline",
    "filter_per_worker": "there are no worker processes",
    "prefetch_factor": "the daemons decide how many batches they make ahead",
    "in_order": "batches always come in order",
    "pin_memory": "atta.PrefetchLoader copies batches to a GPU, from the memory shared with the daemon",
    "pin_memory_device": "batches lie in memory shared with the daemon, or in received bytes",
    "generator": "all randomness follows seed and the number of the epoch",
    "is_sorted": "daemons hold their edges sorted",
}
_warned = threading.Event()
T = TypeVar("T")
L = TypeVar("L", bound=type)


def shows(*groups: type) -> Callable[[L], L]:
    """Put into the signature of a loader's constructor, which ``help`` shows, what it passes on: the fields of the
    dataclasses ``groups``, and the keywords of its base class."""

    def shown(loader: L) -> L:
        init = vars(loader)["__init__"]
        own = inspect.signature(init)
        *named, rest = own.parameters.values()
        passed = [inspect.signature(kind).parameters for kind in (*groups, vars(loader.__base__)["__init__"])]
        known = {"input_nodes", *own.parameters}  # seeds are each loader's own matter
        others = [p for of in passed for p in of.values() if p.kind is p.KEYWORD_ONLY and p.name not in known]
        init.__signature__ = own.replace(parameters=[*named, *others, rest])
        return loader

    return shown


def split_off(group: type[T], options: dict[str, Any]) -> T:
    """The dataclass with those of ``options`` that are fields of it; the others stay there."""
    names = [field.name for field in dataclasses.fields(group)]  # type: ignore[arg-type]
    return group(**{name: options.pop(name) for name in names if name in options})


def ignore_torch_options(loader: type, given: Mapping[str, object]) -> None:
    """Warn once per process of arguments that PyTorch's loaders know and that mean nothing here. Raises TypeError: an
    argument that neither knows, with the nearest one that ``loader`` takes."""
    known = sorted({name for kind in loader.__mro__[:-1] for name in inspect.signature(kind).parameters})
    for name in given:
        if name not in _WHY:
            raise TypeError(f"{loader.__name__}: unknown argument {name!r}{did_you_mean(name, known)}")
    if not given or _warned.is_set():
        return
    _warned.set()
    reasons = "; ".join(f"{name} ({_WHY[name]})" for name in given)
    warnings.warn(f"{loader.__name__} ignores {reasons}", UserWarning, stacklevel=level_outside())


def level_outside() -> int:
    """The ``stacklevel`` with which the caller's warning names the line that called into Atta."""
    level = 1
    while str(sys._getframe(level).f_globals.get("__name__")).startswith("atta."):
        level += 1
    return level
