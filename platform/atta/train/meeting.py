"""The meeting of a run's trainers that may be started again one by one: what holds from one life of a trainer to the next.

Contributions to their process group are notes, numbered by operation. A member that is started again repeats the
operations of its former life and finds the notes of all, so nobody waits for it. While all are present, ``together``
gives the group connections (gloo), for operations that move many bytes; these have no notes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from atta.errors import AttaError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


PATIENCE_S = 1800.0
"""How long a note is waited for: as long as torch's process groups wait."""
_PIECE = 4 << 20
"""Bytes per entry; torch's store refuses entries above 8 MiB."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.001, 0.1
_RUN, _ATTEMPT = "ATTA_RUN", "ATTA_ATTEMPT"


class Notes:
    """Notes below a prefix of a ``store``. They stay until the store ends, so they must be few or small."""

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store, self._prefix = store, prefix

    def below(self, name: str) -> Notes:
        """The notes whose names begin with ``name/``."""
        return Notes(self._store, f"{self._prefix}{name}/")

    def has(self, *names: str) -> bool:
        """Whether all these notes are there."""
        return bool(self._store.check([self._prefix + name for name in names]))

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Leave a note, unless there is one. Only one process at a time may write a name."""
        if self.has(name):
            return
        packed = zlib.compress(data, 1)
        pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
        for number, piece in enumerate(pieces):
            self._store.set(f"{self._prefix}{name}#{number}", piece)  # type: ignore[arg-type]
        self._store.set(self._prefix + name, str(len(pieces)))

    def get(self, name: str, *, most: int, within_s: float = PATIENCE_S) -> bytes:
        """A note of at most ``most`` bytes, when it is there. Raises AttaError after ``within_s``, or if it is larger."""
        self.wait([name], within_s)
        pieces = int(self._store.get(self._prefix + name))
        unpacking = zlib.decompressobj()
        found = bytearray()
        for number in range(pieces):
            found += unpacking.decompress(self._store.get(f"{self._prefix}{name}#{number}"), most + 1 - len(found))
            if len(found) > most:
                raise AttaError(f"a note of trainers, {self._prefix}{name}, has more than {most} bytes")
        return bytes(found)

    def wait(self, names: Sequence[str], within_s: float = PATIENCE_S) -> None:
        """Until all these notes are there. Raises AttaError after ``within_s`` seconds, naming those that are missing."""
        until, pause = time.monotonic() + within_s, _FIRST_LOOK_S
        while not self.has(*names):
            if time.monotonic() >= until:
                missing = [name for name in names if not self.has(name)]
                raise AttaError(f"trainers did not meet within {within_s:g} s: {self._prefix}{missing[0]} is missing")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_S)

    def store(self, name: str, within_s: float) -> Store:
        """The torch store below ``name``, for a process group of one attempt, with its own timeout."""
        import torch.distributed as dist

        below = dist.PrefixStore(self._prefix + name, self._store)  # type: ignore[attr-defined]
        below.set_timeout(timedelta(seconds=within_s))
        return below


def announce_run(task: Mapping[str, Any]) -> None:
    """Note in this process which run and attempt the task of a trainer belongs to."""
    os.environ[_RUN], os.environ[_ATTEMPT] = task.get("run", ""), str(task.get("attempt", 0))


def run_here() -> str:
    """The name of the run, the same in all attempts of ``--max-restarts``; empty: no launcher has given one."""
    return os.environ.get(_RUN, "")


def attempt_here() -> int:
    """The number of the attempt, from 0."""
    return int(os.environ.get(_ATTEMPT, "0"))


def tables_of(run: str) -> str:
    """How the names of tables begin that the run uses in all attempts."""
    return f"train-{run}-"


def weights_of(run: str, attempt: int) -> str:
    """The job of the parameter service that one attempt uses: what an attempt before still sends goes to another."""
    return f"weights-{run}-{attempt}"


BACKEND = "atta_notes"
_CONNECT_S, _OPERATION_S = 60.0, 1800.0
_REDUCTIONS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda all_: torch.sum(all_, 0, dtype=all_.dtype),
    dist.ReduceOp.MAX: lambda all_: torch.amax(all_, 0),
    dist.ReduceOp.MIN: lambda all_: torch.amin(all_, 0),
}
_LOOK_S = 0.1
_MOST_RESULT = 256 << 20
"""Bytes of a result of ``together``, as JSON."""
_ATTEMPTS_PER_TRAINER = 8


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
    """Tensors may be on any device; they travel through the CPU.

    Attributes:
        owner: what this is a group of.
    """

    def __init__(self, notes: Notes, rank: int, size: int, owner: object = None) -> None:
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
    def connection(self, attempt: str) -> Iterator[None]:
        """Operations go through connections within the block. All members must begin it, with the same new name.
        Operations raise PartedError when a member has gone."""
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
        tensor.copy_(self._reduced(tensor, opts))
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
        found = self._reduced(tensor, opts)
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

    def _reduced(self, tensor: torch.Tensor, opts: Any) -> torch.Tensor:
        """The tensors of all members, in the order of ranks, as one."""
        name = self._next()
        self._put(f"{name}/{self._rank}", tensor)
        found = [torch.empty_like(tensor) for _ in range(self._size)]
        for rank, into in enumerate(found):
            self._read(f"{name}/{rank}", into)
        return next(reduction for op, reduction in _REDUCTIONS.items() if opts.reduceOp == op)(torch.stack(found))

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


