"""Ways to move table rows between two processes: grpc.aio, which daemons use, and others.

    python -m bench.transport.bulk [--rounds 5] [--seconds 2] [--chunk-mib 1,2,4,16] [--json FILE]

| system | is |
|---|---|
| grpc-sync | grpc at both ends: a sender with a pool of threads, a receiver that blocks |
| grpc-aio | grpc.aio at both ends, as in daemons |
| grpc-aio-shared | several such senders on one port (SO_REUSEPORT), and a receiver with a channel to each |
| flight | Arrow Flight, gRPC in C++ without Python's gRPC; left out where pyarrow is missing |
| tcp | a plain socket, received into the array itself: the physical limit |

Every system, message size and round has fresh processes on loopback: ``senders`` and ``receivers`` in this folder.
    Every other
round takes the systems backwards. Writes bulk.json and bulk.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from atta.errors import AttaError
from atta.wire.rpc import MAX_MESSAGE_BYTES
from atta_bench.lab.limits import copy_bytes_per_s, gather_bytes_per_s
from atta_bench.lab.netlab import Host
from atta_bench.record import command, parser_of, write_report
from atta_bench.results import BenchReport
from atta_bench.transport.receivers import ReceiverConfig
from atta_bench.transport.senders import DEADLINE_S, HOST, SenderConfig

MIB = 1 << 20
OURS, SHARED = "grpc-aio", "grpc-aio-shared"
SYSTEMS = ("grpc-sync", OURS, SHARED, "flight", "tcp")
ABOUT = (
    "A client asks for random rows of a float32 table in another process and has them in an array when a request ends; one"
    " request is under way at a time. `bytes_per_s_per_core`: bytes of rows by the processor seconds of both ends together; s"
    " per GB: processor seconds per 10⁹ bytes of one end. Senders (`server`) gather on one thread, the next message while one"
    " is being sent. Sections: size of the messages. After warming up and after measuring, all rows of a request were compared"
    " with the table."
)
_START_S, _STOP_S = 120.0, 20.0


def main() -> int:
    """Measure, show and record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument("--seconds", type=float, default=2.0, help="per system, message size and round, at least [2]")
    parser.add_argument("--chunk-mib", default="1,2,4,16", help="MiB of rows per message [1,2,4,16]")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table [1000000]")
    parser.add_argument("--dim", type=int, default=100, help="float32 values per row [100]")
    parser.add_argument("--batch", type=int, default=100_000, help="rows per request [100000]")
    parser.add_argument("--senders", dest="servers", type=int, default=2, help=f"processes of {SHARED} [2]")
    parser.add_argument("--json", help="also write the figures to this file; - for stdout")
    arguments = parser.parse_args()
    for name, value in vars(arguments).items():
        if isinstance(value, int) and value < 1:
            parser.error(f"--{'senders' if name == 'servers' else name} {value}: must be at least 1")
    if not chunks(arguments.chunk_mib):
        parser.error(f"--chunk-mib {arguments.chunk_mib}: sizes above 0 and below {MAX_MESSAGE_BYTES // MIB}")
    try:
        document = run(arguments)
    except AttaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_report(arguments.out / "bulk.json", document, command(parser, arguments))
    if arguments.json == "-":
        print(text, end="")
    elif arguments.json:
        Path(arguments.json).write_text(text)
    return 0


