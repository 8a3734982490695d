"""Which of several equal processes this one is, as Kubernetes, Slurm or the host's name tell it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from atta.errors import ConfigError

__all__ = ["AUTO", "NODE_VARIABLES", "PART_VARIABLES", "own_number"]

AUTO = "auto"
"""What people write for a number that the environment tells."""
PART_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_PROCID", "SLURM_NODEID")
"""Where the number of a daemon stands. Slurm may run several daemons on one node."""
NODE_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_NODEID", "SLURM_PROCID")
"""Where the number of a machine stands."""
_LARGEST = 1 << 20


def own_number(environment: Mapping[str, str], host: str, variables: Sequence[str]) -> int:
    """The number of this process, from 0.

    It is the first of ``variables`` that is set in ``environment``. Otherwise it is the number that ends the first
    label of the host's name, such as 3 in ``atta-daemon-3`` or ``node3.example``.

    Raises:
        ConfigError: neither tells a number, or a variable holds something else.
    """
    for name in variables:
        if text := environment.get(name, "").strip():
            return _number(text, f"{name}={text!r}")
    found = re.search(r"[0-9]+$", host.partition(".")[0])
    if found is None:
        raise ConfigError(
            f"auto: no number is known: set {', '.join(variables)}, or end the host name {host!r} with it"
        )
    return _number(found[0], f"host name {host!r}")


def _number(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) > _LARGEST:
        raise ConfigError(f"auto: {where} is not a number from 0 to {_LARGEST}")
    return int(text)
