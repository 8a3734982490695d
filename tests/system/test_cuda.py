"""Training and prediction on a GPU find what they find on the CPU. Needs a GPU; each test starts its own processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import atta
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph import GraphWriter
from atta.train import TrainConfig, TrainReport, fit

DEVICE = "cuda"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("cuda")
    sizes: dict[str, Any] = {"nodes": 1500, "edges": 24_000, "features": 20, "classes": 5, "seed": 3}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, train=0.2, val=0.2, test=0.4, inter=0.3, signal=0.5))
    write_typed(folder / "typed")
    with ExitStack() as stack:
        found = {}
        for name, graph, parts in (("plain", "graph", 2), ("whole", "graph", 1), ("typed", "typed", 2)):
            partition_graph(folder / graph, folder / f"{name}-parts", parts=parts, method="random", seed=0)
            found[name] = stack.enter_context(atta.local(folder / f"{name}-parts", threads=1))
        yield SimpleNamespace(**{name: str(cluster.cluster_file) for name, cluster in found.items()})


def write_typed(folder: Path) -> None:
    rng, papers, authors = np.random.default_rng(4), 400, 160
    classes = rng.integers(0, 4, papers)
    x = rng.standard_normal((papers, 8)).astype(np.float32)
    x[np.arange(papers), classes] += 1.0
    written = np.stack([rng.integers(0, authors, 3 * papers), np.repeat(np.arange(papers), 3)])
    splits = {"train": np.arange(200), "val": np.arange(200, 300), "test": np.arange(300, papers)}
    with GraphWriter(folder) as out:
        out.add_nodes("author", authors)
        out.add_nodes("paper", papers, tables={"x": x, "y": classes}, splits=splits)
        out.add_edges("author__writes__paper", *written)
        out.add_edges("paper__by__author", *written[::-1])


@cache
def trained(cluster: str, **settings: Any) -> TrainReport:
    """A short run; ``settings`` win over what all runs share."""
    sampled = {} if "strategy" in settings else {"num_neighbors": (5, 5), "batch_size": 100}
    shared = {"epochs": 3, "hidden": 16, "dropout": 0.0, "seed": 1, "verbose": False}
    return fit(TrainConfig(cluster=cluster, **{**shared, **sampled, **settings}))


def losses(report: TrainReport) -> np.ndarray:
    return np.array([epoch.loss for epoch in report.epochs])


RUNS: list[tuple[str, dict[str, Any]]] = [
    *(("plain", {"model": model}) for model in ("sage", "gcn", "gat", "resgcn+", "deepergcn")),
    *(("typed", {"model": model}) for model in ("rgcn", "hgt", "hetero-sage", "hetero-gat")),
    *(("plain", {"task": task}) for task in ("link", "unsupervised", "dgi")),
    # A trainer has a GPU of its own, so with one GPU a single server trains, and nobody else's rows are stale.
    *(
        ("whole", {"strategy": name, "layers": 2})
        for name in ("full", "exchange", "sancus", "pipegcn", "digest", "sat")
    ),
    ("whole", {"strategy": "digest-async", "layers": 2}),
    ("whole", {"strategy": "cooperative", "layers": 2, "co_batches": 3}),
]


@pytest.mark.parametrize(("graph", "settings"), RUNS, ids=str)
def test_runs_lose_what_they_lose_on_the_cpu(world: SimpleNamespace, graph: str, settings: dict[str, Any]) -> None:
    here, there = (trained(getattr(world, graph), device=device, **settings) for device in ("cpu", DEVICE))
    np.testing.assert_allclose(losses(there), losses(here), rtol=0.05 if settings.get("task") == "dgi" else 5e-3)
    if graph == "plain" and "model" in settings:
        assert there.best.metrics["test_accuracy"] == pytest.approx(here.best.metrics["test_accuracy"], abs=0.02)


def test_half_precision_and_accumulated_steps(world: SimpleNamespace) -> None:
    exact = trained(world.plain, device=DEVICE, accumulate=2, clip_grad_norm=1.0)
    half = trained(world.plain, device=DEVICE, accumulate=2, clip_grad_norm=1.0, precision="bf16")
    np.testing.assert_allclose(losses(half), losses(exact), rtol=0.03)
    np.testing.assert_allclose(
        losses(exact), losses(trained(world.plain, device="cpu", accumulate=2, clip_grad_norm=1.0)), rtol=5e-3
    )


def test_phases_are_those_of_the_gpu(world: SimpleNamespace) -> None:
    epochs = trained(world.plain, model="sage", device=DEVICE).epochs
    assert all(epoch.breakdown["copy"] > 0 and epoch.breakdown["compute"] > 0 for epoch in epochs)
    assert all(epoch.breakdown["compute"] < epoch.seconds for epoch in epochs)


def test_a_run_goes_on_in_mid_epoch(world: SimpleNamespace, tmp_path: Path) -> None:
    whole = trained(world.plain, device=DEVICE, dropout=0.5, epochs=2)
    settings: dict[str, Any] = {"device": DEVICE, "dropout": 0.5, "checkpoint": str(tmp_path), "checkpoint_steps": 2}
    trained(world.plain, epochs=1, **settings)
    resumed = trained(world.plain, epochs=2, resume=True, **settings)
    np.testing.assert_allclose(losses(resumed), losses(whole), rtol=1e-5)


def test_predictions(world: SimpleNamespace, tmp_path: Path) -> None:
    trained(world.plain, device=DEVICE, epochs=2, checkpoint=str(tmp_path / "run"))
    found = []
    for device in ("cpu", DEVICE):
        with atta.connect(world.plain) as cluster:
            predictions = atta.predict(cluster, tmp_path / "run", what="scores", device=device)
            assert predictions is not None
            found.append(predictions.values)
    assert len(found[0]) == 1500
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_a_prefetch_loader_gives_the_data_of_its_loader(world: SimpleNamespace) -> None:
    with atta.connect(world.plain) as cluster:
        loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=100, shuffle=True)
        for epoch in range(5):
            loader.set_epoch(epoch)
            expected = [batch.to_pyg().clone() for batch in loader]
            loader.set_epoch(epoch)
            for data, same in zip(atta.PrefetchLoader(loader, DEVICE), expected, strict=True):
                assert data.x.device.type == DEVICE
                assert all(torch.equal(data[name].cpu(), same[name]) for name in ("x", "y", "edge_index", "n_id"))


def test_trainers_without_a_gpu_each(world: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    """By default they compute on the CPU, and say so."""
    many: dict[str, Any] = {"trainers": torch.cuda.device_count() + 1, "epochs": 1}
    by_default = trained(world.plain, verbose=True, **many)
    assert "they compute on the CPU" in capfd.readouterr().err
    np.testing.assert_allclose(losses(by_default), losses(trained(world.plain, device="cpu", **many)))
    with pytest.raises(atta.ConfigError, match="every trainer needs a GPU"):
        trained(world.plain, device=DEVICE, **many)
