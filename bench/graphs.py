"""Graphs and datasets of the benchmarks: made once, then kept in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from atta.errors import ConfigError
from atta.observe.settings import Option
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph import MANIFEST, Graph
from atta_bench.lab.distdgl import fingerprint
from atta_bench.lab.workload import Seed


def work_folder(work: str | None) -> Path:
    """The folder that ``--work`` names; None: ``atta`` in the user's cache folder. It is made if need be.

    Raises ConfigError: no files can be made in it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(work or Path(base) / "atta").resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        option = "--work" if work else "the default of --work,"
        raise ConfigError(f"{option} {folder}: cannot be written to: {error.strerror}") from None
    return folder


COLUMNS = 128
"""Columns that wide features of real graphs are projected to."""
SPLITS: dict[str, Any] = {"train": 0.3, "val": 0.1, "test": 0.6}
Array = npt.NDArray[Any]


def atta_command(*arguments: object) -> None:
    """Run a command of Atta."""
    subprocess.run([sys.executable, "-m", "atta.cli.main", *map(str, arguments)], check=True)


def partitioned(graph: str, options: GenerateOptions, data_root: Path | None, work: Path, parts: int) -> Path:
    """The dataset of a graph, made unless it is there.

    Args:
        graph: ``sbm``, or a folder of ``data_root``; ``-random`` after it: random parts instead of those of METIS.
        options: of the SBM.
        data_root: folder of real graphs in the neutral npz layout.
        work: where datasets are kept.
        parts: number of partitions.

    Raises:
        SystemExit: a real graph is asked for without ``data_root``.
    """
    name = graph.removesuffix("-random")
    method = "metis" if name == graph else "random"
    source, dataset = work / name, work / f"{name}-{parts}p-{method}"
    if name == "sbm":
        # Other options make another graph.
        asked = f"{options.nodes}-{options.edges}-{options.features}-{options.classes}-{options.inter}-{options.signal}"
        if options.communities is not None:
            asked += f"-{options.communities}"
        source, dataset = work / f"sbm-{asked}", work / f"sbm-{asked}-{parts}p-{method}"
    if (dataset / "manifest.json").exists():
        return dataset
    # What a cut-off attempt has left is made anew.
    if name == "sbm":
        generate("sbm", source, options, overwrite=True)
    elif data_root is None:
        raise SystemExit(f"{graph}: give --data-root, the folder of real graphs")
    else:
        neutral = projected(data_root / name, work / f"{name}-projected")
        meta = json.loads((neutral / "meta.json").read_text())
        both = [] if meta["both_directions_stored"] else ["--undirected"]
        atta_command("import", "npz", neutral, source, "--overwrite", "--quiet", *both)
    partition_graph(source, dataset, parts=parts, method=method, seed=0, overwrite=True)
    return dataset


def projected(source: Path, target: Path) -> Path:
    """Copy a graph with at most ``COLUMNS`` columns of features, by a random projection, and with splits of ``SPLITS``.

    Bags of words have thousands of columns, so that a step would do little but multiply features. Public splits have
    20 training vertices per class, and results from so few differ by more than what is compared.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in ("graph.npz", "y.npy", "meta.json"):
        (target / name).write_bytes((source / name).read_bytes())
    x = _features(source)
    rng = np.random.default_rng(0)
    if x.shape[1] > COLUMNS:
        x = x @ (rng.standard_normal((x.shape[1], COLUMNS)) / np.sqrt(COLUMNS))
        x = x / np.maximum(x.std(), 1e-12)
    np.save(target / "x.npy", x.astype(np.float32))
    order = rng.permutation(len(x))
    ends = np.cumsum([int(share * len(x)) for share in SPLITS.values()])
    for name, members in zip(SPLITS, np.split(order, ends), strict=False):
        mask = np.zeros(len(x), np.bool_)
        mask[members] = True
        np.save(target / f"{name}_mask.npy", mask)
    return target


def _features(source: Path) -> Array:
    """Features with rows of length one in the sum, as usual for bags of words; dense ones as they are."""
    if (source / "x.npy").exists():
        found: Array = np.load(source / "x.npy")
        return found
    with np.load(source / "x_sparse.npz") as file:
        x = csr_matrix((file["data"], file["indices"], file["indptr"]), shape=file["shape"])
    dense: Array = x.toarray()
    normalized: Array = dense / np.maximum(np.abs(dense).sum(1, keepdims=True), 1e-12)
    return normalized


@dataclass(frozen=True, kw_only=True)
class GraphSource:
    """Which graph is measured, and how it is cut. The sizes are those of a generated one."""

    graph: Annotated[str | None, Option("Graph folder.", metavar="FOLDER", unset="a power-law graph is generated")] = (
        None
    )
    nodes: Annotated[int, Option("Vertices of the generated graph.", at_least=1)] = 244_903
    edges: Annotated[int, Option("Edges of the generated graph, about.", at_least=0)] = 12_000_000
    features: Annotated[int, Option("Columns of the generated feature table.", at_least=0)] = 100
    method: Annotated[str, Option("Partitioning method.")] = "metis"
    seed: Seed = 0

    @property
    def generated(self) -> GenerateOptions:
        """What to generate."""
        classes = min(47, self.nodes)
        return GenerateOptions(self.nodes, self.edges, features=self.features, classes=classes, seed=self.seed)


def graph_folder(source: GraphSource, work: Path, say: Callable[[str], None]) -> Path:
    """The graph, generated if need be.

    Raises ConfigError: the size of the graph makes no sense; DataError: there is no graph in the folder.
    """
    if source.graph is not None:
        Graph.open(source.graph, verify=False)
        return Path(source.graph).resolve()
    options = source.generated  # says what is wrong with the size
    folder = work / "-".join(
        ["powerlaw", *(str(n) for n in (source.nodes, source.edges, source.features, source.seed))]
    )
    if not (folder / MANIFEST).exists():
        say(f"generating a graph of {source.nodes:,} vertices and {source.edges:,} edges in {folder}")
        work.mkdir(parents=True, exist_ok=True)
        generate("powerlaw", folder, options)
    return folder


def cut(graph: Path, parts: int, source: GraphSource, work: Path, say: Callable[[str], None]) -> Path:
    """The graph cut into ``parts`` partitions, cut now if need be."""
    folder = work / f"{fingerprint(graph)}-{source.method}-{source.seed}-{parts}p"
    if not folder.exists():
        say(f"cutting the graph into {parts} partitions by {source.method}")
        work.mkdir(parents=True, exist_ok=True)
        partition_graph(graph, folder, parts=parts, method=source.method, seed=source.seed, verify=False)
    Dataset.open(folder, parts=[], verify=False)
    return folder


def graph_sizes(source: GraphSource, graph: Path) -> dict[str, object]:
    """What the record says about the graph."""
    schema = Graph.open(graph, verify=False).schema
    named = {"generated": asdict(source.generated)} if source.graph is None else {"graph": source.graph}
    return {**named, "method": source.method, "vertices": schema.node_counts, "edges": schema.edge_counts}
