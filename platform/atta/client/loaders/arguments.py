"""Arguments that only PyTorch's and PyG's loaders need: loaders take them, so that a script written for those runs."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Mapping

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
    warnings.warn(f"{loader.__name__} ignores {reasons}", UserWarning, stacklevel=level_outside())


def level_outside() -> int:
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
