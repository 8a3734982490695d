"""Batches on a GPU: the next one is copied while the current one is computed."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch

from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.pinning import PinnedSlots
from atta.errors import ConfigError
from atta.observe.machine.memory import total_bytes

SHARE = 0.25
"""Most of the machine's memory that stays pinned."""
COPIES = 2
"""How many batches may be on their way to the GPU. Their slots are not given back before they are there."""


class PrefetchLoader:
    """The batches of a loader as PyG's data on a device. On a GPU the next one is copied while the current one is computed.

        loader = atta.NeighborLoader(cluster, [15, 10, 5], "train", batch_size=1024)
        for data in atta.PrefetchLoader(loader, "cuda"):
            loss = model(data.x, data.edge_index)

    Batches are copied from the memory that they share with the daemon, which is pinned once. ``.to("cuda")`` in the loop
    would copy each of them while the GPU waits. So the loader is one batch ahead of the loop: a ``state_dict`` of it
    counts a batch that the loop has not seen.

    Attributes:
        loader: whose batches they are; ``set_epoch`` belongs to it.
        device: where the data is.
    """

    def __init__(self, loader: Iterable[MiniBatch], device: torch.device | str) -> None:
        """``loader``: of Atta, without ``transform``. ``device``: of torch, such as ``cuda``, ``cuda:1`` or ``cpu``.
        Raises ConfigError: torch knows no such device, or sees no GPU."""
        try:
            self.loader, self.device = loader, torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"device {device!r}: torch knows no such device") from error
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device {str(device)!r}: torch sees no GPU")

    def __len__(self) -> int:
        """Number of batches per epoch."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """PyG's ``Data`` or ``HeteroData`` of every batch, on the device. Raises ConfigError: the loader has a
        ``transform``: this class makes PyG's data itself."""
        if self.device.type == "cuda":
            for _, data in copied_ahead(_untouched(self.loader), self.device):
                yield data
            return
        for batch in _untouched(self.loader):
            yield batch.to_pyg().to(self.device)


def _untouched(batches: Iterable[MiniBatch]) -> Iterator[MiniBatch]:
    for batch in batches:
        if not isinstance(batch, MiniBatch):
            raise ConfigError(
                f"the loader gives {type(batch).__name__}, not MiniBatch: leave out its transform, PyG's data is made here"
            )
        yield batch


def copied_ahead(
    batches: Iterable[MiniBatch],
    device: torch.device,
    copying: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    *,
    plain: bool = False,
) -> Iterator[tuple[MiniBatch, Any]]:
    """Yield batches with their PyG data on a GPU. The next one is pinned, and copied on a stream of its own, meanwhile.
    ``copying``: makes a context in which each copy is queued, with its stream as the current one."""
    side, slots = torch.cuda.Stream(device), pinned_slots()
    under_way: deque[tuple[torch.cuda.Event, MiniBatch]] = deque()  # the GPU may still read these batches' slots
    pending: tuple[MiniBatch, Any] | None = None
    try:
        for batch in batches:
            slots.pin(batch.arrays.values())
            with torch.cuda.stream(side):
                with copying():
                    coming = batch, batch.to_pyg(plain=plain).apply(functools.partial(_copied, device=device))
                copied = torch.cuda.Event()
                copied.record(side)
            under_way.append((copied, batch))
            if pending is not None:
                yield pending  # the caller queues the computation of the previous batch, which overlaps with this copy
            while under_way and (len(under_way) > COPIES or under_way[0][0].query()):
                under_way.popleft()[0].synchronize()
            compute = torch.cuda.current_stream(device)
            compute.wait_stream(side)
            for value in (value for store in coming[1].stores for value in store.values()):
                if isinstance(value, torch.Tensor):
                    # It was allocated on the side stream. The allocator must know that another stream uses it too.
                    value.record_stream(compute)
            pending = coming
        if pending is not None:
            yield pending
    finally:
        for copied, _ in under_way:
            copied.synchronize()


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the GPU, once the current stream is there: copied from where it is if that is pinned, otherwise
    from a pinned copy, which may be dropped at once: torch keeps its memory until the stream has read it."""
    if tensor.dim() == 2 and not tensor.is_contiguous() and tensor.stride(1) == 1:  # sources and targets lie apart
        found = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        for there, row in zip(found, tensor, strict=True):
            there.copy_(row.pin_memory(), non_blocking=True)
        return found
    return tensor.pin_memory().to(device, non_blocking=True)


class CudaPages:
    """Pins memory for the copies of all GPUs."""

    def pin(self, address: int, nbytes: int) -> bool:
        portable = 1  # for every GPU that this process uses
        if int(torch.cuda.cudart().cudaHostRegister(address, nbytes, portable)) == 0:
            return True
        with contextlib.suppress(RuntimeError):  # CUDA keeps the error, and the next kernel's launch would report it
            torch.ones(1, device="cuda")
        return False

    def unpin(self, address: int) -> None:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)


@functools.cache
def pinned_slots() -> PinnedSlots:
    """Those of this process: CUDA refuses to pin a page twice."""
    return PinnedSlots(CudaPages(), int(SHARE * total_bytes()))
