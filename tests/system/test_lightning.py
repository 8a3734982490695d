"""``AttaDataModule`` under Lightning's ``Trainer`` gives the batches of a plain loop."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.errors import ConfigError
from tests.system.conftest import SmallGraph

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")


def test_without_lightning_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "atta.train.launching.lightning", raising=False)
    with pytest.raises(ConfigError, match=r"AttaDataModule needs lightning: install atta\[lightning\]"):
        from atta.train import AttaDataModule  # noqa: F401


def made_module(pl: Any) -> Any:
    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(16, 4)
            self.seen: dict[str, list[list[int]]] = {}
            self.losses: list[float] = []

        def step(self, what: str, batch: Any) -> Any:
            self.seen.setdefault(what, []).append(batch.n_id[: batch.batch_size].tolist())
            return torch.nn.functional.cross_entropy(
                self.layer(batch.x)[: batch.batch_size], batch.y[: batch.batch_size]
            )

        def training_step(self, batch: Any) -> Any:
            loss = self.step("train", batch)
            self.losses.append(float(loss))
            return loss

        def validation_step(self, batch: Any) -> None:
            self.step("val", batch)

        def predict_step(self, batch: Any) -> Any:
            return batch.n_id[: batch.batch_size]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Model()


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_gets_the_batches_of_a_plain_loop(small_graph: SmallGraph, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from atta.train import AttaDataModule

    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        splits = ("train", "val", "val")
        data = AttaDataModule(cluster.addresses, [3, 2], splits=splits, predict=small_graph.ids[:30], batch_size=32)
        module = made_module(pl)
        trainer = pl.Trainer(max_epochs=2, default_root_dir=tmp_path, num_sanity_val_steps=0, **quiet)
        trainer.fit(module, data)
        trainer.save_checkpoint(tmp_path / "two.ckpt")
        found = trainer.predict(module, data)
        assert np.concatenate([ids.numpy() for ids in found]).tolist() == small_graph.ids[:30].tolist()

        plain = made_module(pl)
        optimizer = torch.optim.SGD(plain.parameters(), 0.1)
        loader = atta.NeighborLoader(cluster, [3, 2], "train", batch_size=32, shuffle=True)
        for _ in range(3):
            for batch in loader:
                optimizer.zero_grad()
                plain.training_step(batch.to_pyg()).backward()
                optimizer.step()
        assert module.seen["train"] == plain.seen["train"][: 2 * len(loader)]
        assert module.losses == plain.losses[: 2 * len(loader)]
        val = sorted(vertex for batch in module.seen["val"] for vertex in batch)
        assert val == sorted(2 * cluster_split(small_graph))

        for steps in (len(loader), len(loader) + 2):  # to the end of an epoch, and beyond
            begun, saved = made_module(pl), pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=steps)
            pl.Trainer(max_steps=steps, callbacks=[saved], num_sanity_val_steps=0, **quiet).fit(begun, data)
            resumed = made_module(pl)
            trainer = pl.Trainer(max_epochs=3, default_root_dir=tmp_path, num_sanity_val_steps=0, **quiet)
            trainer.fit(resumed, data, ckpt_path=saved.best_model_path)
            assert begun.losses + resumed.losses == plain.losses

        overfit = made_module(pl)
        few = AttaDataModule(cluster.addresses, [3, 2], splits=splits, eval_num_neighbors=np.array([2, 2]))
        assert few.cluster.num_parts == 2
        few = pickle.loads(pickle.dumps(few))  # as for a process that a strategy spawns
        trainer = pl.Trainer(max_epochs=2, overfit_batches=1, default_root_dir=tmp_path, **quiet)
        trainer.fit(overfit, few)
        assert overfit.seen["train"][0] == overfit.seen["train"][1]
    with pytest.raises(ConfigError, match="training, validation and test"):
        AttaDataModule("cluster.toml", [3], splits="train")


def cluster_split(graph: SmallGraph) -> list[int]:
    """Ids of the split ``val``: those that the fixture draws after ``train``."""
    from atta.partition import Graph

    return graph.ids[Graph.open(graph.folder / "graph", verify=False).split("node", "val")].tolist()


@pytest.mark.filterwarnings("ignore")
def test_lightnings_own_loggers_need_no_adapter(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    from atta.train.reports.epochs import PHASES, EpochReport
    from atta.train.reports.loggers import RunLog, make_logger

    logger = make_logger(f"lightning.pytorch.loggers.CSVLogger:save_dir={tmp_path},name=run,version=3")
    with RunLog([logger], {"lr": 0.5}) as log:
        for epoch in range(2):
            log.epoch(EpochReport(epoch, 1.0, 0.25, 1.0, 1.0, 1.0, dict.fromkeys(PHASES, 0.5)))
    folder = tmp_path / "run" / "version_3"
    lines = (folder / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[lines[0].split(",").index("step")] for line in lines] == ["step", "0", "1"]
    assert "lr: 0.5" in (folder / "hparams.yaml").read_text()
