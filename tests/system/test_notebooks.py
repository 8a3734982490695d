"""Clusters in notebooks, in a real kernel: what cells show, what an interrupt leaves as it was, and that daemons end with
the kernel, however it ends. The example notebook runs, and shows what is stored in it."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import atta
from atta.client.inference.task import Predictions
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.train import EpochReport, TrainConfig, TrainReport
from tests.conftest import SEED
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples/first_steps.ipynb"
EVIL = "<script>alert(1)</script>"


def shown(thing: Any) -> str:
    """The text of what a notebook shows, which is well-formed; tags are gone."""
    return " ".join("".join(ET.fromstring(f"<all>{thing._repr_html_()}</all>").itertext()).split())


def test_what_cells_show_escapes_names_and_asks_no_daemon(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "<script>"
    with GraphWriter(folder / "graph") as out:
        tables, splits = {"x": rng.random((50, 4), np.float32)}, {"train": np.arange(20)}
        out.add_nodes("paper", 50, tables=tables, splits=splits)
        out.add_nodes(EVIL, 30)
        out.add_edges(f"{EVIL}__wrote & read__paper", rng.integers(0, 30, 400), rng.integers(0, 50, 400))
    partition_graph(folder / "graph", folder / "data", parts=2, method="random")
    cluster = atta.local(folder / "data", threads=1, daemons=1)
    loader = atta.NeighborLoader(cluster, [4], ("paper", "train"), batch_size=8)
    batch, table = next(iter(loader)), atta.DistTensor(cluster, (1000, 3), name="rows")
    for pid in cluster.pids:
        os.kill(pid, signal.SIGKILL)
    addresses = cluster.addresses
    expected = {
        Graph.open(folder / "graph"): [f"{folder}/graph", "80 vertices, 400 edges", EVIL],
        Dataset.open(folder / "data"): ["2 parts", "HALO ratio", "train 20", f"{EVIL}__wrote & read__paper"],
        cluster: ["LocalCluster(1 daemons: 80 vertices, 400 edges)", *addresses, "x f4[4]"],
        loader: ["batches per epoch3", "seeds per batch8"],
        batch: [f"MiniBatch(8 seeds, {batch.num_nodes} nodes, {batch.num_edges} edges)", "seeds: 6 of 8", EVIL],
        table: ["rows1,000", "DistTensor rows"],
    }
    for thing, texts in expected.items():
        said = shown(thing)
        assert [text for text in texts if text not in said] == []
        assert "<script" not in thing._repr_html_()
    cluster.close()
    assert "closed" in shown(cluster)


def test_what_cells_show_of_results() -> None:
    many = Predictions(np.arange(10**6), np.broadcast_to(np.float32(0.5), (10**6, 3)))
    assert shown(many).startswith("Predictions: 1,000,000 rows of float32 [3]idvalue0[0.5 0.5 0.5]1[")
    assert shown(many).endswith("… 999,980 more")
    assert "<i>" not in Predictions(np.array(["<i>", "c"]), np.array([3, 4]))._repr_html_()
    epochs = [EpochReport(n, 2.0, 1 / (n + 1), 3e4, 0.0, 0.0, {}, val_accuracy=n / 50) for n in range(30)]
    report = TrainReport(TrainConfig(data="data", model="sage"), epochs)
    assert shown(report).startswith("sage, minibatch: 30 epochs, the best is 29epochlossval_accuracysecondsseeds/s10")
    assert "the best" not in shown(TrainReport(TrainConfig(data="data")))
    assert "val_accuracy0.58" in shown(report.best)


class Kernel:
    """A kernel that runs in a folder."""

    def __init__(self, folder: Path) -> None:
        nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
        pytest.importorskip("ipykernel")
        self._format, self.notebook = nbformat, nbformat.v4.new_notebook()
        where: Any = {"metadata": {"path": str(folder)}}
        self.client = nbclient.NotebookClient(
            self.notebook, timeout=60, kernel_name="python3", resources=where, coalesce_streams=True
        )

    @contextmanager
    def running(self) -> Iterator[Kernel]:
        """Shut down at the end, if it has not been killed before."""
        with self.client.setup_kernel():
            yield self

    def run(self, code: str) -> str:
        """What a cell prints and shows. Raises CellExecutionError, which has the traceback."""
        cell = self._format.v4.new_code_cell(code)
        self.notebook.cells.append(cell)
        self.client.execute_cell(cell, len(self.notebook.cells) - 1)
        return "".join(map(text_of, cell.outputs))

    def read(self, path: Path) -> list[Any]:
        """The cells of a notebook."""
        return list(self._format.read(path, as_version=4).cells)

    def interrupted(self, code: str, after_s: float) -> None:
        """Run a cell that is interrupted after some seconds, as the button does: the whole process group is."""
        pressed = threading.Timer(after_s, os.killpg, (os.getpgid(self.pid), signal.SIGINT))
        pressed.start()
        with pytest.raises(Exception, match="KeyboardInterrupt"):
            self.run(code)
        pressed.join()

    def restart(self) -> None:
        """As the button does."""
        from nbclient.util import run_sync

        run_sync(self.client.km.restart_kernel)()
        run_sync(self.client.kc.wait_for_ready)(timeout=60)

    @property
    def pid(self) -> int:
        return int(self.client.km.provisioner.pid)

    def daemons(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.pid).children() if "serve" in child.cmdline()]


def text_of(output: Any) -> str:
    """What an output shows: HTML if it has some."""
    data = output.get("data", {})
    return str(data.get("text/html") or data.get("text/plain") or output.get("text", ""))


def ended(processes: list[psutil.Process]) -> bool:
    """Whether all end soon, without a signal: they are not children of this process."""
    return not psutil.wait_procs(processes, timeout=20)[1]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    (tmp_path / "tmp").mkdir()
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "jupyter"))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # under pytest, kernels do not show what other processes print
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with Kernel(tmp_path).running() as started:
        yield started


EPOCH = """
import asyncio, itertools, time
def epoch(): return [batch.n_id().tolist() for batch in loader.resume(0, 0)]
before = epoch()
"""
SAME = "print(cluster.lost, epoch() == before)"


def opened(data: Path, *options: str) -> str:
    return f"""
