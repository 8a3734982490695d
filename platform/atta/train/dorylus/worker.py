"""A worker: it connects to a trainer, computes one task after another, and keeps nothing (``atta worker``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from atta.errors import ConfigError, RemoteError
from atta.train.dorylus.faults import FAULTS_VARIABLE, WorkerFaults
from atta.train.dorylus.layers import LayerForm, LossOfRows, computed
from atta.train.dorylus.links import join
from atta.train.tasks import TASKS
from atta.train.tasks.vertices import Regression


def work_for(address: str, key: bytes, number: int) -> None:
    """Compute tasks of the trainer at ``address`` until it needs no more, or ends. ``number``: that the trainer gave it.

    Raises:
        ConfigError: the trainer refuses this worker, or the faults that it is asked for make no sense.
        RemoteError: nobody answers there, or it does not know the key.
    """
    torch.set_num_threads(1)
    asked = os.environ.get(FAULTS_VARIABLE)
    faults = WorkerFaults.parse(asked) if asked else WorkerFaults()
    faulty = faults.of_worker(int(os.environ.get("RANK", "0")), number)
    _warm_up()
    stream, setting = join(address, key, {"role": "worker", "number": number})
    try:
        loss = loss_of(setting)
        while "end" not in (message := stream.receive())[0]:
            about, arrays = message
            faulty.task(sum(array.nbytes for array in arrays.values()))
            told: dict[str, Any] = {"work": about["work"]}
            results: dict[str, Any] = {}
            try:
                results = computed(about["part"], LayerForm.from_dict(about["layer"]), about, arrays, loss)
            except (ConfigError, RuntimeError, IndexError) as error:
                told["error"] = str(error)
            faulty.result(sum(array.nbytes for array in results.values()))
            stream.send(told, results)
    except RemoteError:
        return  # the trainer has ended
    finally:
        stream.close()


def _warm_up() -> None:
    """Use torch once: what it does only the first time must not make the first task late."""
    weights = torch.ones(4, 4, requires_grad=True)
    torch.nn.functional.cross_entropy(torch.ones(4, 4) @ weights, torch.arange(4)).backward()


def loss_setting(task: str, regression_loss: str, weights: torch.Tensor | None) -> dict[str, Any]:
    """What a worker must know of the loss. ``weights``: of classes [outputs]."""
    return {"task": task, "regression_loss": regression_loss, "weights": None if weights is None else weights.tolist()}


def loss_of(setting: Mapping[str, Any]) -> LossOfRows:
    """The sum of losses, from ``loss_setting``."""
    task = Regression(setting["regression_loss"]) if setting["task"] == "regression" else TASKS[setting["task"]]
    given = setting["weights"]

    def loss(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weights = None if given is None else torch.tensor(given, dtype=torch.float32).to(rows.dtype)
        return task.loss(rows, targets, weights)

    return loss
