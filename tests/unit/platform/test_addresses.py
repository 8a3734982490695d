"""Addresses that are held: nobody is given their ports, servers come and go there."""

from __future__ import annotations

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from atta.observe.machine.held import HeldAddresses
from tests.churn import opened
from tests.waiting import connected


def test_the_kernel_gives_their_ports_to_nobody() -> None:
    """Of some 28,000 ports a hundredth is held: of 2000 others, some twenty would be among them."""
    with HeldAddresses(300) as held:
        others = [*itertools.islice(opened(), 2000)]
        taken = {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
    assert len(set(held.ports)) == 300
    assert not taken & {*held.ports}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "0.0.0.0"])
def test_servers_come_and_go_there(host: str) -> None:
    with HeldAddresses(2, host) as held:
        assert len({*held.addresses}) == 2
        assert held.addresses[0] == (f"[{host}]:{held.ports[0]}" if ":" in host else f"{host}:{held.ports[0]}")
        reached = "127.0.0.1" if host == "0.0.0.0" else host
        for _ in range(2):
            assert not connected(reached, held.ports[0])
            server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
            assert server.add_insecure_port(held.addresses[0]) == held.ports[0]
            server.start()
            assert connected(reached, held.ports[0])
            with pytest.raises(OSError, match="in use"):  # one server at a time
                socket.create_server(
                    (reached, held.ports[0]), family=socket.AF_INET6 if ":" in host else socket.AF_INET
                )
            server.stop(None).wait()


def test_ports_are_held_at_all_addresses_until_they_are_let_go() -> None:
    """A server that listens at all of them, as the store of torch, meets nobody at another address."""
    with HeldAddresses() as held:
        for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0"):
            with socket.socket() as plain, pytest.raises(OSError, match="in use"):
                plain.bind((host, held.ports[0]))
    with socket.socket() as plain:
        plain.bind(("0.0.0.0", held.ports[0]))
