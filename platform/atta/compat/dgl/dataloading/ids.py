"""``DistDataLoader``: batches of ids for a function of the script, such as a sampler of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from atta.compat.dgl.distributed.book import tensor
from atta.compat.dgl.job import drawing_seed
from atta.samplers.arguments import flag, integers, whole


class DistDataLoader:
    """Gives ``collate_fn(ids)`` for each batch of ids, int64 [n]. The function runs here when its batch is asked for."""

    def __init__(  # noqa: PLR0917 - as in DGL
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        queue_size: int | None = None,
    ) -> None:
        """Describe the batches.

        Args:
            dataset: ids.
            batch_size: ids in a batch.
            shuffle: give them in another order in each epoch; torch's seed decides which.
            collate_fn: what makes a batch of ids; None: the ids are the batch.
            drop_last: leave out a last batch with fewer ids.
            queue_size: means nothing here.
        """
        self._ids, self._size = integers("dataset", dataset).reshape(-1), whole("batch_size", batch_size, 1)
        self._shuffle, self._drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self._collate = collate_fn or (lambda ids: ids)
        self._order = np.random.default_rng(drawing_seed() % (1 << 63))

    def __len__(self) -> int:
        """Number of batches."""
        whole_ones, rest = divmod(len(self._ids), self._size)
        return whole_ones + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        ids = self._order.permutation(self._ids) if self._shuffle else self._ids
        for number in range(len(self)):
            yield self._collate(tensor(ids[number * self._size : (number + 1) * self._size].copy()))
