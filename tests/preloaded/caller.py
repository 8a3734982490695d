"""Stands for the interpreter in ``tests/preloaded``: passes a trainer to ``parent.py``, runs the rest as usual."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys

MODULES = (
    "atta.train.launching.worker",
    "atta.train.planning.loopback",
    "atta.partition.methods.metis_child",
    "tests.system.cooperative",
    "tests.system.historical",
    "tests.system.strategies",
    "tests.system.stale",
)
"""Trainers, what they start, and processes that stand for trainers. Of commands, ``atta worker`` alone imports torch."""
WORKER = ["-m", "atta.cli.main", "worker"]


def is_trainer(words: list[str]) -> bool:
    """Whether an interpreter with these arguments is a trainer, or what it may start."""
    return words[:3] == WORKER or (words[:1] == ["-m"] and words[1] in MODULES)


def main(interpreter: str, path: str, words: list[str]) -> None:
    """``words``: the interpreter's arguments. Ends with the trainer's exit code or signal."""
    if not is_trainer(words):
        os.execv(interpreter, [interpreter, *words])
    parent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent.connect(path)
    environment = {name: value for name, value in os.environ.items() if name != "ATTA_PARENT"}  # it has another one
    task = {"words": words[1:], "environment": environment, "folder": os.getcwd()}
    socket.send_fds(parent, [json.dumps(task).encode()], [0, 1, 2])

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(OSError):  # the trainer may have ended a moment ago
            parent.send(bytes([number]))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    answer = parent.recv(4)
    if len(answer) != 4:
        sys.exit("the process that starts trainers has gone")
    (code,) = struct.unpack("=i", answer)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
