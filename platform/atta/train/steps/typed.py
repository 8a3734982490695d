"""The trainer of mini-batches of typed graphs, and learnable rows of node types in tables on the daemons."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import atta
from atta.client.tables.embedding import DistEmbedding
from atta.client.tables.rows import ascending_ids, rows_of_all
from atta.errors import ConfigError, DataError, blaming
from atta.kvstore.spec import Normal
from atta.samplers.dag.instance import chunk_range
from atta.train.checkpoint.files import NO_EMBEDDINGS, RunPlace, SavedEmbeddings
from atta.train.checkpoint.run import RankShare, load_shares
from atta.train.cooperative.halo import broadcast_bytes
from atta.train.meeting import run_here, tables_of
from atta.train.models.typed import TypedModel
from atta.train.reports.epochs import EpochReport
from atta.train.steps.minibatch import MinibatchTrainer
from atta.train.tasks.types import TypeReach, embedded_types, fan_outs_of


class TypedTrainer(MinibatchTrainer):
    """Trains a model of a typed graph for the vertices of one node type. ``embeddings``: rows of the types that learn them."""

    embeddings: TypeEmbeddings | None = None
    sums_rows = False

    @cached_property
    def reach(self) -> TypeReach:
        """The types that the model reads."""
        schema = self.cluster.schema
        return TypeReach.of(schema, self.node_type, self.config.depth, embed=embedded_types(schema, self.config))

    def begin_with(self, model: torch.nn.Module) -> None:
        """Makes the embeddings, too."""
        config, learnt = self.config, self.reach.learnt
        if learnt:
            self.embeddings = TypeEmbeddings(
                self.cluster, learnt, config.hidden,
                lr=config.embedding_lr or config.lr, seed=config.seed, rank=self.rank, world=self.world,
                device=self.device,
            )  # fmt: skip
            self.keeps_state = True
        super().begin_with(model)

    def build(self) -> torch.nn.Module:
        """The model, with new weights."""
        return TypedModel(self.config, self.reach, self.outputs)

    def seeds_in(self, data: Any) -> Any:
        return data[self.reach.target]

    def loader_options(self, *, train: bool) -> dict[str, Any]:
        """Evaluation has the fan-outs of training, unless it has its own."""
        config, schema = self.config, self.cluster.schema
        own = None if train else config.eval_num_neighbors
        fan_outs = (
            fan_outs_of(schema, config) if own is None else dict.fromkeys(schema.edge_types, config.eval_fan_outs)
        )
        tables = {t: ["x"] for t in self.reach.read(0) if self.reach.widths[t] is not None}
        hops = {name: list(hops) for name, hops in fan_outs.items()}
        return {"num_neighbors": hops, "tables": tables, **config.drawing(train=train)}

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        scores: torch.Tensor = model(*self.inputs(data))
        return scores

    def inputs(self, data: Any) -> tuple[Any, ...]:
        """What the model reads of a batch: rows, edges, and how many of both there are per hop."""
        edges = {e: data[e].edge_index for e in self.reach.edges(0)}
        return self._rows(data), edges, data.num_sampled_nodes, data.num_sampled_edges

    def _rows(self, data: Any) -> dict[str, torch.Tensor]:
        read, widths = self.reach.read(0), self.reach.widths
        learned: dict[str, torch.Tensor] = {}
        if self.embeddings is not None:
            learned = self.embeddings.rows({t: data[t].n_id for t in read if widths[t] is None})
        return {t: learned[t] if widths[t] is None else data[t].x.float() for t in read}

    def update_weights(self) -> None:
        """The gradient of the embeddings is this trainer's own, and is not clipped."""
        super().update_weights()
        if self.embeddings is not None:
            self.embeddings.step()

    def train_epoch(self, epoch: int) -> EpochReport:
        """Nothing is under way to the embeddings afterwards."""
        figures = super().train_epoch(epoch)
        self.settle()
        return figures

    def settle(self) -> None:
        if self.embeddings is not None:
            self.embeddings.settle()

    def fit(self) -> list[EpochReport]:
        """Gives the embeddings' memory back at the end."""
        epochs = super().fit()
        if self.embeddings is not None:
            self.embeddings.delete()
        return epochs

    def rank_state(self) -> dict[str, Any]:
        return {} if self.embeddings is None else self.embeddings.state()

    def load_rank_state(self, state: dict[str, Any]) -> None:
        if self.embeddings is not None:
            self.embeddings.load_states(str(self.config.checkpoint), [RankShare(self.rank, self.world, state)])

    def load_rank_states(self, folder: str, place: RunPlace) -> None:
        """Rows belong to vertices, so it does not matter which trainers have saved them."""
        if self.embeddings is not None:
            self.embeddings.load_states(folder, load_shares(folder, self.rank, self.world, place, self.device))

    def embedding_weights(self) -> SavedEmbeddings | None:
        return None if self.embeddings is None else self.embeddings.weights()

    def load_embedding_weights(self, saved: SavedEmbeddings) -> None:
        if self.embeddings is not None:
            self.embeddings.load_weights(saved)
        else:
            super().load_embedding_weights(saved)


