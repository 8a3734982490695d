"""Prometheus metrics of a daemon and of its sessions, read when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from atta.errors import ConfigError, UnknownNameError
from atta.observe.answering import App, bounded_listener, json_answer, refusal, run_aside
from atta.observe.catalogue import FIGURES, JOB_FIGURES, SESSION_FIGURES, Family, family_of
from atta.observe.figures import JobFigures, SessionFigures

MAX_SESSIONS = 64
"""At most this many sessions, the longest open, have metrics of their own. ``atta_sessions`` counts all."""
MAX_JOB_CHARS = 64
SESSION_LABELS = ("atta_job", "session")
"""Labels of a session's metrics. The first is not ``job``, because Prometheus gives every series a label ``job``."""
JOB_LABELS = ("atta_job", "layer", "direction")


@dataclass(frozen=True)
class DaemonFigures:
    """What a scrape reads: the counters and gauges of a daemon, and its sessions in the order of opening, and what
    training jobs have reported."""

    stats: Mapping[str, float]
    sessions: Sequence[SessionFigures]
    jobs: Sequence[JobFigures] = ()


class DaemonCollector(Collector):
    """Turns what ``read`` returns into metrics, labelled with the partition. A session's series end with it."""

    def __init__(self, part: int, about: Mapping[str, str], read: Callable[[], DaemonFigures]) -> None:
        self._part, self._about, self._read = str(part), dict(about), read

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        found = self._read()
        metrics: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        counted = dict.fromkeys((name for name, family in FIGURES.items() if family.counter), 0.0)
        for figure, value in {**counted, **found.stats}.items():
            series = family_of(figure)
            self._add(metrics, series.family, series.labels, value)
        for shown in found.sessions[:MAX_SESSIONS]:
            self._add_all(metrics, shown, SESSION_FIGURES, SESSION_LABELS, (shown.job[:MAX_JOB_CHARS], shown.session))
        for job in found.jobs:
            self._add_all(metrics, job, JOB_FIGURES, JOB_LABELS, (job.job, str(job.layer), job.direction))
        yield InfoMetricFamily("atta_daemon", "What is served.", {"part": self._part, **self._about})
        yield from (metrics[name] for name in sorted(metrics))

    def _add_all(
        self,
        metrics: dict[str, GaugeMetricFamily | CounterMetricFamily],
        figures: SessionFigures | JobFigures,
        families: Mapping[str, Family],
        names: tuple[str, ...],
        labels: Sequence[str],
    ) -> None:
        """Add the fields of ``figures`` that ``families`` has; ``names`` of labels and their values."""
        for field, family in families.items():
            if (value := getattr(figures, field)) is not None:
                self._add(metrics, Family(family.name, family.help, family.counter, names), labels, value)

    def _add(
        self,
        metrics: dict[str, GaugeMetricFamily | CounterMetricFamily],
        family: Family,
        labels: Sequence[str],
        value: float,
    ) -> None:
        if family.name not in metrics:
            kind = CounterMetricFamily if family.counter else GaugeMetricFamily
            metrics[family.name] = kind(f"atta_{family.name}", family.help, labels=("part", *family.labels))
        metrics[family.name].add_metric((self._part, *labels), value)


def metrics_app(collector: Collector, beside: Mapping[str, App] | None = None) -> App:
    """Answers /metrics and / with what ``collector`` finds, in the format that is accepted. ``beside``: others, by path."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    app: App = make_wsgi_app(registry)
    others = beside or {}

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO") or "/"
        if path in others:
            return others[path](environ, start_response)
        if path not in ("/", "/metrics"):
            said = refusal(UnknownNameError, f"no such path; there is {', '.join(['/metrics', *others])}")
            return json_answer(start_response, HTTPStatus.NOT_FOUND, said)
        return app({**environ, "HTTP_ACCEPT": _understood(environ.get("HTTP_ACCEPT", ""))}, start_response)

    return answer


def _understood(accept: str) -> str:
    """The header; empty, which asks for the plain format, where prometheus_client fails on it (``version=abc``)."""
    try:
        choose_encoder(accept)
    except Exception:
        return ""
    return accept


def serve_metrics(
    port: int, collector: Collector, *, host: str = "0.0.0.0", beside: Mapping[str, App] | None = None
) -> Callable[[], None]:
    """Serve ``collector`` at http://``host``:``port``/metrics. By default on every address of the machine. ``beside``: as
    of ``metrics_app``. Returns what ends it. Raises ConfigError: the port is in use, or the address is not of this machine."""
    try:
        serving = bounded_listener(host, port, metrics_app(collector, beside))
    except OSError as error:
        raise ConfigError(f"cannot serve metrics on port {port} of {host} ({error.strerror})") from error
    return run_aside(serving, "atta-metrics")
