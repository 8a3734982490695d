"""Benchmarks on tiny graphs and tables, by command line: every figure that they promise is there. No time is checked."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from atta.errors import ConfigError
from atta.partition import GraphWriter, partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.lab.workload import BenchWorkload
from atta_bench.loader.benchmark import LoaderBench
from atta_bench.loader.benchmark import run as run_loader
from atta_bench.pieces.cache import CacheReport, Point
from atta_bench.pieces.sampling import SamplingBench
from atta_bench.pieces.sampling import run as run_sampling
from atta_bench.train.benchmark import PHASES, TrainBench
from atta_bench.train.benchmark import run as run_train
from tests.system.conftest import ran
from tests.waiting import eventually

PNG = b"\x89PNG\r\n\x1a\n"
VERTICES, EDGES = 400, 4000
CLASSES, SEEDS = 4, 180
KV = "kv --rows 3000 --dim 20 --batch 600 --repeats 2"
TABLES = [f"tables/{op}_{of}" for op in ("read", "write", "add", "sgd", "adagrad", "adam") for of in ("rows", "bytes")]


def command(words: str) -> list[str]:
    return [sys.executable, "-m", "atta.cli.main", "bench", *words.split()]


def bench(folder: Path, words: str, timeout_s: float = 240) -> dict[str, Any]:
    """The document of ``atta bench``, and what it has printed as ``said``."""
    done = subprocess.run(
        command(f"{words} --json {folder}/found.json"), capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads((folder / "found.json").read_text()), "said": done.stdout}


def medians(document: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {system: {n: of["median"] for n, of in found.items()} for system, found in document["results"].items()}


@pytest.fixture(scope="module")
def random_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("alone") / "graph"
    with GraphWriter(folder) as out:
        x = rng.standard_normal((VERTICES, 4)).astype(np.float32)
        out.add_nodes("node", VERTICES, tables={"x": x}, splits={"train": np.arange(VERTICES)})
        out.add_edges("node__to__node", rng.integers(0, VERTICES, EDGES), rng.integers(0, VERTICES, EDGES))
    return folder


def drawn(words: str, folder: Path) -> dict[str, Any]:
    document, picture = folder / "found.json", folder / "found.png"
    ran(f"bench {words} --runs 1 --json {document} --plot {picture}")
    assert picture.read_bytes().startswith(PNG)
    found: dict[str, Any] = json.loads(document.read_text())
    return found


def test_sampling_counts_the_edges_of_full_neighbourhoods(random_graph: Path, tmp_path: Path) -> None:
    partition_graph(random_graph, tmp_path / "data", parts=1, method="random", seed=0)
    words = f"--dataset {tmp_path}/data --num-neighbors {EDGES} --batch-size 400 --batches 2 --threads 1"
    found = drawn(f"sampling {words} --variants labor", tmp_path)["results"]
    assert len(found) == 2
    for figures in found.values():
        # One hop from all vertices reaches every edge once.
        assert figures["edges_per_seed"]["median"] == pytest.approx(EDGES / VERTICES)
        assert figures["vertices_per_seed"]["median"] == pytest.approx(1)
        assert figures["edges_per_s"]["median"] > 0
    with pytest.raises(ConfigError, match="--batch-size 401: seeds are distinct, and there are 400 vertices"):
        run_sampling(SamplingBench(str(tmp_path / "data"), batch_size=401))


@pytest.mark.slow
def test_partitioning_counts_the_edges_that_it_cuts(random_graph: Path, tmp_path: Path) -> None:
    document = drawn(f"partition --graph {random_graph} --parts 2 --methods random,ldg", tmp_path)
    assert set(document["results"]) == {"random", "ldg"}
    for figures in document["results"].values():
        assert 0 < figures["edge_cut"]["median"] < 1
        assert figures["seconds"]["median"] > 0
    assert set(document["ratios"]["edge_cut"]) == {"ldg"}


def test_hit_rates_of_caches_are_drawn(tmp_path: Path) -> None:
    report = CacheReport({}, ("degree",))
    for share, rows in ((10.0, 10), (50.0, 50)):
        report.add(share, Point(rows, 4 * rows, 100, rows, 90, 5, {"degree": rows - 5}, {"degree": 0.1}))
    report.plot(str(tmp_path / "rates.png"))
    assert (tmp_path / "rates.png").read_bytes().startswith(PNG)
    assert [row["hit_rate"]["degree"] for row in report.figures()] == [0.05, 0.45]


def check_kv(document: dict[str, Any]) -> None:
    """Figures are positive. With a single run, ratios are plain quotients."""
    results = {name: found for name, found in document["results"].items() if "error" not in found}
    for found in results.values():
        for name, value in found.items():
            assert value["min"] == value["median"] == value["max"]
            assert value["median"] > 0 or name.endswith("/streaming")
    assert all(value > 0 for value in document["limits"].values())
    for figure, by_system in document["ratios"].items():
        for system, ratio in by_system.items():
            if system != "limit":
                quotient = results["atta"][figure]["median"] / results[system][figure]["median"]
                assert ratio == pytest.approx(quotient)


@pytest.mark.slow
def test_kv_has_every_figure(tmp_path: Path) -> None:
    document = bench(tmp_path, f"{KV} --work {tmp_path} --runs 1 --vs dgl --quiet")
    check_kv(document)
    results, ratios = document["results"], document["ratios"]
    for section in ("gather", "gather-2-threads"):
        assert {"loop", "copy"} <= ratios[f"{section}/bytes_per_s"].keys()
    for figure in ("bytes_per_s", "client_cpu_s_per_gb", "server_cpu_s_per_gb"):
        assert ratios[f"pull/{figure}"].keys() == {"grpc", "grpc-small"}
    for figure in ("rows_per_s", "bytes_per_s", "cpu_s_per_gb"):
        assert ratios[f"reads/{figure}"].keys() == {"messages", "loop", "copy"}
    assert all({"local", "torch"} <= ratios[f"{name}_per_s"].keys() for name in TABLES)
    assert {"torch", "torch-out"} <= ratios["gather/bytes_per_s"].keys()
    if importlib.util.find_spec("dgl") is None:
        assert results["dgl"] == {"error": "not installed: dgl: install atta[dgl]"}
    assert set(document["limits"]) == {"tcp_bytes_per_s", "grpc_bytes_per_s"}


@pytest.mark.netns
@pytest.mark.slow
def test_kv_over_a_shaped_link(tmp_path: Path) -> None:
    document = bench(tmp_path, f"{KV} --work {tmp_path} --runs 1 --threads 1 --link 400mbit --quiet")
    check_kv(document)
    for system in ("atta", "grpc", "grpc-small"):
        found = document["results"][system]
        assert found["link/capacity_share"]["median"] == pytest.approx(found["link/bytes_per_s"]["median"] / 50e6)
    assert document["limits"]["link_capacity_bytes_per_s"] == 50e6
    assert document["ratios"]["link/bytes_per_s"].keys() == {"grpc", "grpc-small", "limit"}


def test_bad_options_are_named() -> None:
    done = subprocess.run(command(f"{KV} --batch 3001"), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "--batch 3001: rows are distinct, and there are 3000" in done.stderr


@pytest.mark.parametrize(
    "systems", [["atta-aggregate"], pytest.param(["atta-aggregate", "atta"], marks=pytest.mark.slow)]
)
def test_only_the_systems_asked_for_run(dataset: Path, tmp_path: Path, systems: list[str]) -> None:
    words = f"loader --data {dataset} --num-neighbors 4,3 --batch-size 30 --aggregate mean --deliver arrays --netns off"
    with pytest.raises(ConfigError, match="--only dgl: the systems are atta, atta-uncached, atta-aggregate, atta-mean"):
        run_loader(LoaderBench(data=str(dataset), netns="off", aggregate="mean", only=("dgl",)))
    few = f"--only {','.join(systems)} --warm-up 1 --epochs 1 --seconds 0s --runs 1 --quiet"
    document = bench(tmp_path, f"{words} {few}")
    assert list(document["results"]) == systems
    assert all(document["ratios"]["vertices_per_seed"][other] < 1 for other in systems[1:])


@pytest.mark.slow
def test_scale_on_two_partitions(tmp_path: Path) -> None:
    document = bench(
        tmp_path,
        "scale --parts 2 --nodes 600 --edges 6000 --features 8 --method random --num-neighbors 4,3 --batch-sizes 8,2 "
        "--warm-up 10 --batches 3 --profiled 0 --caches off --rounds 1 --netns off --quiet "
        f"--work {tmp_path}/work",
    )
    assert document["about"].startswith("Time is not divided by kind of code")
    found = medians(document)["atta-uncached"]
    assert found["first_10_share, first batches/2 parts"] > 0
    assert 0 <= found["filled_s, first batches/2 parts"] < 60
    for size in (8, 2):
        sections, main = f"2 parts, {size} seeds/", f", {size} seeds/2 parts"
        of = {n.removeprefix(sections).removesuffix(main): v for n, v in found.items() if sections in n or main in n}
        assert of["batches"] >= 2 * 3
        assert of["cpu_ms_per_batch"] == pytest.approx(of["cpu_us_per_seed"] * size / 1e3)
        processes = sum(value for name, value in of.items() if name.startswith("processes/"))
        assert processes == pytest.approx(of["cpu_us_per_seed"])
        # Half of all vertices lie elsewhere and nothing is cached. Each hop asks the other daemon.
        assert of["vertices_per_seed"] / 4 < of["remote_rows_per_seed"] < of["vertices_per_seed"]
        assert of["remote_tasks_per_batch"] > 1
        assert of["remote_requests_per_batch"] > 1
        # The rows of the vertices that lie elsewhere: 8 float32 features and a label.
        assert of["answer_bytes_per_batch"] > of["remote_rows_per_seed"] * size * 40
        assert {f"threads/{role}_us_per_seed" for role in ("event_loop", "worker", "grpc")} <= of.keys()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    sizes: Any = {"nodes": 600, "edges": 9000, "features": 12, "classes": CLASSES, "seed": 3}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, train=SEEDS / 600, val=0.1, test=0.1, inter=0.1))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    return folder / "parts"


@pytest.mark.slow
def test_policies_of_the_scheduler(dataset: Path, tmp_path: Path) -> None:
    document = bench(
        tmp_path,
        f"scheduler --data {dataset} --num-neighbors 4,3 --batch-size 10 --policies two-level,sequential,prefetch "
        "--depths 1,4 --rtt 4ms --think 1ms --warm-up 1 --seconds 0s --runs 1 --netns off --quiet "
        "--cache-share 0",  # else rows and edges are at home, and nothing waits for a round trip
    )
    assert set(document["results"]) == {"two-level", "sequential", "prefetch-1", "prefetch-4"}
    assert document["config"]["rtt_ms"] == 4.0
    for figures in medians(document).values():
        # The second hop and its rows wait for each other. In most batches some seeds lie elsewhere, which costs a third
        # round trip.
        assert figures["completion_ms"] > 2 * 4.0
        assert figures["completion_ms_p95"] >= figures["completion_ms"] / 2
        assert figures["queue_bytes"] > 0
        assert 0 < figures["busy/consumer"] <= 1
        assert figures["busiest"] >= figures["busy/cores"]
    assert set(document["ratios"]["seeds_per_s"]) == {"sequential", "prefetch-1", "prefetch-4"}


@pytest.mark.slow
def test_value_and_faults_of_a_run(parts_of: Callable[[int], Path], own_interpreters: None, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[instances]\nhere = 3600.0\n[worker]\nper_request = 1.0\n")
    words = (
        f"strategies --data {parts_of(2)} --trainers-per-server 1 --strategies full --model gcn --layers 2 --hidden 8 "
        f"--stop 1:0.1/0.2 --worker-faults delay=0:0.01,kill=0.1 --runs 1 --quiet --warm-up 1 --epochs 5 --prices {prices}"
    )
    variants = ["async=--strategy digest-async:eval-interval=0.1"]
    variants += ["dorylus=--strategy dorylus:intervals=2,workers=2,mode=pipe"]
    given = [word for variant in variants for word in ("--variant", variant)]
    whole = [*command(f"{words} --json {tmp_path}/out.json"), *given]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = medians(json.loads((tmp_path / "out.json").read_text()))
    for figures in found.values():
        seconds = (figures["cost"] - figures.get("workers_cost", 0.0)) / 2  # two servers at one a second
        assert figures["value"] == pytest.approx(1 / (seconds * figures["cost"]))
    assert found["dorylus"]["workers_cost"] >= 6 * 2 * 2 * 3  # epochs, trainers, intervals, tasks of each
    assert "workers_cost" not in found["async"]


def check_train(figures: dict[str, float]) -> None:
    phases = [figures[f"trainer/{phase}_s"] for phase in (*PHASES, "other")]
    assert all(seconds >= 0 for seconds in phases[:-1])
    assert sum(phases) == pytest.approx(figures["epoch_s"])
    assert figures["trainer/compute_s"] > 0
    assert figures["steps"] == SEEDS // 2 // 30
    assert 1 / CLASSES + 0.1 < figures["accuracy"] <= 1
    for name in ("loading/sample_s", "loading/fetch_s", "seeds_per_s", "cpu_us_per_seed", "vertices_per_seed", "loss"):
        assert figures[name] > 0, name


@pytest.mark.slow
def test_trainers_on_loopback(dataset: Path, tmp_path: Path) -> None:
    """Two rounds learn the same. The test asks for DistDGL, but there are no namespaces here."""
    pytest.importorskip("dgl")
    words = (
        f"train --data {dataset} --work {tmp_path} --num-neighbors 4,3 --batch-size 30 --lr 0.02 --epochs 5 --runs 2"
    )
    document = bench(tmp_path, f"{words} --netns off --vs dgl")
    assert document["bench"] == "train"
    assert "namespaces" in document["results"].pop("dgl")["error"]
    expected = {
        "deliver": "dgl", "frontier": "all", "channels": 12, "classes": CLASSES, "layers": 2, "hidden": 32, "lr": 0.02,
    }  # fmt: skip
    assert document["config"].items() >= expected.items()
    for system, figures in medians(document).items():
        check_train(figures)
        loss = document["results"][system]["loss"]
        assert loss["min"] == pytest.approx(loss["max"], rel=1e-4)
    for phase in (*PHASES, "other", "sample", "fetch"):
        assert f"{phase}_s" in document["said"]


@pytest.mark.netns
@pytest.mark.peer
@pytest.mark.slow
def test_distdgl_learns_the_same(dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("dgl")
    workload = BenchWorkload((4, 3), 30, warm_up=1, epochs=5, seconds=0, timeout_s=120)
    options: Any = {"vs": ("dgl",), "runs": 1, "netns": "on", "lr": 0.02}
    document = run_train(TrainBench(**vars(workload), data=str(dataset), work=str(tmp_path), **options)).to_json()
    assert "error" not in document["results"]["dgl"], document["results"]["dgl"]
    found = medians(document)
    for system in ("atta", "atta-pyg", "dgl"):
        check_train(found[system])
    ratios = document["ratios"]
    for figure, tolerance in (("steps", 0), ("edges_per_seed", 0.1), ("vertices_per_seed", 0.1)):
        assert ratios[figure]["dgl"] == pytest.approx(1, abs=tolerance), figure
    # DGL shuffles differently in every run, and the training set is a few batches only. The loss falls from ln 4 to
    # about 0.2 in both.
    assert abs(found["atta"]["loss"] - found["dgl"]["loss"]) < 0.2
    assert ratios["epoch_s"]["dgl"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("what", "how"), [("kv", "interrupt"), ("train", "interrupt"), ("train", "kill")])
def test_nothing_is_left_behind(dataset: Path, tmp_path: Path, what: str, how: str) -> None:
    """The byte stream's two ends, or two trainers, are there when the benchmark is interrupted or one of them is killed."""
    words, module = {
        "kv": (f"{KV} --work {tmp_path} --runs 50", "atta_bench.pieces.kv_rows"),
        "train": (
            f"train --data {dataset} --num-neighbors 4,3 --batch-size 30 --epochs 1000000 --runs 1 --netns off",
            "atta_bench.train.worker",
        ),
    }[what]
    job = subprocess.Popen(command(words), stderr=subprocess.PIPE, text=True)

    def both() -> list[psutil.Process]:
        assert job.poll() is None
        found = [p for p in psutil.Process(job.pid).children(recursive=what == "kv") if module in " ".join(words_of(p))]
        with contextlib.suppress(psutil.Error):
            if len(found) == 2 and (what == "kv" or all(len(p.net_connections()) >= 2 for p in found)):
                return sorted(found, key=lambda p: p.create_time())
        return []

    try:
        workers = eventually(both, 90)
        family = psutil.Process(job.pid).children(recursive=True)
        if how == "kill":
            workers[1].kill()
        else:
            job.send_signal(signal.SIGINT)
        _, said = job.communicate(timeout=90)
    finally:
        job.kill()
    if how == "kill":
        assert job.returncode == 1
        assert "rank1 was killed by SIGKILL" in said.splitlines()[-1]
    else:
        assert job.returncode == 130, said
        assert "Traceback" not in said
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert [p for p in psutil.process_iter() if str(tmp_path) in " ".join(words_of(p))] == []


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
