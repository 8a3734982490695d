"""``atta worker``: computes tasks of a trainer, and keeps nothing."""

from __future__ import annotations

import signal
import sys

import click

from atta.errors import ConfigError
from atta.observe.extras import need

__all__ = ["COMMANDS"]

_MOST_TEXT = 1024


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--number", type=int, default=-1, help="That the trainer gave it; -1: somebody else has started it.")
def worker(address: str, number: int) -> None:
    """Compute tasks of the trainer at HOST:PORT until it needs no more.

    Trainers of atta train --strategy dorylus start their workers themselves. They write the key of the job, in
    hexadecimal, into their standard input.

    Example: atta worker 10.0.0.1:40123
    """
    if number >= 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends its workers
    try:
        key = bytes.fromhex(sys.stdin.readline(_MOST_TEXT))
    except ValueError:
        key = b""
    if not key:
        raise ConfigError("standard input holds no key; trainers start their workers, with a key of the job")
    need("a worker", "torch")
    from atta.train.dorylus.worker import work_for

    work_for(address, key, number)


COMMANDS = [worker]
