"""Link prediction: GraphSAGE with a dot product, trained on batches of edges from two partitions.

    python examples/link_prediction.py --data ../shared/data/cora

``--data`` is a folder in the npz layout (docs/guide/importing.md), of one vertex and one edge type. Its undirected edges are
divided once, by a fixed seed: 85 % to train on, 5 % to choose the epoch, 10 % to test. Only the first are in the graph
that is partitioned, so no batch can contain an edge that is asked for later. Needs the extra ``atta[train]``.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.sparse import load_npz
from scipy.stats import rankdata
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import atta
from atta.observe.packages import machine, versions
from atta.partition import GraphWriter, partition_graph

Pairs = npt.NDArray[np.int64]  # [2, n]
SPLIT_SEED = 0


@dataclass(frozen=True)
class Links:
    """The division of a graph's undirected edges, each named once.

    Attributes:
        nodes: number of vertices.
        train: [2, n] edges of the graph that messages pass along, and the positives of training.
        val, test: [2, n] held-out edges.
        val_non, test_non: [2, n] as many pairs without an edge, drawn uniformly.
    """

    nodes: int
    train: Pairs
    val: Pairs
    test: Pairs
    val_non: Pairs
    test_non: Pairs

    @classmethod
    def of(cls, edge_index: Pairs, nodes: int) -> Links:
        """Divide the edges; self-loops are left out."""
        rng = np.random.default_rng(SPLIT_SEED)
        low, high = edge_index.min(axis=0), edge_index.max(axis=0)
        known = np.unique((low * nodes + high)[low != high])
        shuffled = rng.permutation(known)
        val, test = len(known) // 20, len(known) // 10
        drawn = rng.integers(0, nodes, (2, 4 * (val + test)))
        low, high = drawn.min(axis=0), drawn.max(axis=0)
        # Few random pairs are repeats or edges, so four times as many as needed leave enough.
        missing = rng.permutation(np.setdiff1d((low * nodes + high)[low != high], known))
        val_non, test_non = missing[:val], missing[val : val + test]
        chosen = (shuffled[val + test :], shuffled[:val], shuffled[val : val + test], val_non, test_non)
        return cls(nodes, *(np.stack(np.divmod(key, nodes)) for key in chosen))


def read(data: Path, dimensions: int) -> tuple[Links, npt.NDArray[np.float32]]:
    """The divided edges and the features of the graph in ``data``.

    Bags of words are divided by their sum. If ``dimensions`` is set, they are multiplied by a fixed random matrix with
    ``dimensions`` columns, which roughly keeps inner products. A batch of edges reaches a large part of a small graph,
    and thousands of columns of zeros would be most of its bytes.
    """
    sparse = data / "x_sparse.npz"
    x = load_npz(sparse) if sparse.exists() else np.load(data / "x.npy")
    total = np.abs(x).sum(axis=1)
    x = np.asarray(x.toarray() if sparse.exists() else x, dtype=np.float32)
    x /= np.maximum(np.asarray(total, dtype=np.float32).reshape(-1, 1), 1e-12)
    if dimensions:
        draws = np.random.default_rng(SPLIT_SEED).standard_normal((x.shape[1], dimensions), dtype=np.float32)
        x = x @ draws
    with np.load(data / "graph.npz") as arrays:
        return Links.of(arrays["edge_index"], len(x)), x


def prepare(links: Links, x: npt.NDArray[np.float32], name: str, work: Path, parts: int) -> Path:
    """Partition the graph of the training edges; returns the dataset. An existing dataset is used again."""
    dataset = work / f"{name}-links-{x.shape[1]}-{parts}p"
    if not (dataset / "manifest.json").exists():
        graph = work / f"{name}-links-{x.shape[1]}"
        source, target = message_edges(links)
        with GraphWriter(graph, overwrite=True) as writer:
            writer.add_nodes("node", links.nodes, tables={"x": x})
            writer.add_edges("node__to__node", source, target)
        partition_graph(graph, dataset, parts=parts, overwrite=True)
    return dataset


def message_edges(links: Links) -> Pairs:
    """The training edges in both directions."""
    return np.concatenate([links.train, links.train[::-1]], axis=1)


class LinkSage(nn.Module):
    """Embeddings of vertices. The larger the dot product of two embeddings, the likelier an edge."""

    def __init__(self, width: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.encoder = GraphSAGE(width, hidden, num_layers=layers, out_channels=hidden, dropout=dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Embeddings [vertices, hidden]."""
        embeddings: Tensor = self.encoder(x, edge_index)
        return embeddings


def loss_of(z: Tensor, pairs: Tensor, label: Tensor) -> Tensor:
    """Binary cross-entropy of the pairs [2, n] of rows of ``z``, labelled 1 (an edge) or 0."""
    return F.binary_cross_entropy_with_logits((z[pairs[0]] * z[pairs[1]]).sum(dim=-1), label)


