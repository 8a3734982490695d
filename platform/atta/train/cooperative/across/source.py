"""The source of rows of other trainers in a run: of this epoch or stale, as its decisions say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from atta.train.cooperative.across.figures import RowFigures
from atta.train.cooperative.across.reads import ReadRows
from atta.train.cooperative.across.ways import Outgoing, Way
from atta.train.cooperative.exchange.exact import SummedGradients
from atta.train.cooperative.exchange.source import Arrival, Payload, Source
from atta.train.stale.table import Direction

__all__ = ["StaleSource"]


class StaleSource(Source):
    """Rows go one way, their gradients another; each way may be stale.

    Attributes:
        forward, backward: the ways.
        figures: of the present epoch.
    """

    def __init__(
        self, reads: ReadRows, forward: Way, backward: Way, figures: RowFigures, device: torch.device | str = "cpu"
    ) -> None:
        """``figures``: those that both ways count in."""
        self.forward, self.backward, self.figures = forward, backward, figures
        self._own, self._received = reads.own, reads.received
        whole = reads.places.tolist() == list(range(reads.received))
        self._places = None if whole else torch.from_numpy(reads.places).to(device)
        every = np.arange(reads.own)
        self._sends = [
            # A view of whole blocks needs no copy.
            slice(None) if np.array_equal(rows, every) else torch.from_numpy(rows).to(device)
            for rows in reads.by_reader
        ]
        self._send_rows = torch.from_numpy(reads.lists.send_rows).to(device)
        self._receive_counts: list[int] = reads.lists.receive_counts.tolist()

    @property
    def sent(self) -> Payload:
        """Of the present epoch."""
        return self.figures.sent

    @property
    def crossed(self) -> Payload:
        """Of the present epoch."""
        return self.figures.crossed

    def begin(self, epoch: int) -> None:
        """Begin an epoch; epochs count from 1."""
        self.figures.clear()
        self.forward.begin(epoch)
        self.backward.begin(epoch)

    def flush(self) -> None:
        self.forward.flush()
        self.backward.flush()

    def commit(self) -> None:
        """End the epoch, after all trainers have flushed it."""
        self.forward.commit()
        self.backward.commit()

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        if direction == "forward":
            return _Rows(self.forward.start(layer, rows, self._rows_for), self._places)
        return SummedGradients(self.backward.start(layer, rows, self._gradients_for), self._send_rows, self._own)

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        return {"forward": self.forward.state(), "backward": self.backward.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved. Raises ConfigError if it is the state of other rows."""
        self.forward.load_state(state["forward"])
        self.backward.load_state(state["backward"])

    def close(self) -> None:
        """Give back what the ways have taken outside this process."""
        self.forward.close()
        self.backward.close()

    def _rows_for(self, rows: torch.Tensor) -> Outgoing:
        every = rows.detach()
        return [every[rows_of_reader] for rows_of_reader in self._sends]

    def _gradients_for(self, gradients: torch.Tensor) -> Outgoing:
        if self._places is not None:
            received = gradients.new_zeros((self._received, *gradients.shape[1:]))
            gradients = received.index_copy_(0, self._places, gradients)
        parts: Outgoing = gradients.split(self._receive_counts)
        return parts


class _Rows:
    def __init__(self, arrival: Arrival, places: torch.Tensor | None) -> None:
        self._arrival, self._places = arrival, places

    def finish(self) -> torch.Tensor:
        rows = self._arrival.finish()
        return rows if self._places is None else rows.index_select(0, self._places)
