"""What follows when trainers fail: the cause, which one failure usually hides behind others, and whether they start again."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import atta.errors
from atta.errors import AttaError, ConfigError, DataError, NonFiniteError, TrainerLostError, WrongDatasetError
from atta.observe import lastwords

Result = TypeVar("Result")
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "cuda out of memory", "bad_alloc", "bad allocation")


def failure_file(folder: Path, rank: int) -> Path:
    """Where a trainer writes why it fails: ``lastwords.record_of``, with ``time`` and ``traceback``."""
    return folder / f"failure-{rank}.json"


def first_cause(
    folder: Path,
    exit_codes: Mapping[int, int],
    *,
    others: bool = False,
    silent: Mapping[int, float] = MappingProxyType({}),
    ranks: Sequence[int] = (),
) -> AttaError:
    """The error to raise for a failed run.

    folder: where failed ranks wrote why. exit_codes: of those, negative for signals. others: whether there are other
    machines. silent: ranks that the launcher has killed, with the seconds of their silence. ranks: all of this machine.

    When a rank dies, the others lose a connection or get the launcher's SIGTERM. So the order is: trainers given up, lack
    of memory, Atta's errors, others' signals, trainers that others waited for in vain, and then the earliest failure.
    """
    records = _records(folder)
    cut_off = bool(records) and all(map(_lost_connection, records))
    if silent:
        rank = max(silent, key=lambda r: silent[r])
        return TrainerLostError(f"trainer {rank} gave no sign of life for {silent[rank]:.1f} s: stopped, or cut off?")
    for record in filter(_out_of_memory, records):
        return _with_trace(AttaError(_memory_message(record)), record)
    for record in records:
        if (error := lastwords.error_of(record)) is not None:
            return _with_trace(error, record)
    killed = {rank: -code for rank, code in exit_codes.items() if code < 0}
    for rank, number in sorted(killed.items()):
        if number != signal.SIGTERM:
            return TrainerLostError(f"trainer {rank} {end_of(-number)}")
    late = sorted(set(ranks) - {r["rank"] for r in records})
    timed_out = any("timed out" in record["message"].lower() and _lost_connection(record) for record in records)
    if timed_out and late and not others:
        names = "trainer" if len(late) == 1 else "trainers"
        return TrainerLostError(
            f"{names} {', '.join(map(str, late))} did not answer the others in time (--rank-timeout)"
        )
    if killed and (cut_off or not records):
        # The launcher stops the others by SIGTERM too.
        who = f"trainer {min(killed)}" if len(killed) == 1 else "a trainer"
        return TrainerLostError(f"{who} was stopped by SIGTERM")
    if others and cut_off:
        told = ", ".join(map(str, sorted(r["rank"] for r in records)))
        return AttaError(f"trainers {told} lost those of another machine: the cause is reported there")
    if records:
        first = next((r for r in records if not _lost_connection(r)), records[0])
        return _with_trace(AttaError(f"trainer {first['rank']} failed: {first['kind']}: {first['message']}"), first)
    rank = min(exit_codes, default=0)
    return AttaError(f"trainer {rank} {end_of(exit_codes.get(rank, 1))}")


def end_of(code: int) -> str:
    """How a process has ended, by its exit code; negative for signals."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}{'; out of memory?' if code == -signal.SIGKILL else ''}"


def _records(folder: Path) -> list[dict[str, Any]]:
    records = []
    for path in folder.glob("failure-*.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:  # the rank was stopped while it wrote the file
            continue
        records.append({**record, "rank": int(path.stem.removeprefix("failure-"))})
    return sorted(records, key=lambda r: (r["time"], r["rank"]))


def _out_of_memory(record: Mapping[str, Any]) -> bool:
    text = record["message"].lower()
    return record["kind"] in ("MemoryError", "OutOfMemoryError") or any(words in text for words in _NO_MEMORY)


def _memory_message(record: Mapping[str, Any]) -> str:
    asked = re.search(r"tried to allocate ([0-9.]+ \w+)", record["message"], re.IGNORECASE)
    for_what = f" when it asked for {asked[1]} more" if asked else ""
    return (
        f"trainer {record['rank']} ran out of memory{for_what}; take smaller batches (--batch-size, or more co-batches), "
        "--strategy cooperative, or --checkpoint-layers for deep models"
    )


def _lost_connection(record: Mapping[str, Any]) -> bool:
    """True for a rank's error when another rank ended in the middle of an all-reduce."""
    text = record["message"].lower()
    return record["kind"].startswith("Dist") or "connection" in text or "gloo" in text


def _with_trace(error: AttaError, record: Mapping[str, Any]) -> AttaError:
    error.add_note(f"In trainer {record['rank']}:\n{record['traceback']}")
    return error


@dataclass
class Attempts:
    """How often a training may fail (``most``) and has ``failed``, and whether the next attempt resumes. Mistakes of
    the user and numbers that are not finite are no failures: they would come again."""

    most: int
    failed: int = 0
    _before: str | None = None

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ConfigError(f"max_failures is {self.most}: must be at least 0")

    def until_done(self, attempt: Callable[[], Result], say: Callable[[AttaError], None]) -> Result:
        """What an attempt gives that does not fail; ``say`` is told of those that do. Raises the error of the last one."""
        while True:
            try:
                return attempt()
            except AttaError as error:
                if not self.again(error):
                    raise
                say(error)

    def again(self, error: Exception) -> bool:
        """Note a failure; whether to train again."""
        if isinstance(error, ConfigError | DataError | NonFiniteError | WrongDatasetError):
            return False
        self.failed += 1
        return self.failed <= self.most

    @property
    def restarts(self) -> int:
        """How often the training has started again."""
        return min(self.failed, self.most)

    def resumes(self, checkpoint: str) -> bool:
        """Whether an attempt resumes. ``checkpoint``: a text that changes with the file; the first one is another run's."""
        if self._before is None:
            self._before = checkpoint
        return checkpoint != self._before


class Lives:
    """How often trainers were started again, by rank (``restarts``), and at most. An error of Atta would come again:
    bad input, a lost daemon. So only those are started again that a signal has killed, or that had another error."""

    def __init__(self, ranks: Sequence[int], most: int) -> None:
        self.most = most
        self.restarts = dict.fromkeys(ranks, 0)

    def again(self, rank: int, error: str | None) -> bool:
        """Note that a trainer has failed; whether it starts again. ``error``: the name of its exception, if known."""
        kind = getattr(atta.errors, error or "", None)
        of_atta = isinstance(kind, type) and issubclass(kind, AttaError)
        if of_atta or self.restarts[rank] >= self.most:
            return False
        self.restarts[rank] += 1
        return True
