"""``AttaDataModule``: Lightning's ``Trainer`` reads mini-batches of running daemons. The extra ``atta[lightning]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import atta
from atta.errors import ConfigError
from atta.observe.packages import load
from atta.train.launching.epoch_batches import EpochBatches

lightning = load("AttaDataModule", "lightning.pytorch")


class AttaDataModule(lightning.LightningDataModule):  # type: ignore[misc, name-defined]  # types are checked without it
    """Loaders of the splits ``train``, ``val`` and ``test`` for Lightning's ``Trainer``.

        data = AttaDataModule("cluster.toml", [15, 10, 5], batch_size=1024)
        lightning.pytorch.Trainer(max_epochs=10, devices=2).fit(module, data)

    Every process of the trainer connects itself and gets its share of the batches, which depend on the epoch's number
    alone: a run that goes on from a checkpoint gets those that it lacks. With ``overfit_batches`` nothing is shuffled.
    """

    def __init__(
        self,
        target: str | Path | Sequence[str],
        num_neighbors: Any,
        *,
        splits: Sequence[str] = ("train", "val", "test"),
        predict: Any = None,
        node_type: str | None = None,
        batch_size: int = 1024,
        eval_num_neighbors: Any = None,
        transform: Callable[[atta.MiniBatch], Any] = atta.MiniBatch.to_pyg,
        **options: Any,
    ) -> None:
        """Describe the loaders. Daemons are asked first when the trainer calls ``setup``.

        Args:
            target: of ``atta.connect``: a cluster file or addresses. ``atta.local(...).cluster_file`` is one.
            num_neighbors: fan-outs, as for ``NeighborLoader``.
            splits: of training, validation and test.
            predict: seeds of ``Trainer.predict``: a split, ids, or None for all vertices.
            node_type: of the seeds; may be left out if there is one.
            batch_size: seeds per batch.
            eval_num_neighbors: fan-outs of all loaders except that of training; None: ``num_neighbors``.
            transform: makes what the module gets of a ``MiniBatch``. Default: PyG's ``Data`` or ``HeteroData``.
            **options: of ``NeighborLoader``, for all loaders.

        Raises ConfigError: there are not three splits.
        """
        super().__init__()
        if isinstance(splits, str) or len(splits) != 3:
            raise ConfigError(f"splits {splits!r}: name those of training, validation and test")
        self._target, self._splits, self._predict = target, tuple(splits), predict
        self._node_type, self._options = node_type, {"batch_size": batch_size, "transform": transform, **options}
        self._fan_outs = num_neighbors
        self._eval_fan_outs = num_neighbors if eval_num_neighbors is None else eval_num_neighbors
        self._cluster: atta.Cluster | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the connection: a process that Lightning spawns makes its own."""
        return {**self.__dict__, "_cluster": None}

    @property
    def cluster(self) -> atta.Cluster:
        """The connection of this process; made when it is first used."""
        if self._cluster is None:
            self._cluster = atta.connect(self._target, wait=True)
        return self._cluster

    def setup(self, stage: str) -> None:
        """Connect to the daemons. Raises what ``atta.connect`` raises."""
        self.cluster.schema  # noqa: B018 - this connects

    def teardown(self, stage: str) -> None:
        """Close the connection."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def train_dataloader(self) -> EpochBatches:
        """Shuffled anew in each epoch, unless the trainer overfits; every rank has equally many batches."""
        shuffle = self.trainer is None or not self.trainer.overfit_batches
        return EpochBatches(self._loader(self._fan_outs, self._splits[0], shuffle=shuffle, pad=True), self._place)

    def val_dataloader(self) -> atta.NeighborLoader:
        """Every vertex of the split once."""
        return self._loader(self._eval_fan_outs, self._splits[1])

    def test_dataloader(self) -> atta.NeighborLoader:
        """Every vertex of the split once."""
        return self._loader(self._eval_fan_outs, self._splits[2])

    def predict_dataloader(self) -> atta.NeighborLoader:
        """Every vertex that is predicted once."""
        return self._loader(self._eval_fan_outs, self._predict)

    def _place(self) -> tuple[int, int]:
        """The trainer's epoch, and how many of its batches have been trained on."""
        if self.trainer is None:
            return 0, 0
        return self.trainer.current_epoch, self.trainer.fit_loop.epoch_loop.batch_progress.current.processed

    def _loader(self, fan_outs: Any, seeds: Any, **options: Any) -> atta.NeighborLoader:
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        if self._node_type is not None:
            seeds = self._node_type, seeds
        options = {"rank": rank, "world_size": world, "pad": False, **options, **self._options}
        return atta.NeighborLoader(self.cluster, fan_outs, seeds, **options)
