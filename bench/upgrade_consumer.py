"""The part of `bench.upgrade` that runs in either build: takes all batches of some epochs again and again.

    upgrade_consumer.py CLUSTER LINES RANK WORLD

For each batch it appends a line of JSON to LINES: lap, epoch, position, digest, and when it came; in the first lap also
the batch's number and seeds. It imports nothing but what all releases offer (`atta.connect`, `atta.NeighborLoader`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import atta

HOPS, SEED, EPOCHS, BATCH = (5, 5), 3, 2, 32
PAUSE_S = 0.02
"""How long a consumer computes on a batch."""


def digest(ids: np.ndarray, seeds: int, row: np.ndarray, col: np.ndarray, x: np.ndarray) -> str:
    """Digest of a batch, however its vertices after the seeds, and its edges, are ordered.

    Args:
        ids: int64 [V], user ids, those of the ``seeds`` first.
        row, col: [E], positions in ``ids`` of the edges' ends.
        x: float32 [V, F], features.
    """
    edges, order = np.stack([ids[row], ids[col]]).astype(np.int64), np.argsort(ids)
    found = hashlib.sha256()
    for array in (ids[:seeds], edges[:, np.lexsort(edges)], ids[order], x[order]):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def main() -> None:
    """Take batches until killed. An error of Atta's is noted, and the epoch begins anew."""
    target, path, rank, world = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    with path.open("ab", buffering=0) as lines, atta.connect(target) as cluster:

        def write(**line: Any) -> None:
            lines.write(json.dumps({**line, "t": time.monotonic()}).encode() + b"\n")

        own: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "rank": rank, "world_size": world}
        loader = atta.NeighborLoader(cluster, list(HOPS), "train", **own)
        for lap, epoch in ((lap, epoch) for lap in itertools.count() for epoch in range(EPOCHS)):
            loader.set_epoch(epoch)
            try:
                for number, batch in enumerate(loader):
                    ids, (row, col) = np.asarray(batch.n_id()), np.asarray(batch.edge_index())
                    found = digest(ids, batch.batch_size, row, col, np.asarray(batch.table("x")))
                    about = {"batch_id": batch.batch_id, "seeds": ids[: batch.batch_size].tolist()}
                    write(lap=lap, epoch=epoch, batch=number, digest=found, **({} if lap else about))
                    del batch
                    time.sleep(PAUSE_S)
            except atta.AttaError as error:
                write(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
