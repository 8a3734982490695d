"""Scores of all vertices: ``atta predict`` layer by layer, mini-batches of all neighbours, PyG's ``inference``.

    python -m bench.train.inference [--graph DIR] [--data DIR] [--seeds 10000] [--rounds 2] [--kills 10]
    python -m bench.train.inference --follow [--shares 1e-4,1e-3] [--tolerance 0.001] [--graph DIR] [--data DIR]

The graph is that of ``bench/runs.py``, its dataset has two METIS partitions with a daemon each. All compute the same
random weights. In each round ``atta predict`` runs layer by layer on running daemons, and PyG's own
``BasicGNN.inference`` in one process that holds the graph. PyG's ``NeighborLoader`` needs pyg-lib or torch-sparse to
sample: here it has a sampler that reads one hop of a CSR matrix with numpy. ``pyg`` is PyG with a list of edges, as it
comes; ``pyg-csr`` with the one-hop matrix in CSR, which PyG's SAGEConv multiplies at once. Once, ``atta predict --mode
sampled --num-neighbors -1,-1,-1`` computes some seeds, and its time is extrapolated to all vertices.

The daemons count the edges that they read in a run layer by layer. After the rounds ``atta predict`` is killed at random
moments and repeated: its files must be whole at any moment, and have the rows of an undisturbed run at the end.

With ``--follow`` edges of the graph are exchanged instead, 0.01, 0.1 and 1 % of them, drawn uniformly or at the vertices with
most in-edges, and an ``InferenceFollower`` computes what that changes. Each line has, as parts of a full pass: the floor, which
is the edges out of vertices whose rows change, over all layers; the edges that were read; the processor time of the follower
and the daemons. And by how much rows differ from those of the full pass. Versions lie beside the dataset, and are removed.

Times are without the start of processes, daemons and the reading of the graph, and with the writing of a file of
scores. Peaks are VmHWM of the predicting process. Writes inference.json and inference.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import atta
from atta_bench.results import ROOT, BenchReport, arguments_of, write_report

MODULE = "atta_bench.train.inference"
LAYERS, HIDDEN, CLASSES = 3, 256, 47
TOLERANCE = 1e-3
BOUNDS = {"minibatch": 3.0, "pyg": 1.0, "pyg-csr": 1.0}
"""How many times as fast layer by layer must be."""
PEAK_MIB = 1536
MIB = 1 << 20
FILES = 8
"""Of a run that is killed: some are there before its end."""
_LOOK_S = 0.02
_PYG_BATCH = 4096

ABOUT = (
    "GraphSAGE of {layers} layers, hidden {hidden}, {classes} scores per vertex; {vertices:,} vertices, {edges:,} edges,"
    " {features} features, 2 METIS partitions.\n\n"
    "- `seconds`: of all vertices{sampled}.\n"
    "- `cpu_seconds`: of the predicting process with its start and, of Atta, of the daemons during the run.\n"
    "- Threads: {threads} of torch in every predicting process; 1 per daemon, of which there are 2. PyG's loader works"
    " in the process itself (`num_workers=0`), with batches of {pyg_batch:,} vertices.\n"
    "- `pyg`: `BasicGNN.inference` with a list of edges. `pyg-csr`: with a matrix in CSR. PyG's NeighborLoader has a"
    " one-hop sampler of this benchmark, for pyg-lib and torch-sparse are not there.\n"
    "- `edges_per_layer`: edges that the daemons read, divided by those of the graph and the number of layers.\n"
    "- Scores of Atta and PyG differ by at most {difference:.1e}; the largest is {largest:.1f}.\n"
    "- Asked and found: {verdicts}.\n"
    "{kills}"
)
KILLS = (
    "- Killed at {kills} random moments, {early} of them before its end, and repeated each time: the rows of an undisturbed"
    " run. The {there} files that lay under a final name after a kill were whole.\n"
)


# -- one measurement each ----------------------------------------------------------------------------------------------


def watched(words: list[str]) -> tuple[float, float]:
    """Run a command; returns the peak of its memory in MiB, and its processor time in seconds."""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
        status, peak = Path(f"/proc/{process.pid}/status"), 0
        while True:
            ended, code, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            for line in status.read_text(encoding="ascii").splitlines():
                if line.startswith("VmHWM"):
                    peak = max(peak, int(line.split()[1]) << 10)
            time.sleep(_LOOK_S)
        process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{words}: ended with exit code {process.returncode}")
    return peak / MIB, usage.ru_utime + usage.ru_stime


def processor_s(pids: list[int]) -> float:
    """Processor time of some processes so far, in seconds."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def predicting(cluster: atta.LocalCluster, checkpoint: Path, out: Path, *options: str) -> list[str]:
    """The command ``atta predict`` on running daemons, which writes scores into ``out`` and a report beside it."""
    words = [sys.executable, "-m", "atta.cli.main", "predict", "--cluster", str(cluster.cluster_file), "--quiet"]
    words += ["--checkpoint", str(checkpoint), "--what", "scores", "--out", str(out), "--format", "npy"]
    return [*words, "--device", "cpu", "--json", str(out.with_suffix(".json")), *options]


