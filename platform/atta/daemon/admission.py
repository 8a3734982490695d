"""Whether a call is admitted, which is pure; the guard that asks it before each call; and the lines of the audit log."""

from __future__ import annotations

import asyncio
import enum
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import grpc
import structlog

from atta.daemon.services.rooms import NOT_ADMITTED_S, Debts
from atta.wire.credentials import AUTHORIZATION
from atta.wire.rpc import ACCESS
from atta.wire.tokens import ROLES, Role, TokenFile, allowed

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
            elif ROLES.get(method) == frozenset({Role.OPERATOR}):
                log.info("operator's call", method=method, caller=decision.caller, address=address)

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


ROLE_URI = "atta:role/"
"""A certificate gives the roles of its URI names that begin so: ``atta:role/peer``."""
_SCHEME = "bearer "


class Refusal(enum.Enum):
    """Why a call is refused."""

    UNKNOWN = "unknown"
    """Nobody knows the caller: gRPC's UNAUTHENTICATED."""
    LACKS_ROLE = "lacks role"
    """The caller is known but may not: gRPC's PERMISSION_DENIED."""


@dataclass(frozen=True)
class Proof:
    """What a caller has shown: the common name of the certificate that TLS has verified (None: none), the URI names in it and
    its last good moment, and the values of the header that brings a token."""

    certificate: str | None = None
    uris: Sequence[str] = ()
    end: datetime | None = None
    authorization: Sequence[str] = ()


@dataclass(frozen=True)
class Admitted:
    """A caller that may go on, by its names."""

    caller: str
    roles: frozenset[Role]


@dataclass(frozen=True)
class Refused:
    """A call that ends here. ``cause`` is for the caller and shows nothing of a token's secret."""

    caller: str
    why: Refusal
    cause: str


def admit(method: str, proof: Proof, tokens: TokenFile | None, now: datetime) -> Admitted | Refused:
    """Decide about a call of ``method`` (see ``ROLES``). The roles of certificate and token add up. A token that is not
    good ends the call, even if the certificate alone would do: its bearer would not notice that it has expired.
    ``tokens`` None: the daemon takes no tokens. A certificate that has expired since its connection began ends the call
    too."""
    names: list[str] = []
    roles: set[Role] = set()
    if proof.certificate is not None:
        names.append(f"certificate {proof.certificate}")
        if proof.end is not None and now > proof.end:
            return Refused(names[0], Refusal.UNKNOWN, f"the {names[0]} has expired")
        # Roles that this version does not know are left out: a later one may give them.
        roles |= {role for role in Role if f"{ROLE_URI}{role.value}" in proof.uris}
    if proof.authorization:
        known = _bearer(proof.authorization, tokens, now)
        if isinstance(known, str):
            return Refused(" and ".join(names) or "unknown", Refusal.UNKNOWN, known)
        names.append(f"token {known.caller}")
        roles |= known.roles
    if not names:
        return Refused("unknown", Refusal.UNKNOWN, "the call brings neither a certificate nor a token")
    caller = " and ".join(names)
    if not allowed(method, roles):
        needed = " or ".join(sorted(role.value for role in ROLES.get(method, ()))) or "of nobody"
        has = ", ".join(sorted(role.value for role in roles)) or "none"
        return Refused(caller, Refusal.LACKS_ROLE, f"this needs the role {needed}; {caller} has {has}")
    return Admitted(caller, frozenset(roles))


def _bearer(headers: Sequence[str], tokens: TokenFile | None, now: datetime) -> Admitted | str:
    if tokens is None:
        return "this daemon takes no tokens"
    if len(headers) != 1 or not headers[0].lower().startswith(_SCHEME):
        return "the header that brings the token is not one `Bearer TOKEN`"
    found = tokens.find(headers[0][len(_SCHEME) :].strip(), now)
    return found if isinstance(found, str) else Admitted(f"{found.id} of {found.name}", found.roles)


_CODES = {Refusal.UNKNOWN: grpc.StatusCode.UNAUTHENTICATED, Refusal.LACKS_ROLE: grpc.StatusCode.PERMISSION_DENIED}


class CallGuard:
    """Decides about the calls of one daemon, before their requests are read."""

    def __init__(
        self,
        tokens: Callable[[], TokenFile | None],
        latest: Callable[[], TokenFile | None] | None = None,
        debts: Debts | None = None,
        most_waiting: int = 512,
    ) -> None:
        """Guard a daemon.

        Args:
            tokens: returns those that are good now; None: none are taken.
            latest: the same with a look at the file, for tokens that are younger than the last one; None: there is none.
            debts: of connections. Refusals add to them, and wait until they are paid; None: there are none.
            most_waiting: so many refusals wait at a time. Further ones do not: all count as calls under way.
        """
        self._tokens, self._latest = tokens, latest or tokens
        self._debts, self._lines = debts, AuditLines()
        self._waiting, self._most_waiting = 0, most_waiting

    def decide(self, method: str, address: str, proof: Proof) -> Admitted | Refused:
        """Admit or refuse a call, and write the line that it deserves."""
        now = datetime.now(UTC)
        decision = admit(method, proof, self._tokens(), now)
        if isinstance(decision, Refused) and decision.why is Refusal.UNKNOWN:
            decision = admit(method, proof, self._latest(), now)
        self._lines.write(method, address, decision)
        return decision

    def standing(self, method: str, context: Any) -> Callable[[], str]:
        """For what outlives its call: a function that says why the caller may not call ``method`` any more; "": it may."""
        proof = _proof_of(context)

        def refused() -> str:
            decision = admit(method, proof, self._tokens(), datetime.now(UTC))
            return decision.cause if isinstance(decision, Refused) else ""

        return refused

    async def admit(self, method: str, context: Any) -> None:
        """End a call of ``method`` (``atta.v1.KvService/Pull``) whose caller may not make it."""
        decision = self.decide(method, context.peer(), _proof_of(context))
        if isinstance(decision, Refused):
            await self._charge(context.peer())
            await context.abort(_CODES[decision.why], f"{ACCESS}{decision.cause}")

    async def _charge(self, connection: str) -> None:
        """Note what a refusal costs its connection, and wait while that owes too much."""
        if self._debts is None:
            return
        now = asyncio.get_running_loop().time()
        self._debts.owes(connection, NOT_ADMITTED_S, now)
        pause = self._debts.wait_s(connection, now)
        if pause and self._waiting < self._most_waiting:
            self._waiting += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._waiting -= 1


@lru_cache(maxsize=1024)
def end_of(pem: bytes) -> datetime:
    """The last moment at which the first certificate of a chain is good. Each call of a connection asks for it. Raises
    ValueError: this is no certificate."""
    from cryptography import x509  # loading it takes longer than all else of a daemon without TLS

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def _proof_of(context: Any) -> Proof:
    """What the connection and the header of a call show. TLS has verified the certificate already."""
    shown = context.auth_context()
    certificates = shown.get("x509_pem_cert", ())
    names = shown.get("x509_common_name") or (b"",) if certificates else ()
    return Proof(
        certificate=names[0].decode(errors="replace") if names else None,
        end=end_of(certificates[0]) if certificates else None,
        uris=[uri.decode(errors="replace") for uri in shown.get("peer_uri", ())],
        authorization=[_text(value) for key, value in context.invocation_metadata() or () if key == AUTHORIZATION],
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
