"""``EpochBatches``: a loader that follows the epochs of somebody else's trainer, also when it goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import atta


class EpochBatches:
    """A loader whose epoch is that of the trainer.

    Lightning asks for iterators before it knows in which epoch a resumed run is, and may never use them. So an iterator
    begins with its first batch: it asks for the epoch then, and opens its session then."""

    def __init__(self, loader: atta.NeighborLoader, place: Callable[[], tuple[int, int]]) -> None:
        """``place`` tells the trainer's epoch, and how many of its batches have been trained on."""
        self.loader, self._place = loader, place

    def __iter__(self) -> Iterator[Any]:
        self.loader.set_epoch(self._place()[0])
        yield from self.loader

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is. A batch counts when it has been trained on: a step that failed is to be repeated.

        Lightning stores the state of rank 0 and gives it to all ranks, so it names none."""
        epoch, batch = self._place()
        state = {**self.loader.state_dict(), "epoch": epoch, "batch": batch % len(self)}  # shorter loaders go round
        return {name: value for name, value in state.items() if name not in ("request", "rank", "world")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin where ``state`` says, if it is of the epoch that the trainer has come to.
        Raises ConfigError: it is no state, or there are fewer batches."""
        self.loader.load_state_dict({**self.loader.state_dict(), **state})
