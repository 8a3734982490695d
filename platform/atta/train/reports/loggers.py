"""Loggers of training runs: objects with the methods of Lightning's ``Logger``, so Lightning's own need no adapter.
``--logger`` names one and its arguments: ``csv:save_dir=runs/a``, or ``lightning.pytorch.loggers.CometLogger``. Rank 0
makes it and calls it after each epoch."""

from __future__ import annotations

import csv
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, blaming
from atta.observe.packages import EXTRAS, member, need
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import StagedFile
from atta.train.reports.epochs import EpochReport
from atta.train.reports.trackers import MlflowLogger, TensorBoardLogger, WandbLogger
from atta.train.settings.common import parse_logger

_METHODS = ("log_hyperparams", "log_metrics", "finalize")
_STEP = "step"


def make_logger(text: str) -> Any:
    """Make the logger that a run names. Raises ConfigError: there is no such class, it does not take the arguments, or what
    it makes has not all ``_METHODS``."""
    with blaming(ConfigError, f"--logger {text}", of=(ImportError, TypeError, ValueError)):
        made: Any = check_logger(text)()
    if lacking := [name for name in _METHODS if not callable(getattr(made, name, None))]:
        raise ConfigError(f"--logger {text}: has no {', '.join(lacking)}, so it is no logger")
    return made


def check_logger(text: str) -> Callable[[], Any]:
    """What makes the logger, not called. Raises ConfigError: its package or class is missing, or it does not take the
    arguments."""
    name, arguments = parse_logger(text)
    module, _, called = name.rpartition(".")
    if name in EXTRAS:
        need(f"--logger {name}", name)
    make: Any = _MAKERS[name] if name in _MAKERS else member(f"--logger {name}", module, called)
    if not callable(make):
        raise ConfigError(f"--logger {name}: is no class or function")
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        takes = ",".join(f"{one}=..." for one in inspect.signature(make).parameters)
        raise ConfigError(f"--logger {name}: {error}; write --logger {name}:{takes}") from None
    return partial(make, **arguments)


def figures_of(epoch: EpochReport) -> dict[str, float]:
    """An epoch's figures by name, as loggers get them: those that are known."""
    names = ("loss", "learning_rate", "seconds", "eval_seconds", "seeds_per_s", "edges_per_s", "remote_bytes")
    values = {name: getattr(epoch, name) for name in names}
    values |= {f"seconds_{phase}": seconds for phase, seconds in epoch.breakdown.items()}
    return {name: float(value) for name, value in {**values, **epoch.metrics}.items() if value is not None}


class CsvLogger:
    """Writes ``metrics.csv``, a row per epoch, and the settings as ``hparams.json``. A run that is resumed goes on in the
    file: rows of epochs that come again are replaced."""

    def __init__(self, save_dir: str) -> None:
        """``save_dir``: folder of the files, or a URL. Raises DataError if an earlier ``metrics.csv`` cannot be read."""
        self._folder = Mirror(save_dir)
        self._rows = _read_rows(self._folder.pull("metrics.csv"))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Write them."""
        with StagedFile(self._folder.path / "hparams.json", overwrite=True) as partial:
            partial.write_text(json.dumps(params, indent=1, default=str) + "\n", encoding="utf-8")
        self._folder.push("hparams.json")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write a row."""
        number = len(self._rows) if step is None else step
        self._rows = {n: row for n, row in self._rows.items() if n < number}
        self._rows[number] = {name: repr(value) for name, value in metrics.items()}
        columns = dict.fromkeys([_STEP, *(name for row in self._rows.values() for name in row)])
        path = self._folder.path / "metrics.csv"
        with StagedFile(path, overwrite=True) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*columns])
            writer.writeheader()
            writer.writerows({_STEP: n, **row} for n, row in self._rows.items())
        self._folder.push(path.name)

    def finalize(self, status: str) -> None:
        """Everything is written already."""


_MAKERS = {"csv": CsvLogger, "tensorboard": TensorBoardLogger, "wandb": WandbLogger, "mlflow": MlflowLogger}
"""By each of ``LOGGERS``. One that needs a package has its name."""


def _read_rows(path: Path) -> dict[int, dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [*csv.DictReader(file)]
        return {int(row.pop(_STEP)): {name: value for name, value in row.items() if value} for row in rows}
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(path, f"cannot be read as figures of an earlier run: {error}") from None


class RunLog(AbstractContextManager["RunLog"]):
    """Tells the loggers of a run. A context manager: leaving it finalizes them."""

    def __init__(
        self,
        loggers: Sequence[Any],
        settings: Mapping[str, Any],
        file: Path | None = None,
        done: Iterable[EpochReport] = (),
    ) -> None:
        """``file``: gets each epoch as a line of JSON, those that are ``done`` first; see ``read_epochs``."""
        self._loggers, self._file = loggers, file
        for logger in loggers:
            logger.log_hyperparams(dict(settings))
        self._keep(done, "w")

    def epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""
        self._keep([report], "a")
        for logger in self._loggers:
            logger.log_metrics(figures_of(report), report.epoch)

    def _keep(self, reports: Iterable[EpochReport], mode: str) -> None:
        if self._file is not None:
            with self._file.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(report)) + "\n" for report in reports)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for logger in self._loggers:
            logger.finalize("success" if kind is None else "failed")


def read_epochs(file: Path) -> list[EpochReport]:
    """The epochs that a run has written so far; none if there is no ``file``."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [EpochReport.from_dict(json.loads(line)) for line in lines if line.endswith("\n")]