def on_atta(cluster: atta.LocalCluster, checkpoint: Path, out: Path, *options: str) -> dict[str, float]:
    """``atta predict`` on running daemons; files of scores are in ``out``."""
    before, edges = processor_s(cluster.pids), edges_read(cluster)
    peak, used = watched(predicting(cluster, checkpoint, out, *options))
    daemons = processor_s(cluster.pids) - before
    seconds = json.loads(out.with_suffix(".json").read_text())["seconds"]
    read = (edges_read(cluster) - edges) / (LAYERS * sum(cluster.schema.edge_counts.values()))
    return {"seconds": seconds, "peak_mib": peak, "cpu_seconds": used + daemons, "edges_per_layer": read}


def edges_read(cluster: atta.LocalCluster) -> float:
    """Edges that all daemons have read so far."""
    return sum(stats.get("edges", 0.0) for stats in cluster.stats())


def on_pyg(graph: Path, checkpoint: Path, out: Path, *, csr: bool) -> dict[str, float]:
    """PyG in a process of its own; ``out`` is the file of scores."""
    report = out.with_suffix(".json")
    task = {"graph": str(graph), "checkpoint": str(checkpoint), "out": str(out), "csr": csr, "report": str(report)}
    peak, used = watched([sys.executable, "-m", MODULE, "--pyg", json.dumps(task)])
    return {"seconds": json.loads(report.read_text())["seconds"], "peak_mib": peak, "cpu_seconds": used}


# -- PyG ---------------------------------------------------------------------------------------------------------------


def pyg(task: dict[str, Any]) -> None:
    """The process of ``on_pyg``."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    from atta.partition.graph import Graph
    from atta.train.checkpoint.files import load_model
    from atta.train.models.layers import saved_model

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    graph = Graph.open(task["graph"], verify=False)
    x = torch.from_numpy(np.array(graph.table("node", "x"), np.float32))
    edges = graph.edges(graph.schema.edge_types[0])
    source, target = np.asarray(edges.src), np.asarray(edges.dst)
    order = np.argsort(target, kind="stable")
    starts = np.zeros(len(x) + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=len(x)), out=starts[1:])
    sampler = one_hop(starts, source[order].astype(np.int64))
    del source, target, order
    started = time.monotonic()
    model: Any = saved_model(load_model(task["checkpoint"]), x.shape[1]).eval()
    loader = NeighborLoader(
        Data(x=x, edge_index=torch.zeros(2, 0, dtype=torch.int64)), [-1], neighbor_sampler=sampler,
        batch_size=_PYG_BATCH, shuffle=False, transform=as_matrix if task["csr"] else None,
    )  # fmt: skip
    np.save(task["out"], model.inference(loader).numpy())
    Path(task["report"]).write_text(json.dumps({"seconds": time.monotonic() - started}))


def one_hop(starts: np.ndarray, sources: np.ndarray) -> Any:
    """A sampler for PyG's loader: all in-edges of consecutive vertices, from the columns of a CSC matrix."""
    import torch
    from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

    place = np.empty(len(starts) - 1, np.int64)

    class OneHop(BaseSampler):  # type: ignore[misc]  # PyG has no types
        num_neighbors = (-1,)

        def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
            """Every in-neighbour of the seeds."""
            seeds = index.node.numpy()
            first, last = seeds[0], seeds[-1] + 1
            read = sources[starts[first] : starts[last]]
            new = np.zeros(len(place), np.bool_)
            new[read] = True
            new[first:last] = False
            nodes = np.concatenate([seeds, np.flatnonzero(new)])
            place[nodes] = np.arange(len(nodes))
            targets = np.repeat(np.arange(len(seeds)), np.diff(starts[first : last + 1]))
            row, col = torch.from_numpy(place[read]), torch.from_numpy(targets)
            return SamplerOutput(torch.from_numpy(nodes), row, col, None, metadata=(index.input_id, None))

        def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
            """Not used."""
            raise TypeError("this sampler takes vertices, not edges")

    return OneHop()


