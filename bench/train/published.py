"""DGL's published examples of distributed training, unchanged but for their import line, on Atta and on DistDGL.

    python -m bench.train.published --scripts DIR [--packages DIR] [--only sage,unsupervised,rgcn] [--runs 3]

``--scripts`` is the folder ``examples/distributed`` of DGL's repository. Both systems read the same partition folder, which
``dgl.distributed.partition_graph`` wrote, and run on the same two hosts (network namespaces; root): a server or daemon
and a trainer on each. For Atta the lines ``import dgl`` and
``import dgl.distributed`` become ``from atta.compat import dgl``. For DGL 1.1.3 an argument
of later releases goes (``use_graphbolt``), and loaders have their earlier place. ``--packages`` holds what the examples import besides
(scikit-learn before 1.8). An empty stand-in replaces ogb, of which they import a name that they do not use.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import AttaError
from atta.wire.clusterfile import write_cluster
from atta_bench.lab.netlab import Host, NetLab
from atta_bench.results import ROOT, arguments_of, document, head, rows_of, write, yes_or_no

HOSTS, PORT, MEETING_PORT, DAEMON_PORT = 2, 30_050, 29_777, 7_070
TIMEOUT_S = 900.0
TOLERANCE, FASTER = 1.0, 2.0
"""Points of test accuracy, and of DistDGL's epochs per second."""
LEAST_RUNS = 4
"""Of each system, for a comparison at equal first losses."""
EPOCH = re.compile(r"Epoch Time\(s\): ([\d.]+)")
MODEL = re.compile(r"Epoch Time\(s\): .*?forward: ([\d.]+), backward: ([\d.]+)")
LATER = [
    (re.compile(r", use_graphbolt=[\w.]+"), ""),
    (re.compile(r"\bdgl\.distributed\.(?=Dist\w+DataLoader)"), "dgl.dataloading."),
]
"""What DGL 1.1.3 does not have yet."""
ACCURACY = re.compile(r"(?:Val Acc|eval acc) ([\d.]+)[,;] (?:Test Acc|test acc) ([\d.]+)")
FIRST_LOSS = re.compile(r"Epoch 0+ \| Step 0+ \| Loss ([\d.]+)")
"""What the first weights, which are random, make of the first batch. It says much about how well a short training ends."""
IMPORTS = re.compile(r"^import dgl\n(import dgl\.distributed\n)?", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A script: its file, the kind of graph that it trains on, and its options besides those that name the graph."""

    file: str
    graph: str
    options: str
    names: tuple[str, str, str] = ("--graph_name", "--ip_config", "--part_config")


@dataclass(frozen=True)
class Places:
    """Folders: DGL's examples, packages that they need, and partitions that are kept."""

    scripts: Path
    packages: list[str]
    work: Path


EXAMPLES = {
    "sage": Example(
        "graphsage/node_classification.py", "plain",
        "--num_gpus 0 --num_epochs 10 --eval_every 10 --lr 0.01",
    ),
    "unsupervised": Example(
        "graphsage/node_classification_unsupervised.py", "small", "--num_epochs 2 --batch_size 2000 --fan_out 5,10 --lr 0.01 --num_hidden 64 --dropout 0.1"
    ),
    "unsupervised-defaults": Example(
        "graphsage/node_classification_unsupervised.py", "small", "--num_epochs 3 --lr 0.01"
    ),
    "rgcn": Example(
        "rgcn/node_classification.py", "typed",
        "-d typed --n-epochs 5 --batch-size 1000 --eval-batch-size 1000 --fanout 10,10 --n-hidden 32 --lr 0.01 "
        "--dropout 0.2 --n-bases 2 --use-self-loop --sparse-embedding --dgl-sparse --sparse-lr 0.02",
        ("--graph-name", "--ip-config", "--conf-path"),
    ),
}  # fmt: skip


def plain(rng: np.random.Generator, n: int = 100_000, m: int = 4_000_000) -> Any:
    """``n`` vertices of 40 classes with ``m`` edges and 100 features."""
    import dgl
    import torch

    classes = 40
    y = rng.integers(0, classes, n)
    src = rng.integers(0, n, m)
    near = _partner(rng, y, src, classes)
    dst = np.where(rng.random(m) < 0.5, near, rng.integers(0, n, m))
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=n)
    graph.ndata["features"] = torch.from_numpy(_features(rng, y, classes))
    graph.ndata["labels"] = torch.from_numpy(y)
    _masks(rng, graph.ndata, n)
    return graph


