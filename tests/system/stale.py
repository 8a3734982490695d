"""Shared by the tests of stale rows: four trainer processes without daemons, in servers of two.

``python -m tests.system.stale FOLDER RANK CASES`` is one of them. It runs ``quick`` or ``all`` cases and writes
``RANK.pt``.
"""

from __future__ import annotations

import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from atta.train.cooperative import CooperativeModel, ServerGroups, TrainerBatch, broadcast_weights, count_targets
from atta.train.cooperative.dropout import RowDropout
from atta.train.cooperative.exchange import own_backward, sum_gradients
from atta.train.cooperative.halo import ReadRows, all_rows, rows_of_trainers
from atta.train.cooperative.source import JoinedSource, RowPart, source_inside
from atta.train.exchange.budget import LEVELS, BudgetPolicy, Cell, Level
from atta.train.exchange.budgeted import BudgetRows
from atta.train.exchange.codecs import packing
from atta.train.exchange.figures import RowFigures
from atta.train.exchange.messages import RowSetting, StaleRows
from atta.train.exchange.policies import PipeGcnPolicy, RowPolicy, SancusPolicy
from tests.system.cooperative import WORLD, Case, build, found_rows

WIDTH = 6
SEED = 9
EPOCHS = 12
CPU = torch.device("cpu")


BASE = Case("sage", layers=3, across=True)


@dataclass
class FixedLevel(BudgetPolicy):
    """A budget that has chosen one level for all rows, in all epochs. Give it 0 points, so that nothing is measured."""

    place: int = 0

    def level(self, cell: Cell, epoch: int) -> Level:
        return LEVELS[self.place]


@dataclass(frozen=True)
class StaleCase:
    """Some epochs of a system. Dropout is that of ``base``, after the exchange.

    Attributes:
        system: exchange, budget, sancus or pipegcn.
        options: of its policy.
        base: model, graph and servers.
        rows, across, codec: as the options of ``atta train``.
        epochs: steps of Adam; with ``frozen`` the weights stay as they are.
    """

    system: str
    options: dict[str, Any] = field(default_factory=dict)
    base: Case = BASE
    rows: str = "halo"
    across: str = "servers"
    codec: str = "none"
    epochs: int = 5
    frozen: bool = False

    @property
    def name(self) -> str:
        base, options = self.base, ",".join(f"{name}={value}" for name, value in self.options.items())
        words = [self.system, options, base.model, base.layers, base.trainers, base.dtype, self.rows, self.across]
        return "-".join(map(str, [*words, self.codec, self.epochs]))

    @property
    def policy(self) -> RowPolicy:
        kinds: dict[str, type[RowPolicy]] = {
            "exchange": RowPolicy,
            "budget": FixedLevel,
            "sancus": SancusPolicy,
            "pipegcn": PipeGcnPolicy,
        }
        return kinds[self.system](**self.options)


def no_slack(bound: str) -> StaleCase:
    return StaleCase("sancus", {"bound": bound, "eps": 0, "warmup": 0})


EXCHANGE = StaleCase("exchange")
EXACT = (
    *(StaleCase("exchange", base=Case(m, layers=3, across=True), epochs=1) for m in ("sage", "gcn", "gat")),
    *(
        StaleCase("exchange", rows=rows, across=across, epochs=1)
        for rows in ("halo", "all")
        for across in ("servers", "trainers")
    ),
    StaleCase("exchange", base=Case("gat", layers=2, trainers=1, across=True), rows="all", epochs=1),
    StaleCase("exchange", base=Case("deepergcn-checkpointed", layers=3, across=True), epochs=1),
)
NO_SLACK = (*(no_slack(bound) for bound in ("epoch", "adaptive", "gap")), StaleCase("sancus", {"eps": 3, "warmup": 5}))
CHECKPOINTED = tuple(
    StaleCase(system, options, base=Case("deepergcn" + end, layers=3, across=True))
    for system, options in (("sancus", {"eps": 1, "warmup": 0}), ("pipegcn", {}), ("pipegcn", {"smooth": 0.9}))
    for end in ("", "-checkpointed")
)


