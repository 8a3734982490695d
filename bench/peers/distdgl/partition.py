"""Converts a graph to a partition folder of DistDGL.

    python -m atta_bench.peers.distdgl.partition GRAPH OUT PARTS SPLIT

It runs as a process of its own: METIS inside DGL needs several times the memory of the graph, and frees it only at its
    end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from atta.errors import AttaError
from atta_bench.peers.source import fingerprint, read_plain

__all__ = ["GRAPH_NAME", "MASK", "convert", "mask_of", "prepare", "read_tables"]

GRAPH_NAME = "peer"
MASK = "is_seed"
_TABLES = "tables.json"
_TIMEOUT_S = 3600.0


def prepare(graph: Path, parts: int, split: str, cache: Path) -> Path:
    """Convert ``graph`` unless the cache has it, and return DGL's partition configuration (a JSON file).

    Raises:
        AttaError: DGL is missing or fails.
    """
    try:
        dgl = version("dgl")
    except PackageNotFoundError:
        raise AttaError("DGL is not installed: install atta[dgl]") from None
    folder = cache / f"distdgl-{dgl}-splits-{fingerprint(graph)}-{split}-{parts}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".distdgl-", dir=cache) as scratch:
            made = Path(scratch) / "parts"
            _convert_elsewhere(graph, made, parts, split)
            try:
                made.rename(folder)
            except OSError:  # another process was quicker
                if not folder.exists():
                    raise
    return folder / f"{GRAPH_NAME}.json"


def _convert_elsewhere(graph: Path, out: Path, parts: int, split: str) -> None:
    command = [sys.executable, "-m", "atta_bench.peers.distdgl.partition", str(graph), str(out), str(parts), split]
    env = {**os.environ, "DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise AttaError(f"DGL cannot partition the graph: {lines[-1] if lines else done.returncode}")


def mask_of(split: str) -> str:
    """Name of the table that marks the vertices of a split."""
    return f"is_in_{split}"


def read_tables(config: Path) -> tuple[str, ...]:
    """Names of the vertex tables of a converted graph."""
    return tuple(json.loads((config.parent / _TABLES).read_text(encoding="utf-8")))


def convert(graph: Path, out: Path, parts: int, split: str) -> None:
    """Write the folder with DistDGL's defaults: METIS, balanced by training vertices and edges, one hop of HALO."""
    import dgl
    import torch

    plain = read_plain(graph, split)
    whole = dgl.graph((torch.from_numpy(plain.src), torch.from_numpy(plain.dst)), num_nodes=plain.num_nodes)
    for name, rows in plain.tables.items():
        whole.ndata[name] = torch.from_numpy(rows.copy())
    for name, ids in {MASK: plain.seeds, **{mask_of(split): ids for split, ids in plain.splits.items()}}.items():
        whole.ndata[name] = torch.zeros(plain.num_nodes, dtype=torch.bool)
        whole.ndata[name][torch.from_numpy(ids.copy())] = True
    out.mkdir(parents=True)
    (out / _TABLES).write_text(json.dumps(list(plain.tables)), encoding="utf-8")
    try:
        dgl.distributed.partition_graph(
            whole,
            GRAPH_NAME,
            parts,
            str(out),
            num_hops=1,
            part_method="metis",
            balance_ntypes=whole.ndata[MASK].long(),
            balance_edges=True,
        )
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
