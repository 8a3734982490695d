"""Node classification on a graph with several node and edge types: relational GraphSAGE over two partitions.

    python examples/hetero_nodes.py --data ../shared/data/acm_heco

``--data`` is a folder in the npz layout (docs/guide/importing.md): papers, authors and subjects of acm_heco, or dblp_hgb. It
is imported with reverse relations and partitioned into ``--work`` at the first run. Every vertex type has an
input layer of its own, which is an embedding if it has no features. Every relation has a SAGEConv. Needs the extra
``atta[train]``.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv

import atta
from atta.observe.packages import machine, versions
from atta.partition import Schema, partition_graph
from atta.partition.importers import import_graph

EdgeType = tuple[str, str, str]


class RelationalSage(nn.Module):
    """An input layer per vertex type, then one SAGEConv per relation and layer. Results are summed over relations."""

    def __init__(
        self,
        target: str,
        *,
        classes: int,
        counts: Mapping[str, int],
        widths: Mapping[str, int],
        edge_types: Sequence[EdgeType],
        hidden: int = 64,
        layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        """``counts``: number of vertices by type. ``widths``: number of features by type, for types with features."""
        super().__init__()
        self.target, self.dropout = target, dropout
        self.encoders = nn.ModuleDict({t: nn.Linear(width, hidden) for t, width in sorted(widths.items())})
        self.embeddings = nn.ModuleDict({t: nn.Embedding(n, hidden) for t, n in counts.items() if t not in widths})
        self.out = nn.Linear(hidden, classes)
        self.convs = nn.ModuleList(
            nn.ModuleDict({"__".join(e): SAGEConv((hidden, hidden), hidden) for e in relations})
            for relations in useful_relations(target, sorted(edge_types), layers)
        )

    def forward(self, data: HeteroData) -> Tensor:
        """Logits [vertices, classes] of the target type; ``data`` is a batch or a whole graph with ``n_id``."""
        x = {t: self._input(data[t], t) for t in data.node_types}
        layer: Any
        for layer in self.convs:
            x = {t: self._drop(h) for t, h in x.items()}
            sums: dict[str, Tensor] = {}
            for name, conv in layer.items():
                source, _, destination = edge_type = relation(name)
                message = conv((x[source], x[destination]), data[edge_type].edge_index)
                sums[destination] = sums[destination] + message if destination in sums else message
            x = {t: F.relu(h) for t, h in sums.items()}
        logits: Tensor = self.out(self._drop(x[self.target]))
        return logits

    def _input(self, store: Any, node_type: str) -> Tensor:
        if node_type in self.embeddings:
            # Ids are the user's own, so they name the same row in every batch.
            embedded: Tensor = self.embeddings[node_type](store.n_id)
            return embedded
        return F.relu(self.encoders[node_type](self._drop(store.x)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def useful_relations(target: str, edge_types: Sequence[EdgeType], layers: int) -> list[list[EdgeType]]:
    """Relations by layer, from the first layer on. Only relations whose results reach the target type at the end.

    A batch has no edges of other relations: they are further from the seeds than it has hops.
    """
    found: list[list[EdgeType]] = []
    read = {target}
    for _ in range(layers):
        found.insert(0, [e for e in edge_types if e[2] in read])
        read |= {e[0] for e in found[0]}
    return found


def prepare(data: Path, work: Path, parts: int) -> Path:
    """Import and partition; returns the dataset. An existing dataset is used again."""
    dataset = work / f"{data.name}-{parts}p"
    if not (dataset / "manifest.json").exists():
        import_graph("npz", data, work / data.name, undirected=True, overwrite=True)
        partition_graph(work / data.name, dataset, parts=parts, overwrite=True)
    return dataset


def model_for(schema: Schema, hidden: int, layers: int, dropout: float) -> RelationalSage:
    """The model of a partitioned graph, sized by its schema."""
    target = target_of(schema)
    tables = {t: schema.node_tables[t] for t in schema.node_types}
    widths = {t: tables[t]["x"].row_shape[0] for t in schema.node_types if "x" in tables[t]}
    assert schema.num_classes is not None
    return RelationalSage(
        target,
        classes=schema.num_classes,
        counts=schema.node_counts,
        widths=widths,
        edge_types=[relation(e) for e in schema.edge_types],
        hidden=hidden,
        layers=layers,
        dropout=dropout,
    )


def target_of(schema: Schema) -> str:
    """The vertex type that is labelled."""
    found: str = next(t for t in schema.node_types if "train" in schema.splits[t])
    return found


def relation(edge_type: str) -> EdgeType:
    """``"a__to__b"`` as PyG writes it."""
    source, name, target = edge_type.split("__")
    return source, name, target


def train(cluster: atta.Cluster, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train once. The test accuracy is that of the epoch with the best validation accuracy."""
    torch.manual_seed(seed)
    started, schema = time.time(), cluster.schema
    target = target_of(schema)
    model = model_for(schema, arguments.hidden, len(arguments.num_neighbors), arguments.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    loader = atta.NeighborLoader(
        cluster,
        # Fan-outs by relation: each could have its own, here all have the same.
        num_neighbors={relation(e): arguments.num_neighbors for e in schema.edge_types},
        input_nodes=(target, "train"),
        batch_size=arguments.batch_size,
        shuffle=True,
        seed=seed,
        transform=atta.MiniBatch.to_pyg,
    )
    curve: list[dict[str, float]] = []
    best: dict[str, Any] = {}
    for epoch in range(1, arguments.epochs + 1):
        loss = sum(step(model, optimizer, batch, target) for batch in loader) / len(loader)
        if epoch % arguments.eval_every and epoch != arguments.epochs:
            continue
        curve.append({"epoch": epoch, "loss": loss, "val": accuracy(model, cluster, "val")})
        if not best or curve[-1]["val"] > best["val"]:
            best = {"epoch": epoch, "val": curve[-1]["val"], "state": copy.deepcopy(model.state_dict())}
    model.load_state_dict(best["state"])
    return {
        "seed": seed,
        "best_epoch": best["epoch"],
        "val": best["val"],
        "test": accuracy(model, cluster, "test"),
        "seconds": round(time.time() - started, 1),
        "curve": curve,
    }


def step(model: RelationalSage, optimizer: torch.optim.Optimizer, batch: HeteroData, target: str) -> float:
    """One optimiser step on a batch; returns the loss."""
    model.train()
    optimizer.zero_grad()
    seeds = batch[target].batch_size  # the first vertices of the target type
    loss = F.cross_entropy(model(batch)[:seeds], batch[target].y[:seeds])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def accuracy(model: RelationalSage, cluster: atta.Cluster, split: str) -> float:
    """Percent of a split that is classified right, with all neighbours."""
    right = total = 0
    for logits, batch in predictions(model, cluster, split):
        right += int((logits.argmax(dim=-1) == batch.y[: len(logits)]).sum())
        total += len(logits)
    return 100 * right / total


@torch.no_grad()
def predictions(model: RelationalSage, cluster: atta.Cluster, split: str) -> Iterator[tuple[Tensor, Any]]:
    """Logits of the seeds of each batch, and the target type's part of the batch; no neighbour is left out."""
    target = target_of(cluster.schema)
    loader = atta.NeighborLoader(
        cluster,
        num_neighbors=[-1] * len(model.convs),
        input_nodes=(target, split),
        batch_size=1024,
        pad=False,  # padding would count some vertices twice
        rank=0,  # of several trainers, each evaluates everything
        world_size=1,
        transform=atta.MiniBatch.to_pyg,
    )
    model.eval()
    for batch in loader:
        yield model(batch)[: batch[target].batch_size], batch[target]


def parser() -> argparse.ArgumentParser:
    """The options; the benchmark takes its settings from here too."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, required=True, metavar="DIR", help="the graph, in the npz layout")
    made.add_argument("--work", type=Path, default=Path("data/examples"), help="where the partitioned graph goes")
    made.add_argument("--parts", type=int, default=2)
    made.add_argument("--epochs", type=int, default=100)
    made.add_argument("--eval-every", type=int, default=5)
    made.add_argument("--batch-size", type=int, default=64)
    made.add_argument("--num-neighbors", type=numbers, default=[10, 10], metavar="N,N", help="by hop; as many layers")
    made.add_argument("--hidden", type=int, default=64)
    made.add_argument("--dropout", type=float, default=0.5)
    made.add_argument("--lr", type=float, default=0.005)
    made.add_argument("--seeds", type=numbers, default=[0], metavar="N,N,...", help="one run each")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the runs, with settings and versions")
    return made


def numbers(text: str) -> list[int]:
    """``"10,10"`` as a list."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Run once per seed and print the mean."""
    arguments = parser().parse_args()
    runs = []
    with atta.local(prepare(arguments.data, arguments.work, arguments.parts)) as cluster:
        for seed in arguments.seeds:
            run = train(cluster, arguments, seed)
            print(
                f"seed {seed}: test accuracy {run['test']:.1f} at epoch {run['best_epoch']} ({run['seconds']} s)",
                flush=True,
            )
            runs.append(run)
    tests = [run["test"] for run in runs]
    spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
    print(f"{arguments.data.name}: {statistics.mean(tests):.1f} ± {spread:.1f}")
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if not isinstance(value, Path)}
        document = {"schema": 1, "example": "hetero_nodes", "graph": arguments.data.name, "settings": settings}
        document |= {"runs": runs, "machine": machine(), "versions": versions()}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
