"""One hostile connection beside a session: what it takes of the daemon's memory, event loop and throughput.

    python -m bench.hostile [--rounds 3] [--seconds 4]

A daemon serves batches to a consumer on the same machine, alone and while another process does one of: sends pushes of
60 MiB (huge), of compressed zeros (compressed) or of tiny fields (tiny fields), in one message and as pieces; opens
connections and sends a request without its end (endless); asks for answers of 24 MiB and reads none (unread), or
has its transport take them all the same (taken, not used); opens sessions of 2^26 batches (extreme numbers). The other process has the lowest priority, as one on another machine would take no processor from the daemon.
Bounds: 512 MiB more memory, no callback of the event loop longer than 50 ms, 80 % of the batches. Writes hostile.json
and hostile.md.
"""

from __future__ import annotations

import argparse
import asyncio.events
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

import atta
from atta.kvstore.spec import MutableSpec
from atta.observe.machine.addresses import HeldAddresses
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.protos.v1 import session_pb2, table_pb2
from atta.wire.messages.pieces import pieces_of
from atta_bench.callers import Caller
from atta_bench.record import command, document, head, parser_of, rows_of, write

MIB = 1 << 20
LONGEST = 60 * MIB
MOST_MEMORY, LONGEST_S, LEAST_SHARE = 512 * MIB, 0.05, 0.8
LOOK_S = 0.02
Figures = dict[str, float]


