"""``atta chaos`` with processes that start at once: forks of a process that has imported Atta, see ``tests/preloaded``.

    python -m tests.soak.kills --faults kill --most 500 --every 300ms --cache 0 --json kills.json

takes the options of ``atta chaos``. Of the time between two kills, imports take most, so a machine gets many more kills
into an hour like this. Faults are of this machine's loopback, and times from a kill to the next start mean nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from unittest import mock

from atta.cli.main import cli
from atta_bench.lab import netlab
from tests.preloaded import commands, forker

WORKER = "atta_bench.chaos.worker"


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes end with it
    forks = commands.Commands()
    with (
        mock.patch.object(commands, "MODULES", (*forker.MODULES, WORKER)),
        mock.patch.object(netlab, "_die_with_parent", tuple),  # a fork cannot have another program before it
        mock.patch.object(subprocess, "Popen", forks.popen),
    ):
        try:
            cli(["chaos", *sys.argv[1:]], standalone_mode=False)
        finally:
            forks.close()


if __name__ == "__main__":
    main()
