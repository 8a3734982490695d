"""How long work reports its progress: the caller passes an object with two methods, the work calls them."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """Receives the stages of a long piece of work, in order."""

    def stage(self, name: str, total: int | None) -> None:
        """Begin a stage of ``total`` units (None: unknown); the one before it is done."""

    def advance(self, amount: int) -> None:
        """Report ``amount`` more units of the current stage as done."""


class Silent:
    """A progress receiver that shows nothing."""

    def stage(self, name: str, total: int | None) -> None:
        """Ignore the stage."""

    def advance(self, amount: int) -> None:
        """Ignore the step."""
