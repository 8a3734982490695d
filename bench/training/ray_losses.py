"""What the loss of a trainer, a node or the program costs a run of ``atta.ray.fit``, and what passes Ray's object store.

    python -m bench.training.ray_losses [--rounds 3] [--epochs 12] [--nodes 20000] [--work data/ray]

Two daemons and two trainers, one thread each, on this machine; Ray believes that it is four nodes. In each round the same
training runs undisturbed; then a trainer is killed once there is a checkpoint; then a node with a daemon and its trainer
is removed. Extra time: that of the call of ``fit`` beyond the undisturbed one. Last a program that serves is killed, and
looked for what it leaves. Beside the undisturbed run, Ray is asked again and again what lies in its object store. Writes
ray-losses.json and .md. Bounds: 60 s of extra time, the same losses to 1e-5, no process of Atta after 10 s.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import atta.ray
from atta.partition.generate import GenerateOptions
from atta.train import TrainConfig
from atta.wire.named import ask_ray
from atta_bench.record import ROOT, cell, command, document, head, parser_of, rows_of, write
from atta_bench.training.graphs import SPLITS, partitioned
from atta_bench.training.on_ray import BATCH, EDGES_PER_NODE, FAN_OUTS, HIDDEN, MIB, PARTS, ray_nodes, spread
from atta_bench.waiting import eventually

MOST_EXTRA_S, MOST_LOSS_DIFFERENCE, MOST_LEFT_S = 60.0, 1e-5, 10.0
GIVEN_UP_S = 120.0
MEMORY: dict[str, Any] = {"cache_bytes": 64 * MIB, "buffer_bytes": 256 * MIB}
STORED = re.compile(r"Plasma memory usage (\d+) MiB, (\d+) objects")
SERVES = """
import sys, time, atta.ray
atta.ray.serve(sys.argv[1], name="left", insecure=True, cache_bytes=64 << 20, buffer_bytes=256 << 20)
print("serving", flush=True)
time.sleep(600)
"""
Figures = dict[str, Any]


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12, help="epochs of a run, with a checkpoint after each [12]")
    parser.add_argument("--nodes", type=int, default=20_000, help="vertices of the graph [20000]")
    parser.add_argument("--work", type=Path, default=ROOT / "data/ray", help="where the graph is kept [data/ray]")
    given = parser.parse_args()
    sizes = {"nodes": given.nodes, "edges": EDGES_PER_NODE * given.nodes, "features": 100, "classes": 16}
    options = GenerateOptions(**sizes, inter=0.3, seed=0, **SPLITS)
    parts = partitioned("sbm", options, None, given.work, PARTS)
    rounds = []
    for number in range(given.rounds):
        rounds.append(one_round(parts, given))
        print(f"round {number + 1}: {rounds[-1]}", flush=True)
    record(rounds, command(parser, given), given.out)


def one_round(parts: Path, given: Namespace) -> Figures:
    """All figures once, on a cluster of their own."""
    found: Figures = {}
    with ray_nodes(4, cpus=3) as nodes:
        with tempfile.TemporaryDirectory() as folder, stored() as most:
            plain = fitted(parts, Path(folder), given, lambda _nodes: None, nodes)
        found["stored"] = dict(most)
        for name, disturb in (("trainer", kill_a_trainer), ("node", remove_a_node)):
            with tempfile.TemporaryDirectory() as folder:
                lost = fitted(parts, Path(folder), given, disturb, nodes)
            pairs = zip(plain["losses"], lost["losses"], strict=True)
            found[name] = {
                "plain_s": plain["s"],
                "s": lost["s"],
                "extra_s": lost["s"] - plain["s"],
                "restarts": lost["restarts"],
                "loss_difference": max(abs(a - b) for a, b in pairs),
            }
        found["left_s"] = after_a_kill(parts, nodes.address)
    return found


def fitted(parts: Path, folder: Path, given: Namespace, disturb: Callable[[Any], None], nodes: Any) -> Figures:
    """Train, and disturb the run once its first checkpoint is there."""
    counts = {"trainers": PARTS, "epochs": given.epochs, "eval_every": given.epochs, "batch_size": BATCH}
    config = TrainConfig(
        cluster="ray:lost", num_neighbors=FAN_OUTS, hidden=HIDDEN, device="cpu", verbose=False,
        checkpoint=str(folder / "runs"), **counts,
    )  # fmt: skip
    failed: list[BaseException] = []

    def then() -> None:
        try:
            eventually((folder / "runs/checkpoint.pt").exists, GIVEN_UP_S)
            disturb(nodes)
        except BaseException as error:  # of a thread: told below
            failed.append(error)

    with atta.ray.serve(parts, name="lost", insecure=True, **MEMORY):
        thread = threading.Thread(target=then)
        thread.start()
        began = time.monotonic()
        report = atta.ray.fit(config, max_failures=3)
        took = time.monotonic() - began
        thread.join()
    if failed:
        raise failed[0]
    return {"s": took, "losses": [epoch.loss for epoch in report.epochs], "restarts": report.restarts}


def kill_a_trainer(_nodes: Any) -> None:
    """SIGKILL one of them."""
    processes("launching.worker")[0].kill()


def remove_a_node(nodes: Any) -> None:
    """Take away a node with a daemon, as if its machine were lost."""
    used = ask_ray("ray:lost").nodes
    nodes.remove_node(next(node for node in nodes.worker_nodes if node.node_id in used), allow_graceful=False)


def after_a_kill(parts: Path, address: str) -> float:
    """Seconds from the SIGKILL of a program that serves until no process of its daemons is left."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "left-behind"
        own.symlink_to(parts)
        command = [sys.executable, "-c", SERVES, str(own)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "RAY_ADDRESS": address}
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "serving\n"
            served = len(processes(str(own)))
            program.send_signal(signal.SIGKILL)
            if served != PARTS:
                raise RuntimeError(f"{served} of {PARTS} daemons served")
            began = time.monotonic()
            eventually(lambda: not processes(str(own)), GIVEN_UP_S)
            return time.monotonic() - began


