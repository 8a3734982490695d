"""How long-running work reports its progress: it calls two methods of an object that its caller passes."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the stages of a long piece of work, in order."""

    def stage(self, name: str, total: int | None) -> None:
        """Begin a stage of ``total`` units (None: unknown). The stage before it is done."""

    def advance(self, amount: int) -> None:
        """Report ``amount`` more units of the current stage as done."""


class Silent:
    """A progress receiver that shows nothing."""

    def stage(self, name: str, total: int | None) -> None:
        """Ignore the stage."""

    def advance(self, amount: int) -> None:
        """Ignore the step."""