def typed(rng: np.random.Generator) -> Any:
    """50,000 papers of 20 classes with 100 features; authors and institutions without any."""
    import dgl
    import torch

    papers, authors, places, classes = 50_000, 30_000, 500, 20
    y, topic = rng.integers(0, classes, papers), rng.integers(0, classes, authors)
    cites = rng.integers(0, papers, 800_000)
    cited = np.where(
        rng.random(len(cites)) < 0.4, _partner(rng, y, cites, classes), rng.integers(0, papers, len(cites))
    )
    writer = rng.integers(0, authors, 250_000)
    written = np.where(
        rng.random(len(writer)) < 0.4, _partner(rng, y, writer, classes, topic), rng.integers(0, papers, len(writer))
    )
    home = rng.integers(0, places, authors)
    ends = {
        ("paper", "cites", "paper"): (cites, cited),
        ("author", "writes", "paper"): (writer, written),
        ("paper", "by", "author"): (written, writer),
        ("institution", "employs", "author"): (home, np.arange(authors)),
        ("author", "works-at", "institution"): (np.arange(authors), home),
    }
    graph = dgl.heterograph(
        {name: tuple(map(torch.from_numpy, pair)) for name, pair in ends.items()},
        num_nodes_dict={"paper": papers, "author": authors, "institution": places},
    )
    data = graph.nodes["paper"].data
    data["feat"] = torch.from_numpy(_features(rng, y, classes))
    data["labels"] = torch.from_numpy(y)
    _masks(rng, data, papers)
    return graph


def _partner(
    rng: np.random.Generator, y: np.ndarray, of: np.ndarray, classes: int, kinds: np.ndarray | None = None
) -> np.ndarray:
    """For each of ``of`` a vertex of its class."""
    order = np.argsort(y, kind="stable")
    starts = np.searchsorted(y[order], np.arange(classes + 1))
    wanted = (y if kinds is None else kinds)[of]
    found: np.ndarray = order[
        starts[wanted] + (rng.random(len(of)) * (starts[wanted + 1] - starts[wanted])).astype(np.int64)
    ]
    return found


def _features(rng: np.random.Generator, y: np.ndarray, classes: int) -> np.ndarray:
    centres = rng.standard_normal((classes, 100))
    found: np.ndarray = (0.25 * centres[y] + rng.standard_normal((len(y), 100))).astype(np.float32)
    return found


def _masks(rng: np.random.Generator, data: Any, n: int) -> None:
    import torch

    split = rng.permutation(n) / n
    for name, low, high in (("train", 0, 0.2), ("val", 0.2, 0.3), ("test", 0.3, 0.5)):
        data[f"{name}_mask"] = torch.from_numpy((split >= low) & (split < high))


def small(rng: np.random.Generator) -> Any:
    """For the example that trains on every edge."""
    return plain(rng, 20_000, 400_000)


GRAPHS = {"plain": plain, "small": small, "typed": typed}


def partitioned(kind: str, folder: Path) -> Path:
    """DistDGL's partitions of a graph; kept."""
    config = folder / kind / f"{kind}.json"
    if not config.exists():
        import dgl

        graph = GRAPHS[kind](np.random.default_rng(7))
        dgl.distributed.partition_graph(graph, kind, HOSTS, str(folder / kind), part_method="metis")
    return config


def script(example: Example, scripts: Path, system: str, folder: Path) -> Path:
    """The example as it runs on a system."""
    text = (scripts / example.file).read_text()
    if len(IMPORTS.findall(text)) != 1:
        raise AttaError(f"{example.file}: has not one line 'import dgl'")
    changes = [(IMPORTS, "from atta.compat import dgl\n")] if system == "atta" else LATER
    for found, instead in changes:
        text = found.sub(instead, text)
    file = folder / f"on_{system}.py"
    file.write_text(text)
    return file


