"""The lines that say who was refused, and what operators did.

They name callers by what everybody may see: the name of a certificate, the id and the name of a token. They are
warnings, so that they appear unless ``--log-level error`` is asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from atta.daemon.security.admission import Admitted, Refused
from atta.wire.security.roles import is_operators

__all__ = ["EVERY_S", "AuditLines"]

log = structlog.get_logger("atta.audit")
EVERY_S = 1.0
"""A caller whose calls of one method are refused again and again gets a line so often."""


@dataclass
class _Refusals:
    """Those that came after the last line about a caller and a method, and the latest of them."""

    told_at: float
    times: int = 0
    address: str = ""
    reason: str = ""


class AuditLines:
    """Writes a line for each refused call, and for each admitted one that is for operators alone.

    The first refusal of a caller and method is written at once. Further ones are counted: after ``EVERY_S`` the next call
    of anybody writes a line for all of them. So refused callers cannot fill the disk.

    gRPC's event loop and the threads of HTTP use it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: the time in seconds."""
        self._clock, self._lock = clock, threading.Lock()
        self._refusals: dict[tuple[str, str], _Refusals] = {}
        """Of late, by caller and method, in order of ``told_at``. There are few callers that are known by name."""

    def write(self, method: str, address: str, decision: Admitted | Refused) -> None:
        """Write the line that a call deserves, if any, and those that are due. ``address``: where the caller is."""
        with self._lock:
            now = self._clock()
            self._write_due(now)
            if isinstance(decision, Refused):
                self._refused(method, address, decision, now)
            elif is_operators(method):
                log.warning("operator's call", method=method, caller=decision.caller, address=address)

    def _refused(self, method: str, address: str, decision: Refused, now: float) -> None:
        caller, reason = decision.caller, decision.cause
        known = self._refusals.get((caller, method))
        if known is None:
            log.warning("call refused", method=method, caller=caller, address=address, reason=reason)
            self._refusals[caller, method] = _Refusals(now)
        else:
            known.times, known.address, known.reason = known.times + 1, address, reason

    def _write_due(self, now: float) -> None:
        for (caller, method), found in list(self._refusals.items()):
            if now < found.told_at + EVERY_S:
                break
            del self._refusals[caller, method]
            if found.times:
                log.warning(
                    "call refused",
                    method=method,
                    caller=caller,
                    address=found.address,
                    reason=found.reason,
                    times=found.times,
                )
                self._refusals[caller, method] = _Refusals(now)