def dropped(model: str, **base: Any) -> StaleCase:
    base = {"layers": 3, "across": True, "dropout": 0.5, **base}
    return StaleCase("exchange", base=Case(model, **base), epochs=2, frozen=True)


DROPPED = (
    *(dropped(model, trainers=n) for model in ("sage", "gcn", "gat") for n in (1, 2)),
    *(dropped(model) for model in ("resgcn-checkpointed", "deepergcn")),
    replace(dropped("gat", owners="one"), rows="all", across="trainers"),
)
STALE_DROPPED = tuple(
    StaleCase("sancus", {"eps": 1, "warmup": 0}, base=dropped(model, trainers=n).base, rows=rows, epochs=2)
    for model, n, rows in (("sage", 1, "halo"), ("gat", 2, "halo"), ("gat", 2, "all"))
)
RECOMPUTED = tuple(
    StaleCase(system, options, base=Case("deepergcn" + end, layers=3, across=True, dropout=0.5), epochs=2)
    for system, options in (("sancus", {"eps": 1, "warmup": 0}), ("pipegcn", {}))
    for end in ("", "-checkpointed")
)
SINGLE = tuple(replace(BASE, model=model, dtype="float32") for model in ("sage", "gat", "deepergcn"))
PLAIN = tuple(StaleCase("exchange", base=base) for base in SINGLE)
BUDGETS = tuple(
    StaleCase("budget", {"budget": 0.0, "epochs": 5, "place": place}, base=base)
    for base in SINGLE
    for place in range(len(LEVELS) - 1)
)
TRAINED = (*PLAIN, *BUDGETS, *(EXCHANGE, *EXACT, *NO_SLACK, *CHECKPOINTED), *(*DROPPED, *STALE_DROPPED, *RECOMPUTED))
DRIVEN = (
    *(StaleCase("sancus", {"eps": eps, "warmup": 3}, rows=rows) for eps in (0, 1, 3) for rows in ("halo", "all")),
    StaleCase("pipegcn"),
    StaleCase("exchange", across="trainers"),
    StaleCase("sancus", {"bound": "gap", "eps": 2.5, "warmup": 0}),
)

QUICK = (
    *(PLAIN[0], PLAIN[2], *BUDGETS[:4], *BUDGETS[-2:]),
    *(EXCHANGE, *EXACT[:3], EXACT[6], *NO_SLACK),
    *(DROPPED[1], DROPPED[6], STALE_DROPPED[1], *RECOMPUTED),
    *(case for case in DRIVEN if case.system != "sancus" or case.options["eps"] in (1, 2.5)),
)
"""Cases that `make test` runs."""


def reads_of(case: StaleCase, groups: ServerGroups) -> ReadRows:
    found, trainers = found_rows(case.base, groups), case.across == "trainers"
    if case.rows == "all":
        return all_rows(found, groups.place, CPU, trainers=trainers)
    return rows_of_trainers(found, groups.place) if trainers else found


def source(case: StaleCase, reads: ReadRows, dtype: torch.dtype) -> StaleRows:
    kind = BudgetRows if case.system == "budget" else StaleRows
    return kind(RowSetting(case.policy, reads, RowFigures(), packing(case.codec, dtype)))


