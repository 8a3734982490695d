"""What trainers of embeddings share: batches, embeddings of many vertices, and how good these are at telling classes
apart, by linear evaluation on a dataset's splits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import atta
from atta.client.loaders.seeds import InputNodes
from atta.client.sessions.cursor import Cursor
from atta.errors import ConfigError
from atta.partition.names import join_edge_type
from atta.train.steps.minibatch import MinibatchTrainer
from atta.train.steps.timing import Stopwatch, on_device
from atta.train.tasks.edges import everywhere
from atta.train.tasks.splits import Split, without_held_out
from atta.train.tasks.task import Objective
from atta.train.tasks.types import EdgeTriple
from atta.train.tasks.vertices import CLASSES

_SECTION = 1 << 20
"""Most edges per session: their ends go to the daemon in one message."""


class EdgeBatches:
    """The batches of edges, one epoch per iteration. A long list is cut into sections at random."""

    def __init__(
        self,
        cluster: atta.Cluster,
        hops: Any,
        edge_type: str,
        ends: np.ndarray,
        labels: np.ndarray | None = None,
        **options: Any,
    ) -> None:
        """ends: int64 [2, edges] user ids; labels: [edges], or None; hops, options: of ``atta.LinkNeighborLoader``."""
        seed, count = int(options.pop("seed")), max(1, -(-ends.shape[1] // _SECTION))
        order = np.arange(ends.shape[1])
        if count > 1:
            order, options["epochs"] = np.random.default_rng(seed).permutation(ends.shape[1]), None
        self._first = 0  # the section that the next iteration begins with
        self._loaders = [
            atta.LinkNeighborLoader(
                cluster, hops, (edge_type, ends[:, part]), seed=(seed + number) % (1 << 63),
                edge_label=None if labels is None else labels[part], **options,
            )
            for number, part in enumerate(np.array_split(order, count))
        ]  # fmt: skip

    def __len__(self) -> int:
        return sum(map(len, self._loaders))

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, 0
        for loader in self._loaders[first:]:
            yield from loader

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch."""
        self._first = 0
        for loader in self._loaders:
            loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration is, as ``DagLoader.state_dict`` says it; batches count over all sections."""
        places = [Cursor.from_state(loader.state_dict()) for loader in self._loaders]
        epoch = min(place.epoch for place in places)
        done = (len(loader) if p.epoch > epoch else p.batch for loader, p in zip(self._loaders, places, strict=True))
        return replace(places[0], request=_digest(places), epoch=epoch, batch=sum(done), tables_version=None).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin where ``state`` says. Raises ConfigError: it is none, or of other batches."""
        whole = Cursor.from_state(state)
        places = [Cursor.from_state(loader.state_dict()) for loader in self._loaders]
        if whole.request != _digest(places) or whole.batch > len(self):
            raise ConfigError("state of a loader: it belongs to a loader with other batches (dataset or arguments)")
        self.set_epoch(whole.epoch)
        left = whole.batch
        for number, (loader, place) in enumerate(zip(self._loaders, places, strict=True)):
            if left < len(loader):
                loader.load_state_dict(replace(place, epoch=whole.epoch, batch=left).to_state())
                return
            loader.set_epoch(whole.epoch + 1)
            left, self._first = left - len(loader), number + 1


def _digest(places: Sequence[Cursor]) -> str:
    """What decides the batches of all sections."""
    return hashlib.sha256(" ".join(place.request for place in places).encode()).hexdigest()


