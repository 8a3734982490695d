"""``atta partition --compare``: partition one graph by several methods and compare the results."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atta.cli.figures import BAR_COLOUR, figure
from atta.partition.cutting.run import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.methods import check_balance, make_method
from atta.samplers.local.predict import predict

__all__ = ["compare", "explain", "plot"]


def compare(
    src: str | Path,
    dst: str | Path,
    methods: Sequence[str],
    *,
    parts: int,
    num_neighbors: Sequence[int] = (),
    seed: int = 0,
    balance: Sequence[str] | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Write the datasets ``DST/METHOD`` and return one entry per method.

    An entry has ``method``, ``seconds``, ``edge_cut``, ``halo_ratio``, ``balance`` (maximum / mean, by what is
    balanced) and ``missed`` (a line for each bound that the method missed). With ``num_neighbors`` it also has
    ``remote_rows``, ``contested_rows`` (see ``Prediction``) and ``remote_bytes``. These three are per batch, means over
    the partitions.

    Raises:
        ConfigError: an unknown method, one that needs options, what cannot be balanced, or a folder that may not be
            written.
    """
    for name in methods:
        check_balance(make_method(name), balance)
    found: list[dict[str, Any]] = []
    for name in methods:
        say(f"{name} ({len(found) + 1} of {len(methods)})")
        started = time.perf_counter()
        target = Path(dst) / name
        made = partition_graph(src, target, parts=parts, method=name, seed=seed, balance=balance, overwrite=overwrite)
        dataset = Dataset.open(target, verify=False)
        entry: dict[str, Any] = {"method": name, "seconds": time.perf_counter() - started, "missed": made["missed"]}
        entry |= {key: dataset.quality[key] for key in ("edge_cut", "halo_ratio", "balance")}
        if num_neighbors:
            predicted = predict(dataset, num_neighbors, seed=seed)
            for key in ("remote_rows", "remote_bytes"):
                entry[key] = statistics.mean(getattr(p, key)[0] for p in predicted) if predicted else 0.0
            entry["contested_rows"] = statistics.mean(p.contested_rows for p in predicted) if predicted else 0.0
        found.append(entry)
    return found


def explain(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Say why other methods need more remote rows than the best one: because of their seeds, or of where rows lie."""
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
            f"{entry['method']}: {more:+,.0f} rows; {seeds:+,.0f} as its partitions' seeds ask for the same vertices"
            f" (hubs, split communities), {more - seeds:+,.0f} as rows lie elsewhere than where they are asked for most."
        )
    return lines


def plot(entries: Sequence[dict[str, Any]], path: str) -> None:
    """Draw edge cut, HALO ratio and, where they were predicted, remote rows of each method.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    drawn = [key for key in ("edge_cut", "halo_ratio", "remote_rows") if key in entries[0]]
    with figure(path, (3.4 * len(drawn), 3.0), columns=len(drawn)) as axes:
        for axis, key in zip(axes, drawn, strict=True):
            axis.bar([e["method"] for e in entries], [e[key] for e in entries], color=BAR_COLOUR)
            axis.set_title(key.replace("_", " "))
            axis.tick_params(axis="x", rotation=45)
