"""Measures the costs of batches with every consumer on the host of its daemon. ``simulated`` starts it on the first host.

    python -m bench.scheduling.costs '{"cluster": FILE, "data": DATASET, "batch_size": 1024, ...}'

``hosts`` are the hosts of the partitions (``atta_bench.lab.netlab.Host``). ``atta simulate --measure`` would start all
consumers on its own host, so daemons of other hosts would make no batches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from atta.simulate import save_profile
from atta.simulate.measure import measure
from atta_bench.lab.netlab import Host

__all__ = ["main"]


def main() -> None:
    """Measure, and write the profile."""
    given = json.loads(sys.argv[1])
    hosts = [Host(host["address"], host["interface"], tuple(host["prefix"])) for host in given["hosts"]]

    def start(rank: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return hosts[rank].popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    profile = measure(
        Path(given["cluster"]),
        data=given["data"],
        batch_size=given["batch_size"],
        fan_outs=given["fan_outs"],
        epochs=given["epochs"],
        say=lambda what: print(what, file=sys.stderr),
        start=start,
    )
    save_profile(given["out"], profile)


if __name__ == "__main__":
    main()