def as_matrix(data: Any) -> Any:
    """A batch with its edges as a matrix in CSR, which PyG's layers take as ``adj_t``."""
    import torch

    source, target = data.edge_index
    count = len(data.n_id)
    starts = torch.zeros(count + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(target, minlength=count), 0, out=starts[1:])
    ones = torch.ones(len(source))
    data.adj_t = torch.sparse_csr_tensor(starts, source, ones, size=(count, count), check_invariants=False)
    return data


# -- following ---------------------------------------------------------------------------------------------------------


class Following:
    """Updates of edges on running daemons."""

    def __init__(self, cluster: atta.LocalCluster, given: argparse.Namespace, folder: Path) -> None:
        from atta.partition.graph import Graph

        self._cluster, self._data, self._folder, self._rng = cluster, given.data, folder, np.random.default_rng(0)
        edges = Graph.open(given.graph, verify=False).edges(cluster.schema.edge_types[0])
        self._ends = np.stack([np.asarray(edges.src), np.asarray(edges.dst)]).astype(np.int64)
        self._edge_ids, self._shares = np.arange(self._ends.shape[1]), [*map(float, given.shares.split(","))]
        self._next, self._checkpoint = self._ends.shape[1], folder / "checkpoint"
        write_checkpoint(self._checkpoint, cluster.schema.node_tables["node"]["x"].row_shape[0], given.hidden)
        options: dict[str, Any] = {"table": "followed", "what": "scores", "tolerance": given.tolerance}
        self._follower = atta.InferenceFollower(cluster, self._checkpoint, **options)

    def run(self) -> None:
        """Print a line for each update."""
        print("first pass:", self._follower.catch_up(), flush=True)
        for share in self._shares:
            for where in ("uniform", "hubs"):
                print(f"{share:.2%} of edges, {where}:", self._one(share, where), flush=True)

    def _one(self, share: float, where: str) -> dict[str, float]:
        changed = self._exchange(max(1, int(share * self._ends.shape[1] / 2)), where)
        before = self._spent()
        done = self._follower.catch_up()
        used = self._spent() - before
        before = self._spent()
        whole = atta.predict(self._cluster, self._checkpoint, what="scores")
        full = self._spent() - before
        assert done is not None
        assert whole is not None
        found, _ = self._follower.tables.read(whole.ids)
        off = np.linalg.norm(found - whole.values, axis=1) / np.linalg.norm(whole.values, axis=1)
        read, cpu = (used / full).tolist()
        figures = {"floor": self._floor(changed), "edges_read": read, "cpu": cpu, "seconds": done.seconds}
        return {name: float(f"{value:.3g}") for name, value in {**figures, "off": float(off.max())}.items()}

    def _spent(self) -> np.ndarray:
        """Edges read, and seconds of processor time of this process and the daemons."""
        stats = self._cluster.stats()
        edges, seconds = (sum(s.get(name, 0.0) for s in stats) for name in ("edges", "cpu_s"))
        return np.array([edges, seconds + time.process_time()])

    def _exchange(self, count: int, where: str) -> np.ndarray:
        """Publish a version with so many new edges, and without so many; returns which vertices have other in-edges."""
        from atta.client.tables.versions import publish_edges

        vertices, new = self._cluster.schema.node_counts["node"], self._folder / "new"
        odds = np.bincount(self._ends[1], minlength=vertices).astype(float)
        odds = odds * (odds >= np.partition(odds, -100)[-100]) if where == "hubs" else np.ones(vertices)
        at = np.flatnonzero(odds[self._ends[1]])
        gone = self._rng.choice(at, min(count, len(at)), replace=False)
        added = np.stack(
            [self._rng.integers(0, vertices, count), self._rng.choice(vertices, count, p=odds / odds.sum())]
        )
        new.mkdir(exist_ok=True)
        for name, array in (("src", added[0]), ("dst", added[1]), ("gone", self._edge_ids[gone])):
            np.save((self._folder if name == "gone" else new) / f"{name}.npy", array)
        addresses = dict(enumerate(self._cluster.addresses))
        publish_edges(self._data, None, addresses, added=new, removed=self._folder / "gone.npy")
        changed = np.isin(np.arange(vertices), np.concatenate([self._ends[1, gone], added[1]]))
        self._ends = np.concatenate([np.delete(self._ends, gone, axis=1), added], axis=1)
        self._edge_ids = np.concatenate([np.delete(self._edge_ids, gone), self._next + np.arange(count)])
        self._next += count
        return changed

    def _floor(self, changed: np.ndarray) -> float:
        marks, edges = np.zeros(len(changed), bool), 0
        for _ in range(LAYERS):
            out = marks[self._ends[0]]
            edges += int(out.sum())
            marks = marks | changed
            marks[self._ends[1, out]] = True
        return float(edges / (LAYERS * self._ends.shape[1]))


