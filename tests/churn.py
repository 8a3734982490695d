"""A program that opens and closes ports of this machine, hundreds a second: ``python -m tests.churn --rate 500``.

It holds many at a time. So a port that somebody has found free and let go is soon one of them. Half are bound as by
servers that restart, to one address or to all. One in four is the end of a connection. It runs until its standard input
ends and then prints how many ports it opened.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def opened() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        listening.setblocking(False)
        for number in itertools.count():
            made = socket.socket()
            if number % 4 == 3:
                made.connect(listening.getsockname())
                with suppress(BlockingIOError):
                    listening.accept()[0].close()
            else:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, number % 2)
                made.bind(("" if number % 4 == 1 else "127.0.0.1", 0))
                made.listen()
            yield made


def churn(rate: float, held: int) -> int:
    """Open ``rate`` ports a second and keep each until ``held`` others are open; returns the number opened."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    began, sockets = time.monotonic(), deque[socket.socket]()
    for number, made in enumerate(opened(), 1):
        sockets.append(made)
        if len(sockets) > held:
            sockets.popleft().close()
        early = began + number / rate - time.monotonic()
        if select.select([sys.stdin], [], [], max(early, 0))[0]:
            return number
    raise AssertionError("there is always a next port")


@contextmanager
def churning(rate: float = 500, held: int = 2000) -> Iterator[None]:
    """A block beside which the program runs. Raises RuntimeError if it fails or opens nothing."""
    words = [sys.executable, "-m", __name__, "--rate", str(rate), "--held", str(held)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            yield
        finally:
            out, _ = child.communicate()
    if child.returncode or int(out.split()[0]) < 1:
        raise RuntimeError(f"the program that opens ports ended with {child.returncode}: {out!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500, help="ports a second")
    parser.add_argument("--held", type=int, default=2000, help="most at a time")
    given = parser.parse_args()
    print(f"{churn(given.rate, given.held)} ports")