def main() -> None:
    """Measure and write the record; with --daemon or --attack be one of the processes."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="alone, and again under each attack [4]")
    parser.add_argument("--daemon", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--attack", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.daemon:
        run_daemon(Path(given.daemon[0]), given.daemon[1:])
    elif given.attack:
        run_attack(*given.attack)
    else:
        record(measured(given.rounds, given.seconds), command(parser, given), given.out)


# -- the daemon --------------------------------------------------------------------------------------------------------


def run_daemon(longest: Path, words: list[str]) -> None:
    """``atta serve`` with the time of the longest callback of its event loop in a file."""
    worst = np.memmap(longest, np.float64, "r+", shape=(1,))
    plain: Callable[[Any], None] = asyncio.events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        began = time.thread_time()
        plain(handle)
        worst[0] = max(worst[0], time.thread_time() - began)

    asyncio.events.Handle._run = timed  # type: ignore[attr-defined]
    from atta.cli.main import main as command_line  # with the event loop as it is now

    sys.argv = ["atta", "serve", *words]
    command_line()


@contextmanager
def serving(data: Path, folder: Path) -> Iterator[tuple[atta.Cluster, psutil.Process, np.ndarray]]:
    """A connection to a daemon, its process, and the time of its longest callback."""
    path = folder / "longest"
    path.write_bytes(bytes(8))
    with ExitStack() as stack:
        (address,) = stack.enter_context(HeldAddresses()).addresses
        words = ["--data", str(data), "--part", "0", "--listen", address, "--no-verify", "--threads", "1"]
        command_words = [sys.executable, "-m", "bench.hostile", "--daemon", str(path), *words]
        child = stack.enter_context(subprocess.Popen(command_words, stderr=subprocess.DEVNULL))
        try:
            with atta.connect([address], deadline_s=60, wait=True) as cluster:
                cluster.tables.create(MutableSpec("wide", 1024, row_shape=(1024,)))
                yield cluster, psutil.Process(child.pid), np.memmap(path, np.float64, "r+", shape=(1,))
        finally:
            child.kill()


# -- attacks -----------------------------------------------------------------------------------------------------------


def run_attack(name: str, address: str) -> None:
    """Go on until killed."""
    os.nice(19)
    with atta.connect([address], deadline_s=60) as cluster:
        caller = Caller(cluster, *OPTIONS.get(name, ()))
        print("begins", flush=True)
        while True:
            ATTACKS[name](caller, cluster)


def pushed(
    payload: Callable[[], bytes], *, pieces: bool = False, **options: Any
) -> Callable[[Caller, atta.Cluster], None]:
    """Send the same push again and again."""
    made = cache(payload)

    def attack(caller: Caller, _: atta.Cluster) -> None:
        with suppress(grpc.RpcError):
            caller.call("TableService.Push", pieces_of(made()) if pieces else made(), **options)

    return attack


def endless(_: Caller, cluster: atta.Cluster) -> None:
    """Begin a request on a connection by hand, and send its bytes one by one."""
    host, port = cluster.addresses[0].split(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))  # empty settings
        connection.sendall(
            struct.pack(">I", 1 << 14)[1:] + b"\x01\x04" + struct.pack(">I", 1)
        )  # headers that never come
        while True:
            connection.sendall(b"\x82")
            time.sleep(0.001)


def unread(caller: Caller, _: atta.Cluster) -> None:
    """Ask for large answers without reading them."""
    rows = np.arange(24 * MIB // 4096) % 1024
    request = table_pb2.PullRowsRequest(name="wide", rows=rows.tobytes()).SerializeToString()
    calls = [caller.start("TableService.Pull", request, timeout=None) for _ in range(40)]
    time.sleep(1.0)
    for call in calls:
        call.cancel()


def extreme(caller: Caller, cluster: atta.Cluster) -> None:
    """Open a session of 2^26 batches and close it."""
    loader = atta.BatchLoader(cluster, "saint-nodes", {"budget": 1000}, batches=4, rank=0, world_size=1)
    request = session_pb2.OpenRequest()
    request.CopyFrom(loader._request)
    request.seeds.batches, request.session = 1 << 26, f"extreme-{time.monotonic_ns()}"
    with suppress(grpc.RpcError):
        caller.call("SessionService.Open", request.SerializeToString())
        caller.call("SessionService.Close", session_pb2.CloseRequest(session=request.session).SerializeToString())


def zeros() -> bytes:
    """A push of many values and no rows."""
    return table_pb2.PushRowsRequest(name="wide", values=b"\0" * LONGEST).SerializeToString()


def tiny_fields() -> bytes:
    """No push, but valid fields."""
    return b"\x98\x06\x01" * (LONGEST // 3)


ATTACKS: dict[str, Callable[[Caller, atta.Cluster], None]] = {
    "huge": pushed(zeros),
    "huge, in pieces": pushed(zeros, pieces=True),
    "compressed": pushed(lambda: b"\0" * (16 * MIB), compression=grpc.Compression.Gzip),
    "tiny fields": pushed(tiny_fields),
    "tiny fields, in pieces": pushed(tiny_fields, pieces=True),
    "endless": endless,
    "unread": unread,
    "taken, not used": unread,
    "extreme numbers": extreme,
}

OPTIONS: dict[str, list[tuple[str, Any]]] = {"unread": [("grpc.http2.bdp_probe", 0)]}
"""Of the connection. Without this one gRPC takes up to whole answers from the network, although nobody reads them."""


# -- figures -----------------------------------------------------------------------------------------------------------


def measured(rounds: int, seconds: float) -> dict[str, list[Figures]]:
    """Figures of each attack in each round, beside those alone just before."""
    found: dict[str, list[Figures]] = {name: [] for name in ATTACKS}
    with tempfile.TemporaryDirectory(prefix="atta-hostile-") as name:
        folder = Path(name)
        generate("powerlaw", folder / "g", GenerateOptions(nodes=50_000, edges=1_000_000, features=64, classes=10))
        partition_graph(folder / "g", folder / "d", parts=1, method="random")
        with serving(folder / "d", folder) as (cluster, process, longest):
            batches_per_s(cluster, seconds)  # warm
            for _ in range(rounds):
                for attack, figures in found.items():
                    figures.append(attacked(cluster, process, longest, attack, seconds))
                    print(attack, figures[-1], file=sys.stderr, flush=True)
    return found


def attacked(
    cluster: atta.Cluster, process: psutil.Process, longest: np.ndarray, attack: str, seconds: float
) -> Figures:
    """One attack."""
    longest[0] = 0.0
    alone, before, peak, ended = batches_per_s(cluster, seconds), process.memory_info().rss, [0], threading.Event()
    alone_s, longest[0] = float(longest[0]), 0.0

    def look() -> None:
        while not ended.wait(LOOK_S):
            peak[0] = max(peak[0], process.memory_info().rss - before)

    looking = threading.Thread(target=look)
    words = [sys.executable, "-m", "bench.hostile", "--attack", attack, cluster.addresses[0]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as attacker:
        looking.start()
        assert attacker.stdout is not None
        attacker.stdout.readline()  # it begins
        time.sleep(2.0)
        beside = batches_per_s(cluster, seconds)
        lost = attacker.poll()
        attacker.kill()
    ended.set()
    looking.join()
    if lost is not None:
        raise SystemExit(f"the attack {attack} has ended with {lost}")
    return {
        "alone_per_s": alone, "beside_per_s": beside, "share": beside / alone, "memory_bytes": float(peak[0]),
        "longest_s": float(longest[0]), "alone_longest_s": alone_s,
    }  # fmt: skip


def batches_per_s(cluster: atta.Cluster, seconds: float) -> float:
    """Of one consumer."""
    loader = atta.NeighborLoader(cluster, [10, 5], "train", batch_size=256, rank=0, world_size=1)
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        count += sum(1 for _ in loader)
    return count / (time.monotonic() - began)


def record(found: dict[str, list[Figures]], typed: str, out: Path) -> None:
    """Write the record."""
    about: dict[str, Any] = document("hostile", rounds=found, command=typed)
    lines = [
        *head("One hostile connection", about),
        f"One daemon with one thread, one consumer; fan-outs 10 and 5, batches of 256. {len(found['huge'])} rounds, medians "
        "(worst). The longest callback is measured in processor time of the event loop's thread.",
        "",
        *rows_of(
            (
                "attack",
                "batches/s beside / alone",
                "memory, MiB more",
                "longest callback, ms",
                "alone, ms",
                "within bounds",
            ),
            *(_row(attack, rounds) for attack, rounds in found.items()),
        ),
    ]
    write(out / "hostile.json", about, lines)


def _row(attack: str, rounds: list[Figures]) -> list[str]:
    def told(name: str, scale: float, form: str, worst: Callable[[list[float]], float]) -> str:
        values = [scale * figures[name] for figures in rounds]
        return f"{statistics.median(values):{form}} ({worst(values):{form}})"

    held = (
        all(figures["memory_bytes"] <= MOST_MEMORY and figures["longest_s"] <= LONGEST_S for figures in rounds)
        and statistics.median(figures["share"] for figures in rounds) >= LEAST_SHARE
    )
    return [
        attack, told("share", 1, ".2f", min), told("memory_bytes", 1 / MIB, ".0f", max),
        told("longest_s", 1e3, ".1f", max), told("alone_longest_s", 1e3, ".1f", max), "yes" if held else "**no**",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