# -- all of them -------------------------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, channels: int, hidden: int = HIDDEN) -> None:
    """A checkpoint with random weights, as ``atta train`` writes it."""
    import torch

    from atta.train import EpochReport, TrainConfig
    from atta.train.checkpoint.run import save_best
    from atta.train.models import build_model
    from atta.train.reports.epochs import PHASES

    config = TrainConfig(data="-", model="sage", num_neighbors=(10,), layers=LAYERS, hidden=hidden)
    torch.manual_seed(0)
    epoch = EpochReport(0, 1.0, 0.5, 1.0, 1.0, 1.0, dict.fromkeys(PHASES, 0.1), val_accuracy=0.1)
    save_best(folder, config, build_model(config, channels, CLASSES), epoch)


def rows_of_files(files: Path) -> np.ndarray:
    """The rows of all complete files, by ascending id."""
    found = np.concatenate([np.load(path) for path in sorted(files.glob("part-*.npy"))])
    return found[np.argsort(found["id"])]


def difference(files: Path, scores: np.ndarray) -> tuple[float, float]:
    """The largest difference of Atta's scores and PyG's, which are in the order of ids, and the largest score."""
    found = rows_of_files(files)
    if not np.array_equal(found["id"], np.arange(len(scores))):
        raise SystemExit("Atta has not written each vertex once")
    return float(np.abs(found["score"] - scores).max()), float(np.abs(scores).max())


class Comparison:
    """Rounds on running daemons.

    Attributes:
        report: figures of all rounds so far.
        found: figures for the text.
    """

    def __init__(self, cluster: atta.LocalCluster, graph: Path, folder: Path) -> None:
        schema = cluster.schema
        self._cluster, self._graph, self._folder = cluster, graph, folder
        self._vertices, channels = schema.node_counts["node"], schema.node_tables["node"]["x"].row_shape[0]
        self._checkpoint = folder / "checkpoint"
        write_checkpoint(self._checkpoint, channels)
        config = {"layers": LAYERS, "hidden": HIDDEN, "pyg_batch": _PYG_BATCH}
        self.report = BenchReport("inference", config, costs=frozenset({"seconds", "cpu_seconds", "peak_mib"}))
        edges = schema.edge_counts[schema.edge_types[0]]
        self.found: dict[str, float] = {"vertices": self._vertices, "edges": edges, "features": channels}
        self._sampled: dict[str, float] = {}

    def sample(self, seeds: int) -> None:
        """Compute some vertices by mini-batches. All rounds compare with it."""
        np.save(self._folder / "ids.npy", np.random.default_rng(0).choice(self._vertices, seeds, replace=False))
        fan_outs = ",".join(["-1"] * LAYERS)
        options = ("--mode", "sampled", "--num-neighbors", fan_outs, "--ids", f"{self._folder}/ids.npy")
        one = on_atta(self._cluster, self._checkpoint, self._folder / "sampled", *options)
        print("minibatch", one, flush=True)
        self.found |= {"seeds": seeds, "measured": one["seconds"]}
        whole = {name: one[name] * self._vertices / seeds for name in ("seconds", "cpu_seconds")}
        self._sampled = {"peak_mib": one["peak_mib"], **whole}

    def kill(self, times: int) -> None:
        """Kill ``atta predict`` at random moments, and repeat it each time.

        Raises SystemExit: a file under a final name was not whole, or repeated runs have other rows.
        """
        rng, whole = np.random.default_rng(1), self._folder / "undisturbed"
        options = ("--files", str(FILES))
        on_atta(self._cluster, self._checkpoint, whole, *options)
        began = time.monotonic()
        on_atta(self._cluster, self._checkpoint, self._folder / "timed", *options)
        lasts, expected = time.monotonic() - began, rows_of_files(whole)
        lengths = {path.name: len(np.load(path, mmap_mode="r")) for path in whole.glob("part-*.npy")}
        early = there = 0
        for number, moment in enumerate(lasts * rng.random(times)):
            out = self._folder / f"killed-{number}"
            with subprocess.Popen(
                predicting(self._cluster, self._checkpoint, out, *options), start_new_session=True
            ) as process:
                time.sleep(moment)
                early += process.poll() is None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            files = {path.name: len(np.load(path, mmap_mode="r")) for path in out.glob("part-*.npy")}
            if any(lengths[name] != length for name, length in files.items()):
                raise SystemExit(f"killed after {moment:.1f} s of {lasts:.1f}: not whole: {files}")
            there += len(files)
            on_atta(self._cluster, self._checkpoint, out, *options)
            if not np.array_equal(rows_of_files(out), expected):
                raise SystemExit(f"killed after {moment:.1f} s of {lasts:.1f} and repeated: other rows")
            print(f"killed after {moment:.1f} s of {lasts:.1f}, {len(files)} files: repeated, same rows", flush=True)
            shutil.rmtree(out)
        self.found |= {"kills": times, "early": early, "there": there}

    def round(self) -> None:
        """One measurement of each of the others."""
        out = self._folder / f"atta-{len(self.report.rounds)}"
        shutil.rmtree(out, ignore_errors=True)
        figures = {"atta": on_atta(self._cluster, self._checkpoint, out)}
        for system in ("pyg", "pyg-csr"):
            scores = self._folder / f"{system}.npy"
            figures[system] = on_pyg(self._graph, self._checkpoint, scores, csr=system == "pyg-csr")
            far, largest = difference(out, np.load(scores))
            if far > TOLERANCE * largest:
                raise SystemExit(f"scores of {system} differ by {far}")
            self.found |= {"difference": max(far, self.found.get("difference", 0.0)), "largest": largest}
        figures |= {"minibatch": self._sampled} if self._sampled else {}
        for system, one in figures.items():
            print(system, one, flush=True)
            self.report.add(system, one)

    def about(self) -> str:
        """The settings and what has come out, in words."""
        sampled = "; of mini-batches (`minibatch`) extrapolated from {seeds:,} seeds, which took {measured:.0f} s"
        rounds = self.report.rounds["atta"]
        peak, read = (max(figures[name] for figures in rounds) for name in ("peak_mib", "edges_per_layer"))
        return ABOUT.format(
            layers=LAYERS,
            hidden=HIDDEN,
            classes=CLASSES,
            threads=len(os.sched_getaffinity(0)),
            pyg_batch=_PYG_BATCH,
            sampled=sampled.format(**self.found) if self._sampled else "",
            verdicts=verdicts(self.report.ratios()["seconds"], peak, read),
            kills=KILLS.format(**self.found) if "kills" in self.found else "",
            **{name: self.found[name] for name in ("vertices", "edges", "features", "difference", "largest")},
        )


