"""From a configuration to a finished run: daemons (unless they run already) and trainers under torch's elastic launcher."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

from atta.errors import AttaError, ConfigError, DataError
from atta.train.config import TrainConfig
from atta.train.report import EpochReport, TrainReport

__all__ = ["fit"]


def fit(config: TrainConfig) -> TrainReport:
    """Train as ``config`` says and return the figures of every epoch.

    Raises:
        ConfigError, DataError: bad settings or dataset.
        AttaError: a trainer failed; the message names the rank and the cause.
    """
    with _addresses(config) as addresses:
        results = _launch(config, addresses)
    return TrainReport(config, [EpochReport(**e) for e in results])


@contextlib.contextmanager
def _addresses(config: TrainConfig) -> Iterator[list[str]]:
    """Addresses of the daemons, started for the run unless the configuration names running ones."""
    import atta

    if config.cluster is not None:
        with atta.connect(config.cluster) as running:
            addresses = running.addresses
        yield addresses
        return
    assert config.data is not None
    with atta.local(config.data, threads=config.threads) as started:
        yield started.addresses


def _launch(config: TrainConfig, addresses: list[str]) -> list[dict[str, Any]]:
    try:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise ConfigError("training needs torch and torch_geometric: install atta[train]") from error
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=config.trainers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.2,
        start_method="spawn",
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        results = elastic_launch(settings, _entry)(config, addresses)
    except ChildFailedError as error:
        raise _first_cause(error) from None
    epochs: list[dict[str, Any]] = results[0]
    return epochs


def _entry(config: TrainConfig, addresses: list[str]) -> list[dict[str, Any]]:
    """Runs in every trainer process."""
    from atta.train.worker import run

    return run(config, addresses)


def _first_cause(error: Any) -> AttaError:
    rank, failure = error.get_first_failure()
    message = failure.message
    text = message.get("message", "") if isinstance(message, dict) else str(message)
    if failure.exitcode < 0:
        text = f"killed by {signal.Signals(-failure.exitcode).name}"
    kind, _, rest = text.strip().partition(": ")
    if kind == "ConfigError":
        return ConfigError(rest)
    if kind == "DataError":
        path, _, cause = rest.partition(": ")
        return DataError(path, cause)
    return AttaError(f"trainer {rank} failed: {text.strip() or f'exit code {failure.exitcode}'}")
