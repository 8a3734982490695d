"""The command line. A command that Ctrl-C reaches before its modules are imported ends as any other, with one line."""

import os
import signal
import sys

__all__ = ["INTERRUPTED"]

INTERRUPTED = "atta: interrupted"


def _end_at_once(*_: object) -> None:
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(130)


# This is the first module of a command that is imported. Programs that import it keep their handlers.
_COMMAND = os.path.basename(sys.argv[0]) == "atta" or sys.orig_argv[1:3] == ["-m", "atta.cli.main"]
if _COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)
