"""A process group of torch that keeps what its members have told each other, so that one of them may start anew.

A member's contributions are notes, numbered by operation. A member that is started again repeats the operations of its
former life: it finds the notes of all others, and its own. So nobody waits for it, and it gets the same results. While
all members are present, ``together`` gives the group connections (gloo), for operations that move many bytes; these
have no notes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from atta.train.meeting.notes import Notes

__all__ = ["BACKEND", "PartedError", "StoreGroup"]

BACKEND = "atta_notes"
_CONNECT_S, _OPERATION_S = 60.0, 1800.0
_REDUCTIONS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda all_: torch.sum(all_, 0, dtype=all_.dtype),
    dist.ReduceOp.MAX: lambda all_: torch.amax(all_, 0),
    dist.ReduceOp.MIN: lambda all_: torch.amin(all_, 0),
}


class PartedError(ConnectionError):
    """A member went away while all were connected."""


class _Done(Work):
    """An operation; ``finish`` does what is left of it, once."""

    def __init__(self, finish: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._finish = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True


class StoreGroup(dist.ProcessGroup):
    """See the module. Tensors may be on any device; they travel through the CPU.

    Attributes:
        owner: what this is a group of.
    """

    def __init__(self, notes: Notes, rank: int, size: int, owner: object = None) -> None:
        """``notes``: of this group alone."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.owner = owner
        self._notes, self._rank, self._size = notes, rank, size
        self._operations = 0
        self._messages: Counter[tuple[int, int]] = Counter()  # by sender and receiver
        self._live: Any = None

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """See ``torch.distributed.ProcessGroup``, like all below."""
        return BACKEND

    @contextlib.contextmanager
    def connected(self, attempt: str) -> Iterator[None]:
        """Operations go through connections within the block. All members must begin it, with the same new name.

        Operations raise PartedError when a member has gone.
        """
        if self._size == 1:
            yield
            return
        with _parting():
            store = self._notes.store(f"connected/{attempt}", _CONNECT_S)
            self._live = dist.ProcessGroupGloo(store, self._rank, self._size, timedelta(seconds=_CONNECT_S))
            self._live._set_default_timeout(timedelta(seconds=_OPERATION_S))
        try:
            yield
        finally:
            ended, self._live = self._live, None
            ended.abort()  # so that the others learn at once if this member has failed

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        (tensor,), opts = tensors, opts or dist.AllreduceOptions()
        if self._live is not None:
            return self._through(tensor, lambda held: self._live.allreduce([held], opts))
        reduction = next(found for op, found in _REDUCTIONS.items() if opts.reduceOp == op)
        tensor.copy_(reduction(torch.stack(self._of_all(tensor))))
        return _Done()

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        (tensor,), root = tensors, opts.rootRank
        if self._live is not None:
            return self._through(tensor, lambda held: self._live.broadcast([held], opts))
        name = self._next()
        if self._rank == root:
            self._put(f"{name}/{root}", tensor)
        self._read(f"{name}/{root}", tensor)  # the root also: its former life may have told something else
        return _Done()

    def reduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        (tensor,) = tensors
        if self._live is not None:
            return self._through(tensor, lambda held: self._live.reduce([held], opts))
        reduction = next(found for op, found in _REDUCTIONS.items() if opts.reduceOp == op)
        found = reduction(torch.stack(self._of_all(tensor)))
        if self._rank == opts.rootRank:
            tensor.copy_(found)
        return _Done()

    def barrier(self, opts: Any = None) -> Work:
        return self.allreduce([torch.zeros(1)])

    def send(self, tensors: Sequence[torch.Tensor], to: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        if self._live is not None:
            return self._through(tensor, lambda held: self._live.send([held], to, tag), back=False)
        self._put(self._message(self._rank, to), tensor)
        return _Done()

    def recv(self, tensors: Sequence[torch.Tensor], sender: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        if self._live is not None:
            return self._through(tensor, lambda held: self._live.recv([held], sender, tag))
        name = self._message(sender, self._rank)
        return _Done(lambda: self._read(name, tensor))

    def _of_all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all members in an operation, in the order of ranks."""
        name = self._next()
        self._put(f"{name}/{self._rank}", tensor)
        found = [torch.empty_like(tensor) for _ in range(self._size)]
        for rank, into in enumerate(found):
            self._read(f"{name}/{rank}", into)
        return found

    def _next(self) -> str:
        self._operations += 1
        return f"operation/{self._operations}"

    def _message(self, sender: int, receiver: int) -> str:
        self._messages[sender, receiver] += 1
        return f"message/{sender}/{receiver}/{self._messages[sender, receiver]}"

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        self._notes.put(name, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")

    def _read(self, name: str, into: torch.Tensor) -> None:
        size = into.numel() * into.element_size()
        found = self._notes.get(name, most=size)
        if len(found) != size:
            raise RuntimeError(f"{name}: has {len(found)} bytes, not {size}")
        if size:
            into.copy_(torch.frombuffer(bytearray(found), dtype=into.dtype).reshape(into.shape))

    def _through(self, tensor: torch.Tensor, start: Callable[[torch.Tensor], Any], *, back: bool = True) -> Work:
        """An operation on the connections; ``back``: it changes the tensor."""
        held = tensor if tensor.device.type == "cpu" and tensor.is_contiguous() else tensor.cpu().contiguous()
        with _parting():
            work = start(held)

        def finish() -> None:
            with _parting():
                work.wait()
            if back and held is not tensor:
                tensor.copy_(held)

        return _Done(finish)


@contextlib.contextmanager
def _parting() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of gloo, and of the store while members connect
        raise PartedError(str(error)) from error