def verdicts(ratios: dict[str, float], peak_mib: float, edges_per_layer: float) -> str:
    """Which bounds hold."""
    said = [
        f"at least {bound:g} times as fast as `{system}`: {ratios[system]:.2f}, {_holds(ratios[system] >= bound)}"
        for system, bound in BOUNDS.items()
        if system in ratios
    ]
    once = f"each edge read once per layer: {edges_per_layer:.6g}, {_holds(edges_per_layer == 1)}"
    return "; ".join([*said, f"at most {PEAK_MIB:,} MiB: {peak_mib:,.0f}, {_holds(peak_mib <= PEAK_MIB)}", once])


def _holds(reached: bool) -> str:
    return "reached" if reached else "**not reached**"


def main() -> None:
    """Measure, and write the record."""
    arguments = arguments_of(
        __file__,
        __doc__,
        graph=ROOT / "data/powerlaw-245k",
        data=ROOT / "data/powerlaw-245k-2p",
        seeds=(10000, "of mini-batches; 0: none"),
        rounds=2,
        kills=(10, "of atta predict, after the rounds"),
        follow=(False, "measure updates that are followed instead"),
        shares=("1e-4,1e-3,1e-2", "of edges, one after another"),
        hidden=(HIDDEN, "columns of the followed model"),
        tolerance=(0.0, "of the follower"),
    )
    with (
        tempfile.TemporaryDirectory(prefix="atta-inference-") as folder,
        atta.local(arguments.data, threads=1, verify=False) as cluster,
    ):
        if arguments.follow:
            Following(cluster, arguments, Path(folder)).run()
            shutil.rmtree(arguments.data.absolute().with_name(f"{arguments.data.name}.versions"))
            return
        comparison = Comparison(cluster, arguments.graph, Path(folder))
        if arguments.seeds:
            comparison.sample(arguments.seeds)
        for number in range(arguments.rounds):
            comparison.round()
            if number == arguments.rounds - 1 and arguments.kills:
                comparison.kill(arguments.kills)
            about = comparison.about()
            document = comparison.report.to_json() | {"title": "Inference layer by layer", "about": about}
            document["found"] = comparison.found
            write_report(arguments.out / "inference.json", document, arguments.typed)
    print(about)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pyg"]:
        pyg(json.loads(sys.argv[2]))
    else:
        main()
