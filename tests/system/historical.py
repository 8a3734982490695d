"""Shared by the tests of older rows in mini-batches: four trainer processes on real daemons, in servers of two.

``python -m tests.system.historical FOLDER RANK CLUSTER CASES`` is one of them. It runs ``quick`` or ``all`` cases and writes
``RANK.pt``.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import atta
from atta.train.exchange.historical import HistoricalTrainer, OwnEdges
from tests.system.strategies import WORLD, Run, TableCase

SCOPE: dict[str, Any] = {"stale_across": "trainers", "batch_size": 9, "epochs": 5}


def historical(resumed: int = 0, **options: Any) -> TableCase:
    return TableCase("historical", {**SCOPE, **options}, resumed=resumed)


CASES = (
    historical(fan_out=2),
    historical(fan_out=3, model="sage", max_age=2, momentum=0.6),
    historical(fan_out=2, max_age=0),
    historical(fan_out=2, model="sage", layers=2, momentum=0.5),
    historical(fan_out=2, momentum=0.3, max_age=3, layers=4),
    historical(fan_out=2, model="sage", max_age=0),
)
QUICK = CASES[:4]
"""Cases that `make test` runs, beside ``RESUMED``: each option with each of its values."""
RESUMED = tuple(historical(at, fan_out=2, max_age=2, momentum=0.5) for at in (0, 3))


def noted(case: TableCase, config: Any, cluster: atta.Cluster) -> Run:
    """A run that notes its trees, and its rows after each epoch, by user ids."""
    run = Run(case, config, cluster)
    trainer, trees = run.trainer, list[dict[str, Any]]()
    assert isinstance(trainer, HistoricalTrainer)
    sample, update = OwnEdges.tree, run.updated

    def tree(self: OwnEdges, *given: Any, **draw: int) -> Any:
        found = sample(self, *given, **draw)
        rows = torch.from_numpy(self.ids[found.rows])
        drawn = torch.from_numpy(found.drawn[:2])
        trees.append({"rows": rows, "ends": found.ends, "drawn": drawn, "drawn_ends": found.drawn_ends})
        return found

    def updated(*given: Any) -> torch.Tensor:
        trees.clear()
        with mock.patch.object(OwnEdges, "tree", tree):
            loss = update(*given)
        tables = {layer: rows.clone() for layer, rows in trainer.stale.rows.items()}
        run.epochs[-1] |= {"trees": list(trees), "tables": tables, "sizes": trainer.sizes}
        return loss

    trainer.update = updated  # type: ignore[method-assign]
    return run


def result(case: TableCase, cluster: atta.Cluster, target: str, folder: Path) -> dict[str, Any]:
    config = case.config(target)
    run = noted(case, config, cluster)
    if case.resumed:
        folder = folder / f"saved-{case.resumed}"
        first = noted(case, replace(config, epochs=case.resumed, checkpoint=str(folder)), cluster)
        first.trainer.fit()
        run = noted(case, replace(config, checkpoint=str(folder), resume=True), cluster)
        run.epochs.extend(first.epochs)
    run.trainer.fit()
    view = run.trainer._kept(mock.Mock()).graph.view
    return {"epochs": run.epochs, "ids": torch.from_numpy(view.global_ids), "own": len(view.own)}


def main(folder: Path, rank: int, target: str, which: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), rank=rank, world_size=WORLD)
    with atta.connect(target) as cluster:
        cases = QUICK if which == "quick" else CASES
        found = {case.name: result(case, cluster, target, folder) for case in (*cases, *RESUMED)}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