class EmbeddingTrainer(MinibatchTrainer):
    """Trains a model whose outputs are embeddings. held_out: tells the edges that the model may not read, if any;
    divided: their types and those of their reverses, of a typed graph."""

    sums_rows = False
    held_out: Split | None = None
    divided: Sequence[EdgeTriple] = ()

    @property
    def edge_type(self) -> str:
        """Of the edges that are divided."""
        return self.config.edge_type or self.cluster.schema.edge_types[0]

    def readable(self, data: Any) -> Any:
        """PyG's data of a batch without the edges that the model may not read."""
        return data if self.held_out is None else without_held_out(data, self.held_out, self.divided)

    def applied(self, model: torch.nn.Module, data: Any, places: torch.Tensor | None = None) -> Any:
        """What a model says of what it may read of a batch; ``places``: those that are scored."""
        data = self.readable(data)
        return model(*self.inputs(data), places=places, edge_weight=data.get("edge_weight"))

    def loader_options(self, *, train: bool) -> dict[str, Any]:
        names = [] if self.held_out is None else list(self.held_out.tables)
        tables: Any = {join_edge_type(*e): names for e in self.divided} if self.divided else names
        return {**super().loader_options(train=train), "edge_tables": tables}

    def batch_options(self, *, train: bool) -> dict[str, Any]:
        """What all loaders of this trainer are told, also by ``loader_options``."""
        config = self.config
        return {
            **{"rank": self.rank, "world_size": self.world, "seed": config.seed, "seed_policy": config.seed_policy},
            **{"batch_size": config.batch_size if train else config.eval_batch_size or config.batch_size},
            **{"shuffle": train, "pad": train, "epochs": config.epochs if train else None, "edge_ids": False},
            "job": f"train-{config.task if train else 'embeddings'}-{os.getpid()}",
            **self.loader_options(train=train),
        }

    def edge_batches(
        self, ends: np.ndarray, labels: np.ndarray | None = None, *, train: bool = True, **options: Any
    ) -> EdgeBatches:
        """The batches of some edges, int64 [2, edges] user ids; raises ConfigError if there are too few to train."""
        if train and ends.shape[1] < self.world:
            pairs = f"{ends.shape[1]} training edges for {self.world} trainers"
            raise ConfigError(f"--task {self.config.task}: {pairs}")
        if not train:  # they are held out anyway, and what is left out must not depend on which edges share a batch
            options["exclude_edges"] = None
        given = {**self.batch_options(train=train), "reverse_type": self.config.reverse_type, **options}
        return EdgeBatches(self.cluster, given.pop("num_neighbors"), self.edge_type, ends, labels, **given)

    def embedded(self, nodes: InputNodes, title: str, **options: Any) -> Iterator[tuple[Any, Any]]:
        """Batches of this rank's share of some vertices, and the embeddings of each one's seeds, on its device."""
        loader = atta.NeighborLoader(self.cluster, input_nodes=nodes, **{**self.batch_options(train=False), **options})
        batches = iter(loader)  # before len(), which then knows the number of batches
        with self.display.batches(f"  {title}", len(loader)) as advance:
            for _, data in on_device(batches, self.device, Stopwatch(self.device)):
                yield data, self.applied(self.model, data)
                advance()

    def embed_all(self, node_type: str, ids: np.ndarray) -> torch.Tensor:
        """float32 [vertices, outputs] of all vertices of a type, whose user ids [vertices] ascend; every rank calls this."""
        found = torch.zeros(len(ids), self.outputs, device=self.device)
        for data, drawn in self.embedded((node_type, None), node_type):
            n_id, rows = (data[node_type].n_id, drawn[node_type]) if self.divided else (data.n_id, drawn)
            places = np.searchsorted(ids, n_id[: len(rows)].cpu().numpy())
            found[torch.from_numpy(places).to(self.device)] = rows
        dist.all_reduce(found)
        return found


_STEPS = 500
_PENALTY = 1.0


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier of embeddings, which are centred by ``mean`` and divided by ``scale`` [width]; ``weight``
    [classes, width], ``bias`` [classes], all float64."""

    mean: torch.Tensor
    scale: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def fit(cls, rows: torch.Tensor, targets: torch.Tensor, classes: int) -> LinearProbe:
        """The minimum of the sum of cross entropies plus half the squared norm of the weights, without the biases:
        scikit-learn's ``LogisticRegression()`` on columns of mean 0 and variance 1. rows: float [n, width]; targets: int64 [n].
        """
        rows = rows.detach().double()
        mean, scale = rows.mean(0), rows.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        x = (rows - mean) / scale
        weight = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
        bias = torch.zeros(classes, dtype=x.dtype, device=x.device, requires_grad=True)
        solver = torch.optim.LBFGS(
            [weight, bias], max_iter=_STEPS, tolerance_grad=1e-7, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure() -> torch.Tensor:
            solver.zero_grad()
            total = cross_entropy(x @ weight.T + bias, targets, reduction="sum")
            # Divided by n: the step lengths that the solver tries first do not depend on the number of vertices.
            loss: torch.Tensor = (total + _PENALTY / 2 * weight.square().sum()) / len(x)
            loss.backward()
            return loss

        with torch.enable_grad():
            solver.step(closure)
        return cls(mean, scale, weight.detach(), bias.detach())

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        """float64 [n, classes] of embeddings [n, width]."""
        return (rows.double() - self.mean) / self.scale @ self.weight.T + self.bias


def class_tallies(trainer: EmbeddingTrainer, node_type: str, splits: Sequence[str]) -> dict[str, list[float]]:
    """Fit a linear classifier to embeddings of the training vertices, and tally what it says of ``splits``. Every rank
    calls this, and does the same with the embeddings of all ranks."""
    number = trainer.cluster.schema.num_classes or 0
    rows, targets = _labelled(trainer, node_type, "train")
    probe = LinearProbe.fit(rows, targets, number)
    objective = Objective(CLASSES, number)
    found = {}
    for split in splits:
        rows, targets = _labelled(trainer, node_type, split)
        found[split] = [float(n) for n in objective.tally(probe.scores(rows), targets).tolist()]
    return found


def _labelled(trainer: EmbeddingTrainer, node_type: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings and classes of a split's vertices that have one, of all ranks, by user id."""
    whole = torch.zeros(0, dtype=torch.int64, device=trainer.device)
    found = [[whole], [torch.zeros(0, trainer.outputs, device=trainer.device)], [whole]]
    for data, rows in trainer.embedded((node_type, split), split, seed_tables=["y"]):
        n = len(rows)
        for column, part in zip(found, (data.n_id[:n], rows, CLASSES.targets(data.y[:n])), strict=True):
            column.append(part)
    ids, rows, targets = (everywhere(torch.cat(column)) for column in found)
    order = ids.argsort()
    order = order[CLASSES.known(targets[order])]
    return rows[order], targets[order]