def train(case: StaleCase, groups: ServerGroups) -> dict[str, Any]:
    """Losses, gradients of the last epoch, weights after it, and payload of every epoch."""
    reads = reads_of(case, groups)
    view, dtype = reads.view, getattr(torch, case.base.dtype)
    stale, inside = source(case, reads, dtype), source_inside(view, groups.inside)
    batch = TrainerBatch.of(view, groups.inside, across=stale)
    if case.across == "trainers" and inside is not None:
        remote = inside.start(0, "forward", batch.x).finish()
        features = torch.cat([remote, torch.from_numpy(view.halo_features)])
        batch.graph.source = JoinedSource(batch.x, [RowPart(stale, len(features), features=features)])
    dropout = batch.graph.dropout = RowDropout(view, SEED) if case.base.dropout else None
    model = CooperativeModel(build(case.base))
    broadcast_weights(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    count = count_targets(batch, groups)
    losses, payload, ages = [], [], []
    for epoch in range(1, case.epochs + 1):
        if dropout is not None:
            dropout.epoch = epoch
        stale.begin(epoch)
        loss = own_backward(model, batch, count)
        stale.flush()
        sum_gradients(model.parameters(), groups, loss)
        if not case.frozen:
            optimizer.step()
        stale.commit()
        losses.append(float(loss))
        payload.append({f"{layer} {way}": count for (layer, way), count in stale.figures.sent.items()})
        ages.append({f"{layer} {way}": (a.least, a.most, a.rows) for (layer, way), a in stale.figures.ages.items()})
    packed = stale.state()["packing"]
    stale.close()
    return {
        "packed": packed,
        "losses": losses,
        "gradients": {n: p.grad.clone() for n, p in model.module.named_parameters()},
        "weights": {n: p.detach().clone() for n, p in model.module.named_parameters()},
        "payload": payload,
        "ages": ages,
        "sends": torch.from_numpy(reads.lists.send_counts),
        "receives": torch.from_numpy(reads.lists.receive_counts),
        "own": reads.own,
    }


def drive(case: StaleCase, groups: ServerGroups) -> dict[str, Any]:
    """Send rows whose values are the epoch, without a model. So each row that is read says how old it is."""
    reads = reads_of(case, groups)
    stale = source(case, reads, torch.float64)
    read, figures = [], []
    for epoch in range(1, EPOCHS + 1):
        stale.begin(epoch)
        rows = stale.start(1, "forward", torch.full((reads.own, WIDTH), float(epoch), dtype=torch.float64)).finish()
        zeros = torch.zeros(len(reads.places), WIDTH, dtype=torch.float64)
        stale.start(1, "backward", zeros).finish()
        stale.flush()
        dist.barrier()
        stale.commit()
        read.append(rows[:, 0].clone())
        found = stale.figures
        figures.append(
            {
                "sent": found.sent[1, "forward"],
                "broadcasts": found.broadcasts[1, "forward"],
                "skipped": found.skipped[1, "forward"],
                "ages": [found.ages[1, "forward"].least, found.ages[1, "forward"].most, found.ages[1, "forward"].total],
            }
        )
    kept = stale.kept_bytes
    stale.close()
    return {
        "read": read,
        "figures": figures,
        "sends": int(reads.lists.send_counts.sum()),
        "received": reads.received,
        "own": reads.own,
        "kept": kept,
        "copied": stale.copied_bytes,
    }


def ahead(folder: Path, groups: ServerGroups) -> bool:
    """Whether the first trainer ends its second epoch although no other has begun it: PipeGCN reads rows of the first."""
    case, first, ended = StaleCase("pipegcn"), dist.get_rank() == 0, folder / "ended"
    reads = reads_of(case, groups)
    stale = source(case, reads, torch.float64)
    for epoch in (1, 2):
        stale.begin(epoch)
        within = time.monotonic() + 20
        while epoch == 2 and not first and not ended.exists() and time.monotonic() < within:
            time.sleep(0.01)
        stale.start(1, "forward", torch.full((reads.own, WIDTH), float(epoch), dtype=torch.float64)).finish()
        stale.flush()
        if epoch == 2 and first and time.monotonic() < within:
            ended.touch()
        dist.barrier()
        stale.commit()
    stale.close()
    return ended.exists()


def main(folder: Path, rank: int, which: str = "all") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), rank=rank, world_size=WORLD)
    groups = {trainers: ServerGroups(trainers) for trainers in (1, 2)}

    def wanted(case: StaleCase) -> bool:
        return which == "all" or case in QUICK

    results: dict[str, Any] = {case.name: train(case, groups[case.base.trainers]) for case in TRAINED if wanted(case)}
    results |= {f"driven {case.name}": drive(case, groups[case.base.trainers]) for case in DRIVEN if wanted(case)}
    results["ahead"] = ahead(folder, groups[2])
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