def processes(words: str) -> list[psutil.Process]:
    """Processes of Atta whose command has ``words``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if words in line and "-m atta." in line:
            found.append(process)
    return found


@contextmanager
def stored() -> Iterator[dict[str, int]]:
    """The most that lies in Ray's object store at once, looked at once a second; known after the block."""
    from ray._private.internal_api import memory_summary

    most = {"MiB": 0, "objects": 0, "looks": 0}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(1.0):
            told = STORED.search(memory_summary(stats_only=True))
            assert told is not None, "Ray says it in other words now"
            most["MiB"], most["objects"] = max(most["MiB"], int(told[1])), max(most["objects"], int(told[2]))
            most["looks"] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()
    if not most["looks"]:
        raise RuntimeError("Ray was not asked once what it stores")


def record(rounds: list[Figures], typed: str, out: Path) -> None:
    """Write the figures of all rounds."""
    about = document("ray-losses", command=typed, rounds=rounds)
    rows = []
    for name in ("trainer", "node"):
        extra = [one[name]["extra_s"] for one in rounds]
        difference = max(one[name]["loss_difference"] for one in rounds)
        kept = max(extra) <= MOST_EXTRA_S and difference <= MOST_LOSS_DIFFERENCE
        plain = [one[name]["plain_s"] for one in rounds]
        told = [spread(plain), spread(extra)]
        again = max(one[name]["restarts"] for one in rounds)
        rows.append([name, *map(cell, told), str(again), f"{difference:.1e}", "yes" if kept else "**no**"])
    lines = head("Losses under atta.ray.fit", about, f"Rounds: {len(rounds)}, medians (minimum to maximum)")
    titles = [
        "lost",
        "undisturbed, s",
        "extra s",
        "starts again",
        "largest difference of a loss",
        "≤ 60 s, 1e-5",
    ]
    lines += [*rows_of(titles, *rows), ""]
    left = max(one["left_s"] for one in rounds)
    kept = "yes" if left <= MOST_LEFT_S else "**no**"
    lines += [
        f"After SIGKILL of a program that serves, its daemons were gone within {left:.1f} s (asked 10: {kept}).",
        "",
    ]
    most = {key: max(one["stored"][key] for one in rounds) for key in ("MiB", "objects")}
    looks = sum(one["stored"]["looks"] for one in rounds)
    lines += [f"In Ray's object store lay at most {most['objects']} objects and {most['MiB']} MiB ({looks} looks)."]
    write(out / "ray-losses.json", about, lines)


if __name__ == "__main__":
    main()
