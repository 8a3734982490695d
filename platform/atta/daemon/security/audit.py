"""The lines that say who was refused, and what operators did.

They name callers by what everybody may see: the name of a certificate, the id and the name of a token. They are
warnings, so that they appear unless ``--log-level error`` is asked for.
"""

from __future__ import annotations

import structlog

from atta.daemon.security.admission import Admitted, Refused
from atta.wire.security.roles import is_operators

__all__ = ["audit"]

log = structlog.get_logger("atta.audit")


def audit(method: str, address: str, decision: Admitted | Refused) -> None:
    """Write a line for a refused call, and for an admitted one that is for operators alone.

    ``address``: where the caller is, as gRPC names it.
    """
    if isinstance(decision, Refused):
        log.warning("call refused", method=method, caller=decision.caller, address=address, reason=decision.cause)
    elif is_operators(method):
        log.warning("operator's call", method=method, caller=decision.caller, address=address)
