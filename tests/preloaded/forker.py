"""Imports what ``atta`` needs and forks a process for every command: started with a socket as its standard input. With
the argument ``torch`` it imports that, too.

A message has the command's module and arguments, environment and folder, and its standard streams. The answer is the number of the
process. Its parent is the process that asked, see ``commands``. The process ends when the socket closes.
"""

from __future__ import annotations

import array
import atexit
import gc
import json
import os
import runpy
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

PARENT = "tests.preloaded.parent"
MODULES = ("atta.cli.main", "atta.partition.methods.metis_child", "atta.simulate.consumers", PARENT)
STREAMS = 3
MOST_BYTES = 1 << 20
"""At most this many bytes of arguments and environment."""


def main() -> bool:
    """Serve requests until the socket closes. Returns whether this process has become a command."""
    import pymetis._internal  # noqa: F401 - all are imported for the children

    import atta.cli.cluster.serve
    import atta.cli.cluster.status
    import atta.client
    import atta.client.every
    import atta.daemon.daemon
    import atta.observe.machine.ending
    import atta.partition.deploy
    import atta.partition.disk.mirror
    import atta.partition.methods
    import atta.train
    from atta.observe import plugins
    from atta.samplers.local import contract

    for registry in plugins.registries():
        registry.plugins()  # what packages announce is read from their files, once
    contract.own_operators()
    drawn = [*contract._drawn()]  # every daemon draws these, the same in each process of a build
    contract._drawn = lambda: iter(drawn)
    if sys.argv[1:]:
        import atta.train.cooperative.trainer  # noqa: F401

        runpy.run_path(str(Path(__file__).with_name("layers.py")))
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as requests:
        requests.send(b"ready")
        while True:
            message, control, _, _ = requests.recvmsg(MOST_BYTES, socket.CMSG_SPACE(STREAMS * 4))
            if not message:
                return False
            streams = array.array("i", control[0][2])
            pid = fork_an_orphan()
            if not pid:
                become(json.loads(message), streams)
                return True
            for stream in streams:
                os.close(stream)
            requests.send(struct.pack("=i", pid))


def fork_an_orphan() -> int:
    """As ``os.fork``, but the child's parent is the nearest ancestor of this process that adopts orphans."""
    numbers, adopted = os.pipe(), os.pipe()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        (pid,) = struct.unpack("=i", os.read(numbers[0], 4))
    elif pid := os.fork():
        os.write(numbers[1], struct.pack("=i", pid))
        os._exit(0)
    os.close(adopted[1])
    if not pid:
        os.read(adopted[0], 1)  # returns when the other process closes its end
    for fd in (*numbers, adopted[0]):
        os.close(fd)
    return int(pid)


def become(task: dict[str, Any], streams: array.array[int]) -> None:
    """Take the command's arguments, environment, folder and streams."""
    for stream, number in zip(streams, range(STREAMS), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(task["environment"])
    os.chdir(task["folder"])
    if task["session"]:
        os.setsid()
    elif task["group"]:
        os.setpgid(0, 0)
    sys.executable = task["executable"]
    sys.path[0], sys.argv = os.getcwd(), task["words"]


def run() -> None:
    """The command's module, and what an interpreter does as it ends, but for taking its modules apart: once torch has been
    imported, that takes longer than what most commands do. After Ctrl-C that nobody has caught it ends as usual."""
    code: object = 0
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if not isinstance(code, int):
        sys.exit(code)  # type: ignore[arg-type]
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # which tells of it
    os._exit(code)


if __name__ == "__main__" and main():
    run()
