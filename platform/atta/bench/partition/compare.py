"""Partition one graph by several methods and set their figures side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atta.errors import ConfigError
from atta.partition.cutting.run import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.disk.staging import StagedFile
from atta.partition.methods import make_method
from atta.samplers.local.predict import predict

__all__ = ["compare", "explain", "plot", "save_figure"]


def compare(
    src: str | Path,
    dst: str | Path,
    methods: Sequence[str],
    *,
    parts: int,
    num_neighbors: Sequence[int] = (),
    seed: int = 0,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Write the datasets ``DST/METHOD`` and return one entry per method.

    An entry has ``method``, ``seconds``, ``edge_cut``, ``halo_ratio``, ``balance`` (maximum / mean by what is balanced) and, with
    ``num_neighbors``, ``remote_rows``, ``contested_rows`` (see ``Prediction``) and ``remote_bytes`` per batch (means over the
    partitions).

    Raises:
        ConfigError: an unknown method, one that needs options, or a folder that may not be written.
    """
    for name in methods:
        make_method(name)
    found: list[dict[str, Any]] = []
    for name in methods:
        say(f"{name} ({len(found) + 1} of {len(methods)})")
        started = time.perf_counter()
        target = Path(dst) / name
        partition_graph(src, target, parts=parts, method=name, seed=seed, overwrite=overwrite)
        dataset = Dataset.open(target, verify=False)
        entry: dict[str, Any] = {"method": name, "seconds": time.perf_counter() - started}
        entry |= {key: dataset.quality[key] for key in ("edge_cut", "halo_ratio", "balance")}
        if num_neighbors:
            predicted = predict(dataset, num_neighbors, seed=seed)
            for key in ("remote_rows", "remote_bytes"):
                entry[key] = statistics.mean(getattr(p, key)[0] for p in predicted) if predicted else 0.0
            entry["contested_rows"] = statistics.mean(p.contested_rows for p in predicted) if predicted else 0.0
        found.append(entry)
    return found


def explain(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Say why methods need more remote rows per batch than the best of them: because of their seeds or of where rows lie."""
    if len(entries) < 2 or "remote_rows" not in entries[0]:
        return []
    best = min(entries, key=lambda e: float(e["remote_rows"]))
    lines = [f"{best['method']} needs the fewest remote rows."]
    for entry in entries:
        more = entry["remote_rows"] - best["remote_rows"]
        if entry is best or more < 0.01 * best["remote_rows"]:
            continue
        seeds = entry["contested_rows"] - best["contested_rows"]
        lines.append(
            f"{entry['method']}: {more:+,.0f} rows; {seeds:+,.0f} as its partitions' seeds ask for the same vertices (hubs, split"
            f" communities), {more - seeds:+,.0f} as rows lie elsewhere than where they are asked for most."
        )
    return lines


def plot(entries: Sequence[dict[str, Any]], path: str) -> None:
    """Draw edge cut, HALO ratio and remote rows of each method; raises ConfigError without matplotlib."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: install atta[bench]") from error
    figures = [key for key in ("edge_cut", "halo_ratio", "remote_rows") if key in entries[0]]
    canvas, axes = plt.subplots(1, len(figures), figsize=(3.4 * len(figures), 3.0), layout="constrained")
    for axis, key in zip(axes, figures, strict=True):
        axis.bar([e["method"] for e in entries], [e[key] for e in entries], color="#4c78a8")
        axis.set_title(key.replace("_", " "))
        axis.tick_params(axis="x", rotation=45)
    save_figure(canvas, path)
    plt.close(canvas)


def save_figure(canvas: Any, path: str | Path) -> None:
    """Write a matplotlib figure in the format that the name's ending says (png without one), whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
        DiskFullError: there is no space left.
    """
    with StagedFile(path, overwrite=True) as partial:
        canvas.savefig(partial, dpi=150, format=Path(path).suffix.lstrip(".") or "png")