def run(name: str, system: str, lab: NetLab, places: Places) -> dict[str, float]:
    """Run an example with a trainer per host; returns its figures."""
    example = EXAMPLES[name]
    config = partitioned(example.graph, places.work)
    with tempfile.TemporaryDirectory(prefix="atta-published-") as temporary:
        folder = Path(temporary)
        (folder / "ogb").mkdir()
        (folder / "ogb/__init__.py").touch()
        (folder / "ogb/nodeproppred.py").write_text("DglNodePropPredDataset = None\n")
        addresses = folder / "machines.txt"
        port = PORT if system == "dgl" else DAEMON_PORT
        addresses.write_text("".join(f"{host.address} {port}\n" for host in lab.hosts))
        words = [example.names[0], config.stem, example.names[1], str(addresses), example.names[2], str(config)]
        program = [
            sys.executable,
            str(script(example, places.scripts, system, folder)),
            *words,
            *example.options.split(),
        ]
        common = {
            "PYTHONPATH": os.pathsep.join([*places.packages, str(folder)]), "DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "eth0", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        of_dgl = _of_dgl(config, addresses)
        if system == "dgl":
            supports = servers(lab.hosts, program, {**common, **of_dgl}, folder)
        else:
            supports = daemons(lab.hosts, config, common, folder)
        trainers = []
        for rank, host in enumerate(lab.hosts):
            env = {
                **common, **of_dgl, "DGL_ROLE": "client", "RANK": str(rank),
                "WORLD_SIZE": str(HOSTS), "MASTER_ADDR": lab.hosts[0].address, "MASTER_PORT": str(MEETING_PORT),
            }  # fmt: skip
            with (folder / f"rank{rank}.log").open("wb") as log:
                trainers.append(host.popen(program, env=env, stdout=log, stderr=subprocess.STDOUT))
        try:
            ended = [trainer.wait(TIMEOUT_S) for trainer in trainers]
        finally:
            for process in (*trainers, *supports):
                process.kill()
                process.wait()
        logs = [(folder / f"rank{rank}.log").read_text(errors="replace") for rank in range(HOSTS)]
    if any(ended):
        raise AttaError(f"{name} on {system}: exit codes {ended}: {logs[0][-1500:]}\n{logs[1][-1500:]}")
    return figures(logs)


def figures(logs: list[str]) -> dict[str, float]:
    """What the scripts print: seconds of an epoch, of the slower trainer, without the first one, and of the model within
    (forward and backward); last accuracies."""
    epochs = zip(*[list(map(float, EPOCH.findall(log))) for log in logs], strict=True)
    slower = [max(epoch) for epoch in epochs]
    model = zip(*[[float(f) + float(b) for f, b in MODEL.findall(log)] for log in logs], strict=True)
    in_model = statistics.median([max(epoch) for epoch in model][1:])
    val, test = (float(value) for value in ACCURACY.findall("\n".join(logs))[-1])
    epoch_s = statistics.median(slower[1:])
    found = {"first_epoch_s": slower[0], "epoch_s": epoch_s, "model_s": in_model, "val": val, "test": test}
    losses = [float(loss) for log in logs for loss in FIRST_LOSS.findall(log)]
    return found | ({"first_loss": statistics.mean(losses)} if losses else {})


def at_equal_starts(runs: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Points of test accuracy between Atta and DistDGL at equal first losses, their standard error, and the correlation of
    first loss and accuracy: an analysis of covariance, with one slope for both systems."""
    ours = np.array([run["system"] == "atta" for run in runs], float)
    start, test = np.array([run["first_loss"] for run in runs]), 100 * np.array([run["test"] for run in runs])
    known = np.stack([np.ones(len(runs)), ours, start - start.mean()], axis=1)
    fitted, *_ = np.linalg.lstsq(known, test)
    rest = test - known @ fitted
    variance = rest @ rest / (len(runs) - 3) * np.linalg.inv(known.T @ known)[1, 1]
    return float(fitted[1]), float(variance**0.5), float(np.corrcoef(start, test)[0, 1])


def servers(hosts: list[Host], program: list[str], env: dict[str, str], folder: Path) -> list[subprocess.Popen[bytes]]:
    """DistDGL's servers: the same script in another role."""
    roles = [{"DGL_ROLE": "server", "DGL_SERVER_ID": str(number)} for number in range(len(hosts))]
    return [_started(host, program, {**env, **role}, folder) for host, role in zip(hosts, roles, strict=True)]


def daemons(hosts: list[Host], config: Path, env: dict[str, str], folder: Path) -> list[subprocess.Popen[bytes]]:
    """A daemon on each host."""
    from atta.compat.dgl.job import dataset_of

    cluster, data = folder / "cluster.toml", str(dataset_of(config))
    addresses = [f"{host.address}:{DAEMON_PORT}" for host in hosts]
    write_cluster(cluster, addresses)
    started = []
    for part, (host, address) in enumerate(zip(hosts, addresses, strict=True)):
        words = [sys.executable, "-m", "atta.cli.main", "serve", "--data", data, "--part", str(part)]
        words += [
            "--listen",
            address,
            "--insecure",
            "--peers",
            str(cluster),
            "--threads",
            "1",
            "--log-level",
            "warning",
        ]
        started.append(_started(host, words, env, folder))
    return started


def _started(host: Host, words: list[str], env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"server-{host.address}.log").open("wb") as log:
        return host.popen(words, env=env, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.PIPE)


def _of_dgl(config: Path, addresses: Path) -> dict[str, str]:
    return {
        "DGL_DIST_MODE": "distributed", "DGL_IP_CONFIG": str(addresses), "DGL_NUM_SERVER": "1",
        "DGL_NUM_CLIENT": str(HOSTS), "DGL_NUM_SAMPLER": "0", "DGL_CONF_PATH": str(config), "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",
    }  # fmt: skip


def main() -> None:
    """Run all, in turn, and write the record."""
    given = arguments_of(
        __file__,
        __doc__,
        scripts=Path,
        packages=("", "folders with packages that the examples need"),
        only=",".join(EXAMPLES),
        runs=3,
        work=Path(tempfile.gettempdir()) / "atta-published",
    )
    given.work.mkdir(exist_ok=True)
    packages = [str(Path(one).absolute()) for one in given.packages.split(os.pathsep) if one]
    places, results = Places(given.scripts.absolute(), packages, given.work.absolute()), []
    os.chdir(places.work)  # examples write into the folder that they run in, that of the lab
    with NetLab(HOSTS) as lab:
        for number in range(given.runs):
            for name in given.only.split(","):
                for system in ("atta", "dgl")[:: 1 if number % 2 == 0 else -1]:
                    started = time.monotonic()
                    found = run(name, system, lab, places)
                    results.append({"example": name, "system": system, "run": number, **found})
                    print(f"{name} on {system}, {time.monotonic() - started:.0f} s: {json.dumps(found)}", flush=True)
    os.chdir(ROOT)
    about = document("published", results=results, command=given.typed)
    write(given.out / "published.json", about, _lines(about, results))


def _lines(about: dict[str, Any], results: list[dict[str, Any]]) -> list[str]:
    rows, every = [], [*results, *about.get("accuracies_of_other_runs", [])]
    for name in dict.fromkeys(result["example"] for result in results):
        of = {
            system: [r for r in results if r["example"] == name and r["system"] == system] for system in ("atta", "dgl")
        }
        epoch = {system: statistics.median(r["epoch_s"] for r in runs) for system, runs in of.items()}
        first = {system: statistics.median(r["first_epoch_s"] for r in runs) for system, runs in of.items()}
        model = {system: statistics.median(r["model_s"] for r in runs) for system, runs in of.items()}
        tests = {s: [r["test"] for r in every if (r["example"], r["system"]) == (name, s)] for s in of}
        test = {system: 100 * statistics.mean(found) for system, found in tests.items()}
        rate, points = epoch["dgl"] / epoch["atta"], test["atta"] - test["dgl"]
        error = 100 * sum(map(_variance_of_mean, tests.values())) ** 0.5
        rows.append((
            name, *(f"{epoch[by]:.2f} ({first[by]:.2f}; {model[by]:.2f})" for by in ("atta", "dgl")), f"{rate:.2f}",
            yes_or_no(rate >= FASTER), f"{test['atta']:.1f}", f"{test['dgl']:.1f}", f"{points:+.1f} ± {error:.1f}",
            yes_or_no(points >= -TOLERANCE),
        ))  # fmt: skip
    titles = (
        "example", "Atta, s per epoch (first; model)", "DistDGL", "rate", f"≥ {FASTER:g}", "Atta, test %", "DistDGL", "points",
        f"≥ -{TOLERANCE:g}",
    )  # fmt: skip
    return [
        *head("DGL's published examples on Atta and on DistDGL", about),
        "Medians over the runs of an epoch's seconds, of the slower trainer, without the first epoch. In brackets: the first epoch,",
        "and what the model's forward and backward take of a later one, by the script's own clock. Means of the last test accuracy,",
        "and the standard error of their difference. Two hosts (namespaces on one machine), on each a server or daemon and a",
        "trainer with one thread.",
        "",
        *rows_of(titles, *rows),
        *_starts_lines(every),
    ]


def _starts_lines(results: list[dict[str, Any]]) -> list[str]:
    """Accuracies of the examples that print a first loss, compared at equal ones."""
    rows = []
    for name in dict.fromkeys(r["example"] for r in results if "first_loss" in r):
        runs = [r for r in results if r["example"] == name and "first_loss" in r]
        counts = [sum(r["system"] == system for r in runs) for system in ("atta", "dgl")]
        if min(counts) < LEAST_RUNS:
            continue
        points, error, correlation = at_equal_starts(runs)
        shown = f"{points:+.1f} ± {error:.1f}", f"{correlation:.2f}", yes_or_no(points >= -TOLERANCE)
        rows.append((name, " and ".join(map(str, counts)), *shown))
    if not rows:
        return []
    titles = (
        "example",
        "runs",
        "points at equal first losses",
        "correlation of first loss and accuracy",
        f"≥ -{TOLERANCE:g}",
    )
    return ["", *rows_of(titles, *rows)]


def _variance_of_mean(values: list[float]) -> float:
    return statistics.variance(values) / len(values) if len(values) > 1 else float("nan")


if __name__ == "__main__":
    main()
