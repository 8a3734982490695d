"""How fast bytes flow between two hosts: one process gives, the other takes and times, by plain TCP or a gRPC stream.

    python -m atta.bench.lab.flow give tcp|grpc HOST PORT
    python -m atta.bench.lab.flow take tcp|grpc HOST PORT SECONDS

The giver prints "ready" (and the port it got, for port 0) and lives until its standard input ends; the taker prints bytes per
second.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from atta.bench.lab.netlab import Host
from atta.errors import AttaError
from atta.wire import rpc

__all__ = ["flow_bytes_per_s"]

_CHUNK = 4 << 20  # what daemons put into one message
_METHOD = "/atta.bench.Flow/Give"
_TIMEOUT_S = 30.0


def flow_bytes_per_s(giver: Host, taker: Host, kind: str, seconds: float = 0.5) -> float:
    """Bytes per second from ``giver`` to ``taker`` on one connection; ``kind`` is ``"tcp"`` or ``"grpc"``.

    Raises:
        AttaError: a process failed.
    """
    module = [sys.executable, "-m", "atta.bench.lab.flow"]
    give = giver.popen(
        [*module, "give", kind, giver.address, "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert give.stdout is not None
        words = give.stdout.readline().split()
        if len(words) != 2:
            raise AttaError(f"measuring {kind}: nothing listens at {giver.address}")
        port = words[1].decode()
        take = taker.popen(
            [*module, "take", kind, giver.address, port, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = take.communicate(timeout=_TIMEOUT_S + seconds)
        if take.returncode:
            raise AttaError(f"measuring {kind}: {err.decode(errors='replace').strip()[-300:]}")
        return float(out)
    finally:
        give.kill()
        give.communicate()


def _give_tcp(host: str, port: int) -> int:
    listener = socket.create_server((host, port))

    def serve() -> None:
        payload = bytes(_CHUNK)
        connection, _ = listener.accept()
        try:
            while True:
                connection.sendall(payload)
        except OSError:
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def _take_tcp(host: str, port: int, seconds: float) -> float:
    buffer = bytearray(1 << 20)
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        return _rate(lambda: connection.recv_into(buffer), seconds)


def _give_grpc(host: str, port: int) -> int:
    from concurrent.futures import ThreadPoolExecutor

    payload = bytes(_CHUNK)

    def give(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return itertools.takewhile(lambda _: context.is_active(), itertools.repeat(payload))

    server = grpc.server(ThreadPoolExecutor(1), options=rpc.channel_options())
    service, method = _METHOD.strip("/").split("/")
    handler = grpc.unary_stream_rpc_method_handler(give)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port(f"{host}:{port}")
    server.start()
    globals()["_server"] = server  # it stops when nobody holds it
    return port


def _take_grpc(host: str, port: int, seconds: float) -> float:
    with grpc.insecure_channel(f"{host}:{port}", options=rpc.channel_options()) as channel:
        method: Any = channel.unary_stream(_METHOD, None, None)  # no serializers: the bytes as they are
        stream = method(b"", timeout=_TIMEOUT_S + seconds)
        speed = _rate(lambda: len(next(stream)), seconds)
        stream.cancel()
        return speed


def _rate(receive: Callable[[], int], seconds: float) -> float:
    """Bytes per second after a warm-up of a quarter of the time."""
    end = time.perf_counter() + seconds / 4
    while time.perf_counter() < end:
        receive()
    total, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        total += receive()
    return total / (now - start)


def main() -> None:
    """Give or take, as the module docstring says."""
    role, kind, host, port, *seconds = sys.argv[1:]
    if role == "give":
        got = {"tcp": _give_tcp, "grpc": _give_grpc}[kind](host, int(port))
        print("ready", got, flush=True)
        sys.stdin.read()
    else:
        print({"tcp": _take_tcp, "grpc": _take_grpc}[kind](host, int(port), float(seconds[0])))


if __name__ == "__main__":
    main()
