"""The addresses of peers follow the cluster file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from atta.daemon.peers.connection import PeerAddresses, PeerConnection, PeerSettings
from atta.errors import DaemonEndedError, UnavailableError
from atta.wire.clusterfile import read_cluster, write_cluster
from atta.wire.identity import Identity

FIRST, SECOND = range(1), range(1, 2)


def test_addresses_are_those_of_the_file_now(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    write_cluster(file, ["127.0.0.1:1", ("127.0.0.1:2", "127.0.0.1:3")])
    addresses = PeerAddresses(read_cluster(file), str(file))
    assert (addresses.now(FIRST), addresses.now(SECOND)) == ("127.0.0.1:1", ("127.0.0.1:2", "127.0.0.1:3"))
    write_cluster(file, ["127.0.0.1:1", "127.0.0.1:44"])
    assert (addresses.now(FIRST), addresses.now(SECOND)) == ("127.0.0.1:1", "127.0.0.1:44")
    assert addresses.now(range(2)) is None


def test_a_file_that_says_nothing_new_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    write_cluster(file, ["127.0.0.1:1", "127.0.0.1:2"])
    addresses = PeerAddresses(read_cluster(file), str(file))
    file.write_text("[[daemon]]\npart = ")
    with capture_logs() as logs:
        assert [addresses.now(SECOND) for _ in range(3)] == ["127.0.0.1:2"] * 3
    assert [entry["event"] for entry in logs] == ["cluster file not read again"]
    file.write_text('[[daemon]]\nparts = [0, 1]\naddress = "127.0.0.1:9"\n')  # who serves what does not change so
    assert addresses.now(SECOND) == "127.0.0.1:2"
    file.unlink()
    assert addresses.now(SECOND) == "127.0.0.1:2"
    write_cluster(file, ["127.0.0.1:1", "127.0.0.1:5"])
    assert addresses.now(SECOND) == "127.0.0.1:5"


def test_a_change_while_the_daemon_was_loading_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    write_cluster(file, ["127.0.0.1:1", "127.0.0.1:2"])
    read = read_cluster(file)
    write_cluster(file, ["127.0.0.1:1", "127.0.0.1:3"])
    assert PeerAddresses(read, str(file)).now(SECOND) == "127.0.0.1:3"


def test_without_a_file_they_stay() -> None:
    assert PeerAddresses({0: "127.0.0.1:1"}).now(FIRST) == "127.0.0.1:1"


def test_a_peer_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    file, known = tmp_path / "cluster.toml", ["127.0.0.1:1", ("127.0.0.1:2", "127.0.0.1:3")]
    write_cluster(file, known, ended={"127.0.0.1:1": "was killed", "127.0.0.1:2": "was killed"})
    addresses = PeerAddresses(read_cluster(file), str(file))
    with pytest.raises(DaemonEndedError, match="was killed"):
        addresses.now(FIRST)
    assert addresses.now(SECOND) == known[1], "a replica is left"


def test_a_peer_that_goes_and_comes_back_is_spoken_of_twice() -> None:
    async def story() -> None:
        link = PeerConnection("127.0.0.1:1", Identity(1, "d"), PeerSettings(20.0))
        steps = [("met", "aa"), ("lost", ""), ("lost", ""), ("met", "aa"), ("met", "aa"), ("met", "bb"), ("met", "bb")]
        for what, incarnation in steps:
            if what == "lost":
                link._say_lost(UnavailableError("p", "is away"))
            else:
                link._say_met(Identity(1, "d", incarnation))
        await link.close()

    with capture_logs() as logs:
        asyncio.run(story())
    assert [(entry["event"], entry.get("restarted")) for entry in logs] == [
        ("peer lost", None),
        ("peer is back", False),
        ("peer is back", True),
    ]
