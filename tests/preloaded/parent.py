"""Imports the modules of trainers and forks a trainer for every caller: ``python -m tests.preloaded.parent SOCKET``. It is
a fork of ``forker`` itself, so that torch is imported once.

The process ends with its standard input. A caller sends its module, arguments, environment and folder with its
standard streams, then the signals that it gets. It receives the trainer's exit status. If a caller goes away, its
trainer is killed.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

STREAMS = 3
MOST_BYTES = 1 << 20
"""At most this many bytes of arguments and environment."""


@dataclass
class Trainer:
    pid: int
    caller: socket.socket


def main(path: str) -> None:
    """Serve callers at the socket ``path`` until standard input closes."""
    import torch_geometric.nn  # noqa: F401 - imported for the children

    import atta.train.cooperative.trainer
    import atta.train.strategies.minibatch  # noqa: F401

    runpy.run_path(str(Path(__file__).with_name("layers.py")))
    gc.collect()
    gc.freeze()
    sys.executable = str(Path(path).with_name("python"))  # trainers start processes by way of ``caller``, too
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    ended, wake = socket.socketpair()
    ended.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group, and callers pass it on
    waiting = selectors.DefaultSelector()
    for file in (sys.stdin, listener, ended):
        waiting.register(file, selectors.EVENT_READ)
    trainers: list[Trainer] = []
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                trainer = start(listener.accept()[0], (listener, ended, wake, *(t.caller for t in trainers)))
                if trainer is not None:
                    trainers.append(trainer)
                    waiting.register(trainer.caller, selectors.EVENT_READ, trainer)
            elif key.fileobj is ended:
                ended.recv(4096)
                trainers = [t for t in trainers if not reap(t, waiting)]
            elif key.data in trainers:  # it may have been reaped a moment ago
                pass_on(key.data)


def start(caller: socket.socket, others: tuple[socket.socket, ...]) -> Trainer | None:
    """Fork a trainer as the caller asks; None if the caller was killed before it asked."""
    message, control, _, _ = caller.recvmsg(MOST_BYTES, socket.CMSG_SPACE(STREAMS * 4))
    if not control:
        caller.close()
        return None
    streams = array.array("i", control[0][2])
    pid = os.fork()
    if not pid:
        become(json.loads(message), streams, (caller, *others))
    for stream in streams:
        os.close(stream)
    return Trainer(pid, caller)


def become(task: dict[str, Any], streams: array.array[int], sockets: tuple[socket.socket, ...]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, number in zip(streams, range(STREAMS), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    for used in sockets:
        used.close()
    os.environ.clear()
    os.environ.update(task["environment"])
    os.chdir(task["folder"])
    sys.path[0], sys.argv = task["folder"], task["words"]
    code = 1
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def reap(trainer: Trainer, waiting: selectors.BaseSelector) -> bool:
    """Whether the trainer has ended; if so, tell its caller the status."""
    pid, status = os.waitpid(trainer.pid, os.WNOHANG)
    if not pid:
        return False
    waiting.unregister(trainer.caller)
    with contextlib.suppress(OSError):  # the caller has gone
        trainer.caller.send(struct.pack("=i", os.waitstatus_to_exitcode(status)))
    trainer.caller.close()
    return True


def pass_on(trainer: Trainer) -> None:
    """Send the trainer the signal that its caller got, or SIGKILL if the caller has gone."""
    number = trainer.caller.recv(1)
    os.kill(trainer.pid, number[0] if number else signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
