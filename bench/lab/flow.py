"""Measures how fast bytes flow between two hosts, over plain TCP or in a gRPC stream.

    python -m atta_bench.lab.flow send tcp|grpc HOST PORT
    python -m atta_bench.lab.flow receive tcp|grpc HOST PORT SECONDS

The sender prints "ready PORT" (for port 0 the one that it got) and lives until its standard input ends. The receiver
prints bytes per second.
"""

from __future__ import annotations

import itertools
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from atta.errors import AttaError
from atta.samplers import kernels
from atta.wire import rpc
from atta_bench.lab.netlab import Host

_CHUNK = 4 << 20
"""Bytes of a message, as daemons send them."""
_METHOD = "/atta_bench.Flow/Send"
_TIMEOUT_S = 30.0


def flow_bytes_per_s(source: Host, target: Host, kind: str, seconds: float = 0.5) -> float:
    """Bytes per second from ``source`` to ``target`` on one connection; ``kind`` is ``"tcp"`` or ``"grpc"``.

    Raises AttaError: a process failed.
    """
    module, pipe = [sys.executable, "-m", "atta_bench.lab.flow"], subprocess.PIPE
    sender = source.popen([*module, "send", kind, source.address, "0"], stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        assert sender.stdout is not None
        words = sender.stdout.readline().split()
        if len(words) != 2:
            sender.kill()
            raise AttaError(f"measuring {kind}: the sender at {source.address} ended: {_said(sender.communicate()[1])}")
        port = words[1].decode()
        command = [*module, "receive", kind, source.address, port, str(seconds)]
        receiver = target.popen(command, stdout=pipe, stderr=pipe)
        out, err = receiver.communicate(timeout=_TIMEOUT_S + seconds)
        if receiver.returncode:
            raise AttaError(f"measuring {kind}: {_said(err)}")
        return float(out)
    finally:
        sender.kill()
        sender.communicate()


def _said(err: bytes) -> str:
    """The end of what a process wrote to standard error, on one line."""
    lines = [line.strip() for line in err.decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-300:] or "no message"


def _send_tcp(host: str, port: int) -> int:
    listener = socket.create_server((host, port))

    def send() -> None:
        payload = bytes(_CHUNK)
        connection, _ = listener.accept()
        try:
            while True:
                connection.sendall(payload)
        except OSError:
            connection.close()

    threading.Thread(target=send, daemon=True).start()
    return int(listener.getsockname()[1])


def _receive_tcp(host: str, port: int, seconds: float) -> float:
    buffer = bytearray(1 << 20)
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        return _rate(lambda: connection.recv_into(buffer), seconds)


def _send_grpc(host: str, port: int) -> int:
    payload = bytes(_CHUNK)

    def send(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return itertools.takewhile(lambda _: context.is_active(), itertools.repeat(payload))

    server = grpc.server(ThreadPoolExecutor(1), options=rpc.channel_options())
    service, method = _METHOD.strip("/").split("/")
    handler = grpc.unary_stream_rpc_method_handler(send)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port(f"{host}:{port}")
    server.start()
    globals()["_server"] = server  # without a reference it would stop
    return port


def _receive_grpc(host: str, port: int, seconds: float) -> float:
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
    """Send or receive, as the module docstring says."""
    role, kind, host, port, *seconds = sys.argv[1:]
    if role == "send":
        got = {"tcp": _send_tcp, "grpc": _send_grpc}[kind](host, int(port))
        print("ready", got, flush=True)
        sys.stdin.read()
    else:
        print({"tcp": _receive_tcp, "grpc": _receive_grpc}[kind](host, int(port), float(seconds[0])))


_WORKING_SET = 256 << 20


def copy_bytes_per_s(threads: int = 1, rounds: int = 3) -> float:
    """Bytes per second of copying a large buffer into another one that is used again."""
    source, target = np.ones(_WORKING_SET, dtype=np.uint8), np.ones(_WORKING_SET, dtype=np.uint8)
    pieces = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _WORKING_SET / _median_seconds(lambda: list(pool.map(lambda p: np.copyto(*p), pieces)), rounds)


def gather_bytes_per_s(row_bytes: int, threads: int = 1, rounds: int = 3) -> float:
    """Bytes per second of gathering random rows of a table that is much larger than the CPU caches."""
    rows = max(1, _WORKING_SET // row_bytes)
    table = np.ones((rows, row_bytes), dtype=np.uint8)
    chosen = np.random.default_rng(0).integers(0, rows, max(1, rows // 4))
    out = np.ones((len(chosen), row_bytes), dtype=np.uint8)
    return out.nbytes / _median_seconds(lambda: kernels.gather_rows(table, chosen, out, threads=threads), rounds)


def random_reads_per_s(working_set: int, rounds: int = 3) -> float:
    """Independent random reads of 4 bytes per second and thread, over ``working_set`` bytes of memory."""
    table = kernels.empty_lines((max(1, working_set // 4), 1), np.dtype(np.int32))
    table[:] = 1
    chosen = np.random.default_rng(0).integers(0, len(table), 4_000_000)
    out = np.ones((len(chosen), 1), dtype=np.int32)
    return len(chosen) / _median_seconds(lambda: kernels.gather_rows(table, chosen, out), rounds)


def _median_seconds(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    work()
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
