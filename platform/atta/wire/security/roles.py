"""Which role may call which method. Pure.

``ROLES`` names every method that a daemon answers once, also those of gRPC's own services. A method that is not there
is refused, whoever calls it. Roles do not contain one another: who reads batches and changes tables has two.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from atta.errors import UnknownNameError


class Role(enum.Enum):
    """What somebody is to a cluster. One caller may have several."""

    READER = "reader"
    """Opens sessions, and reads tables and figures."""
    WRITER = "writer"
    """Creates mutable tables, reads them and pushes to them."""
    PEER = "peer"
    """Another daemon of the cluster, which asks for rows and edges."""
    OPERATOR = "operator"
    """Watches and stops daemons; saves, loads and deletes tables; publishes versions of the dataset's tables."""


METRICS = "metrics"
"""Stands in the table for the Prometheus metrics, which are no gRPC method."""


def _methods(service: str, roles: Iterable[Role], *names: str) -> dict[str, frozenset[Role]]:
    return {f"{service}/{name}": frozenset(roles) for name in names}


_GRAPH, _KV, _LINK = "atta.v1.GraphService", "atta.v1.KvService", "atta.v1.LinkService"
_BACKUP = "atta.v1.BackupService"
_IDS, _WEIGHTS = "atta.v1.IdService", "atta.v1.ParameterService"
_TABLE, _SESSION, _CONTROL = "atta.v1.TableService", "atta.v1.SessionService", "atta.v1.ControlService"
_UPDATE = "atta.v1.UpdateService"
_REFLECTION, _HEALTH = "grpc.reflection.v1alpha.ServerReflection", "grpc.health.v1.Health"
_FIGURES = (Role.READER, Role.WRITER, Role.OPERATOR)

ROLES: dict[str, frozenset[Role]] = {
    **_methods(_GRAPH, [Role.PEER], "Sample", "Pair", "Probe"),
    **_methods(_KV, [Role.PEER], "Pull", "ListTables"),
    **_methods(_LINK, [Role.PEER], "Attach"),
    **_methods(_BACKUP, [Role.PEER], "Follow", "Append", "Piece", "Vote"),
    **_methods(_BACKUP, [Role.OPERATOR], "Promote"),
    **_methods(_IDS, [Role.READER, Role.WRITER], "Numbers", "Strings"),
    **_methods(_TABLE, [Role.WRITER], "Create", "Grow", "Register", "Push", "Forget"),
    **_methods(_TABLE, [Role.READER, Role.WRITER], "Locate", "Pull"),
    **_methods(_TABLE, _FIGURES, "List", "Describe", "Snapshots"),
    **_methods(_TABLE, [Role.OPERATOR], "Delete", "Save", "Load"),
    **_methods(_UPDATE, [Role.OPERATOR], "Publish"),
    **_methods(_UPDATE, _FIGURES, "Versions"),
    **_methods(_WEIGHTS, [Role.WRITER], "Create", "Join", "Begin", "Push", "Renew", "Leave", "Drop"),
    **_methods(_WEIGHTS, [Role.READER, Role.WRITER], "Pull"),
    **_methods(_SESSION, [Role.READER], "Open", "Next", "Renew", "Close"),
    **_methods(_CONTROL, Role, "Describe"),
    **_methods(_CONTROL, _FIGURES, "Stats", "Sessions"),
    **_methods(_CONTROL, [Role.READER], "Report"),
    **_methods(_CONTROL, [Role.OPERATOR], "Trace", "Stop"),
    **_methods(_REFLECTION, [Role.OPERATOR], "ServerReflectionInfo"),
    **_methods(_HEALTH, Role, "Check", "List", "Watch"),
    METRICS: frozenset({Role.READER, Role.OPERATOR}),
}
"""The roles of which a caller needs one, by method: ``"atta.v1.KvService/Pull"``."""


def allowed(method: str, roles: Collection[Role]) -> bool:
    """Whether a caller with these ``roles`` may call ``method``. An unknown method is for nobody."""
    return not ROLES.get(method, frozenset()).isdisjoint(roles)


def is_operators(method: str) -> bool:
    """Whether ``method`` is for operators alone, so that every call of it is worth a line in the log."""
    return ROLES.get(method) == frozenset({Role.OPERATOR})


def parse_roles(names: Iterable[object]) -> frozenset[Role]:
    """The roles with these names.

    Raises:
        UnknownNameError: there is no such role.
    """
    known = {role.value: role for role in Role}
    names = list(names)
    for name in names:
        if name not in known:
            raise UnknownNameError.of("role", name, known)
    return frozenset(known[str(name)] for name in names)
