"""Loggers that write what TensorBoard, Weights & Biases and MLflow show, by those packages themselves. A step is an epoch.
A package is imported when a run begins."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atta.partition.disk.staging import StagedFile

FLUSH_S = 0.1
"""How soon an epoch is in wandb's file. Its own 15 seconds lose short runs that are killed."""
_STATE = "atta.json"
_LONGEST = 6000
"""Characters of a parameter that MLflow takes."""


class TensorBoardLogger:
    """Writes events, and the settings for the tab HPARAMS, into the folder of a run. Readers drop what the folder has of the
    epochs that a resumed run trains again."""

    def __init__(self, save_dir: str) -> None:
        """``save_dir``: folder of this run; TensorBoard shows all below its ``--logdir``."""
        self._folder, self._params = save_dir, dict[str, Any]()
        self._writer: Any = None

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Keep them until the first epoch, which tells where the run goes on."""
        known = {name: value for name, value in params.items() if value is not None}
        self._params = {name: v if isinstance(v, bool | int | float) else str(v) for name, v in known.items()}

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a point of each curve."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        if self._writer is None:
            self._writer = SummaryWriter(self._folder, purge_step=step)
            for summary in hparams(self._params, {}):
                self._writer.file_writer.add_summary(summary)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finalize(self, status: str) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class WandbLogger:
    """Writes a run of Weights & Biases: offline, without waiting for any network, unless ``mode`` says otherwise. A resumed
    run has the id of the one before with the same ``--checkpoint``, and leaves out the epochs that this has logged."""

    def __init__(self, save_dir: str, project: str = "atta", name: str | None = None, mode: str = "offline") -> None:
        """``save_dir``: folder of runs; ``mode``: offline, online or disabled."""
        self._folder, self._mode = save_dir, mode
        self._about: dict[str, Any] = {"project": project, "name": name, "mode": mode}
        self._logged = -1

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Begin the run with them."""
        if self._mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it looks for its server
        import wandb

        Path(self._folder).mkdir(parents=True, exist_ok=True)
        self._checkpoint, run_id = params["checkpoint"], None
        if params["resume"]:
            run_id, self._logged = self._earlier()
        settings = wandb.Settings(console="off", silent=True, x_transaction_log_flush_interval=FLUSH_S)
        about = self._about if run_id is None else {**self._about, "id": run_id, "resume": "allow"}
        self._run = wandb.init(dir=self._folder, config=dict(params), settings=settings, **about)

    def _earlier(self) -> list[Any]:
        """The id of the latest run with this checkpoint, and its last epoch."""
        found: list[Any] = [None, -1]
        for path in sorted(
            Path(self._folder).glob(f"wandb/*run-*-*/{_STATE}"), key=lambda path: path.stat().st_mtime_ns
        ):
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["checkpoint"] == self._checkpoint:
                found = [path.parent.name.rpartition("-")[2], state["epoch"]]
        return found

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a row."""
        if step <= self._logged:
            return
        self._run.log(dict(metrics), step=step, commit=True)  # at once: without ``commit`` a row waits for the next
        state = {"checkpoint": self._checkpoint, "epoch": step}
        if self._mode != "disabled":
            with StagedFile(Path(self._run.dir).with_name(_STATE), overwrite=True) as partial:  # whole, or as before
                partial.write_text(json.dumps(state), encoding="utf-8")

    def finalize(self, status: str) -> None:
        """End the run and wandb's own process, after which its file is complete."""
        import wandb

        code = 0 if status == "success" else 1
        self._run.finish(exit_code=code)
        wandb.teardown(exit_code=code)


class MlflowLogger:
    """Writes a run into a file store of MLflow, or to its server. A resumed run goes on in the one before with the same
    ``--checkpoint``, and leaves out the epochs that this has logged."""

    def __init__(self, save_dir: str, experiment: str = "atta", name: str | None = None) -> None:
        """``save_dir``: folder of the store, or the URL of a server."""
        self._place = save_dir if "://" in save_dir else Path(save_dir).absolute().as_uri()
        self._experiment, self._name, self._logged = experiment, name, -1

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Begin the run with them."""
        for choice in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
            os.environ.setdefault(choice, "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self._place)
        found = self._client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else self._client.create_experiment(self._experiment)
        given = {name: str(value)[:_LONGEST] for name, value in params.items()}
        runs = self._client.search_runs([number]) if params["resume"] else []  # the latest first
        earlier = next((run for run in runs if run.data.params.get("checkpoint") == given["checkpoint"]), None)
        if earlier is None:
            self._run = self._client.create_run(number, run_name=self._name).info.run_id
            self._client.log_batch(self._run, params=[Param(name, value) for name, value in given.items()])
        else:
            self._run = earlier.info.run_id
            self._logged = max((entry.step for entry in self._client.get_metric_history(self._run, "loss")), default=-1)
            self._client.update_run(self._run, "RUNNING")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a point of each curve."""
        from mlflow.entities import Metric

        if step > self._logged:
            now = int(1000 * time.time())
            self._client.log_batch(self._run, [Metric(name, value, now, step) for name, value in metrics.items()])

    def finalize(self, status: str) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FINISHED" if status == "success" else "FAILED")
