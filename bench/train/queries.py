"""Queries about single vertices beside plain PyG in one process, and beside empty calls over the same transport.

    python -m bench.train.queries [--graph DIR] [--data DIR] [--callers 32] [--seconds 10] [--rounds 3]

Embeddings over two hops: in a table (``table``), from all in-neighbours (``computed``), from 10,10 of them (``sampled``);
``pyg``: by ``k_hop_subgraph``, one after another; ``empty``: calls of gRPC that do nothing. Callers are threads of this
process, one vertex each. Then they pause so that half of the rate comes.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import atta
from atta.partition.graph import Graph
from atta.protos.v1 import session_pb2
from atta.train.checkpoint.files import load_model
from atta.train.models.layers import saved_model
from atta_bench.results import ROOT, BenchReport, arguments_of, write_report
from atta_bench.train.inference import write_checkpoint

WAYS = {"table": ("--table", "followed"), "computed": (), "sampled": ("--fan-out", "10,10")}
TOLERANCE = 1e-4


def load(ask: Callable[[int], Any], callers: int, seconds: float) -> dict[str, float]:
    """Queries per second of callers that do nothing else, and times at half of that, in milliseconds."""

    def call(number: int, pause_s: float) -> list[float]:
        rng, took, until = np.random.default_rng(number), list[float](), time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            ask(int(rng.integers(1 << 30)))
            took.append(1e3 * (time.perf_counter() - began))
            time.sleep(max(0.0, rng.exponential(pause_s) - took[-1] / 1e3) if pause_s else 0.0)
        return took

    with ThreadPoolExecutor(callers) as threads:
        whole = [took for some in threads.map(call, range(callers), [0.0] * callers) for took in some]
        rate = len(whole) / seconds
        half = [took for some in threads.map(call, range(callers), [2 * callers / rate] * callers) for took in some]
    p50, p99 = np.percentile(half, [50, 99])
    return {"queries_per_s": rate, "half_load_per_s": len(half) / seconds, "p50_ms": float(p50), "p99_ms": float(p99)}


def plain(graph: Graph, checkpoint: Path) -> Callable[[int], Any]:
    """The same embedding by PyG alone, of the vertex whose number is the remainder."""
    import torch
    from torch_geometric.utils import k_hop_subgraph

    x, edges = torch.from_numpy(np.array(graph.table("node", "x"))), graph.edges(graph.schema.edge_types[0])
    index = torch.from_numpy(np.stack([edges.src, edges.dst]).astype(np.int64))
    model: Any = saved_model(load_model(checkpoint), x.shape[1]).eval()

    @torch.no_grad()
    def embedding(number: int) -> Any:
        near, inside, place, _ = k_hop_subgraph([number % len(x)], 2, index, relabel_nodes=True, num_nodes=len(x))
        rows = x[near]
        for conv in model.convs[:-1]:
            rows = model.act(conv(rows, inside))
        return rows[place]

    return embedding


def measure(report: BenchReport, way: str, daemons: atta.LocalCluster, embedding: Callable[[int], Any]) -> None:
    """A round of one way, and with the table of empty calls and PyG. Raises SystemExit: rows differ from PyG's."""
    vertices, turns = daemons.schema.node_counts["node"], itertools.cycle(daemons._connections)
    callers, seconds = report.config["callers"], report.config["seconds"]
    far = max(float(abs(daemons.predict([v]).values - embedding(v).numpy()).max()) for v in range(20))
    if way != "sampled" and far > TOLERANCE:
        raise SystemExit(f"{way}: rows differ from PyG's by {far}")
    report.add(way, load(lambda number: daemons.predict([number % vertices]), callers, seconds))
    if way == "table":
        renew = "SessionService.Renew", session_pb2.RenewRequest()
        report.add("empty", load(lambda _: next(turns).pinned().call(*renew), callers, seconds))
        report.add("pyg", load(embedding, 1, seconds))


def main() -> None:
    """Measure, and write the record."""
    data = {"graph": ROOT / "data/powerlaw-245k", "data": ROOT / "data/powerlaw-245k-2p"}
    arguments = arguments_of(__file__, __doc__, **data, callers=32, seconds=10.0, rounds=3)
    config = {"callers": arguments.callers, "seconds": arguments.seconds}
    report = BenchReport("queries", config, ours="table", costs=frozenset({"p50_ms", "p99_ms"}))
    graph = Graph.open(arguments.graph, verify=False)
    with tempfile.TemporaryDirectory(prefix="atta-queries-") as folder:
        model = Path(folder)
        write_checkpoint(model, graph.table("node", "x").shape[1])
        for _, (way, more) in itertools.product(range(arguments.rounds), WAYS.items()):
            options = ("--model", str(model), *more)
            with atta.local(arguments.data, threads=1, verify=False, options=options) as daemons:
                if way == "table":
                    atta.predict(daemons, model, table="followed")
                measure(report, way, daemons, plain(graph, model))
            print(way, report.rounds[way][-1], flush=True)
    document = report.to_json() | {"title": "Queries about single vertices", "about": __doc__.split("\n\n")[2]}
    write_report(arguments.out / "queries.json", document, arguments.typed)


if __name__ == "__main__":
    main()
