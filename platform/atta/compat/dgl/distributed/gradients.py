"""Gradients of embeddings as DGL applies them: a row makes one step per batch of all trainers, with the mean of its uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from atta.compat.dgl.job import meeting

if TYPE_CHECKING:
    from atta.client.tables.embedding import Gradients


def mean_of_uses(given: Sequence[Gradients]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows int64 [n], and float32 [n, columns]: the mean of the gradients of all their uses."""
    import torch

    rows, inverse = np.unique(np.concatenate([one.rows for one in given]), return_inverse=True)
    gradients = torch.from_numpy(np.concatenate([one.sums for one in given]))
    sums = torch.zeros(len(rows), gradients.shape[1]).index_add_(0, torch.from_numpy(inverse), gradients)
    uses = np.bincount(inverse, np.concatenate([one.uses for one in given]), len(rows))
    return rows, sums.numpy() / uses[:, None].astype(np.float32)


def exchanged(mine: Sequence[Gradients], ranks: Sequence[np.ndarray], world: int) -> list[list[Gradients]]:
    """What all trainers have for this one, for each of ``mine``. Every trainer calls it alike, in torch's process group.

    All of it travels in one message per pair of trainers.

    Args:
        mine: gradients of some embeddings, the same ones at all trainers.
        ranks: int64 [n] for each: the trainers that its rows go to.
        world: number of trainers.

    Raises ConfigError without a process group.
    """
    import torch

    dist = meeting()
    counts = np.stack([np.bincount(of, minlength=world) for of in ranks], axis=1)  # [world, embeddings]
    coming = torch.empty(counts.shape, dtype=torch.int64)
    dist.all_to_all_single(coming, torch.from_numpy(counts))
    widths = [one.sums.shape[1] for one in mine]
    lengths = [[_Layout(of, widths).nbytes for of in numbers.tolist()] for numbers in (coming, counts)]
    sent, received = (torch.empty(sum(of), dtype=torch.uint8) for of in lengths[::-1])
    _pack(mine, ranks, counts, sent.numpy())
    dist.all_to_all_single(received, sent, *lengths)
    pieces = np.split(received.numpy(), np.cumsum(lengths[0])[:-1])
    views = [_Layout(of, widths).views(piece) for of, piece in zip(coming.tolist(), pieces, strict=True)]
    return [list(of_embedding) for of_embedding in zip(*views, strict=True)]


def _pack(mine: Sequence[Gradients], ranks: Sequence[np.ndarray], counts: np.ndarray, out: np.ndarray) -> None:
    """Write what goes to trainer 0, then what goes to trainer 1, ... into ``out``."""
    widths = [one.sums.shape[1] for one in mine]
    orders = [np.argsort(of, kind="stable") for of in ranks]
    firsts, at = np.cumsum(counts, axis=0) - counts, 0
    for first, numbers in zip(firsts, counts.tolist(), strict=True):
        layout = _Layout(numbers, widths)
        views = layout.views(out[at : at + layout.nbytes])
        for one, order, start, number, view in zip(mine, orders, first, numbers, views, strict=True):
            chosen = order[start : start + number]
            for array, target in zip(one, view, strict=True):
                np.take(array, chosen, axis=0, out=target, mode="clip")  # "raise" would copy once more
        at += layout.nbytes


class _Layout:
    """Where the gradients of several embeddings lie in the message from one trainer to another.

    Integers come first, so everything lies at a multiple of its size.
    """

    def __init__(self, numbers: Sequence[int], widths: Sequence[int]) -> None:
        """``numbers``: rows of each embedding; ``widths``: columns of each."""
        self._numbers, self._widths = numbers, widths
        values = sum(number * width for number, width in zip(numbers, widths, strict=True))
        self._values_at = 16 * sum(numbers)
        self.nbytes = self._values_at + 8 * (-(-values // 2))

    def views(self, message: np.ndarray) -> list[Gradients]:
        """The gradients that ``message`` (uint8 [nbytes]) holds, without copies."""
        from atta.client.tables.embedding import Gradients

        integers, values = message[: self._values_at].view(np.int64), message[self._values_at :].view(np.float32)
        found, at, value = [], 0, 0
        for number, width in zip(self._numbers, self._widths, strict=True):
            sums = values[value : value + number * width].reshape(number, width)
            found.append(Gradients(integers[at : at + number], sums, integers[at + number : at + 2 * number]))
            at, value = at + 2 * number, value + number * width
        return found
