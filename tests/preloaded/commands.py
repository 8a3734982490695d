"""Commands ``atta`` and METIS processes of this process, forked by ``forker.py``. They are its children, as usual.

They import longer than most tests need them; those that train or predict have a process that has imported torch as
well. ``Commands.popen`` replaces ``subprocess.Popen``; commands that need their own interpreter, and those of other
programs, run as before.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.preloaded.caller import is_trainer
from tests.preloaded.forker import MODULES, PARENT

_PR_SET_CHILD_SUBREAPER = 36
_OWN_INTERPRETER = ("PYTHON", "ATTA_NATIVE", "LD_", "OMP_")
"""Variables that matter as an interpreter starts, or imports torch, begin with these."""


class Commands:
    """Starts commands in forks of a process that has imported Atta, or also torch. It starts with the first of them."""

    def __init__(self) -> None:
        self.wanted = True
        self._python, self._environment = sys.executable, _of_interpreter(os.environ)
        self._lock = threading.Lock()
        self._processes: dict[bool, tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def close(self) -> None:
        for process, requests in self._processes.values():
            requests.close()
            assert process.wait(20) == 0

    @cached_property
    def popen(self) -> type[subprocess.Popen[Any]]:
        commands = self

        class Popen(subprocess.Popen):  # type: ignore[type-arg]
            def _execute_child(
                self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
                startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int,
                c2pwrite: int, errread: int, errwrite: int, *rest: Any,
            ) -> None:  # fmt: skip
                # ``rest``: restore_signals, gid, gids, uid, umask, start_new_session, process_group
                usual = not (executable or preexec_fn or pass_fds or shell) and rest[-1] in (None, -1, 0)
                words = [os.fsdecode(word) for word in args] if isinstance(args, (list, tuple)) else []
                environment = dict(os.environ if env is None else env)
                if not (usual and commands.can_fork(words, environment)):
                    super()._execute_child(  # type: ignore[misc]
                        args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
                    )  # fmt: skip
                    return
                streams = [number if fd == -1 else fd for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
                folder = str(Path.cwd() / os.fsdecode(cwd or "."))
                own = {"session": bool(rest[-2]), "group": rest[-1] == 0}
                self.pid = commands.fork(words[2:], environment, folder, own, streams)
                self._child_created = True
                self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

        return Popen

    def can_fork(self, words: list[str], environment: dict[str, str]) -> bool:
        """Whether a fork of the process with imports is the same as a new interpreter with these arguments."""
        if self.wanted and words[:1] == [sys.executable] != [self._python] and is_trainer(words[1:]):
            return True  # as ``caller`` would have it, which is what the interpreter's name stands for now
        return (
            self.wanted
            and words[:1] in ([self._python], [sys.executable])
            and words[1:2] == ["-m"]
            and words[2] in MODULES
            and _of_interpreter(environment) == self._environment
        )

    def fork(
        self, words: list[str], environment: dict[str, str], folder: str, own: dict[str, bool], streams: list[int]
    ) -> int:
        """Start a command as a child of this process. Returns its number. ``words``: its module and arguments; ``own``:
        whether it has a session and a process group of its own."""
        task = {"words": words, "environment": environment, "folder": folder, **own}
        message = json.dumps({**task, "executable": sys.executable}).encode()
        with self._lock:
            torch = words[0] == PARENT or (words[0] not in MODULES and is_trainer(["-m", *words]))
            torch = torch or words[1:2] in (["train"], ["predict"], ["worker"]) or "--model" in words
            requests = self._requests(torch)
            _adopt_orphans(True)
            try:
                socket.send_fds(requests, [message], streams)
                (pid,) = struct.unpack("=i", requests.recv(4))
            finally:
                _adopt_orphans(False)
        return int(pid)

    def _requests(self, torch: bool) -> socket.socket:
        if torch not in self._processes:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [self._python, str(Path(__file__).parent / "forker.py"), *["torch"] * torch]
            quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
            with theirs:
                self._processes[torch] = subprocess.Popen(command, stdin=theirs.fileno(), env=quiet), mine
            assert mine.recv(5) == b"ready"
        return self._processes[torch][1]


def _of_interpreter(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_OWN_INTERPRETER)}


def _adopt_orphans(yes: bool) -> None:
    """Whether processes whose parents end become children of this process. Otherwise they become those of ``init``."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt orphans")