LEASE_S = 900.0
"""After this time without a request the daemons drop the tables of a run that has died. Longer than a checkpoint takes
to be written."""
_SEEDS = 1 << 62


class TypeEmbeddings:
    """A ``DistEmbedding`` for each of some node types. All ranks make and use the same tables, which are the run's own.
    A vertex keeps its row with the daemon that owns it. Trainers push gradients without waiting for each other."""

    def __init__(
        self,
        cluster: atta.Cluster,
        node_types: Sequence[str],
        width: int,
        *,
        lr: float,
        seed: int,
        rank: int,
        world: int,
        device: torch.device,
    ) -> None:
        """Create or open the tables; every rank calls this. ``device``: of the process group's tensors. Raises
        QuotaExceededError: the daemons have no room for them (``atta serve --tables``)."""
        run = run_here()
        if rank == 0 and run:  # an attempt that failed may have left tables: they would stay until their lease ends
            for name in cluster.tables.specs():
                if name.startswith(tables_of(run)):
                    cluster.tables.delete(name)
        name = broadcast_bytes((run or uuid.uuid4().hex).encode(), 0, device).decode()
        self._cluster, self._rank, self._world, self._device = cluster, rank, world, device
        self._known: dict[str, np.ndarray | None] = {}
        self._tables = {
            node_type: DistEmbedding(
                cluster,
                cluster.schema.node_counts[node_type],
                width,
                name=f"{tables_of(name)}{number}",
                optimizer="adam",
                lr=lr,
                policy=f"nodes:{node_type}",
                init=Normal(0.0, 1.0, (seed * 31 + number) % _SEEDS),
                push="manual",
                lease_s=LEASE_S,
            )
            for number, node_type in enumerate(node_types)
        }

    def rows(self, n_ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """float32 [n, width] per type: the rows of the vertices with these ids. All are asked for at once."""
        for node_type, n_id in n_ids.items():
            self._tables[node_type].prefetch(n_id)
        return {node_type: self._tables[node_type](n_id) for node_type, n_id in n_ids.items()}

    def step(self) -> None:
        """Begin to push what backward passes have found since the last step."""
        for table in self._tables.values():
            table.step()

    def settle(self) -> None:
        """Wait until the pushes of all ranks are applied; every rank calls this."""
        for table in self._tables.values():
            table.flush()
        dist.barrier()

    def state(self) -> dict[str, Any]:
        """This rank's share of rows and of the optimiser's state, by ascending ids, for its file of a checkpoint."""
        return {"tables": {node_type: self._state_of(node_type) for node_type in self._tables}}

    def _state_of(self, node_type: str) -> dict[str, Any]:
        table, every = self._tables[node_type], self._ids(node_type)
        share = chunk_range(table.num_embeddings, self._rank, self._world)
        ids = np.arange(share.start, share.stop) if every is None else every[share.start : share.stop]
        rows = self._cluster.tables.locate(f"nodes:{node_type}", ids)
        whose = {} if every is None else {"ids": torch.from_numpy(ids)}
        return {**whose, **table.pull_state(rows), "vertices": table.num_embeddings, "steps": table.steps}

    def load_states(self, folder: str, shares: Iterable[RankShare]) -> None:
        """Go on from what ``state`` has returned to trainers of a run; every rank calls this with some of them. Raises
        DataError: they are of other types or vertices."""
        steps = torch.zeros(len(self._tables), dtype=torch.int64, device=self._device)
        for share in shares:
            tables = share.state.get("tables")
            if not isinstance(tables, dict) or tables.keys() != self._tables.keys():
                there = _named(tables) if isinstance(tables, dict) else "no type"
                raise DataError(folder, f"has embeddings of {there}, this model those of {_named(self._tables)}")
            of_share = torch.tensor([self._load_share(folder, node_type, share) for node_type in self._tables])
            steps = torch.maximum(steps, of_share.to(steps))
        dist.all_reduce(steps, op=dist.ReduceOp.MAX)  # all rows are there, and a rank may have had no share to load
        for table, count in zip(self._tables.values(), steps.tolist(), strict=True):
            table.steps = count

    def _load_share(self, folder: str, node_type: str, share: RankShare) -> int:
        """Write a share of a type's rows and of their state; returns the number of steps."""
        try:
            saved = dict(share.state["tables"][node_type])
            rows = self._rows_saved(folder, node_type, share, saved)
            steps = int(saved.pop("steps"))
            self._tables[node_type].push_state(rows, saved)
        except (ConfigError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise DataError(
                folder, f"a file of trainer {share.rank} in it has no embeddings of {node_type} that fit: {error}"
            ) from error
        return steps

    def _rows_saved(self, folder: str, node_type: str, share: RankShare, saved: dict[str, Any]) -> np.ndarray:
        """int64 [n]: where the table has the rows of a share. Takes what tells this out of ``saved``."""
        ids, vertices = saved.pop("ids", None), saved.pop("vertices", None)
        part = chunk_range(vertices, share.rank, share.world)
        if ids is not None and (ids.dtype != torch.int64 or ids.shape != (len(part),)):
            raise ConfigError(f"{len(part)} rows, ids {ids.dtype} {list(ids.shape)}")
        given = np.arange(part.start, part.stop) if ids is None else ids.cpu().numpy()
        with blaming(DataError, folder, "the embeddings in it are of another graph", of=ConfigError):
            return rows_of_all(self._cluster, f"nodes:{node_type}", vertices, given)

    def weights(self) -> SavedEmbeddings:
        """All rows of every type."""
        ids = {t: torch.from_numpy(found) for t in self._tables if (found := self._ids(t)) is not None}
        rows = {}
        for node_type, table in self._tables.items():
            every = ids[node_type].numpy() if node_type in ids else np.arange(table.num_embeddings)
            rows[node_type] = table.pull_state(self._cluster.tables.locate(f"nodes:{node_type}", every))["weight"]
        return SavedEmbeddings(rows, ids)

    def load_weights(self, saved: SavedEmbeddings) -> None:
        """Begin with the rows of another run; every rank calls this. Raises DataError: they are of other types,
        vertices or widths."""
        if not saved.rows:
            raise DataError(saved.path, f"--init-from: {NO_EMBEDDINGS}")
        if saved.rows.keys() != self._tables.keys():
            raise DataError(
                saved.path,
                f"--init-from: has embeddings of {_named(saved.rows)}, this model those of {_named(self._tables)}",
            )
        places = {t: saved.places(self._cluster, t) for t in self._tables}
        if self._rank == 0:
            for node_type, table in self._tables.items():
                table.push_state(places[node_type], {"weight": saved.rows[node_type]})
        dist.barrier()

    def delete(self) -> None:
        """Give the daemons' memory back; every rank calls this when it does not need the tables any more."""
        self.settle()
        if self._rank == 0:
            for table in self._tables.values():
                self._cluster.tables.delete(table.name)

    def _ids(self, node_type: str) -> np.ndarray | None:
        if node_type not in self._known:
            self._known[node_type] = ascending_ids(self._cluster, f"nodes:{node_type}")
        return self._known[node_type]


def _named(types: Iterable[str]) -> str:
    return ", ".join(types) or "no type"
