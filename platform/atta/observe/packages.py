"""Installed packages: the extra of ``atta`` that brings each, and with the machine the versions behind a result."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atta.errors import ConfigError

_PACKAGES = ("atta", "torch", "torch_geometric", "dgl", "numpy", "grpcio", "protobuf", "pymetis")


try:
    __version__ = version("atta")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"


def machine() -> dict[str, Any]:
    """CPU model, usable cores, memory in bytes, and the GPU if torch is loaded and sees one."""
    import psutil  # only here: `import atta` reads the version

    torch = sys.modules.get("torch")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None,
    }


def versions() -> dict[str, str]:
    """Versions of the installed packages that influence results."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


EXTRAS = {
    "torch": "train",
    "torch_geometric": "train",
    "dgl": "dgl",
    "yaml": "dgl",
    "matplotlib": "plot",
    "pyarrow": "table",
    "lightning": "lightning",
    "ray": "ray",
    "fsspec": "storage",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
"""The extra that installs a package."""


def missing(*packages: str) -> list[str]:
    """The ``packages`` that are not installed. None of them is imported."""
    return [package for package in packages if not _installed(package)]


def need(what: str, *packages: str) -> None:
    """Check that the ``packages`` for ``what``, all of one extra, are installed. ConfigError names the extra to
    install."""
    if missing(*packages):
        raise ConfigError(f"{what} needs {' and '.join(packages)}: install {_extra(packages[0])}")


def _extra(package: str) -> str:
    late = EXTRAS[package] == "dgl" and sys.version_info >= (3, 12)
    return f"atta[{EXTRAS[package]}]" + (" under Python 3.11, the latest that DGL has packages for" if late else "")


def load(what: str, *modules: str) -> Any:
    """Import ``modules``, whose packages belong to one extra, and return the first. Raises ConfigError: one cannot be
    imported; says what to install for ``what``."""
    packages = list(dict.fromkeys(name.split(".")[0] for name in modules))
    try:
        found = [import_module(name) for name in modules]
    except ImportError as error:
        raise ConfigError(f"{what} needs {' and '.join(packages)}: install {_extra(packages[0])} ({error})") from None
    return found[0]


def member(what: str, module: str, name: str) -> Any:
    """What a user's own ``module`` calls ``name``. Raises ConfigError: it cannot be imported; begins with ``what``."""
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # the module runs, so this may be anything
        text = " ".join(str(error).split())
        raise ConfigError(f"{what}: cannot be imported: {text or type(error).__name__}") from None


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # half imported, or blocked
        return False
