"""Cluster files: a written file can be read, and every mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from atta.errors import ConfigError, DataError, UnknownNameError
from atta.wire.clusterfile import check_address, ended_daemon, read_cluster, write_cluster


def test_replicas(tmp_path: Path) -> None:
    """Daemons that name the same partitions; their order in the file is kept."""
    addresses = [("b:1", "a:1"), "c:1", "c:1", ("d:1", "e:1", "f:1"), ("d:1", "e:1", "f:1")]
    write_cluster(tmp_path / "c.toml", addresses)
    assert read_cluster(tmp_path / "c.toml") == dict(enumerate(addresses))
    assert (tmp_path / "c.toml").read_text().count("[[daemon]]") == 6


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("daemon = 3", ConfigError, "names no"),
        ("daemon = [3]", ConfigError, "names no"),
        ("[[daemon]\n", DataError, "not a TOML"),
        ('[[deamon]]\npart = 0\naddress = "a:1"', UnknownNameError, "did you mean 'daemon'"),
        ('[[daemon]]\npart = 0\nadress = "a:1"', UnknownNameError, "did you mean 'address'"),
        ('[[daemon]]\npart = "0"\naddress = "a:1"', ConfigError, "part = N"),
        ('[[daemon]]\npart = 0\naddress = "a"', ConfigError, "host:port"),
        ('[[daemon]]\npart = 1\naddress = "a:1"', ConfigError, "without gaps"),
        ('[[daemon]]\npart = 0\naddress = "a:1"\n[[daemon]]\npart = 0\naddress = "a:1"', ConfigError, "twice at a:1"),
        (
            '[[daemon]]\npart = 0\naddress = "a:1"\n[[daemon]]\npart = 1\naddress = "b:1"\n[[daemon]]\npart = 1\naddress = "a:1"',
            ConfigError,
            "a:1 is named for partition 1 too",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(error, match=words):
        read_cluster(tmp_path / "c.toml")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.toml"):
        read_cluster(tmp_path / "absent.toml")


@pytest.mark.parametrize("address", ["10.0.0.1:7070", "localhost:0", "h.example:80", "[::1]:7070", "[fe80::1%eth0]:1"])
def test_good_addresses(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":80",
        "host:99999",
        "host:x",
        "host:\u0663",
        "a:b:80",
        "a b:80",
        "http://a:80",
        "[a]:80",
        "[]:80",
        "[::1:80",
    ],
)
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
