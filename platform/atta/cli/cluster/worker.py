"""``atta worker``: computes tasks of a trainer, and keeps nothing."""

from __future__ import annotations

import os
import signal

import click

from atta.errors import ConfigError
from atta.observe.extras import need

__all__ = ["COMMANDS"]


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--number", type=int, default=-1, help="That the trainer gave it; -1: somebody else has started it.")
def worker(address: str, number: int) -> None:
    """Compute tasks of the trainer at HOST:PORT until it needs no more.

    Trainers of atta train --strategy dorylus start their workers themselves. The key of the job is in the environment
    variable ATTA_WORKER_KEY.

    Example: atta worker 10.0.0.1:40123
    """
    need("a worker", "torch")
    from atta.train.steps.pipeline.links.worker import KEY_VARIABLE, work_for

    try:
        key = bytes.fromhex(os.environ.get(KEY_VARIABLE, ""))
    except ValueError:
        key = b""
    if number >= 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends its workers
    if not key:
        raise ConfigError(f"{KEY_VARIABLE} holds no key; trainers start their workers, with a key of the job")
    work_for(address, key, number)


COMMANDS = [worker]
