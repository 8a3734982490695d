"""Memory that `atta render` asks for a daemon beside the most that it takes.

    python -m bench.memory_requests [--work data/memory-requests] [--only NAME]

Two daemons serve a dataset of two partitions with the bounds that `atta render` writes by default. At each of them
sessions read all vertices once with all their features. Then their consumers stop, so that batches fill the buffer.
What a daemon takes is what a control group counts: anonymous memory, its memory files (the slots of batches), and the
pages of mapped files. The last are dropped when memory is short, so there are two quotients, with and without them. It
is sampled from /proc. Writes memory-requests.json and memory-requests.md. Bound: asked / peak between 1.0 and 1.5, for
each daemon.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import atta
from atta.errors import QuotaExceededError
from atta.observe.machine.addresses import HeldAddresses
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from atta.partition.parts.needs import needs_of
from atta.wire.clusterfile import write_cluster
from atta_bench.record import ROOT, document, head, parser_of, rows_of, write
from atta_bench.record import command as typed_command

PARTS, MIB, GIB = 2, 1 << 20, 1 << 30
BOUNDS = (1.0, 1.5)
CACHE = BUFFER = GIB
"""What `atta render` writes."""
GRAPHS = {
    "245k vertices, 12M edges": GenerateOptions(nodes=245_000, edges=12_000_000, features=100, classes=47, seed=0),
    "over 1 GiB per partition": GenerateOptions(nodes=700_000, edges=7_000_000, features=800, classes=47, seed=0),
}
FAN_OUTS, BATCH = (15, 10), 256
SESSIONS = 24
"""Per daemon at most. Each may hold `--queue` bytes, so that all together want more than the buffer."""
LOOK_S = 0.05
FULL = 0.9
"""The buffer counts as full from this share on: the next batch may be too large for what is left."""
FILL_S = 120.0


class MemoryWatch(threading.Thread):
    """Samples what a process takes, and keeps the sample that is largest in total."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.last = pid, dict.fromkeys(("anonymous", "files", "slots"), 0), 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(LOOK_S):
            found = taken(self.pid)
            self.last = found["slots"]
            if sum(found.values()) > sum(self.peak.values()):
                self.peak = found

    def stop(self) -> None:
        """Take no more samples."""
        self._end.set()
        self.join()


