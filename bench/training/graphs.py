"""Partitioned graphs for comparisons of accuracy: made once, then kept in a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate

__all__ = ["COLUMNS", "SPLITS", "partitioned", "projected"]

COLUMNS = 128
"""Columns that wide features of real graphs are projected to."""
SPLITS = {"train": 0.3, "val": 0.1, "test": 0.6}
Array = npt.NDArray[Any]


def atta(*arguments: object) -> None:
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
        atta("import", "npz", neutral, source, "--overwrite", "--quiet", *both)
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
