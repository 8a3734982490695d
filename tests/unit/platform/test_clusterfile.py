"""Cluster files, the partitions of daemons in them, and addresses of peers that follow them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from atta.daemon.peers.connection import PeerAddresses
from atta.errors import ConfigError, DaemonEndedError, DataError, UnknownNameError
from atta.wire.clusterfile import check_address, ended_daemon, read_cluster, write_cluster
from atta.wire.parts import groups_of, parse_parts, parts_text, spread


def test_replicas(tmp_path: Path) -> None:
    addresses = [("b:1", "a:1"), "c:1", "c:1", ("d:1", "e:1", "f:1"), ("d:1", "e:1", "f:1")]
    write_cluster(tmp_path / "c.toml", addresses)
    assert read_cluster(tmp_path / "c.toml") == dict(enumerate(addresses))
    assert (tmp_path / "c.toml").read_text().count("[[daemon]]") == 6


def daemon(part: object, address: str) -> str:
    return f'[[daemon]]\nparts = [{part}]\naddress = "{address}"\n'


MISTAKES = [
    ("daemon = 3", ConfigError, "names no"),
    ("daemon = [3]", ConfigError, "names no"),
    ("[[daemon]\n", DataError, "not a TOML"),
    ('[[deamon]]\npart = 0\naddress = "a:1"', UnknownNameError, "did you mean 'daemon'"),
    ('[[daemon]]\npart = 0\nadress = "a:1"', UnknownNameError, "did you mean 'address'"),
    ('[[daemon]]\npart = "0"\naddress = "a:1"', ConfigError, "part = N"),
    (daemon(0, "a"), ConfigError, "host:port"),
    (daemon(1, "a:1"), ConfigError, "without gaps"),
    (daemon(0, "a:1") * 2, ConfigError, "twice at a:1"),
    (daemon(0, "a:1") + daemon(1, "b:1") + daemon(1, "a:1"), ConfigError, "a:1 is named for partition 1 too"),
    ('[[daemon]]\nparts = 0\naddress = "a:1"', ConfigError, "parts = "),
    ('[[daemon]]\npart = 0\nparts = [0]\naddress = "a:1"', ConfigError, "parts = "),
    (daemon("", "a:1"), ConfigError, "parts = "),
    (daemon("true", "a:1"), ConfigError, "parts = "),
    (daemon("-1, 0", "a:1"), ConfigError, "parts = "),
    (daemon("0, 2", "a:1"), ConfigError, "consecutive partitions"),
    (daemon("0, 1", "a:1") + daemon(1, "b:1"), ConfigError, "named twice"),
    (daemon(0, "b:1") + daemon(1, "a:1") + daemon(2, "b:1"), ConfigError, "b:1 is named for"),
]


@pytest.mark.parametrize(("text", "error", "words"), MISTAKES)
def test_mistakes_are_named(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(DataError, match=r"c\.toml"):
        read_cluster(tmp_path / "c.toml")
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(error, match=words):
        read_cluster(tmp_path / "c.toml")


@pytest.mark.parametrize("address", ["10.0.0.1:7070", "localhost:0", "h.example:80", "[::1]:7070", "[fe80::1%eth0]:1"])
def test_good_addresses(address: str) -> None:
    assert check_address(address) == address


BAD = ["host", "host:", ":80", "host:99999", "host:x", "host:٣", "a:b:80", "http://a:80", "[a]:80", "[]:80", "[::1:80"]


@pytest.mark.parametrize("address", ["", "a b:80", *BAD])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        check_address(address)


@pytest.mark.parametrize(
    ("address", "right"),
    [
        ("::1:7070", "[::1]:7070"),
        ("fe80::2:80", "[fe80::2]:80"),
        ("::ffff", "[::ffff]:PORT"),
        ("2001:db8::a", "[2001:db8::a]:PORT"),
        ("1:2:3:4:5:6:7:8", "[1:2:3:4:5:6:7:8]:PORT"),
    ],
)
def test_ipv6_addresses_need_brackets(address: str, right: str) -> None:
    with pytest.raises(ConfigError, match="brackets") as refused:
        check_address(address)
    assert str(refused.value).endswith(right)


def test_how_daemons_have_ended(tmp_path: Path) -> None:
    """A daemon counts as gone once no replica is left. Addresses stay, for those who show what is down."""
    file, addresses = tmp_path / "c.toml", [("a:1", "b:1"), "c:1", "c:1"]
    write_cluster(file, addresses, ended={"a:1": 'was "killed"'})
    assert read_cluster(file) == dict(enumerate(addresses))
    assert [ended_daemon(file, address) for address in ("a:1", "b:1", "c:1", "d:1")] == [None] * 4
    write_cluster(file, addresses, ended={"a:1": 'was "killed"', "b:1": "ended", "c:1": "x"})
    assert [str(ended_daemon(file, address)) for address in ("a:1", "c:1")] == ['a:1: was "killed"', "c:1: x"]
    for text in ("daemon = 3", "daemon = [3]", "[[daemon", '[[daemon]]\nparts = 3\naddress = "a:1"\nended = 2'):
        file.write_text(text)
        assert ended_daemon(file, "a:1") is None
    assert ended_daemon(tmp_path / "missing.toml", "a:1") is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [("0", range(1)), ("3", range(3, 4)), ("0-2", range(3)), ("0,1,2", range(3)), (" 4 , 5-6", range(4, 7))],
)
def test_ways_to_write_partitions(text: str, parts: range) -> None:
    assert parse_parts(text) == parts


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["", "a", "-1", "1-", "0,", "0-2-3", "1.5", "0;1", "٣"], "names no partitions"),
        (["0,2", "1,0", "0,0", "2-1", "0-1,1-2"], "consecutive partitions in ascending order"),
        (["0-999999999"], "too many"),
    ],
)
def test_what_names_no_partitions(texts: list[str], words: str) -> None:
    for text in texts:
        with pytest.raises(ConfigError, match=words):
            parse_parts(text)


@given(st.integers(0, 50), st.integers(1, 50))
def test_text_and_back(first: int, count: int) -> None:
    parts = range(first, first + count)
    assert parse_parts(parts_text(parts)) == parts


@st.composite
def divisions(draw: st.DrawFn) -> list[range]:
    found: list[range] = []
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)):
        first = found[-1].stop if found else 0
        found.append(range(first, first + size))
    return found


@given(divisions())
def test_partitions_at_one_address_have_one_daemon(division: list[range]) -> None:
    addresses = {part: f"host:{number}" for number, parts in enumerate(division) for part in parts}
    assert groups_of(addresses) == {parts: f"host:{number}" for number, parts in enumerate(division)}
    for served in division:
        assert spread(served, addresses, division[-1].stop) == tuple(division)


@given(divisions(), st.data())
def test_a_daemon_serves_what_the_file_says(division: list[range], data: st.DataObject) -> None:
    addresses = {part: f"host:{number}" for number, parts in enumerate(division) for part in parts}
    partitions = division[-1].stop
    first = data.draw(st.integers(0, partitions - 1))
    served = range(first, data.draw(st.integers(first + 1, partitions)))
    if served in division:
        assert served in spread(served, addresses, partitions)
        return
    with pytest.raises(ConfigError, match="the cluster file gives one daemon"):
        spread(served, addresses, partitions)


@pytest.mark.parametrize(
    ("served", "addresses", "words"),
    [
        (range(3, 5), {}, "partition 4 does not exist: there are 4"),
        (range(2), {0: "a:1", 1: "a:1", 2: "b:1", 3: "c:1", 4: "d:1"}, "names partition 4, the dataset has 4"),
        (range(1), {0: "a:1", 1: "b:1", 2: "a:1", 3: "c:1"}, "a:1 is named for partition 2 too"),
    ],
)
def test_clusters_that_make_no_sense(served: range, addresses: dict[int, str], words: str) -> None:
    assert spread(range(1, 3), {}, 4) == (range(1), range(1, 3), range(3, 4)), "the others have a daemon each"
    with pytest.raises(ConfigError, match=words):
        spread(served, addresses, 4)


FIRST, SECOND = range(1), range(1, 2)


def test_addresses_are_those_of_the_file_now(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    write_cluster(file, ["127.0.0.1:1", ("127.0.0.1:2", "127.0.0.1:3")])
    read = read_cluster(file)
    addresses = PeerAddresses(read, str(file))
    assert (addresses.now(FIRST), addresses.now(SECOND)) == ("127.0.0.1:1", ("127.0.0.1:2", "127.0.0.1:3"))
    write_cluster(file, ["127.0.0.1:1", "127.0.0.1:44"])
    assert PeerAddresses(read, str(file)).now(SECOND) == "127.0.0.1:44", "it changed while the daemon was loading"
    assert (addresses.now(FIRST), addresses.now(SECOND)) == ("127.0.0.1:1", "127.0.0.1:44")
    assert addresses.now(range(2)) is None
    assert PeerAddresses(read).now(FIRST) == "127.0.0.1:1", "without a file they stay"


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


def test_a_peer_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    file, known = tmp_path / "cluster.toml", ["127.0.0.1:1", ("127.0.0.1:2", "127.0.0.1:3")]
    write_cluster(file, known, ended={"127.0.0.1:1": "was killed", "127.0.0.1:2": "was killed"})
    addresses = PeerAddresses(read_cluster(file), str(file))
    with pytest.raises(DaemonEndedError, match="was killed"):
        addresses.now(FIRST)
    assert addresses.now(SECOND) == known[1], "a replica is left"