def chunks(words: str) -> dict[str, int]:
    """Bytes of each message size by the name of its section; empty if a word is not a size."""
    try:
        sizes = {f"{float(word):g}-MiB": int(float(word) * MIB) for word in words.split(",")}
    except (ValueError, OverflowError):
        return {}
    return sizes if all(0 < size < MAX_MESSAGE_BYTES for size in sizes.values()) else {}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The document of all rounds, as ``BenchReport`` makes it.

    Raises:
        AttaError: a process failed, or rows were wrong.
    """
    sizes = chunks(arguments.chunk_mib)
    config = {name: value for name, value in vars(arguments).items() if name not in ("json", "out")}
    report = BenchReport("bulk", config | {"row_bytes": 4 * arguments.dim}, ours=OURS)
    if no_flight := missing_flight():
        print(f"flight is left out: {no_flight}", file=sys.stderr)
        report.fail("flight", no_flight)
    systems = [system for system in SYSTEMS if system not in report.errors]
    verified = dict.fromkeys(systems, 0)
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        report.add_limits(
            {"gather_bytes_per_s": gather_bytes_per_s(4 * arguments.dim), "copy_bytes_per_s": copy_bytes_per_s()}
        )
        found: dict[str, dict[str, float]] = {system: {} for system in systems}
        pairs = [(section, system) for section in sizes for system in systems]
        for section, system in pairs[:: 1 if number % 2 == 0 else -1]:
            figures = measure(system, sizes[section], arguments, seed=number)
            verified[system] += int(figures.pop("verified_rows"))
            found[system] |= {f"{section}/{name}": value for name, value in figures.items()}
        for system in systems:
            report.add(system, found[system])
    Console(stderr=True).print(report.show())
    document = report.to_json()
    if not no_flight:
        document["versions"]["pyarrow"] = version("pyarrow")
    title = "Ways to move table rows"
    return document | {"title": title, "about": ABOUT, "ours": OURS, "verified_rows": verified}


def missing_flight() -> str | None:
    """Why Arrow Flight cannot run; None if it can."""
    try:
        import pyarrow.flight  # noqa: F401
    except ImportError:
        return "not installed: pyarrow (atta[table])"
    return None


def measure(system: str, chunk_bytes: int, arguments: argparse.Namespace, *, seed: int) -> dict[str, float]:
    """Figures of one system, with processes of its own.

    Raises:
        AttaError: a process failed, or rows were wrong.
    """
    way, count = (OURS, arguments.servers) if system == SHARED else (system, 1)
    table = {"rows": arguments.rows, "dim": arguments.dim}
    with contextlib.ExitStack() as stack:
        port, pids = 0, []
        for _ in range(count):
            config = SenderConfig(chunk_bytes=chunk_bytes, port=port, share_port=count > 1, **table)
            port, pid = stack.enter_context(sender(way, config))
            pids.append(pid)
        receiver = ReceiverConfig(port, pids, batch=arguments.batch, seconds=arguments.seconds, seed=seed, **table)
        return receive(way, receiver)


@contextlib.contextmanager
def sender(way: str, config: SenderConfig) -> Iterator[tuple[int, int]]:
    """(port, pid) of a sender that lives as long as the block, and then ends by itself."""
    process = start("senders", way, config, stdin=subprocess.PIPE)
    try:
        yield port_of(process, way), process.pid
        process.communicate(timeout=_STOP_S)  # ends its input
        if process.returncode:
            raise AttaError(f"the sender of {way} ended with code {process.returncode}")
    except subprocess.TimeoutExpired:
        raise AttaError(f"the sender of {way} did not end within {_STOP_S:g} s") from None
    finally:
        process.kill()
        process.communicate()


def port_of(process: subprocess.Popen[bytes], way: str) -> int:
    """The port that a sender reports when it is ready."""
    assert process.stdout is not None
    deadline = time.monotonic() + _START_S
    while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        line = process.stdout.readline().split()
        if not line:
            raise AttaError(f"the sender of {way} ended before it was ready")
        if line[0] == b"ready":
            return int(line[1])
    raise AttaError(f"the sender of {way} was not ready within {_START_S:g} s")


def receive(way: str, config: ReceiverConfig) -> dict[str, float]:
    """The figures that a receiver prints in the end."""
    process = start("receivers", way, config)
    limit = _START_S + DEADLINE_S + config.seconds
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise AttaError(f"the receiver of {way} was not done within {limit:g} s") from None
    finally:
        process.kill()
        process.communicate()
    if process.returncode:
        raise AttaError(f"the receiver of {way} failed")
    figures: dict[str, float] = json.loads(out)
    return figures


def start(module: str, way: str, config: SenderConfig | ReceiverConfig, **streams: Any) -> subprocess.Popen[bytes]:
    """A child that ends with this process and shares its standard error."""
    words = [sys.executable, "-m", f"bench.transport.{module}", way, json.dumps(asdict(config))]
    return Host(HOST).popen(words, stdout=subprocess.PIPE, **streams)


if __name__ == "__main__":
    sys.exit(main())
