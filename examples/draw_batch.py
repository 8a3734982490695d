"""Draw a sampled mini-batch. The graph, Zachary's karate club, and the batch are both networkx graphs.

    python examples/draw_batch.py --out batch.png

Colours show how many hops a vertex is away from the seeds. Needs matplotlib: install ``atta[plot]``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np

import atta
from atta.partition import partition_graph


def main() -> None:
    """Sample one batch and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("batch.png"), help="the picture")
    parser.add_argument(
        "--seeds", type=lambda text: [int(v) for v in text.split(",")], default=[0, 33], help="vertices"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        atta.from_networkx(nx.karate_club_graph(), Path(folder, "graph"), drop=["club"])
        partition_graph(Path(folder, "graph"), Path(folder, "data"), parts=2, method="random")
        with atta.local(Path(folder, "data"), threads=1) as cluster:
            loader = atta.NeighborLoader(cluster, [3, 2], np.array(options.seeds), batch_size=len(options.seeds))
            (batch,) = loader
            graph = batch.to_networkx()
    draw(graph, options.out)
    print(f"{options.out}: {graph.number_of_nodes()} vertices, {graph.number_of_edges()} edges")


def draw(graph: nx.MultiDiGraph, path: Path) -> None:
    """Write a picture of the batch."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    hops = [hop for _, hop in graph.nodes(data="hop")]
    nx.draw_networkx(
        graph, nx.spring_layout(graph, seed=1), node_color=hops, cmap="viridis_r", font_color="white", node_size=500
    )
    plt.axis("off")
    plt.savefig(path, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
