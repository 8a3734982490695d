"""The machines of a run's trainers: refused arguments, and the interface that gloo uses."""

from __future__ import annotations

import os
from typing import Any

import pytest

from atta.errors import ConfigError
from atta.train import Nodes, TrainConfig

NODE = Nodes(2, 1, "127.0.0.1:29400")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ((0, 0, None), "--nnodes 0"),
        ((2, 2, "a:1"), "--node-rank 2"),
        ((2, -1, "a:1"), "--node-rank -1"),
        ((2, 0, None), "--rdzv-endpoint"),
        ((1, 0, "a:1"), "--nnodes"),
        ((2, 0, "a"), "--rdzv-endpoint 'a' .* host:port, such as 10"),
        ((2, 0, "a:0"), "--rdzv-endpoint a:0: name a port"),
        ((2, 0, "a:65536"), "host:port"),
        ((2, 0, ":1"), "host:port"),
        ((2, 0, "::1:29400"), r"\[::1\]:29400"),
    ],
)
def test_nonsense_is_refused(settings: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Nodes(*settings)


def test_trainers_are_divided_among_the_nodes() -> None:
    assert Nodes().trainers_here(TrainConfig(data="d", trainers=3)) == 3
    assert NODE.trainers_here(TrainConfig(cluster="c", trainers=6)) == 3
    with pytest.raises(ConfigError, match="which --nnodes 2 must divide"):
        NODE.trainers_here(TrainConfig(cluster="c", trainers=3))
    with pytest.raises(ConfigError, match="--cluster"):
        NODE.trainers_here(TrainConfig(data="d", trainers=4))


def test_gloo_is_told_the_interface_for_the_time_being(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with NODE.interface_named():
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    with Nodes().interface_named():
        assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")  # the user's choice wins
    with NODE.interface_named():
        assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def test_a_host_without_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with (
        pytest.raises(ConfigError, match=r"no-such-host\.invalid:1"),
        Nodes(2, 0, "no-such-host.invalid:1").interface_named(),
    ):
        raise AssertionError("must not get here")
