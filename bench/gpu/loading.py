"""What bounds training on a GPU: the GPU's step, the loader, or neither; and where a daemon's event loop is full.

    python -m bench.gpu.loading --work DIR

First one daemon, and two daemons with a consumer each, with large and small batches: `loop` is the share of a core that
the event loop of the first daemon takes, `queue` its option --queue, `consumer` the share of a core that a consumer
takes. Then batches per second of the step alone (on batches that are kept on the GPU), of the loader alone, and of both
together. `pinned slots`: batches are copied from the slots themselves, most of which are pinned in the first seconds,
which do not count; `pinned copies`: through a pinned copy of each. Bound: the pair reaches 0.95 of the slower one.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import atta
from atta.client.loaders.prefetch import pinned_slots
from atta.train.steps.timing import Stopwatch, on_device
from atta_bench.gpu.common import (
    HIDDEN,
    Record,
    Step,
    batches_of,
    dataset_of,
    gpu_arguments,
    kept,
    rate,
    serve,
    sizes_of,
)

DAEMONS = ((1, 1, ""), (1, 4, ""), (1, 8, ""), (1, 15, ""), (1, 15, "1GiB"), (2, 7, ""))
"""Number of daemons, worker threads of each, and --queue."""
WARM_S = 5.0
"""Seconds in which slots are made and pinned."""


class Unpinned:
    """Leaves slots as they are, so that batches are copied to pinned memory."""

    def __init__(self) -> None:
        pinned_slots().release()

    def pin(self, arrays: Iterable[np.ndarray]) -> None:
        """Do nothing."""


def training(cluster: Any, size: int, hidden: int, seconds: float) -> dict[str, Any]:
    """Rates of step, loader and both."""
    device = torch.device("cuda", 0)
    step = Step(*sizes_of(cluster), hidden=hidden)
    stay = [data.to(device) for data in kept(cluster, size, 8)]
    order = iter(range(10**9))
    found = {"seeds": size, "hidden": hidden, "step alone": rate(lambda: step(stay[next(order) % len(stay)]), seconds)}
    source = batches_of(cluster, size)
    found["loader alone"] = rate(lambda: next(source), seconds, warm_s=WARM_S, wait=False)
    source.close()
    for name in ("pinned slots", "pinned copies"):
        how = Unpinned() if name == "pinned copies" else None
        with patch("atta.client.loaders.prefetch.pinned_slots", lambda how=how: how) if how else nullcontext():
            moved = on_device(batches_of(cluster, size), device, Stopwatch(device))
            found[f"copied, {name}"] = rate(lambda moved=moved: next(moved), seconds, warm_s=WARM_S)
            found[f"both, {name}"] = rate(lambda moved=moved: step(next(moved).data), seconds)
            moved.close()
    slower = min(found["step alone"], found["loader alone"])
    found["both of the slower"] = found["both, pinned slots"] / slower
    return found


def consume(address: str, size: int, options: dict[str, int], seconds: float, out: Any) -> None:
    """A consumer process: says when it is warm, then its batches per second, and the cores that it takes."""
    with atta.connect(address) as cluster:
        source = batches_of(cluster, size, **options)
        rate(lambda: next(source), 0.1, wait=False)
        out.put((0.0, 0.0))
        begun, spent = time.perf_counter(), time.process_time()
        found = rate(lambda: next(source), seconds, warm_s=0.0, wait=False)
        out.put((found, (time.process_time() - spent) / (time.perf_counter() - begun)))


def scaling(data: Any, which: tuple[int, int, str], size: int, seconds: float) -> dict[str, Any]:
    """Batches per second of all consumers, one per daemon, and what the event loop takes."""
    context, (daemons, threads, queue) = multiprocessing.get_context("spawn"), which
    with serve(data, threads, *(("--queue", queue) if queue else ())) as cluster:
        answers = context.Queue()
        address = str(cluster.cluster_file)
        own = [(address, size, {"rank": r, "world_size": daemons}, seconds, answers) for r in range(daemons)]
        processes = [context.Process(target=consume, args=words) for words in own]
        for process in processes:
            process.start()
        for _ in processes:
            answers.get(timeout=60)
        before, begun = cluster.stats()[0], time.perf_counter()
        time.sleep(0.7 * seconds)
        after, spent = cluster.stats()[0], time.perf_counter() - begun
        rates, shares = zip(*(answers.get(timeout=60) for _ in processes), strict=True)
        for process in processes:
            process.join()
    batches = after["batches"] - before["batches"]
    loop, cores = ((after[key] - before[key]) / spent for key in ("loop_cpu_s", "cpu_s"))
    return {
        "daemons": daemons,
        "threads": threads,
        "queue": queue or "default",
        "seeds": size,
        "batches/s": sum(rates),
        "seeds/s": sum(rates) * size,
        "loop": loop,
        "cores of daemon 0": cores,
        "loop ms per batch": 1e3 * loop * spent / max(1.0, batches),
        "consumer": max(shares),
    }


def main() -> None:
    """Measure and write the record."""
    arguments = gpu_arguments(__file__, __doc__)
    record = Record("gpu-loading", "Training on a GPU: the step, the loader, and both", __doc__, arguments)
    for size, which in product((1024, 128), DAEMONS):
        record.add("scaling", scaling(dataset_of(arguments, which[0]), which, size, arguments.seconds))
    with serve(dataset_of(arguments, 1), arguments.threads) as cluster:
        for hidden in (HIDDEN, 32):
            record.add("training", training(cluster, 1024, hidden, arguments.seconds))


if __name__ == "__main__":
    main()
