"""How a benchmark talks to measured processes, and the figures of their epochs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta_bench.lab.netlab import loopback
from atta_bench.lab.processes import Measured, SystemProcesses, Usage
from atta_bench.lab.workload import Recipe
from atta_bench.loader.benchmark import figures as figures_of_loader
from atta_bench.loader.scheduler import SchedulerBench
from atta_bench.loader.scheduler import figures as figures_of_policy
from atta_bench.train.benchmark import PHASES, TrainBench, figures, run

HOST = loopback(1)[0]
RANK = """
import sys, time
from atta_bench.lab.workload import Epoch, Reporter
rank, seconds = int(sys.argv[1]), float(sys.argv[2])
reporter = Reporter()
print("libraries chatter")
def epoch(number):
    out = Epoch(rank, number)
    with out.timed():
        time.sleep(seconds)
        out.seeds, out.batches, out.edges = 100, 2, 700
    return out
warm = epoch(0)
seconds /= float(sys.argv[3])
for measured in reporter.stretches(warm):
    for number in range(measured):
        reporter.report(epoch(number))
"""


def rank(number: int, seconds: float, faster: float = 1.0) -> list[str]:
    """A rank whose epochs take ``seconds``, after its warm-up ``faster`` times less."""
    return [sys.executable, "-c", RANK, str(number), str(seconds), str(faster)]


def test_ranks_run_together_and_report_every_epoch(tmp_path: Path) -> None:
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_support("daemon", HOST, ["sleep", "300"])
        for number in range(2):
            processes.start_rank(HOST, rank(number, 0.1))
        measured = processes.measure(epochs=3, seconds=0.0, timeout_s=60)
    assert sorted((e["rank"], e["epoch"]) for e in measured.epochs) == [(r, e) for r in range(2) for e in range(3)]
    assert measured.total("seeds") == 600
    assert measured.window_s >= 0.3
    # Both ranks started at the same moment, so their epochs overlap.
    starts = {r: min(e["start"] for e in measured.epochs if e["rank"] == r) for r in range(2)}
    ends = {r: max(e["stop"] for e in measured.epochs if e["rank"] == r) for r in range(2)}
    assert starts[0] < ends[1]
    assert starts[1] < ends[0]
    assert "libraries chatter" in (tmp_path / "rank0.log").read_text()


@pytest.mark.parametrize("faster", [1, 10])
def test_as_many_epochs_as_fill_the_time(tmp_path: Path, faster: float) -> None:
    with SystemProcesses("test", tmp_path) as processes:
        for number in range(2):
            processes.start_rank(HOST, rank(number, 0.2, faster))
        measured = processes.measure(epochs=1, seconds=0.7, timeout_s=60)
    assert measured.window_s >= 0.7
    assert measured.whole.seconds >= 0.7
    counts = [max(e["epoch"] for e in measured.epochs if e["rank"] == r) + 1 for r in range(2)]
    assert counts[0] == counts[1] <= 4 * faster
    assert len(measured.epochs) == sum(counts)  # those of the first, short stretch do not count


def test_processes_end_with_the_block(tmp_path: Path) -> None:
    before = set(
        psutil.Process().children()
    )  # Processes of other tests. Process numbers may wrap, so the newest need not have the highest.
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_support("daemon", HOST, [sys.executable, "-c", "import time; time.sleep(300)"])
        (child,) = set(psutil.Process().children()) - before
    assert not child.is_running()


@pytest.mark.parametrize("who", ["rank", "support"])
def test_a_broken_process_is_named_with_the_end_of_its_log(tmp_path: Path, who: str) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('out of cheese')"]
    with SystemProcesses("test", tmp_path) as processes:
        if who == "rank":
            processes.start_rank(HOST, broken)
        else:
            processes.start_support("daemon", HOST, broken)
            processes.start_rank(HOST, rank(0, 30))
        with pytest.raises(AttaError, match=r"ended early.*out of cheese"):
            processes.measure(epochs=1, seconds=0, timeout_s=60)


def test_a_rank_that_is_killed_or_hangs_is_named(tmp_path: Path) -> None:
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_rank(HOST, [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
        with pytest.raises(AttaError, match="rank0 was killed by SIGKILL; out of memory"):
            processes.measure(epochs=1, seconds=0, timeout_s=60)
    start = time.monotonic()
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_rank(HOST, [sys.executable, "-c", "import sys; sys.stdin.read()"])
        with pytest.raises(AttaError, match="not done in time"):
            processes.measure(epochs=1, seconds=0, timeout_s=0.2)
    assert time.monotonic() - start < 60
    follower = "raise SystemExit('RuntimeError: [third_party/gloo/pair.cc] Connection closed by peer')"
    cause = "import time; time.sleep(0.5); raise SystemExit('out of cheese')"
    with SystemProcesses("test", tmp_path) as processes:
        for code in (follower, cause):
            processes.start_rank(HOST, [sys.executable, "-c", code])
        with pytest.raises(AttaError, match=r"rank1 ended early.*out of cheese"):
            processes.measure(epochs=1, seconds=0, timeout_s=60)


def test_figures_refer_to_the_whole_window() -> None:
    def epoch(start: float, stop: float, **more: float) -> dict[str, float]:
        return {"start": start, "stop": stop, "seeds": 100, "edges": 1000, "batches": 2, "nodes": 50, **more}

    warm = [epoch(0, 1, remote_rows=30.0), epoch(0, 1, remote_rows=10.0)]
    measured = Measured(
        warm,
        [epoch(2, 4), epoch(4, 6), epoch(2, 5), epoch(5, 7)],
        Usage(10.0, 5.0, 2.0, (5000, 3000)),
        Usage(9.0, 5.0, 2.0, (5000, 2000)),
    )
    found = figures_of_loader(measured)
    assert found["seeds_per_s"] == 400 / 5  # from 2 to 7, although no single rank worked all that time
    assert found["edges_per_seed"] == 10
    assert found["remote_rows_per_seed"] == 40 / 200  # only the warm-up counted them
    assert found["link_bytes_per_seed"] == 20
    assert found["cpu_us_per_seed"] == 1e6 * 5 / 400
    assert found["consumer_cpu_us_per_seed"] == 1e6 * 2 / 400
    assert "remote_bytes_per_seed" not in found
    assert "sampling_share" not in found


def dataset(folder: Path, **tables: np.ndarray) -> str:
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", 10, tables=tables, splits={"train": np.arange(4), "few": np.arange(1)})
        out.add_edges("node__to__node", np.arange(10), np.arange(10)[::-1])
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    return str(folder / "parts")


def test_a_dataset_must_have_features_labels_and_seeds(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    x, y = np.ones((10, 3), np.float32), np.arange(10) % 2
    (tmp_path / "bare").mkdir()
    with pytest.raises(ConfigError, match=r"x \(.*\) and y"):
        run(TrainBench((2, 2), 8, data=dataset(tmp_path / "bare", x=x)))
    (tmp_path / "full").mkdir()
    full = dataset(tmp_path / "full", x=x, y=y)
    for split, error, words in (("trian", UnknownNameError, "train"), ("few", ConfigError, "too few")):
        with pytest.raises(error, match=words):
            run(TrainBench((2,), 8, data=full, split=split))
    with pytest.raises(AttaError, match="absent"):
        run(TrainBench(data=str(tmp_path / "absent")))


def epoch(rank: int, epoch: int, start: float, stop: float, **more: Any) -> dict[str, Any]:
    sizes = {"batches": 2, "seeds": 100, "nodes": 500, "edges": 1000, "remote_rows": 50, "remote_bytes": 9}
    plain = {**sizes, "sampling_s": 0.25, "fetch_s": 0.5}
    return {"rank": rank, "epoch": epoch, "start": start, "stop": stop, **plain, **more}


def test_phases_add_up_to_the_epoch_and_the_last_epoch_is_judged() -> None:
    spent = {"wait_s": 1.0, "copy_s": 0.25, "compute_s": 1.5, "sync_s": 0.25}
    first = [epoch(r, 0, 10.0, 14.0, loss_sum=300.0, right=10, **spent) for r in range(2)]
    second = [epoch(r, 1, 14.0, 18.0, loss_sum=200.0, right=60 + r, **spent) for r in range(2)]
    usage = Usage(8.0, 6.0, 4.0, (5000, 3000))
    found = figures(Measured(first, first + second, usage, usage))
    assert found["epoch_s"] == 4.0
    assert found["seeds_per_s"] == 400 / 8
    assert found["steps"] == 2
    assert found["loss"] == 2.0
    assert found["accuracy"] == 121 / 200
    assert found["loader_share"] == 1.25 / 4
    assert found["cpu_us_per_seed"] == 1e6 * 6 / 400
    assert found["trainer_cpu_us_per_seed"] == 1e6 * 4 / 400
    assert found["link_bytes_per_seed"] == 20
    assert {n for n in found if n.startswith("trainer/")} == {f"trainer/{p}_s" for p in (*PHASES, "other")}
    assert sum(found[f"trainer/{p}_s"] for p in (*PHASES, "other")) == pytest.approx(found["epoch_s"])
    assert (found["loading/sample_s"], found["loading/fetch_s"]) == (0.25, 0.5)


def test_the_busiest_resource_is_named() -> None:
    bench = SchedulerBench((2, 2), 8, data="somewhere", think_ms=50.0, link="1mbit")
    sizes = {"batches": 10, "remote_rows": 5.0, "feature_bytes": 9}
    epochs = [
        epoch(r, n, 2.0 * n, 2.0 * n + 2, make_ms=[1.0] * 9 + [11.0], queue_bytes=100.0 * r + n or None, **sizes)
        for r in range(2)
        for n in range(2)
    ]
    # Four seconds, two hosts. 125,000 bytes are a quarter of what a link of 1 Mbit/s carries.
    # 20 batches of 50 ms each are a quarter of the four seconds.
    whole, window = Usage(4.0, 2.0, 1.0, (130_000, 70_000)), Usage(4.0, 2.0, 1.0, (125_000, 60_000))
    found = figures_of_policy(Measured(epochs[:2], epochs, whole, window), bench=bench, hosts=2)
    assert found["epoch_s"] == 2.0
    assert found["seeds_per_s"] == 100.0
    assert found["busy/link"] == pytest.approx(0.25)
    assert found["busy/consumer"] == pytest.approx((40 * 0.05 + 1.0) / 8)
    assert found["busiest"] == max(found["busy/link"], found["busy/consumer"], found["busy/cores"])
    assert found["completion_ms"] == pytest.approx(2.0)
    assert found["completion_ms_p95"] == 11.0
    assert found["queue_bytes"] == 101.0
    usage, of_peers = Usage(2.0, 2.0, 1.0, (0, 0)), [epoch(r, 0, 0.0, 2.0, **sizes) for r in range(2)]
    plain = SchedulerBench((2, 2), 8, data="somewhere")
    found = figures_of_policy(Measured(of_peers, of_peers, usage, usage), bench=plain, hosts=2)
    assert set(found) >= {"seeds_per_s", "epoch_s", "busy/cores", "busiest"}
    assert not {"completion_ms", "queue_bytes", "busy/link", "busy/consumer"} & set(found)


def test_the_model_of_dgls_layers_is_graphsage_with_means() -> None:
    dgl, torch = pytest.importorskip("dgl"), pytest.importorskip("torch")
    from atta_bench.train.worker import DglSage

    rng = np.random.default_rng(7)
    src, dst = (
        torch.from_numpy(a) for a in (rng.integers(0, 30, 200), rng.integers(0, 20, 200))
    )  # 10 without in-edges
    graph = dgl.graph((src, dst), num_nodes=30)
    x = torch.from_numpy(rng.standard_normal((30, 6)).astype(np.float32))
    model = DglSage(Recipe(channels=6, classes=3, layers=2, hidden=4))
    block = dgl.to_block(graph, torch.arange(30))
    scores = model([block, block], x)
    count = torch.zeros(30, 30).index_put((dst, src), torch.ones(200), accumulate=True)
    mean = count / count.sum(1, keepdim=True).clamp(min=1)
    for number, layer in enumerate(model.layers):
        x = mean @ x @ layer.fc_neigh.weight.T + layer.fc_self(x)
        x = x.relu() if number == 0 else x
    assert torch.allclose(scores, x, atol=1e-5)
