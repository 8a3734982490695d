"""Outages of a daemon under load: batches stay the same, no session expires, nothing is pushed twice.

Two daemons serve a small graph. Three loaders use the first one, and a client adds whole numbers to a table on both.
Then the second daemon is gone for some seconds. It is killed and started again, stopped (SIGSTOP), or cut off by a
proxy that drops its connections. There are two oracles: the digests of an undisturbed run, and the number of
acknowledged pushes, which every row must show.

    python -m tests.soak.outages --rounds 100 --lanes 3 --json outages.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.errors import AttaError
from atta.kvstore.spec import MutableSpec
from atta.observe.machine.held import HeldAddresses
from atta.partition import GraphWriter, partition_graph
from atta.wire.clusterfile import write_cluster
from tests.soak.proxy import Proxy

KINDS = ("kill", "stop", "drop")
ROWS, WIDTH = 64, 4
FIRST_S = 30.0  # at most this long until a batch and a push have come: a slow machine takes its time
BEFORE_S, AFTER_S = 0.7, 1.5
"""How long the load runs before an outage, and after it."""


@dataclass(frozen=True)
class Outage:
    """How the second daemon goes away (one of ``KINDS``), and for how long."""

    kind: str
    seconds: float


@dataclass
class Result:
    """Of a round. ``wrong``: batches that differ from the undisturbed run; ``unknown``: pushes that failed.

    ``twice_or_lost``: rows that do not show each acknowledged push once; ``table_lost``: the error that says that a
    killed daemon's table is lost; ``errors``: all others.
    """

    outage: Outage
    batches: int = 0
    wrong: int = 0
    expired: int = 0
    acknowledged: int = 0
    unknown: int = 0
    twice_or_lost: int = 0
    table_lost: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.wrong or self.expired or self.twice_or_lost or self.errors) and self.batches > 0


def make_dataset(folder: Path) -> Path:
    """A graph of 400 vertices in two equal parts, so each row number of one part also exists in the other."""
    rng, n, m = np.random.default_rng(5), 400, 6000
    with GraphWriter(folder / "graph") as out:
        x = rng.standard_normal((n, 32)).astype(np.float32)
        out.add_nodes("node", n, ids=rng.permutation(9000)[:n], tables={"x": x}, splits={"train": np.arange(n)})
        out.add_edges("node__to__node", rng.integers(0, n, m), rng.integers(0, n, m))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=1)
    return folder / "parts"


class Daemons:
    """Two daemons. Either may be killed, and is then started again at its address; the second one can be taken away."""

    def __init__(self, data: Path, folder: Path, *options: str, through_proxy: bool = False) -> None:
        self._data, self._folder, self._options = data, folder, options
        self._held = HeldAddresses(2)
        self.addresses = self._held.addresses
        self.proxy = Proxy(self.addresses[1]) if through_proxy else None
        self.cluster_file = folder / "cluster.toml"
        seen = [self.addresses[0], self.proxy.address if self.proxy else self.addresses[1]]
        write_cluster(self.cluster_file, seen)
        self.children = [self._start(0), self._start(1)]

    def _start(self, part: int) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "atta.cli.main", "serve", "--data", str(self._data), "--part", str(part)),
            *("--listen", self.addresses[part], "--peers", str(self.cluster_file), "--threads", "1", "--no-verify"),
            *("--log-level", "warning", "--exit-with-parent", *self._options),
        ]
        with (self._folder / f"{part}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)

    def kill(self, part: int, away_s: float = 0.0) -> None:
        self.children[part].kill()
        self.children[part].wait()
        time.sleep(away_s)
        self.children[part] = self._start(part)

    def go_through(self, outage: Outage) -> None:
        """Take the second daemon away for a while. Returns when it is back, or when it starts again."""
        if outage.kind == "kill":
            self.kill(1, max(0.0, outage.seconds - 1.0))  # starting takes about a second
        elif outage.kind == "stop":
            self.children[1].send_signal(signal.SIGSTOP)
            time.sleep(outage.seconds)
            self.children[1].send_signal(signal.SIGCONT)
        else:
            self.proxy.drop()
            time.sleep(outage.seconds)
            self.proxy.mend()

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
        self._held.close()
        if self.proxy is not None:
            self.proxy.close()


def loaders(cluster: atta.Cluster) -> dict[str, Callable[[], Any]]:
    """Three loaders. Together they ask the second daemon for everything: samples, pairs, rows, single steps."""
    ids = np.sort(np.concatenate([b.n_id()[: b.batch_size] for b in _all_ids(cluster)]))
    pairs = np.stack([ids, np.roll(ids, 7)])
    common: dict[str, Any] = {"rank": 0, "world_size": 1, "seed": 3}
    return {
        "neighbours": lambda: atta.NeighborLoader(cluster, [4, 3], "train", batch_size=8, shuffle=True, **common),
        "links": lambda: atta.LinkNeighborLoader(cluster, [3, 2], pairs, batch_size=8, neg_sampling="binary", **common),
        "walks": lambda: atta.BatchLoader(
            cluster, "saint-walks", {"length": 3}, input_nodes=ids, batch_size=8, **common
        ),
    }


def _all_ids(cluster: atta.Cluster) -> Any:
    return atta.NeighborLoader(cluster, [], "train", batch_size=1000, rank=0, world_size=1)


def digest(batch: atta.MiniBatch) -> str:
    found = hashlib.sha256(str(batch.batch_id).encode())
    for array in (batch.n_id(), batch.edge_index(), batch.e_id(), batch.table("x")):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def digests(loader: Any) -> list[str]:
    loader.set_epoch(0)
    return [digest(batch) for batch in loader]


class BackgroundLoad:
    """Loaders and a table client at work. ``stop`` ends each after its current epoch or push."""

    def __init__(self, cluster: atta.Cluster, expected: Mapping[str, list[str]], result: Result) -> None:
        self._cluster, self._expected, self._result = cluster, expected, result
        self._ending, self._lock = threading.Event(), threading.Lock()
        jobs: list[Callable[[], None]] = [partial(self._load, n, made) for n, made in loaders(cluster).items()]
        jobs.append(self._push)
        self._threads = [threading.Thread(target=self._run, args=(job,), daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            with self._lock:
                self._result.errors.append(f"{type(error).__name__}: {error}")

    def _load(self, name: str, made: Callable[[], Any]) -> None:
        loader = made()
        while not self._ending.is_set():
            loader.set_epoch(0)
            found = [self._seen(batch) for batch in loader]
            with self._lock:
                self._result.batches += len(found)
                self._result.wrong += sum(a != b for a, b in zip(found, self._expected[name], strict=True))

    def _seen(self, batch: atta.MiniBatch) -> str:
        time.sleep(0.01)  # the consumer's computation: epochs must last until the outage
        return digest(batch)

    def _push(self) -> None:
        result = self._result
        with atta.connect(self._cluster.addresses) as client:  # a new client in each round, as for a new job
            client.tables.delete("sums")
            table = client.tables.create(MutableSpec("sums", ROWS, "<i8", (WIDTH,)))
            everything, ones = np.arange(ROWS), np.ones((ROWS, WIDTH), np.int64)
            first = self._value(table.pull(everything).values)
            while not self._ending.is_set():
                try:
                    table.push(everything, ones, "add").wait()
                    result.acknowledged += 1
                except AttaError as error:
                    if result.outage.kind != "kill":
                        raise
                    # The rows of a killed daemon are lost. It must say so and must not make new ones silently.
                    result.unknown += 1
                    result.table_lost = str(error)
                    break
                time.sleep(0.01)
            if not result.table_lost:
                gained = self._value(table.pull(everything).values) - first
                result.twice_or_lost += int((gained != result.acknowledged).sum())
            elif "sums" not in result.table_lost:
                result.errors.append(f"the lost table is not named: {result.table_lost}")

    @staticmethod
    def _value(rows: np.ndarray) -> np.ndarray:
        assert (rows == rows[:, :1]).all(), "a row is torn"
        return rows[:, 0].copy()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(90)
            if thread.is_alive():
                self._result.errors.append("a loader or client hangs")


class OutageTest:
    """Two daemons, their client, and the batches that its loaders have to deliver."""

    def __init__(self, cluster: atta.Cluster, daemons: Daemons) -> None:
        self._cluster, self._daemons = cluster, daemons
        self._expected = {name: digests(made()) for name, made in loaders(cluster).items()}

    def run_round(self, outage: Outage) -> Result:
        result = Result(outage)
        before = self._cluster.stats()[0]["sessions_expired"]
        load = BackgroundLoad(self._cluster, self._expected, result)
        deadline = time.monotonic() + FIRST_S
        while not (result.batches and result.acknowledged) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(BEFORE_S)
        self._daemons.go_through(outage)
        time.sleep(AFTER_S)
        load.stop()
        result.expired = int(self._cluster.stats()[0]["sessions_expired"] - before)
        return result


@contextmanager
def lane(data: Path, folder: Path, *, through_proxy: bool) -> Iterator[OutageTest]:
    """Two daemons and their client; ``folder`` is created for them."""
    folder.mkdir(parents=True)
    daemons = Daemons(data, folder, "--cache", "0", through_proxy=through_proxy)
    try:
        with atta.connect(daemons.cluster_file, wait=True) as cluster:
            yield OutageTest(cluster, daemons)
    finally:
        daemons.close()


def plan(rounds: int, seed: int, longest_s: float = 14.0) -> list[Outage]:
    """Outages of all kinds in turn. Each lasts between one second and ``longest_s``."""
    rng = np.random.default_rng(seed)
    return [Outage(KINDS[i % len(KINDS)], round(float(rng.uniform(1, longest_s)), 1)) for i in range(rounds)]


def run_lane(data: Path, folder: Path, outages: list[Outage], tell: Callable[[Result], None]) -> list[Result]:
    results = []
    with lane(data, folder, through_proxy=any(o.kind == "drop" for o in outages)) as test:
        for outage in outages:
            results.append(test.run_round(outage))
            tell(results[-1])
    return results


def main() -> int:
    """Run rounds in lanes side by side; the exit code is 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--lanes", type=int, default=3, help="pairs of daemons side by side (default 3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=14.0, help="longest outage in seconds (default 14)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outages, told = plan(options.rounds, options.seed, options.longest), [0]

    def tell(result: Result) -> None:
        told[0] += 1
        state = "good" if result.good else f"BAD {result}"
        print(
            f"{told[0]:4} {result.outage.kind:5} {result.outage.seconds:5.1f} s  {result.batches:5} batches  {state}",
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="atta-outages-") as temporary:
        folder = Path(temporary)
        data = make_dataset(folder)
        # Each kind has daemons of its own, so that only one of them needs a proxy.
        groups = [[o for o in outages if o.kind == kind] for kind in KINDS]
        with ThreadPoolExecutor(options.lanes) as pool:
            runs = [
                pool.submit(run_lane, data, folder / str(i), group, tell) for i, group in enumerate(groups) if group
            ]
            results = [result for run in runs for result in run.result()]
    good = sum(result.good for result in results)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    batches, pushes = (sum(getattr(r, n) for r in results) for n in ("batches", "acknowledged"))
    print(f"{good} of {len(results)} rounds good; {batches} batches, {pushes} pushes acknowledged")
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
