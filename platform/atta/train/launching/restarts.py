"""Whether a failed training starts again, and from where. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from atta.errors import ConfigError, DataError, NonFiniteError, WrongDatasetError


@dataclass
class Attempts:
    """How often a training may fail, and whether the next attempt resumes.

    Mistakes of the user are no failures: they would happen again. So would numbers that are not finite.

    Attributes:
        most: so many failures are made good.
        failed: failures so far.
    """

    most: int
    failed: int = 0
    _before: str | None = None

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ConfigError(f"max_failures is {self.most}: must be at least 0")

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
        """Whether an attempt resumes. ``checkpoint``: a text that changes with the file. One that was there before the
        first attempt is another run's."""
        if self._before is None:
            self._before = checkpoint
        return checkpoint != self._before
