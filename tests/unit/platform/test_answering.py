"""Servers of HTTP without TLS: connections that say nothing cost little, and end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atta.cli.cluster.dashboard import server
from atta.observe import answering
from atta.observe.metrics import DaemonCollector, DaemonFigures, serve_metrics
from tests.addresses import held_port
from tests.waiting import eventually

Served = Callable[[int], Callable[[], None]]


def metrics(port: int) -> Callable[[], None]:
    collector = DaemonCollector(0, {"dataset": "d"}, lambda: DaemonFigures({"parts": 1.0}, ()))
    return serve_metrics(port, collector, host="127.0.0.1")


def page(port: int) -> Callable[[], None]:
    return answering.run_aside(server("127.0.0.1", port, lambda: "atta_daemon_info", lambda: "{}"), "page")


@pytest.fixture(params=[metrics, page])
def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where metrics, or a page, are served; a silent caller has a second."""
    monkeypatch.setattr(answering, "ANSWER_S", 1.0)
    port = held_port()
    end = request.param(port)
    yield port
    end()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def read(port: int, path: str = "/") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def test_half_open_connections_are_few_and_end(port: int) -> None:
    assert "atta_daemon_info" in read(port)
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        addresses = [("127.0.0.1", port)] * (answering.AT_A_TIME + 4)  # four wait
        silent = [stack.enter_context(socket.create_connection(address, timeout=20)) for address in addresses]
        for sock in silent:
            sock.sendall(b"GET /met")
        time.sleep(0.3)  # all that can be accepted are
        assert threading.active_count() <= threads + answering.AT_A_TIME
        assert "atta_daemon_info" in read(port)
        assert [sock.recv(1) for sock in silent] == [b""] * len(silent)


def test_a_request_that_trickles_ends(port: int) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(0.1)
        assert eventually(lambda: hung_up(sock), 20)
    assert time.monotonic() - began >= 1


def hung_up(sock: socket.socket) -> bool:
    """Send one more byte; whether the other end has closed the connection."""
    try:
        sock.sendall(b"G")
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_one_caller_hangs_up_and_another_is_answered(port: int) -> None:
    for _ in range(answering.AT_A_TIME + 1):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert "atta_daemon_info" in read(port)


def test_an_application_knows_who_asks() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [f"{environ['REMOTE_ADDR']} {environ['REMOTE_PORT']}".encode()]

    serving = answering.bounded_listener("127.0.0.1", 0, app)
    end = answering.run_aside(serving, "asked")
    with contextlib.closing(socket.create_connection(serving.server_address[:2], timeout=10)) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        told = sock.makefile("rb").read().rpartition(b"\r\n\r\n")[2]
        assert told.decode().split() == ["127.0.0.1", str(sock.getsockname()[1])]
    end()


def test_ctrl_c_amid_the_start_of_a_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = server("127.0.0.1", 0, lambda: "page", lambda: "{}")
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        thread.join()  # it has released its place
        raise KeyboardInterrupt

    with serving, socket.create_connection(serving.server_address[:2]) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            serving.handle_request()