import atta
cluster = atta.local({str(data)!r}, threads=1, options={options!r})
loader = atta.NeighborLoader(cluster, [4, 4], batch_size=20, seed=1)
{EPOCH}"""


def test_the_example_notebook_shows_what_is_stored_survives_interrupts_and_leaves_no_daemon(kernel: Kernel) -> None:
    pytest.importorskip("torch_geometric")
    *stored, end = [cell for cell in kernel.read(EXAMPLE) if cell.cell_type == "code"]
    assert end.source == "cluster.close()"
    before = {cell.id: "".join(map(text_of, cell.outputs)) for cell in stored}
    shows = {cell.id: kernel.run(cell.source) for cell in stored}
    assert (shows["batch"], shows["data"]) == (before["batch"], before["data"])  # sampled bit for bit
    assert [name for name in shows if bool(shows[name]) != bool(before[name])] == []
    losses = [float(line.rpartition(" ")[2]) for line in shows["train"].splitlines()]
    assert losses[-1] < 0.8 * losses[0]
    assert int(re.findall(r"(\d+)% of 800 classes are right", shows["accuracy"])[0]) > 60
    assert "2 of 2" in shows["cluster"]
    assert not re.search(r"/(home|root|tmp|work|usr|opt)/", EXAMPLE.read_text())
    daemons = kernel.daemons()
    assert len(daemons) == 2
    kernel.run(EPOCH)
    for pause in ("pass", "time.sleep(0.01)"):
        kernel.interrupted(f"for _ in itertools.count():\n for _ in loader: {pause}", 0.3)
        assert kernel.run(SAME) == "None True\n"
    # Names keep what the cells before gave them: `batch` is the last of an epoch of 1,200 seeds, 64 at a time.
    assert kernel.run("print(await asyncio.to_thread(epoch) == before, batch.batch_size)") == "True 48\n"
    assert kernel.daemons() == daemons
    os.kill(kernel.pid, signal.SIGKILL)
    assert ended(daemons)


@pytest.mark.slow
def test_a_kernel_that_restarts_saves_tables_and_leaves_nothing(
    small_graph: SmallGraph, kernel: Kernel, tmp_path: Path
) -> None:
    data, kept = small_graph.dataset(2, "random"), tmp_path / "kept"
    kernel.run(opened(data, "--snapshots", str(kept)))
    kernel.run("table = atta.DistTensor(cluster, (100, 4), name='t'); table[[3, 7]] = [[1.0] * 4, [2.0] * 4]")
    daemons = kernel.daemons()
    kernel.restart()
    assert ended(daemons)
    assert not list((tmp_path / "tmp").glob("atta-local-*"))
    kernel.run(opened(data, "--snapshots", str(kept)) + "\ncluster.tables.load('shutdown')")
    assert kernel.run("print(atta.DistTensor(cluster, (100, 4), name='t')[[3, 7]].sum())") == "12.0\n"


@pytest.mark.slow
def test_an_interrupted_start_leaves_nothing(small_graph: SmallGraph, kernel: Kernel, tmp_path: Path) -> None:
    data = small_graph.dataset(2, "random")
    kernel.run(opened(data))
    daemons, rng = kernel.daemons(), random.Random(SEED)
    for _ in range(6):
        kernel.interrupted(f"other = atta.local({str(data)!r}, threads=1)\ntime.sleep(60)", rng.uniform(0.01, 1.5))
        kernel.run("other = None")
        assert eventually(lambda: kernel.daemons() == daemons)
        assert kernel.run(SAME) == "None True\n"
    assert len(list((tmp_path / "tmp").glob("atta-local-*"))) == 1


@pytest.mark.slow
def test_training_in_a_cell(small_graph: SmallGraph, kernel: Kernel) -> None:
    """Lines as in a terminal, a report, and no process that outlives an interrupt or the kernel."""
    data = small_graph.dataset(2, "random")
    kernel.run(
        "from atta.train import TrainConfig, fit\n"
        f"how = dict(data={str(data)!r}, num_neighbors=(4, 4), trainers=2, batch_size=20, device='cpu')"
    )
    said = kernel.run("fit(TrainConfig(**how, epochs=2))")
    assert said.count("epoch ") >= 2
    assert "2 epochs, the best is" in said
    assert "\x1b" not in said
    kernel.interrupted("fit(TrainConfig(**how, epochs=10**6))", 8.0)
    assert eventually(lambda: not psutil.Process(kernel.pid).children())
    kernel.client.kc.execute("fit(TrainConfig(**how, epochs=10**6))")
    assert eventually(lambda: len(psutil.Process(kernel.pid).children(recursive=True)) >= 4)
    left = psutil.Process(kernel.pid).children(recursive=True)
    os.kill(kernel.pid, signal.SIGKILL)
    assert ended(left)
