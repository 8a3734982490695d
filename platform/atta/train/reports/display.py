"""Figures of a run while it lasts: lines on a terminal, and metrics for Prometheus."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from atta.observe.lastwords import counted, printable
from atta.observe.metrics import serve_metrics
from atta.train.reports.epochs import EpochReport
from atta.wire.clusterfile import listening_at

TRAINING_BEGINS = "training begins"
"""What a run says when its trainers are ready: the first epoch may take long."""


def nothing_left(epochs: int) -> str:
    """What is said of a run that goes on after its last epoch."""
    return f"nothing is left to train: {counted(epochs, 'epoch')} done"


class Display:
    """Writes to standard error; silent unless ``enabled``."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._bars = enabled and sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Print a line. Training goes on where nobody reads it any more."""
        if self._enabled:
            with contextlib.suppress(BrokenPipeError):
                print(printable(text), file=sys.stderr, flush=True)

    def epoch(self, report: EpochReport) -> None:
        """Print an epoch, on a terminal in what fits into a line."""
        self.line(report.line(shutil.get_terminal_size().columns if self._bars else None))

    @contextmanager
    def batches(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a progress bar that disappears at the end; yield a function to call after each of ``total`` batches."""
        if not self._bars:
            yield lambda: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda: progress.advance(task)


class TrainingCollector(Collector):
    """Turns the latest epoch's figures into metrics. Before the first epoch ends there is only what is trained."""

    def __init__(self, about: Mapping[str, str]) -> None:
        """``about``: what is trained, in labels of ``atta_training_info``."""
        self._about = dict(about)
        self._latest: EpochReport | None = None

    def show(self, epoch: EpochReport) -> None:
        """Take an epoch that has ended."""
        self._latest = epoch

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        yield InfoMetricFamily("atta_training", "What is trained.", self._about)
        epoch = self._latest  # once: a scrape has a thread of its own
        if epoch is None:
            return
        yield CounterMetricFamily("atta_training_epochs", "Epochs that have ended.", value=epoch.epoch + 1)
        for name, text, value in (
            ("loss", "Mean loss over the seeds of the latest epoch.", epoch.loss),
            ("seeds_per_second", "Seeds of all trainers per second.", epoch.seeds_per_s),
            ("edges_per_second", "Sampled edges of all trainers per second.", epoch.edges_per_s),
            ("epoch_seconds", "Seconds of training, without evaluation, of the slowest trainer.", epoch.seconds),
            ("eval_seconds", "Seconds of validation and test; 0: the epoch was not evaluated.", epoch.eval_seconds),
            ("remote_bytes", "Bytes that daemons sent each other for the epoch's batches.", epoch.remote_bytes),
            ("exchanged_bytes", "Bytes of rows and gradients that trainers sent each other.", epoch.exchanged_bytes),
            ("learning_rate", "Learning rate of the epoch.", epoch.learning_rate),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"atta_training_{name}", text, value=value)
        yield _labelled("phase_seconds", "Seconds of the epoch by phase.", "phase", epoch.breakdown)
        yield _labelled("metric", "Figures of validation and test, if evaluated.", "metric", epoch.metrics)
        if epoch.rows is not None and epoch.rows.allowed_error is not None:
            saved = sum(layer.saved_bytes for layer in epoch.rows.layers)
            yield GaugeMetricFamily("atta_training_saved_bytes", "Bytes less than exact rows take.", value=saved)
            errors = {layer: error for layer, (_, error) in epoch.rows.gradient_errors.items()}
            yield _labelled("gradient_error", "Relative error of the gradient, if measured.", "layer", errors)
        memory = {str(rank): float(peak) for rank, peak in enumerate(epoch.peak_memory_bytes)}
        yield _labelled("peak_memory_bytes", "Peak memory of each trainer since its start.", "rank", memory)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"atta_training_{name}", text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


@contextlib.contextmanager
def exporting(address: str, about: Mapping[str, str]) -> Iterator[Callable[[EpochReport], None]]:
    """Serve metrics at http://``address``/metrics within the block; an empty address: nowhere. Yields what takes epochs.
    Raises ConfigError: this machine lacks the address, or the port is in use."""
    collector = TrainingCollector(about)
    if not address:
        yield collector.show
        return
    host, port = listening_at("--metrics", address)
    end = serve_metrics(port, collector, host=host)
    try:
        yield collector.show
    finally:
        end()
