"""Runs that are killed in mid-epoch, and what they must come to. Training on the whole graph in this process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch

from atta.partition import Graph
from atta.train import EpochReport, TrainConfig
from atta.train.checkpoint.files import LAST
from atta.train.checkpoint.run import place_in
from atta.train.launching.trainers import pulse_file
from atta_bench.train.settings import option_words

WITHIN_S = 180  # a busy machine is not a failure


def command(config: TrainConfig) -> list[str]:
    default = TrainConfig(cluster="x")
    given = {k: v for k, v in config.to_dict().items() if v != getattr(default, k) and k != "verbose"}
    return [sys.executable, "-m", "atta.cli.main", "train", *option_words(given)]


def trainers_of(job: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The trainers of a job that run at present, by rank: not the processes that stand for them in tests."""
    found = {}
    for child in psutil.Process(job.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = child.cmdline()
            if "atta.train.launching.worker" in words:
                rank = int(child.environ()["RANK"])
                pulse = pulse_file(Path(words[-1]), rank)
                number = pulse.read_text() if pulse.exists() else ""  # it is empty as it begins
                found[rank] = psutil.Process(int(number)) if number else child
    return found


def begun(config: TrainConfig, job: subprocess.Popen[str], epoch: int) -> dict[int, psutil.Process]:
    assert config.checkpoint is not None
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        if (Path(config.checkpoint) / LAST).exists():
            place = place_in(config.checkpoint)
            if place.epoch >= epoch and place.batch:
                return trainers_of(job)
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)
    raise AssertionError(f"no checkpoint in epoch {epoch}")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / LAST, weights_only=True)["model"]
    return found


def assert_same(found: list[EpochReport], folder: Path, through: list[EpochReport], other: Path) -> None:
    assert [e.epoch for e in found] == list(range(len(through)))
    assert [e.loss for e in found] == [e.loss for e in through]
    assert [e.metrics for e in found] == [e.metrics for e in through]
    mine, its = weights(folder), weights(other)
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[name], its[name]) for name in mine)


def whole(graph: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Features, classes, edges [2, E], and the vertices of each split."""
    opened = Graph.open(graph)
    x, y = (torch.from_numpy(np.array(opened.table("node", name))) for name in ("x", "y"))
    splits = {s: torch.from_numpy(np.array(opened.split("node", s))).long() for s in ("train", "val", "test")}
    found = opened.edges(opened.schema.edge_types[0])
    edges = torch.from_numpy(np.stack([np.array(found.src), np.array(found.dst)]).astype(np.int64))
    return x.float(), y.long().reshape(-1), edges, splits


def descend(model: torch.nn.Module, lr: float, epochs: int, loss_of: Callable[[int], torch.Tensor]) -> list[float]:
    """Losses of each epoch, with one step of Adam after it."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr), []
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = loss_of(epoch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
