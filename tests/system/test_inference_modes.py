"""Predictions on sampled batches with all neighbours are those layer by layer, also after ``atta update``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.partition import Dataset
from atta.train import TrainConfig, fit
from atta.train.settings import MODELS, TYPED_MODELS
from tests.system.conftest import SmallGraph

ROWS = 500
"""Vertices that are predicted."""


def run(*words: str | Path) -> None:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)


@pytest.fixture(
    params=[
        "small",
        *(
            pytest.param(name, marks=[pytest.mark.slow, pytest.mark.shared_data])
            for name in ("cora", "citeseer", "amazon_computers", "acm_heco", "dblp_hgb")
        ),
    ]
)
def data(request: pytest.FixtureRequest, small_graph: SmallGraph, tmp_path: Path) -> Path:
    """A dataset of two parts that may be updated."""
    if request.param == "small":
        return shutil.copytree(small_graph.dataset(2, "random"), tmp_path / "data")
    source = request.getfixturevalue("shared_data") / request.param
    typed = [
        word for word in ["--undirected"] if any(source.glob("x*__*"))
    ]  # else no edge ends at what is to be learnt
    run("import", "npz", source, tmp_path / "graph", *typed)
    run("partition", tmp_path / "graph", tmp_path / "data", "--parts", "2")
    return tmp_path / "data"


@pytest.fixture
def cluster(data: Path) -> Iterator[atta.LocalCluster]:
    with atta.local(data, threads=1) as started:
        yield started


def update(cluster: atta.LocalCluster, data: Path, folder: Path) -> None:
    """Other features, a tenth of the edges gone, and as many new ones, most of them into a few vertices."""
    rng, schema = np.random.default_rng(2), cluster.schema
    where = ["--cluster", ",".join(cluster.addresses), "--data", data]
    edge_type = schema.edge_types[0]
    source, target = schema.endpoints(edge_type)
    dataset = Dataset.open(data)
    node_type = next(t for t in (target, source) if "x" in schema.node_tables[t])
    x = rng.standard_normal((schema.node_counts[node_type], *schema.node_tables[node_type]["x"].row_shape))
    np.save(folder / "x.npy", x.astype(schema.node_tables[node_type]["x"].dtype))
    run("update", "features", *where, "--table", f"{node_type}/x", "--from", folder / "x.npy")
    count = schema.edge_counts[edge_type] // 10
    gone = rng.permutation(schema.edge_counts[edge_type])[:count]
    np.save(folder / "gone.npy", gone)
    new = folder / "new"
    new.mkdir()
    np.save(new / "src.npy", rng.choice(dataset.ids(source), count))
    np.save(new / "dst.npy", dataset.ids(target)[(rng.pareto(1, count) % schema.node_counts[target]).astype(int)])
    for name, table in schema.edge_tables[edge_type].items():
        np.save(new / f"{name}.npy", rng.random((count, *table.row_shape)).astype(table.dtype))
    run("update", "edges", *where, "--edge-type", edge_type, "--from", new, "--remove", folder / "gone.npy")


def trained(cluster: atta.LocalCluster, folder: Path, model: str) -> Path:
    """A checkpoint."""
    settings = TrainConfig(
        cluster=str(cluster.cluster_file), model=model, num_neighbors=(5, 5), hidden=16, epochs=1, device="cpu",
        checkpoint=str(folder / model), verbose=False, batch_size=64,
    )  # fmt: skip
    fit(settings)
    return folder / model


def predicted_both_ways(cluster: atta.LocalCluster, folder: Path, nodes: np.ndarray) -> dict[str, np.ndarray]:
    """What a checkpoint gives layer by layer, which is what it gives on batches with all neighbours."""
    rows = {}
    for what in ("embeddings", "scores", "classes"):
        exact = atta.predict(cluster, folder, nodes, what=what)
        sampled = atta.predict(cluster, folder, nodes, what=what, num_neighbors=[-1], batch_size=100)
        (ids, wanted), (others, found) = (
            (one.ids[order], one.values[order]) for one in (exact, sampled) for order in [np.argsort(one.ids)]
        )
        np.testing.assert_array_equal(others, ids)
        if what == "classes":
            assert (wanted != found).mean() <= 0.002, folder.name  # two scores may be equal but for rounding
        else:
            assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max(), (folder.name, what)
        rows[what] = wanted
    return rows


@pytest.mark.usefixtures("preloaded_trainers")
@pytest.mark.timeout(900)
def test_sampled_with_all_neighbours_is_exact(cluster: atta.LocalCluster, data: Path, tmp_path: Path) -> None:
    schema = cluster.schema
    every = TYPED_MODELS if len(schema.node_types) > 1 else MODELS
    of_small = schema.node_counts[schema.node_types[0]] < ROWS  # others are compared before an update elsewhere
    models = [trained(cluster, tmp_path, model) for model in (["gcn"] if of_small else every)]
    target = next(t for t in schema.node_types if schema.splits[t])
    nodes = np.random.default_rng(1).permutation(Dataset.open(data).ids(target))[:ROWS]
    before = [predicted_both_ways(cluster, model, nodes) for model in models]
    update(cluster, data, tmp_path)
    for model, rows in zip(models, before, strict=True):
        assert not np.allclose(predicted_both_ways(cluster, model, nodes)["scores"], rows["scores"])
