"""Whether copies to the GPU overlap with computation, by torch's profiler.

    python -m bench.gpu.overlap --work DIR

Some steps of GraphSAGE on batches of 1,024 seeds, after a warm-up: the time of copies from host to GPU, the share of it
during which kernels run, and how fast copies are. Bound: 0.9 of the time. `pinned slots` and `pinned copies` as in
`bench.gpu.loading`; a copy from memory that is not pinned would be a row `pageable`.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

from atta.train.steps.timing import Stopwatch, on_device
from atta_bench.gpu.common import Record, Step, batches_of, dataset_of, gpu_arguments, serve, sizes_of
from atta_bench.gpu.loading import Unpinned

STEPS = 40
Span = tuple[float, float]


def joined(spans: list[Span]) -> list[Span]:
    """The union of intervals, ascending and apart."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


def common_time(one: list[Span], other: list[Span]) -> float:
    """How long both are running; each ascending and apart."""
    total, at = 0.0, 0
    for start, stop in one:
        while at < len(other) and other[at][1] <= start:
            at += 1
        later = at
        while later < len(other) and other[later][0] < stop:
            total += min(stop, other[later][1]) - max(start, other[later][0])
            later += 1
    return total


def measured(cluster: Any, *, hidden: int, how: Any) -> dict[str, Any]:
    """Figures of some steps."""
    device = torch.device("cuda", 0)
    step, watch = Step(*sizes_of(cluster), hidden=hidden), Stopwatch(device)
    with patch("atta.client.loaders.prefetch.pinned_slots", lambda: how) if how else nullcontext():
        moved = on_device(batches_of(cluster, 1024), device, watch)
        for _ in range(60):
            step(next(moved).data)
        torch.cuda.synchronize()
        begun, nbytes = time.perf_counter(), 0
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(STEPS):
                data = next(moved).data
                nbytes += sum(t.nbytes for t in data.to_dict().values() if isinstance(t, torch.Tensor))
                step(data)
            torch.cuda.synchronize()
        spent = time.perf_counter() - begun
        moved.close()
    copies: list[Span] = []
    kernels: list[Span] = []
    kinds: Counter[str] = Counter()
    for event in profiled.events():
        span = event.time_range.start, event.time_range.end
        if "Memcpy HtoD" in event.name:
            copies.append(span)
            kinds[event.name] += event.time_range.elapsed_us()
        elif "Memcpy" not in event.name and "Memset" not in event.name:
            kernels.append(span)
    copies, kernels = joined(copies), joined(kernels)
    copying, computing = (sum(stop - start for start, stop in spans) for spans in (copies, kernels))
    return {
        "batches": "pinned copies" if how else "pinned slots",
        "hidden": hidden,
        "steps/s": STEPS / spent,
        "copying, ms per step": copying / 1e3 / STEPS,
        "kernels, ms per step": computing / 1e3 / STEPS,
        "copying beside kernels": common_time(copies, kernels) / max(1e-9, copying),
        "GB/s": nbytes / max(1e-9, copying) / 1e3,
        "pageable, ms per step": sum(us for kind, us in kinds.items() if "Pageable" in kind) / 1e3 / STEPS,
    }


def main() -> None:
    """Measure and write the record."""
    arguments = gpu_arguments(__file__, __doc__)
    record = Record("gpu-overlap", "Copies to a GPU beside its computation", __doc__, arguments)
    with serve(dataset_of(arguments, 1), arguments.threads) as cluster:
        for hidden, copied in product((256, 1024), (False, True)):
            record.add("rows", measured(cluster, hidden=hidden, how=Unpinned() if copied else None))


if __name__ == "__main__":
    main()
