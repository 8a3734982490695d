"""The meeting of a run's trainers: what holds from one life of a trainer to the next."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from atta.errors import AttaError
from atta.train.meeting.group import BACKEND, PartedError, StoreGroup
from atta.train.meeting.notes import Notes

__all__ = ["Meeting", "join_meeting", "meet_once", "meeting_here"]

_LOOK_S = 0.1
_MOST_RESULT = 256 << 20
"""Bytes of a result of ``together``, as JSON."""
_ATTEMPTS_PER_TRAINER = 8


class Meeting:
    """What a trainer leaves for its next life, and phases in which all trainers must be present.

    Attributes:
        run: a name that no other run has.
        life: how often this trainer was started before.
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
        gets what its former life has returned, without others, if all have done it.

        Raises:
            AttaError: they failed too often. Also what ``action`` raises, except when others have gone.
        """
        if self._notes is None:
            return action(), True
        notes, ranks = self._notes.below(name), range(self._world)
        attempt, here = 0, False
        while notes.has(f"ready/{attempt}/{self._rank}"):  # a former life was part of it
            attempt += 1
        while not notes.has(*(f"done/{rank}" for rank in ranks)):
            ready = [f"ready/{attempt}/{rank}" for rank in ranks]
            if notes.has(f"done/{self._rank}") and not notes.any_of(ready):
                time.sleep(_LOOK_S)  # the others may still need this trainer
                continue
            if attempt > _ATTEMPTS_PER_TRAINER * self._world:
                raise AttaError(f"trainers have lost each other {attempt} times: {name}")
            notes.put(f"ready/{attempt}/{self._rank}", b"")
            with contextlib.suppress(PartedError):
                notes.wait(ready)
                with self._connected(f"{name}-{attempt}"):
                    result = action()
                notes.put(f"done/{self._rank}", json.dumps(result).encode())
                here = True
            attempt += 1
        return json.loads(notes.get(f"done/{self._rank}", most=_MOST_RESULT)), here

    @contextlib.contextmanager
    def _connected(self, attempt: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for group in self.groups:
                stack.enter_context(group.connected(attempt))
            yield


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
    notes = Notes(store)
    meeting = Meeting(notes.below("meeting"), run=run, rank=rank, world=world, life=life, folder=folder)

    def made(store: Any, rank: int, size: int, timeout: timedelta) -> StoreGroup:
        group = StoreGroup(Notes(store), rank, size, meeting)
        meeting.groups.append(group)
        return group

    dist.Backend.register_backend(BACKEND, made, devices=["cpu", "cuda"])
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world)
    return meeting