class Meeting:
    """What a trainer leaves for its next life, and phases in which all trainers must be present.

    Attributes:
        run, life: a name that no other run has, and how often this trainer was started before.
        folder: of the run on this machine, where lives of a trainer leave files; None: nobody is started again.
    """

    def __init__(self, notes: Notes | None, *, run: str, rank: int, world: int, life: int, folder: Path | None) -> None:
        """``notes``: of all trainers; None: they stay until the end, so nothing has to be kept."""
        self._notes, self._rank, self._world = notes, rank, world
        self.run, self.life, self.folder = run, life, folder
        self.groups: list[StoreGroup] = []

    def did(self, what: str) -> bool:
        """Whether a former life has done ``what`` (``done``)."""
        return self._notes is not None and self._notes.has(f"did/{what}/{self._rank}")

    def done(self, what: str) -> None:
        """Remember that this trainer has done ``what``."""
        if self._notes is not None:
            self._notes.put(f"did/{what}/{self._rank}", b"")

    def together(self, name: str, action: Callable[[], Any]) -> tuple[Any, bool]:
        """Let all trainers do ``action`` with connections; once more if one of them goes away, until all have done it.
        Returns what it returned, which must be JSON, and whether this life has done it. A trainer that is started anew
        gets what its former life has returned. Raises AttaError: they failed too often; and errors of ``action``."""
        if self._notes is None:
            return action(), True
        notes, ranks = self._notes.below(name), range(self._world)
        attempt, here = 0, False
        while notes.has(f"ready/{attempt}/{self._rank}"):  # a former life was part of it
            attempt += 1
        while not notes.has(*(f"done/{rank}" for rank in ranks)):
            ready = [f"ready/{attempt}/{rank}" for rank in ranks]
            if notes.has(f"done/{self._rank}") and not any(notes.has(name) for name in ready):
                time.sleep(_LOOK_S)  # the others may still need this trainer
                continue
            if attempt > _ATTEMPTS_PER_TRAINER * self._world:
                raise AttaError(f"trainers have lost each other {attempt} times: {name}")
            notes.put(f"ready/{attempt}/{self._rank}", b"")
            with contextlib.suppress(PartedError):
                notes.wait(ready)
                with contextlib.ExitStack() as connections:
                    for group in self.groups:
                        connections.enter_context(group.connection(f"{name}-{attempt}"))
                    result = action()
                notes.put(f"done/{self._rank}", json.dumps(result).encode())
                here = True
            attempt += 1
        return json.loads(notes.get(f"done/{self._rank}", most=_MOST_RESULT)), here


def meet_once(device: torch.device) -> Meeting:
    """A meeting of trainers that all stay until the end, in a process group that exists. All ranks call this."""
    number = torch.tensor([secrets.randbits(62)], device=device)
    dist.broadcast(number, 0)
    return Meeting(
        None, run=f"{int(number):016x}", rank=dist.get_rank(), world=dist.get_world_size(), life=0, folder=None
    )


def meeting_here() -> Meeting | None:
    """The meeting that this trainer has joined; None: it is in a process group of another kind."""
    world = dist.group.WORLD
    owner = world.owner if isinstance(world, StoreGroup) else None
    return owner if isinstance(owner, Meeting) else None


def join_meeting(address: str, *, run: str, rank: int, world: int, life: int, folder: Path) -> Meeting:
    """Join the meeting of a run at ``HOST:PORT``: the process group then is one of notes."""
    host, _, port = address.rpartition(":")
    store = dist.TCPStore(host.strip("[]"), int(port), None, False, timedelta(seconds=60))  # type: ignore[attr-defined]
    meeting = Meeting(Notes(store).below("meeting"), run=run, rank=rank, world=world, life=life, folder=folder)

    def made(store: Any, rank: int, size: int, timeout: timedelta) -> StoreGroup:
        group = StoreGroup(Notes(store), rank, size, meeting)
        meeting.groups.append(group)
        return group

    dist.Backend.register_backend(BACKEND, made, devices=["cpu", "cuda"])
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world)
    return meeting
