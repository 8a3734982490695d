"""A profile measured by real daemons: counts are exact, times are only present."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import atta
from atta.errors import AttaError
from atta.partition import Dataset, GraphWriter, partition_graph
from atta.samplers.local.predict import predict
from atta.simulate import Profile, Scenario, load_profile, save_profile, simulate
from atta.simulate.consumers import Consumers
from atta.simulate.measure import measure
from atta.simulate.scenario import BatchModel
from atta.simulate.traced import profile_of_trace


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 vertices in communities, 400 of them seeds, in two partitions."""
    rng, n, m = np.random.default_rng(3), 5000, 40_000
    folder = tmp_path_factory.mktemp("measure")
    with GraphWriter(folder / "graph") as out:
        tables = {"x": rng.random((n, 8), dtype=np.float32)}
        out.add_nodes("node", n, tables=tables, splits={"train": rng.permutation(n)[:400]})
        src = rng.integers(0, n, m)
        dst = np.where(rng.random(m) < 0.8, src // 500 * 500 + rng.integers(0, 500, m), rng.integers(0, n, m))
        out.add_edges("node__to__node", np.concatenate([src, dst]), np.concatenate([dst, src]))
    partition_graph(folder / "graph", folder / "data", parts=2, method="ldg")
    return folder / "data"


def check(profile: Profile, data: Path) -> None:
    dataset = Dataset.open(data)
    predicted = predict(dataset, [8, 4], batch_size=40, batches=60)
    assert profile.parts == 2
    assert profile.epoch_seeds == 400
    assert profile.row_bytes == pytest.approx(32)
    assert profile.mean_degree == pytest.approx(16)
    assert sum(hop.new for hop in profile.hops) == pytest.approx(np.mean([p.rows[0] for p in predicted]), rel=0.1)
    remote = sum(hop.new * (1 - hop.home) for hop in profile.hops)
    assert remote == pytest.approx(np.mean([p.remote_rows[0] for p in predicted]), rel=0.15)
    assert set(profile.remote) == {"neighborhood", "feature"}
    assert profile.remote["feature"].answer_bytes == pytest.approx(1.0)
    assert profile.local["neighborhood"].us_per_unit + profile.local["neighborhood"].fixed_us > 0
    outcome = simulate(Scenario(profile, batches=5, share_pulls=False))
    assert outcome.seeds_per_s > 0
    assert outcome.link_bytes_per_batch > remote * 32


def test_a_dataset(data: Path, tmp_path: Path) -> None:
    profile = measure(data, batch_size=40, fan_outs=(8, 4), epochs=2)
    check(profile, data)
    remote = sum(hop.new * (1 - hop.home) for hop in profile.hops)
    wanted = sum(number * rows for number, rows in enumerate(profile.repeats, start=1))
    assert wanted / len(profile.repeats) == pytest.approx(remote, rel=0.1)
    assert profile.degree == pytest.approx(17, rel=0.05)  # of vertices reached in proportion to their degree
    for batch_size, fan_outs in ((20, (4, 2)), (40, (16, 4))):
        other = BatchModel(Scenario(profile, batch_size=batch_size, fan_outs=fan_outs)).hops
        predicted = predict(Dataset.open(data), list(fan_outs), batch_size=batch_size, batches=60)
        expected = np.mean([p.remote_rows[0] for p in predicted])
        assert sum(hop.new * (1 - hop.home) for hop in other) == pytest.approx(expected, rel=0.15)
    save_profile(tmp_path / "p.json", profile)
    assert load_profile(tmp_path / "p.json") == profile


@pytest.mark.slow
def test_a_running_cluster(data: Path) -> None:
    with atta.local(data, threads=1, options=("--cache-share", "0", "--no-share-pulls")) as cluster:
        profile = measure(cluster.cluster_file, batch_size=40, fan_outs=(8, 4), epochs=2)
        for counters in cluster.stats():
            for kind in ("neighborhood", "feature"):  # there is one other owner to ask
                assert counters[f"cost_{kind}_net_r"] == counters[f"cost_{kind}_net_n"] > 0
            assert 0 < counters["loop_cpu_s"] < counters["cpu_s"]
    check(profile, data)


def test_what_cannot_be_measured_is_refused(data: Path) -> None:
    with pytest.raises(AttaError):
        measure(data, batch_size=40, fan_outs=(8,), split="absent")


def test_consumers_take_what_they_are_told_and_say_what_went_wrong(data: Path) -> None:
    loader = {"num_neighbors": [8, 4], "input_nodes": "train", "batch_size": 40, "world_size": 2}
    ranks = [{**loader, "rank": rank} for rank in range(2)]
    with atta.local(data, threads=1) as cluster:
        target = str(cluster.cluster_file)
        with Consumers(target, ranks) as consumers:
            begun = [*consumers._processes]
            assert len(begun) == 2
            whole = consumers.take(3)
            assert whole.batches == 3 * 2 * 5
            assert whole.cpu_s > 0
            assert consumers.take(2, 1, alone=True).batches == 2 * 2
        assert all(child.poll() is not None for child in begun)
        absent = [{**ranks[0], "input_nodes": "absent"}, ranks[1]]
        with Consumers(target, absent) as consumers, pytest.raises(AttaError, match=r"a consumer: .*absent"):
            consumers.take(1)
        with Consumers(target, ranks) as consumers:
            consumers.take(1)
            for child in consumers._processes:
                child.kill()
            with pytest.raises(AttaError, match="ended early, with exit code -9"):
                consumers.take(1)


def test_a_trace_tells_the_same_sizes(data: Path, tmp_path: Path) -> None:
    """The recordings of a job's daemons, next to measurement and prediction."""
    target = tmp_path / "trace.json"
    with atta.local(data, threads=1, options=("--cache-share", "0", "--no-share-pulls")) as cluster:
        for rank in range(2):
            for _ in atta.NeighborLoader(
                cluster, [8, 4], "train", batch_size=40, shuffle=True, rank=rank, world_size=2
            ):
                pass
        subprocess.run(
            [sys.executable, "-m", "atta.cli.main", "trace", "--cluster", str(cluster.cluster_file), "--out", str(target)],
            check=True, timeout=60, capture_output=True,
        )  # fmt: skip
    profile = profile_of_trace(target)
    assert profile.batch_size == 40
    assert profile.fan_outs == (8, 4)
    assert profile.cores == os.cpu_count()
    check(dataclasses.replace(profile, epoch_seeds=400), data)
