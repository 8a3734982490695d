"""The graph that is measured and its partitionings. Both take long to make, and are kept in the work folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph import MANIFEST, Graph
from atta_bench.peers.source import fingerprint

__all__ = ["GraphSource", "graph_folder", "partitioned", "sizes"]


@dataclass(frozen=True)
class GraphSource:
    """Which graph is measured, and how it is cut.

    Attributes:
        graph: graph folder; None: a power-law graph is generated.
        nodes, edges, features: size of the generated graph: vertices, edges (about), columns of float32.
        method: partitioning method.
        seed: of generating and cutting.
    """

    graph: str | None = None
    nodes: int = 244_903
    edges: int = 12_000_000
    features: int = 100
    method: str = "metis"
    seed: int = 0

    @property
    def generated(self) -> GenerateOptions:
        """What to generate."""
        classes = min(47, self.nodes)
        return GenerateOptions(self.nodes, self.edges, features=self.features, classes=classes, seed=self.seed)


def graph_folder(source: GraphSource, work: Path, say: Callable[[str], None]) -> Path:
    """The graph, generated if need be.

    Raises:
        ConfigError: the size of the graph makes no sense.
        DataError: there is no graph in the folder.
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


def partitioned(graph: Path, parts: int, source: GraphSource, work: Path, say: Callable[[str], None]) -> Path:
    """The graph cut into ``parts`` partitions, cut now if need be."""
    folder = work / f"{fingerprint(graph)}-{source.method}-{source.seed}-{parts}p"
    if not folder.exists():
        say(f"cutting the graph into {parts} partitions by {source.method}")
        work.mkdir(parents=True, exist_ok=True)
        partition_graph(graph, folder, parts=parts, method=source.method, seed=source.seed, verify=False)
    Dataset.open(folder, parts=[], verify=False)
    return folder


def sizes(source: GraphSource, graph: Path) -> dict[str, object]:
    """What the record says about the graph."""
    schema = Graph.open(graph, verify=False).schema
    named = {"generated": asdict(source.generated)} if source.graph is None else {"graph": source.graph}
    return {**named, "method": source.method, "vertices": schema.node_counts, "edges": schema.edge_counts}
