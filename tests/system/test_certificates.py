"""Certificates that end, or are for another host: daemons and callers say so."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import atta
from atta.cli.cert import make_certificate
from atta.client.control import Connection
from atta.wire.credentials import Credentials
from tests.system.conftest import SmallGraph
from tests.system.test_daemon_down import run
from tests.system.test_daemon_life import daemon as started
from tests.unit.security.authority import Authority
from tests.waiting import eventually


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_folder(tmp_path_factory.mktemp("authority"))


@contextlib.contextmanager
def daemon(data: Path, own: Credentials, log: Path) -> Iterator[str]:
    files = ("--tls-ca", own.ca, "--tls-cert", own.cert, "--tls-key", own.key)
    with log.open("w") as lines, started(data, *files, stderr=lines) as (_, address):
        eventually(lambda: " serving " in log.read_text())
        yield address


@pytest.mark.parametrize(("days", "told"), [(1, "certificate ends soon"), (-1, "certificate has ended"), (30, "")])
def test_a_daemon_says_when_its_own_certificate_ends(
    days: int, told: str, authority: Authority, small_graph: SmallGraph, tmp_path: Path
) -> None:
    name = f"own{days}"
    begins = datetime.now(UTC) - timedelta(days=2)
    make_certificate(authority.folder, name, roles=("peer",), hosts=("127.0.0.1",), days=days + 2, begins=begins)
    own = authority.certificate(name)
    with daemon(small_graph.dataset(1, "random"), own, tmp_path / "log") as address:
        eventually(lambda: told in (tmp_path / "log").read_text())
        if days > 0:
            connection = Connection(address, 5, credentials=authority.certificate("reader", "reader"))
            left = connection.stats()["certificate_days_left"]
            connection.close()
            assert days - 0.1 < left <= days
    assert ("certificate" in (tmp_path / "log").read_text()) == bool(told)


def test_a_certificate_for_another_host(authority: Authority, small_graph: SmallGraph, tmp_path: Path) -> None:
    own = authority.certificate("elsewhere", "peer", hosts=("10.9.8.7", "node3.example"))
    caller = authority.certificate("reader", "reader")
    with daemon(small_graph.dataset(1, "random"), own, tmp_path / "log") as address:
        told = eventually(lambda: re.findall("certificate is .*", (tmp_path / "log").read_text()))
        assert len(told) == 1
        assert re.search(r"for another host.*10\.9\.8\.7, node3\.example.*127\.0\.0\.1", told[0])
        with pytest.raises(atta.NotAuthenticatedError) as found:
            atta.connect([address], credentials=caller)
        assert "its certificate is for 10.9.8.7, node3.example, not for 127.0.0.1" in str(found.value)
        environment = {"ATTA_TLS_CA": caller.ca, "ATTA_TLS_CERT": caller.cert, "ATTA_TLS_KEY": caller.key}
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in environment.items():
                patch.setenv(variable, value)
            assert "GRPC_VERBOSITY" in os.environ  # set when Atta was imported
            status = run("status", "--cluster", address)
    assert len(status.stderr.splitlines()) == 1
    assert "is for 10.9.8.7, node3.example, not for 127.0.0.1" in status.stderr
