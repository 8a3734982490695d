"""Runs a small cluster and takes the pictures that only running daemons give: `python tools/pictures.py --screens`."""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

import atta
from atta.cli.cluster.top import picture
from atta.client.watch import Watch
from atta.observe.machine.held import HeldAddresses
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train import EpochReport, TrainConfig, fit

SIZE = GenerateOptions(nodes=20_000, edges=400_000, features=16, classes=8, seed=1)
MODEL: dict[str, Any] = {"num_neighbors": (5, 5), "batch_size": 64, "hidden": 64, "seed": 1}
CONSUMERS = """
import time, atta

cluster = atta.connect("cluster.toml")
loaders = [
    atta.NeighborLoader(cluster, [15, 10], None, batch_size=256, shuffle=True, rank=rank, world_size=2, job=f"fraud-{rank}")
    for rank in range(2)
]
while True:
    for _ in zip(*loaders):
        time.sleep(0.02)
"""
"""Two loaders, whose consumer computes 20 ms per batch."""
WIDTH, HEIGHT = 560, 240
"""Of the curve, in pixels."""


def take_screens(folder: Path) -> None:
    """Write top.svg, curve.svg and, where Chromium is, dashboard.png into ``folder``."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        generate("sbm", here / "graph", SIZE)
        partition_graph(here / "graph", here / "demo-2p", parts=2, method="metis")
        with atta.local(here / "demo-2p", threads=1, options=("--cache", "0")) as cluster:
            shutil.copy(cluster.cluster_file, here / "cluster.toml")
            report = fit(TrainConfig(cluster=str(here / "cluster.toml"), trainers=2, epochs=12, **MODEL))
            (folder / "curve.svg").write_text(curve(report.epochs), encoding="utf-8")
            _take(here, folder)


def _take(here: Path, folder: Path) -> None:
    metrics, page = (f"127.0.0.1:{port}" for port in HeldAddresses(2).ports)
    training = "train --cluster cluster.toml --num-neighbors 5,5 --batch-size 64 --epochs 5000 --seed 1 --metrics"
    with ExitStack() as running:
        running.enter_context(_beside(["-c", CONSUMERS], here))
        running.enter_context(_beside(["-m", "atta.cli.main", *training.split(), metrics], here))
        shown = [
            "dashboard",
            "--cluster",
            "cluster.toml",
            "--listen",
            page,
            "--trainer",
            metrics,
            "--interval",
            "500ms",
        ]
        running.enter_context(_beside(["-m", "atta.cli.main", *shown], here))
        time.sleep(25)
        with Watch(str(here / "cluster.toml")) as watch:
            watch.look()
            time.sleep(2)
            (folder / "top.svg").write_text(_terminal(picture("cluster.toml", watch.look(), 120)), encoding="utf-8")
        if shutil.which("chromium"):
            _photograph(page, folder / "dashboard.png")


@contextmanager
def _beside(words: list[str], here: Path) -> Iterator[None]:
    """A Python process in the folder ``here``, which ends with the block."""
    child = subprocess.Popen([sys.executable, *words], cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(30)


def _photograph(page: str, path: Path) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,1060"]
    subprocess.run(["chromium", *flags, f"--screenshot={path}", f"http://{page}/"], check=True, capture_output=True)


def _terminal(shown: object) -> str:
    """SVG of what a terminal of 120 columns shows, with fonts of the reader's machine alone."""
    console = Console(record=True, width=120, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(shown)
    text = console.export_svg(title="atta top", unique_id="top")
    text = re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL)
    return re.sub(r"<!-- .*? -->\s*", "", text).replace("Fira Code, ", "")


def curve(epochs: Sequence[EpochReport]) -> str:
    """SVG: loss, and accuracy on validation vertices, by epoch."""
    losses = [epoch.loss for epoch in epochs]
    accuracies = [epoch.val_accuracy or 0.0 for epoch in epochs]
    highest = max(losses)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        "<title>A training curve</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M50,15 V{HEIGHT - 35} H{WIDTH - 60}" fill="none" stroke="#777"/>',
        f'<text x="{(WIDTH - 10) // 2}" y="{HEIGHT - 8}" text-anchor="middle">epoch</text>',
    ]
    for epoch in range(len(epochs)):
        lines.append(f'<text x="{_across(epoch, len(epochs))}" y="{HEIGHT - 20}" text-anchor="middle">{epoch}</text>')
    for name, values, top, colour in (("loss", losses, highest, "#c0392b"), ("accuracy", accuracies, 1.0, "#2471a3")):
        points = [(_across(at, len(values)), _up(value / top)) for at, value in enumerate(values)]
        lines.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" fill="none" stroke="{colour}" '
                     'stroke-width="2"/>')  # fmt: skip
        for (x, y), value in ((points[0], values[0]), (points[-1], values[-1])):
            lines.append(f'<text x="{x + 4}" y="{y - 6}" fill="{colour}">{value:.2f}</text>')
        lines.append(f'<text x="{points[len(points) // 2][0]}" y="{points[len(points) // 2][1] - 8}" fill="{colour}">'
                     f"{name}</text>")  # fmt: skip
    return "\n".join([*lines, "</svg>"]) + "\n"


def _across(at: int, count: int) -> int:
    return 60 + round((WIDTH - 140) * at / max(1, count - 1))


def _up(share: float) -> int:
    return HEIGHT - 35 - round((HEIGHT - 60) * share)