def train(cluster: atta.Cluster, links: Links, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train once. The test figure is that of the epoch with the best validation figure."""
    torch.manual_seed(seed)
    started = time.time()
    width = cluster.schema.node_tables["node"]["x"].row_shape[0]
    layers = len(arguments.num_neighbors)
    model = LinkSage(width, arguments.hidden, layers, arguments.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    loader = atta.LinkNeighborLoader(
        cluster,
        num_neighbors=arguments.num_neighbors,
        edge_label_index=links.train,
        neg_sampling="binary",
        # A model that sees the edge that it predicts learns to look it up, and fails in the test.
        exclude_edges="reverse",
        batch_size=arguments.batch_size,
        shuffle=True,
        seed=seed,
        transform=atta.MiniBatch.to_pyg,
    )
    curve: list[dict[str, float]] = []
    best: dict[str, Any] = {}
    for epoch in range(1, arguments.epochs + 1):
        loss = sum(step(model, optimizer, batch) for batch in loader) / len(loader)
        if epoch % arguments.eval_every and epoch != arguments.epochs:
            continue
        z = embed(model, cluster, links.nodes, layers)
        curve.append({"epoch": epoch, "loss": loss, "val": auc(z, links.val, links.val_non)})
        if not best or curve[-1]["val"] > best["val"]:
            best = {"epoch": epoch, "val": curve[-1]["val"], "state": copy.deepcopy(model.state_dict())}
    model.load_state_dict(best["state"])
    return {
        "seed": seed,
        "best_epoch": best["epoch"],
        "val": best["val"],
        "test": auc(embed(model, cluster, links.nodes, layers), links.test, links.test_non),
        "seconds": round(time.time() - started, 1),
        "curve": curve,
    }


def step(model: LinkSage, optimizer: torch.optim.Optimizer, batch: Data) -> float:
    """One optimiser step on a batch of edges; returns the loss."""
    model.train()
    optimizer.zero_grad()
    loss = loss_of(model(batch.x, batch.edge_index), batch.edge_label_index, batch.edge_label)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def embed(model: LinkSage, cluster: atta.Cluster, nodes: int, layers: int) -> Tensor:
    """Embeddings of all vertices by id, [nodes, hidden], with all neighbours."""
    loader = atta.NeighborLoader(
        cluster,
        num_neighbors=[-1] * layers,
        input_nodes=np.arange(nodes),
        batch_size=4096,
        pad=False,
        rank=0,  # of several trainers, each evaluates everything
        world_size=1,
        transform=atta.MiniBatch.to_pyg,
    )
    model.eval()
    found: Tensor | None = None
    for batch in loader:
        z = model(batch.x, batch.edge_index)[: batch.batch_size]
        found = z.new_empty(nodes, z.shape[1]) if found is None else found
        found[batch.input_id] = z  # batches come in any order
    assert found is not None
    return found


def auc(z: Tensor, edges: Pairs, non_edges: Pairs) -> float:
    """Percent of (edge, non-edge) pairs that the dot product puts in the right order. A tie counts half."""
    rows = z.numpy()
    pairs = np.concatenate([edges, non_edges], axis=1)
    rank = rankdata((rows[pairs[0]] * rows[pairs[1]]).sum(axis=1))
    n, m = edges.shape[1], non_edges.shape[1]
    return 100 * (float(rank[:n].sum()) - n * (n + 1) / 2) / (n * m)


def parser() -> argparse.ArgumentParser:
    """The options; the benchmark takes its settings from here too."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, required=True, metavar="DIR", help="the graph, in the npz layout")
    made.add_argument("--work", type=Path, default=Path("data/examples"), help="where the partitioned graph goes")
    made.add_argument("--parts", type=int, default=2)
    made.add_argument(
        "--dimensions", type=int, default=0, help="number of columns to project the features to (0: do not)"
    )
    made.add_argument("--epochs", type=int, default=50)
    made.add_argument("--eval-every", type=int, default=5)
    made.add_argument("--batch-size", type=int, default=512, help="edges, besides as many negatives")
    made.add_argument("--num-neighbors", type=numbers, default=[15, 10], metavar="N,N", help="by hop; as many layers")
    made.add_argument("--hidden", type=int, default=64)
    made.add_argument("--dropout", type=float, default=0.3)
    made.add_argument("--lr", type=float, default=0.01)
    made.add_argument("--seeds", type=numbers, default=[0], metavar="N,N,...", help="one run each")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the runs, with settings and versions")
    return made


def numbers(text: str) -> list[int]:
    """``"15,10"`` as a list."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Run once per seed and print the mean."""
    arguments = parser().parse_args()
    links, x = read(arguments.data, arguments.dimensions)
    runs = []
    with atta.local(prepare(links, x, arguments.data.name, arguments.work, arguments.parts)) as cluster:
        for seed in arguments.seeds:
            run = train(cluster, links, arguments, seed)
            print(
                f"seed {seed}: test AUC {run['test']:.1f} at epoch {run['best_epoch']} ({run['seconds']} s)", flush=True
            )
            runs.append(run)
    tests = [run["test"] for run in runs]
    spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
    print(f"{arguments.data.name}: AUC {statistics.mean(tests):.1f} ± {spread:.1f}")
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if not isinstance(value, Path)}
        document = {"schema": 1, "example": "link_prediction", "graph": arguments.data.name, "settings": settings}
        document |= {"runs": runs, "machine": machine(), "versions": versions()}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