def taken(pid: int) -> dict[str, int]:
    """Bytes that the process takes: ``anonymous`` memory, pages of mapped ``files``, and ``slots`` of batches."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    status = {words[0]: int(words[1]) << 10 for words in lines if len(words) == 3 and words[2] == "kB"}
    slots: dict[int, int] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:"):
                about = os.stat(f"/proc/{pid}/fd/{name}")
                slots[about.st_ino] = about.st_blocks * 512
        except FileNotFoundError:  # closed since
            continue
    return {"anonymous": status["RssAnon:"], "files": status["RssFile:"], "slots": sum(slots.values())}


@contextmanager
def daemons_of(dataset: Path, folder: Path) -> Iterator[tuple[str, list[MemoryWatch]]]:
    """Start daemons as rendered. Yields the cluster file and what watches each daemon."""
    held, cluster = HeldAddresses(PARTS), folder / "cluster.toml"
    write_cluster(cluster, held.addresses)
    running, watches = [], []
    try:
        for part, address in enumerate(held.addresses):
            place = ["--part", str(part), "--listen", address, "--peers", str(cluster), "--insecure"]
            words = ["serve", "--data", str(dataset), "--cache", str(CACHE), "--buffer", str(BUFFER), *place]
            command = [sys.executable, "-m", "atta.cli.main", *words]
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            watches.append(MemoryWatch(running[-1].pid))
            watches[-1].start()
        atta.connect(cluster, wait=True, deadline_s=300).close()
        yield str(cluster), watches
    finally:
        for watch in watches:
            watch.stop()
        for daemon in running:
            daemon.terminate()
        for daemon in running:
            daemon.wait(60)
        held.close()


def measured(dataset: Path) -> list[dict[str, Any]]:
    """Of each daemon: what is asked for it, and the most that it took."""
    asked = [needs.memory(CACHE, BUFFER) for needs in needs_of(Dataset.open(dataset))]
    with tempfile.TemporaryDirectory() as folder, daemons_of(dataset, Path(folder)) as (cluster, watches):
        _read_all(cluster)
        filled = _fill(cluster, watches)
    found = []
    for part, watch in enumerate(watches):
        peak = sum(watch.peak.values())
        about = {"partition": part, "asked": asked[part], "peak": peak, "ratio": asked[part] / peak}
        found.append({**about, **watch.peak, "buffer_filled": filled[part]})
    return found


def _read_all(cluster: str) -> None:
    """Every vertex is a seed once, at its own daemon, so that all pages of the partitions are touched."""

    def one(rank: int) -> None:
        with atta.connect(cluster) as joined:
            options = {"batch_size": 4 * BATCH, "rank": rank, "world_size": PARTS, "pad": False}
            for _ in atta.NeighborLoader(joined, [2], None, **options):
                pass

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(PARTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fill(cluster: str, watches: list[MemoryWatch]) -> list[bool]:
    """Open sessions that take one batch each and no more. Returns whether the slots of each daemon grew full."""
    with ExitStack() as stack:
        joined = stack.enter_context(atta.connect(cluster))
        streams, full = [], set()
        for number in range(SESSIONS * PARTS):
            if (rank := number % PARTS) in full:
                continue
            options = {"batch_size": BATCH, "rank": rank, "world_size": PARTS, "seed": number}
            loader = atta.NeighborLoader(joined, FAN_OUTS, None, shuffle=True, **options)
            streams.append(iter(loader))
            try:
                next(streams[-1])
            except QuotaExceededError:  # what the others hold fills the buffer
                full.add(rank)
        until = time.monotonic() + FILL_S
        while time.monotonic() < until and not all(watch.last >= FULL * BUFFER for watch in watches):
            time.sleep(LOOK_S)
        time.sleep(5)  # what is under way comes to its end
        return [watch.last >= FULL * BUFFER for watch in watches]


def dataset_of(name: str, work: Path) -> Path:
    """The dataset of a graph, made unless it is there."""
    options = GRAPHS[name]
    folder = work / f"{options.nodes}-{options.edges}-{options.features}"
    if not (folder / "parts" / "manifest.json").exists():
        generate("powerlaw", folder / "graph", options, overwrite=True)
        partition_graph(folder / "graph", folder / "parts", parts=PARTS, method="ldg", seed=0, overwrite=True)
    return folder / "parts"


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "data/memory-requests", help="where graphs are kept")
    parser.add_argument("--only", choices=list(GRAPHS), help="one of the graphs; nothing is written")
    given = parser.parse_args()
    found = {}
    for name in [given.only] if given.only else GRAPHS:
        found[name] = measured(dataset_of(name, given.work))
        for line in found[name]:
            print(name, {k: v / MIB if isinstance(v, int) and v > MIB else v for k, v in line.items()}, flush=True)
    if not given.only:
        record(found, given, typed_command(parser, given))


def record(found: dict[str, list[dict[str, Any]]], given: Namespace, typed: str) -> None:
    """Write the figures of all daemons."""
    about = document("memory-requests", command=typed, bounds=BOUNDS, datasets=found)
    columns = ("asked", "peak", "anonymous", "files", "slots")
    rows = [
        [
            *(name, line["partition"], *(f"{line[c] / MIB:,.0f}" for c in columns)),
            *(f"{line['asked'] / total:.2f}" for total in (line["peak"], line["peak"] - line["files"])),
        ]
        for name, lines in found.items()
        for line in lines
    ]
    lines = head("Memory requests beside peaks", about, "MiB of each daemon; cache and buffer 1 GiB each")
    lines += rows_of(["dataset", "partition", "asked", "peak", *columns[2:], "asked / peak", "without files"], *rows)
    full = all(line["buffer_filled"] for lines in found.values() for line in lines)
    lines += ["", f"The buffer of every daemon grew full: {'yes' if full else 'no'}."]
    write(given.out / "memory-requests.json", about, lines)


if __name__ == "__main__":
    main()
