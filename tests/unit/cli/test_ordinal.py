"""Numbers that an engine gives to processes, and host names that come late."""

from __future__ import annotations

import click
import pytest

from atta.cli.output import NODE_RANK, PARTS
from atta.errors import ConfigError, UnavailableError
from atta.wire.clusterfile import await_names, resolves
from atta.wire.parts import NODE_VARIABLES, PART_VARIABLES, own_number

SLURM = {"SLURM_NODEID": "1", "SLURM_PROCID": "5"}


@pytest.mark.parametrize(
    ("environment", "host", "part", "node"),
    [
        ({"JOB_COMPLETION_INDEX": "3"}, "trainer-7", 3, 3),
        ({"JOB_COMPLETION_INDEX": "0", **SLURM}, "x", 0, 0),
        (SLURM, "node-9", 5, 1),
        ({"SLURM_NODEID": "2"}, "node-9", 2, 2),
        ({"SLURM_PROCID": "4"}, "node-9", 4, 4),
        ({"JOB_COMPLETION_INDEX": " "}, "atta-daemon-12", 12, 12),
        ({}, "atta-daemon-1.atta-daemon.default.svc.cluster.local", 1, 1),
        ({}, "node007.rack3", 7, 7),
        ({}, "42", 42, 42),
    ],
)
def test_a_process_knows_its_number(environment: dict[str, str], host: str, part: int, node: int) -> None:
    assert own_number(environment, host, PART_VARIABLES) == part
    assert own_number(environment, host, NODE_VARIABLES) == node


@pytest.mark.parametrize(
    ("environment", "host", "words"),
    [
        ({}, "daemon", "end the host name 'daemon' with it"),
        ({}, "daemon.rack3", "host name"),
        ({}, "", "host name"),
        ({"SLURM_PROCID": "-1"}, "daemon-0", "SLURM_PROCID='-1' is not a number"),
        ({"JOB_COMPLETION_INDEX": "two"}, "daemon-0", "JOB_COMPLETION_INDEX='two'"),
        ({"JOB_COMPLETION_INDEX": "٣"}, "daemon-0", "is not a number"),
        ({"JOB_COMPLETION_INDEX": "1048577"}, "daemon-0", "from 0 to 1048576"),
        ({}, "ip-10000000000", "is not a number"),
    ],
)
def test_what_is_no_number_is_named(environment: dict[str, str], host: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        own_number(environment, host, PART_VARIABLES)


def test_options_take_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*PART_VARIABLES, *NODE_VARIABLES}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "daemon")
    for kind in (PARTS, NODE_RANK):
        with pytest.raises(click.BadParameter, match="no number is known"):
            kind.convert("auto", None, None)
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert PARTS.convert("auto", None, None) == range(5, 6)
    assert NODE_RANK.convert("auto", None, None) == 1
    assert NODE_RANK.convert("3", None, None) == 3
    with pytest.raises(click.BadParameter):
        NODE_RANK.convert("first", None, None)


class Names:
    """Host names that get an address at a time of a clock that ``sleep`` alone moves."""

    def __init__(self, **from_s: float) -> None:
        self.from_s, self.now, self.told = from_s, 0.0, list[str]()

    def wait(self, addresses: list[str], within_s: float) -> None:
        def known(host: str) -> bool:
            return self.now >= self.from_s[host]

        def sleep(seconds: float) -> None:
            assert seconds > 0
            self.now += seconds

        await_names(addresses, within_s, self.told.append, known=known, clock=lambda: self.now, sleep=sleep)


def test_names_are_waited_for() -> None:
    names = Names(a=0, b=7, c=30)
    names.wait(["a:1", "b:1", "b:2", "c:1"], 60)
    assert 30 <= names.now < 31
    assert names.told == ["waiting up to 60 s for the host names b, c"]


def test_nothing_is_said_where_all_names_are_known() -> None:
    names = Names(a=0)
    names.wait(["a:1", "a:2"], 60)
    assert (names.now, names.told) == (0, [])


def test_a_wait_for_names_ends() -> None:
    names = Names(a=0, **{f"h{n}": 90.0 for n in range(6)})
    with pytest.raises(UnavailableError, match=r"h0, h1, h2, h3 and 2 more: .* no address after 60 s"):
        names.wait(["a:1", *(f"h{n}:1" for n in range(6))], 60)
    assert names.now == 60


def test_the_system_is_asked() -> None:
    assert resolves("127.0.0.1")
    assert resolves("[::1]")
    assert not resolves("no-such-host.invalid")
    assert not resolves("a" * 70)
