"""Whether a call is admitted. Pure: what the caller has shown and the time are passed in."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from atta.wire.security.roles import ROLES, Role, allowed
from atta.wire.security.tokens import TokenFile

__all__ = ["ROLE_URI", "Admitted", "Proof", "Refusal", "Refused", "admit"]

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
    """What a caller has shown.

    Attributes:
        certificate: common name of the certificate that TLS has verified; None: the caller has shown none.
        uris: the URI names in that certificate.
        end: the last moment at which that certificate is good; None: there is none.
        authorization: values of the header that brings a token.
    """

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
    """Decide about a call of ``method`` (see ``ROLES``). The roles of certificate and token add up.

    A token that is not good ends the call, even if the certificate alone would do: its bearer would not notice that
    it has expired. ``tokens`` None: the daemon takes no tokens. A certificate that has expired since its connection
    began ends the call too.
    """
    names: list[str] = []
    roles: set[Role] = set()
    if proof.certificate is not None:
        names.append(f"certificate {proof.certificate}")
        if proof.end is not None and now > proof.end:
            return Refused(names[0], Refusal.UNKNOWN, f"the {names[0]} has expired")
        roles |= _roles_of(proof.uris)
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
        return Refused(caller, Refusal.LACKS_ROLE, f"{method} needs the role {_needed(method)}; {caller} {_has(roles)}")
    return Admitted(caller, frozenset(roles))


def _roles_of(uris: Sequence[str]) -> set[Role]:
    """Roles that this version does not know are left out: a later one may give them."""
    known = {f"{ROLE_URI}{role.value}": role for role in Role}
    return {known[uri] for uri in uris if uri in known}


def _bearer(headers: Sequence[str], tokens: TokenFile | None, now: datetime) -> Admitted | str:
    if tokens is None:
        return "this daemon takes no tokens"
    if len(headers) != 1 or not headers[0].lower().startswith(_SCHEME):
        return "the header that brings the token is not one `Bearer TOKEN`"
    found = tokens.find(headers[0][len(_SCHEME) :].strip(), now)
    return found if isinstance(found, str) else Admitted(f"{found.id} of {found.name}", found.roles)


def _needed(method: str) -> str:
    return " or ".join(sorted(role.value for role in ROLES.get(method, ()))) or "of nobody"


def _has(roles: set[Role]) -> str:
    return f"has {', '.join(sorted(role.value for role in roles))}" if roles else "has none"
