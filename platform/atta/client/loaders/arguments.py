"""Arguments that loaders take without having them: earlier names of ours, and what only PyTorch's and PyG's loaders
need.

Both let a script written for something else keep running, with a warning.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from atta.samplers.arguments import did_you_mean

__all__ = ["earlier_names", "ignore_torch_options"]

P = ParamSpec("P")
R = TypeVar("R")
_EARLIER = {"seeds": "seed_policy", "weight": "share"}
"""Names of arguments before version 0.1, and their present names. The old names go with version 0.2."""

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


def earlier_names(function: Callable[P, R]) -> Callable[P, R]:
    """Let ``function`` take arguments by their earlier names, too, with a DeprecationWarning that says the new one.

    The wrapped function raises TypeError where an argument is given by both names.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for old in _EARLIER.keys() & kwargs.keys():
            new = _EARLIER[old]
            if new in kwargs:
                raise TypeError(f"{old} is the earlier name of {new}: give {new} alone")
            message = f"{old} is now {new}; the old name goes with version 0.2"
            warnings.warn(message, DeprecationWarning, stacklevel=_level_outside())
            kwargs[new] = kwargs.pop(old)
        return function(*args, **kwargs)

    return wrapper


def ignore_torch_options(loader: type, given: Mapping[str, object]) -> None:
    """Warn once per process of arguments that PyTorch's loaders know and that mean nothing here.

    Raises:
        TypeError: an argument that neither knows, with the nearest one that ``loader`` takes.
    """
    known = sorted(_parameters(loader))
    for name in given:
        if name not in _WHY:
            raise TypeError(f"{loader.__name__}: unknown argument {name!r}{did_you_mean(name, known)}")
    if not given or _warned.is_set():
        return
    _warned.set()
    reasons = "; ".join(f"{name} ({_WHY[name]})" for name in given)
    warnings.warn(f"{loader.__name__} ignores {reasons}", UserWarning, stacklevel=_level_outside())


def _level_outside() -> int:
    """The ``stacklevel`` with which the caller's warning names the line that called into Atta."""
    level = 1
    while str(sys._getframe(level).f_globals.get("__name__")).startswith("atta."):
        level += 1
    return level


def _parameters(loader: type) -> set[str]:
    """Names that the constructors of a class and its bases take."""
    found: set[str] = set()
    for kind in loader.__mro__:
        if "__init__" in vars(kind) and kind is not object:
            parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
            found |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return found - {"self"}
