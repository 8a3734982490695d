"""The guides tell the truth: their diffs apply to a copy of the package, and the added code runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from tests.addresses import held_addresses
from tests.contributing import GUIDES, applied

EPOCHS = 4
OPTIONS = ["--epochs", str(EPOCHS), "--num-neighbors", "4,3", "--batch-size", "40", "--hidden", "8", "--dropout", "0.2"]
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


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contributing")
    sizes = {"nodes": 400, "edges": 4000, "features": 8, "classes": 3, "seed": 3}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, train=0.4, val=0.1, test=0.1))  # type: ignore[arg-type]
    partition_graph(folder / "graph", folder / "parts", parts=1, method="random", seed=0)
    return folder / "parts"


@pytest.mark.slow
def test_a_training_strategy(dataset: Path, tmp_path: Path) -> None:
    diff = GUIDES / "add-a-training-strategy.diff"
    assert re.findall(r"^\+[^+].*", diff.read_text().split("halving.py")[0], re.MULTILINE) == ['+    "halving",']
    env = applied(diff, tmp_path)
    reference = subprocess.Popen(
        [sys.executable, "-c", WITH_TORCHS_OWN_SCHEDULE, str(dataset), str(tmp_path / "meeting")],
        stdout=subprocess.PIPE,
        text=True,
    )
    program = [sys.executable, "-m", "atta.cli.main", "train", "--strategy", "halving", "--data", str(dataset)]
    out, checkpoints = tmp_path / "run.json", tmp_path / "checkpoints"
    words = [*OPTIONS, "--device", "cpu", "--threads", "1", "--json", str(out), "--checkpoint", str(checkpoints)]
    done = subprocess.run([*program, *words], env=env, capture_output=True, text=True, timeout=120, check=False)
    said, _ = reference.communicate(timeout=120)
    assert done.returncode == 0, done.stderr
    wanted = json.loads(said)
    assert wanted["rates"] == [0.01, 0.005, 0.0025, 0.00125]

    report = json.loads(out.read_text())
    assert report["strategy"] == "halving"
    assert [epoch["loss"] for epoch in report["epochs"]] == pytest.approx(wanted["losses"], rel=1e-5)
    assert "seeds/s" in done.stdout
    assert last_rate(checkpoints) == wanted["rates"][-1]

    refused = subprocess.run(
        [*program, "--strategy", "halving:eas=1,5"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert "eas: belongs to --strategy full or cooperative, not halving" in refused.stderr


def last_rate(checkpoints: Path) -> float:
    import torch

    saved = torch.load(checkpoints / "checkpoint.pt", weights_only=True)
    rate: float = saved["optimizer"]["param_groups"][0]["lr"]
    return rate


def test_a_metric(dataset: Path, tmp_path: Path) -> None:
    env = applied(GUIDES / "add-a-metric.diff", tmp_path)
    address, metrics = held_addresses(2)
    atta = [sys.executable, "-m", "atta.cli.main"]
    daemon = subprocess.Popen(
        [
            *(*atta, "serve", "--data", str(dataset), "--part", "0", "--listen", address),
            *("--metrics", metrics, "--threads", "1", "--exit-with-parent"),
        ],
        env=env,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        text = scraped(f"http://{metrics}/metrics")
        threads = len(list(Path(f"/proc/{daemon.pid}/task").iterdir()))
        assert "# HELP atta_process_threads Threads of the daemon." in text
        assert "# TYPE atta_process_threads gauge" in text
        found = re.search(r'^atta_process_threads\{part="0"\} ([0-9.]+)$', text, re.MULTILINE)
        assert found
        assert abs(float(found[1]) - threads) <= 5  # some threads come and go
        top = [*atta, "top", "--cluster", address, "--interval", "100ms", "--json", "-"]
        shown = json.loads(subprocess.run(top, env=env, capture_output=True, timeout=60, check=True).stdout)
        assert abs(shown["daemons"][0]["counters"]["process_threads"] - threads) <= 5
    finally:
        daemon.communicate(timeout=30)  # ends the daemon's standard input


def scraped(url: str) -> str:
    """The page, as soon as the daemon serves it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as page:
                return str(page.read(), "utf-8")
        except OSError:
            assert time.monotonic() < deadline, "no metrics"
            time.sleep(0.1)
