"""Every method has roles, and the table says what the documents promise."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from atta.errors import UnknownNameError
from atta.wire.rpc import METHODS
from atta.wire.tokens import METRICS, ROLES, Role, allowed, is_operators, parse_roles

SETS = list(chain.from_iterable(combinations(Role, n) for n in range(len(Role) + 1)))


def declared() -> set[str]:
    services = [s for module in (health_pb2, reflection_pb2) for s in module.DESCRIPTOR.services_by_name.values()]
    own = {method.path.removeprefix("/") for method in METHODS.values()}
    return own | {f"{service.full_name}/{method.name}" for service in services for method in service.methods}


def test_every_declared_method_has_a_role_and_nothing_else_has() -> None:
    assert set(ROLES) - {METRICS} == declared()
    assert all(ROLES.values())


def test_one_of_the_roles_of_a_method_is_enough_and_needed() -> None:
    assert len(SETS) == 2 ** len(Role)
    for method, needed in ROLES.items():
        assert [roles for roles in SETS if allowed(method, roles)] == [r for r in SETS if needed & set(r)], method


@pytest.mark.parametrize("method", ["", "atta.v1.KvService", "/atta.v1.KvService/Pull", "atta.v1.KvService/pull"])
def test_an_unknown_method_is_for_nobody(method: str) -> None:
    assert not allowed(method, Role)


def test_partitions_are_read_by_peers_alone() -> None:
    partitions = [m for m in ROLES if m.split("/")[0][8:] in {"GraphService", "KvService", "LinkService"}]
    assert len(partitions) == 6
    assert all(ROLES[method] == {Role.PEER} for method in partitions)
    assert all(Role.PEER not in ROLES[m] for m in ROLES if m.split("/")[0][8:] in {"TableService", "SessionService"})


def test_calls_of_operators_are_those_for_them_alone() -> None:
    assert {method.rpartition("/")[2] for method in ROLES if is_operators(method)} == {
        "Stop", "Trace", "Save", "Load", "Delete", "Promote", "Publish", "ServerReflectionInfo",
    }  # fmt: skip


def test_roles_have_names() -> None:
    assert parse_roles(["reader", "peer", "reader"]) == {Role.READER, Role.PEER}
    with pytest.raises(UnknownNameError, match="did you mean 'reader'"):
        parse_roles(["raeder"])
