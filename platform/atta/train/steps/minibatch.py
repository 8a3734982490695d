"""The trainer of sampled mini-batches: what one rank does in an epoch."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from math import exp, prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import atta
from atta.errors import AttaError, ConfigError, DataError
from atta.partition.schema import TableSpec
from atta.train.checkpoint.files import RunPlace
from atta.train.checkpoint.run import PartialEpoch, random_state, set_random_state
from atta.train.exchange.policies import Cut, doubt
from atta.train.launching.check import part_to_check
from atta.train.loop import EpochLoop
from atta.train.models import SampledModel, build_model, compile_in_place
from atta.train.models.exactness import check_on
from atta.train.models.remedies import weighted
from atta.train.reports.epochs import PHASES, EpochReport
from atta.train.settings.minibatch import MinibatchSettings
from atta.train.steps.step import SyncClock, step_parts, timed_all_reduce, timed_step
from atta.train.steps.timing import Stopwatch, add_daemon_time, on_device

LONGEST_CHECK_S = 1.0
"""Parts of the check of a model that have not begun by then are left out."""


AGGREGATES = {"sage": "mean", "gcn": "sum"}
"""What the first layers of models make of the rows of in-neighbours; edges of a GCN have its weights."""
_ROW_NS, _BYTE_NS = 20.0, 0.06
_COPY_BYTE_NS = 0.1  # from host to GPU
_LEARNT = TableSpec("<f4")  # rows of a type without features


def summing_pays(edges: int, vertices: int, row_bytes: int, gpu: bool) -> bool:
    """Whether batches with so many edges in their last hop, of a graph with so many ``vertices``, come sooner with sums than
    with rows. A daemon reads a row for each edge in place of one for each vertex. Else a trainer without a GPU would read
    as many; a GPU is so fast that only the copy to it counts."""
    rows = vertices * (1 - exp(-edges / max(1, vertices)))
    each = _ROW_NS + _BYTE_NS * row_bytes
    spared = rows * _COPY_BYTE_NS * row_bytes if gpu else edges * each
    return edges * each < rows * each + spared


def aggregate_of(
    config: MinibatchSettings, features: TableSpec, vertices: int, *, gpu: bool, able: bool = True
) -> str | None:
    """How daemons sum the rows of the last hop, if they do: ``aggregate`` of loaders. ``able``: whether model and trainer
    take sums. Raises ConfigError: ``--aggregate on`` does not go with the model, the task or the features."""
    found = AGGREGATES.get(config.model) if able else None
    if config.aggregate == "on" and (found is None or features.dtype != "<f4"):
        what = f"features of {features.dtype}" if found else f"--model {config.model}, --task {config.task} here"
        raise ConfigError(f"--aggregate on: not with {what}; sums are of float32, for the first layer of sage and gcn")
    if config.aggregate == "off" or found is None or features.dtype != "<f4":
        return None
    count = config.batch_size * prod(abs(k) for k in config.fan_outs)
    return found if config.aggregate == "on" or summing_pays(count, vertices, features.row_bytes, gpu) else None


class MinibatchTrainer(EpochLoop[MinibatchSettings]):
    """Trains on sampled mini-batches under DDP. ``sums_rows``: whether its loaders may aggregate."""

    sums_rows: ClassVar[bool] = True

    def __init__(self, config: MinibatchSettings, cluster: atta.Cluster, device: torch.device) -> None:
        super().__init__(config, cluster, device)
        torch.manual_seed(config.seed)
        self.begin_with(self.build())
        if config.compile:
            compile_in_place(self.model, device)
        self.parallel = DistributedDataParallel(
            self.model, device_ids=[device.index] if device.type == "cuda" else None
        )
        able = isinstance(self.model, SampledModel) and self.sums_rows
        schema, gpu = cluster.schema, device.type == "cuda"
        features = schema.node_tables[self.node_type].get("x", _LEARNT)
        self.aggregate = aggregate_of(config, features, schema.node_counts[self.node_type], gpu=gpu, able=able)
        self._clock = SyncClock(Stopwatch(device))
        self.parallel.register_comm_hook(self._clock, timed_all_reduce)
        self.train_loader = self.train_batches()

    def fit(self) -> list[EpochReport]:
        """As ``EpochLoop``. Rank 0 says before in a line if the model gives on batches what it does not give on the graph."""
        counts = self.cluster.schema.edge_counts, self.cluster.schema.node_counts
        edges, vertices = (sum(found.values()) for found in counts)
        if len(counts[0]) == 1 and (said := doubt(self.config, Cut(0.0, degree=edges / max(1, vertices)))):
            self.display.line(f"warning: {said}")
        if self.rank == 0 and isinstance(self.model, SampledModel) and not self.config.compile:
            with suppress(AttaError), torch.random.fork_rng(devices=[]):
                self._say_difference(copy.deepcopy(self.model).cpu().eval())
        return super().fit()

    def _say_difference(self, model: SampledModel) -> None:
        hops = len(self.config.fan_outs)
        graph, seeds = part_to_check(self.cluster, "x", [], self.config.seed)
        graph, norm = replace(graph, x=graph.x.float()), self.norms.get("edge_norm")
        sample = (graph if norm is None else weighted(graph, norm)).batch(seeds, [-1] * hops)
        per_hop = np.diff([0, *sample.nodes]).tolist(), np.diff(sample.edges).tolist()
        with torch.no_grad():
            wanted = model.gnn(graph.x, graph.edge_index)[seeds]
            weight = sample.edge.get("edge_weight")
            found = SampledModel.forward(model, sample.x, sample.edge_index, *per_hop, edge_weight=weight)
        if not torch.allclose(found, wanted, rtol=0, atol=float(1e-4 * wanted.abs().max())):
            self.display.line(check_on(model.gnn, graph, seeds, hops, draws=0, seconds=LONGEST_CHECK_S).line)

    def train_batches(self) -> Any:
        """The batches of training, one epoch per iteration; raises ConfigError if there are none."""
        loader = self._loader("train", self.config.batch_size, train=True)
        if not len(loader):
            raise ConfigError("the dataset has no training vertices")
        return loader

    def build(self) -> torch.nn.Module:
        """The model, with new weights."""
        return build_model(self.config, self.channels, self.outputs)

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """[batch_size, outputs]: the model's output for the seeds of a batch, given as PyG's data."""
        given = {name: data.get(name) for name in ("edge_weight", "aggregated")}
        scores: torch.Tensor = model(*self.inputs(data), **given)
        return scores

    def inputs(self, data: Any) -> tuple[Any, ...]:
        """What the model reads of a batch, given as PyG's data."""
        return data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges

    @property
    def norms(self) -> dict[str, Any]:
        """What loaders are told of the weights of edges: a GCN reads those of the whole graph, as in inference."""
        return {"edge_norm": "gcn", "unbiased": True} if self.config.model == "gcn" else {}

    def seeds_in(self, data: Any) -> Any:
        """The part of PyG's data that has ``y`` of the seeds and ``batch_size``."""
        return data

    def targets(self, data: Any) -> torch.Tensor:
        """What the model shall find for a batch, one row for each of its ``scores``."""
        return self.task.targets(self.seeds_in(data).y)

    def loader_options(self, *, train: bool) -> dict[str, Any]:
        """Fan-outs and tables of the loader, as ``NeighborLoader`` takes them."""
        fan_outs = self.config.fan_outs if train else self.config.eval_fan_outs
        drawing = self.config.drawing(train=train)
        return {"num_neighbors": list(fan_outs), "tables": ["x"], "aggregate": self.aggregate, **drawing, **self.norms}

    def _loader(self, split: str, batch_size: int, *, train: bool) -> atta.NeighborLoader:
        return atta.NeighborLoader(
            self.cluster,
            input_nodes=(self.node_type, split),
            batch_size=batch_size,
            shuffle=train,
            pad=train,
            rank=self.rank,
            world_size=self.world,
            seed=self.config.seed,
            seed_policy=self.config.seed_policy,
            seed_tables=["y"],
            edge_ids=False,
            job=f"train-{split}-{os.getpid()}",
            epochs=self.config.epochs if train else None,
            **self.loader_options(train=train),
        )

    def train_epoch(self, epoch: int) -> EpochReport:
        """One pass over this rank's seeds; figures are reduced over all ranks."""
        self.parallel.train()
        self.train_loader.set_epoch(epoch)
        watch = self._clock.stopwatch = Stopwatch(self.device)
        cursor = self.train_loader.state_dict()  # of the epoch's start: on a GPU the loader is ahead of the steps
        sums = self._begun(watch)
        batches, together = len(self.train_loader), self.config.accumulate
        parts = islice(step_parts(batches, together), sums.batches, None)
        start = time.perf_counter() - sums.seconds
        with self.display.batches(f"epoch {epoch}", batches) as advance:
            for _ in range(sums.batches):
                advance()
            for batch, data in on_device(self.train_loader, self.device, watch):
                targets = self.targets(data)
                part = next(parts)
                with nullcontext() if part.last else self.parallel.no_sync():
                    loss = timed_step(
                        partial(self._loss, data, targets),
                        self.optimizer,
                        self._clock,
                        part,
                        update=self.update_weights,
                    )
                known = self.task.known(targets).sum()
                sums.loss += loss * known
                sums.known += known
                add_daemon_time(watch, batch.stats)
                sums.seeds += self.seeds_in(data).batch_size
                sums.edges += int(batch.stats["edges"])
                sums.remote_bytes += batch.stats.get("remote_bytes", 0.0)
                sums.batches += 1
                advance()
                place = RunPlace(epoch, sums.batches, -(-sums.batches // together))
                if part.last and self._is_due(place, batches):
                    start += self._save_step(place, {**cursor, "batch": sums.batches}, sums, watch, start)
        spent = watch.totals()
        seconds = self._max(time.perf_counter() - start)
        totals = self._sum(
            [
                *(sums.seeds, sums.edges, sums.remote_bytes, float(sums.loss), int(sums.known)),
                *(spent.get(p, 0.0) for p in PHASES),
            ]
        )
        return EpochReport(
            epoch,
            seconds,
            loss=totals[3] / max(1.0, totals[4]),
            seeds_per_s=totals[0] / seconds,
            edges_per_s=totals[1] / seconds,
            remote_bytes=totals[2],
            breakdown={p: s / self.world for p, s in zip(PHASES, totals[5:], strict=True)},
            steps=-(-batches // together),
            peak_memory_bytes=self._peaks(),
        )

    def _begun(self, watch: Stopwatch) -> PartialEpoch:
        """Zeros, or what this rank had of the epoch at the checkpoint in mid-epoch; the loader goes on there, too."""
        saved, self.begun = self.begun, None
        if saved is None:
            return PartialEpoch.empty(self.device)
        folder = str(self.config.checkpoint)
        try:
            sums = PartialEpoch.from_state(saved["sums"])
            self.train_loader.load_state_dict(saved["loader"])
            set_random_state(saved["random"], self.device)
        except (KeyError, TypeError) as error:
            raise DataError(folder, f"a file of a trainer in it is none of this strategy: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"--checkpoint {folder}: cannot go on in mid-epoch: {error}") from error
        if sums.batches % self.config.accumulate:
            raise ConfigError(f"--accumulate {self.config.accumulate}: batch {sums.batches} was the last of a step")
        for phase, seconds in sums.phases.items():
            watch.add_seconds(phase, seconds)
        return sums

    def _is_due(self, place: RunPlace, batches: int) -> bool:
        """Whether ``--checkpoint-steps`` wants a checkpoint now. After the last step it comes with the epoch's end."""
        every = self.config.checkpoint_steps
        if every is None or (sum(e.steps for e in self.done) + place.step) % every:
            return False
        self.due = place.batch == batches
        return not self.due

    def _save_step(
        self, place: RunPlace, cursor: Mapping[str, Any], sums: PartialEpoch, watch: Stopwatch, start: float
    ) -> float:
        """Write a checkpoint in mid-epoch; returns the seconds that it took. ``start``: of the epoch."""
        began = time.perf_counter()
        sums.phases, sums.seconds = watch.totals(), began - start
        self.save_within(place, {"sums": sums.to_state(), "loader": dict(cursor), "random": random_state(self.device)})
        return time.perf_counter() - began

    def _loss(self, data: Any, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            outputs = self.scores(self.parallel, data)
        return self.objective.mean_loss(outputs.float(), targets)

    def tallies(self) -> dict[str, list[float]]:
        return {split: self._tally(split) for split in self.splits}

    @torch.no_grad()
    def _tally(self, split: str) -> list[float]:
        config = self.config
        loader = self._loader(split, config.eval_batch_size or config.batch_size, train=False)
        self.parallel.eval()
        tally = self.objective.empty_tally(self.device)
        batches = iter(loader)  # before len(), which then knows the number of batches
        with self.display.batches(f"  {split}", len(loader)) as advance:
            for _, data in on_device(batches, self.device, Stopwatch(self.device)):
                tally += self.objective.tally(self.scores(self.model, data), self.targets(data))
                advance()
        return self._sum(tally.tolist())
