"""The sections of ``docs/internals/adding.md``: each diff applies to a copy of the package, and what it adds works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atta.partition import Dataset, partition_graph
from tests.addresses import held_addresses
from tests.contributing import GUIDES, applied
from tests.system.conftest import SmallGraph, read
from tests.waiting import eventually


def run(env: dict[str, str], folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr}"
    return found.stdout


def run_tests(env: dict[str, str], folder: Path, *arguments: str) -> None:
    run(env, folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments)


NEIGHBOURS = """
import json, sys
import atta
from atta.samplers.methods import Method

found = {}
with atta.local(sys.argv[1], threads=1, verify=False) as cluster:
    loader = atta.NeighborLoader(cluster, [3], input_nodes=json.loads(sys.argv[2]), batch_size=100, method="first")
    for batch in loader:
        n_id, (row, col) = batch.n_id(), batch.edge_index()
        for source, target in zip(n_id[row].tolist(), n_id[col].tolist(), strict=True):
            found.setdefault(target, []).append(source)
print(json.dumps(found))
"""


def test_add_a_neighbour_method(tmp_path: Path, small_graph: SmallGraph) -> None:
    env = applied(GUIDES / "add-a-neighbour-method.diff", tmp_path)
    run_tests(env, tmp_path, "tests/unit/native/test_first.py")
    seeds = small_graph.ids.tolist()
    dataset = str(small_graph.dataset(2, "random"))
    found = json.loads(run(env, tmp_path, "-c", NEIGHBOURS, dataset, json.dumps(seeds)))
    expected = {
        str(seed): np.sort(small_graph.src_ids[small_graph.dst_ids == seed])[:3].tolist()
        for seed in seeds
        if (small_graph.dst_ids == seed).any()
    }
    assert found == expected


def test_the_neighbour_method_takes_one_file_and_one_line() -> None:
    lines = (GUIDES / "add-a-neighbour-method.diff").read_text().splitlines()
    files = [line.split(" b/")[1] for line in lines if line.startswith("diff --git") and " b/tests" not in line]
    assert len(files) == 2
    text = "\n".join(lines)
    registration = text[text.index("+++ b/samplers/methods/__init__.py") :].split("\ndiff --git")[0]
    changed = [line for line in registration.splitlines()[1:] if line.startswith(("+", "-"))]
    assert changed == ['+    FIRST = "first"']


def test_add_an_operator(tmp_path: Path) -> None:
    env = applied(GUIDES / "add-an-operator.diff", tmp_path)
    folder = "tests/unit/operators"
    run_tests(env, tmp_path, f"{folder}/test_cascade.py", f"{folder}/test_contract.py", "-k", "cascade")


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_add_a_partition_method(tmp_path: Path, small_graph: SmallGraph, parts: int) -> None:
    env = applied(GUIDES / "add-a-partition-method.diff", tmp_path)
    if parts == 1:
        run_tests(env, tmp_path, "tests/unit/partition/test_chunks.py")
    graph, out = str(small_graph.folder / "graph"), str(tmp_path / "dataset")
    run(env, tmp_path, "-m", "atta.cli.main", "partition", graph, out, "--parts", str(parts), "--method", "chunks")
    made = Dataset.open(out)
    assert made.num_parts == parts
    assert made.provenance["method"] == "chunks"
    with pytest.raises(Exception, match="chunks"):  # the installed package does not know it
        partition_graph(graph, tmp_path / "other", parts=parts, method="chunks")


WITH_TORCHS_OWN_SCHEDULE = """
import json, sys
import torch
import torch.distributed as dist
import atta
from atta.train import TrainConfig
from atta.train.steps.minibatch import MinibatchTrainer

data, meeting = sys.argv[1:]

class Scheduled(MinibatchTrainer):
    def train_epoch(self, epoch):
        if epoch == 0:
            self.rates, self.schedule = [], torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.5)
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        report = super().train_epoch(epoch)
        self.schedule.step()
        return report

dist.init_process_group("gloo", f"file://{meeting}", rank=0, world_size=1)
config = TrainConfig(
    data=data, epochs=4, num_neighbors=(4, 3), batch_size=40, hidden=8, dropout=0.2, device="cpu", verbose=False
)
with atta.local(data, threads=1) as cluster:
    trainer = Scheduled(config, cluster, torch.device("cpu"))
    print(json.dumps({"losses": [epoch.loss for epoch in trainer.fit()], "rates": trainer.rates}))
"""


@pytest.mark.slow
def test_a_training_strategy(parts_of: Callable[[int], Path], tmp_path: Path) -> None:
    import torch

    diff = GUIDES / "add-a-training-strategy.diff"
    assert re.findall(r"^\+[^+].*", diff.read_text().split("halving.py")[0], re.MULTILINE) == ['+    "halving",']
    env = applied(diff, tmp_path)
    words = f"-m atta.cli.main train --data {parts_of(1)} --epochs 4 --num-neighbors 4,3 --batch-size 40 --hidden 8 --dropout 0.2"
    words += f" --device cpu --threads 1 --json {tmp_path}/run.json --checkpoint {tmp_path}/run --strategy"
    said = run(env, tmp_path, *words.split(), "halving")
    meeting = str(tmp_path / "meeting")
    wanted = json.loads(run({**os.environ}, parts_of(1), "-c", WITH_TORCHS_OWN_SCHEDULE, str(parts_of(1)), meeting))
    assert wanted["rates"] == [0.01, 0.005, 0.0025, 0.00125]
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["strategy"] == "halving"
    assert [epoch["loss"] for epoch in report["epochs"]] == pytest.approx(wanted["losses"], rel=1e-5)
    assert "seeds/s" in said
    saved = torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)
    assert saved["optimizer"]["param_groups"][0]["lr"] == wanted["rates"][-1]
    refused = subprocess.run(
        [sys.executable, *words.split(), "halving:eas=1,5"], env=env, capture_output=True, text=True, check=False
    )
    assert "eas: belongs to --strategy full or cooperative, not halving" in refused.stderr


def test_a_metric(parts_of: Callable[[int], Path], tmp_path: Path) -> None:
    env = applied(GUIDES / "add-a-metric.diff", tmp_path)
    address, metrics = held_addresses(2)
    words = f"serve --data {parts_of(1)} --part 0 --listen {address} --metrics {metrics} --threads 1 --exit-with-parent"
    command = [sys.executable, "-m", "atta.cli.main", *words.split()]
    daemon = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        text = eventually(lambda: read(f"{metrics}/metrics"), 60)
        threads = len(list(Path(f"/proc/{daemon.pid}/task").iterdir()))
        assert "# HELP atta_process_threads Threads of the daemon." in text
        assert "# TYPE atta_process_threads gauge" in text
        found = re.search(r'^atta_process_threads\{part="0"\} ([0-9.]+)$', text, re.MULTILINE)
        assert found
        assert abs(float(found[1]) - threads) <= 5  # some threads come and go
        top = f"-m atta.cli.main top --cluster {address} --interval 100ms --json -"
        shown = json.loads(run(env, tmp_path, *top.split()))
        assert abs(shown["daemons"][0]["counters"]["process_threads"] - threads) <= 5
    finally:
        daemon.communicate(timeout=30)  # ends the daemon's standard input
