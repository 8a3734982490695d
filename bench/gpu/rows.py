"""Hot rows kept on the GPU: what a cache of features saves, and three ways to bring the others.

    python -m bench.gpu.rows --work DIR

The rows that other batches used most stay on the GPU. Of each batch of 1,024 seeds the others come from pinned memory:
`copy all` copies the batch's rows, hot ones too; `gather and copy` gathers the others on the CPU first; `read from
there` has a kernel (Triton) read them over PCIe, each where it lies. Milliseconds per batch by the GPU's clock,
medians of 20; the CPU's time of `gather and copy` is in it. `bytes` are those that cross PCIe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from atta_bench.gpu.common import Record, dataset_of, gpu_arguments, kept, milliseconds, serve

SHARES = (0.05, 0.1, 0.2, 0.5)
OTHERS, BATCHES = 40, 4


class FromHost:
    """Pinned memory as a GPU's tensor, without a copy: kernels read it over PCIe."""

    def __init__(self, pinned: torch.Tensor) -> None:
        self._pinned = pinned
        self.__cuda_array_interface__ = {
            "shape": tuple(pinned.shape),
            "typestr": "<f4",
            "data": (pinned.data_ptr(), False),
            "version": 3,
            "strides": None,
        }


def reader() -> Any:
    """A kernel that brings row i of a batch: from the hot rows if ``place[i]`` is one, else from the host."""
    import triton
    import triton.language as tl

    @triton.jit
    def read(out, hot, host, place, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, PLR0917
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, BLOCK)
        there = column < width
        at = tl.load(place + row).to(tl.int64)
        known = tl.load(hot + at * width + column, mask=there & (at >= 0))
        other = tl.load(host + row * width + column, mask=there & (at < 0))
        tl.store(out + row * width + column, tl.where(at >= 0, known, other), mask=there)

    def run(out: torch.Tensor, hot: torch.Tensor, host: torch.Tensor, place: torch.Tensor) -> None:
        read[(len(out),)](out, hot, host, place, out.shape[1], BLOCK=triton.next_power_of_2(out.shape[1]))

    return run


def measured(batches: list[Any], uses: np.ndarray, x: np.ndarray, share: float) -> dict[str, Any]:
    """Times and bytes with ``share`` of all rows on the GPU; ``uses``: how often other batches read each of them."""
    chosen = np.argsort(-uses, kind="stable")[: int(share * len(uses))]
    table = np.full(len(uses), -1, np.int32)
    table[chosen] = np.arange(len(chosen), dtype=np.int32)
    hot = torch.from_numpy(x[chosen]).cuda()
    host = [data.x.pin_memory() for data in batches]
    views = [torch.as_tensor(FromHost(rows), device="cuda") for rows in host]
    places = [torch.from_numpy(table[data.n_id.numpy()]) for data in batches]
    on_gpu = [place.cuda() for place in places]
    outs = [torch.empty(rows.shape, device="cuda") for rows in host]
    spare = torch.empty_like(max(host, key=len)).pin_memory()
    read = reader()

    def copy_all(number: int) -> None:
        at = number % len(host)
        outs[at].copy_(host[at], non_blocking=True)

    def gather_and_copy(number: int) -> None:
        at = number % len(host)
        missing = (places[at] < 0).nonzero().squeeze(1)
        gathered = torch.index_select(host[at], 0, missing, out=spare[: len(missing)])
        here = torch.empty((len(missing), hot.shape[1]), device="cuda")
        here.copy_(gathered, non_blocking=True)
        where, place = missing.pin_memory().cuda(non_blocking=True), on_gpu[at]
        torch.index_select(hot, 0, place.clamp(min=0), out=outs[at])
        outs[at].index_copy_(0, where, here)

    def read_from_there(number: int) -> None:
        at = number % len(host)
        read(outs[at], hot, views[at], on_gpu[at])

    found: dict[str, Any] = {
        "on the GPU": share,
        "hits": float(np.mean([float((p >= 0).float().mean()) for p in places])),
    }
    for name, turn in (
        ("copy all", copy_all),
        ("gather and copy", gather_and_copy),
        ("read from there", read_from_there),
    ):
        for out in outs:
            out.zero_()
        found[f"{name}, ms"] = milliseconds(turn)
        for number, rows in enumerate(host):
            turn(number)
            torch.cuda.synchronize()
            assert torch.equal(outs[number].cpu(), rows), name
    nbytes = float(np.mean([rows.nbytes for rows in host]))
    found["MB of all rows"] = nbytes / 1e6
    found["MB of the others"] = nbytes * (1 - found["hits"]) / 1e6
    return found


def main() -> None:
    """Measure and write the record."""
    arguments = gpu_arguments(__file__, __doc__)
    data = dataset_of(arguments, 1)
    with serve(data, arguments.threads) as cluster:
        seen = kept(cluster, 1024, OTHERS + BATCHES)
    uses = np.zeros(arguments.nodes, np.int64)
    for batch in seen[:OTHERS]:
        uses += np.bincount(batch.n_id.numpy(), minlength=len(uses))
    x = np.zeros((arguments.nodes, seen[0].x.shape[1]), np.float32)
    for batch in seen:
        x[batch.n_id.numpy()] = batch.x.numpy()
    record = Record("gpu-rows", "Hot rows on the GPU", __doc__, arguments)
    for share in SHARES:
        record.add("rows", measured(seen[OTHERS:], uses, x, share))


if __name__ == "__main__":
    main()
