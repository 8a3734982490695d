"""Prometheus metrics of a daemon: its counters, read when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["serve_metrics"]


class _StatsCollector(Collector):
    def __init__(self, part: int, stats: Callable[[], Mapping[str, float]]) -> None:
        self._part, self._stats = str(part), stats

    def collect(self) -> Iterable[Metric]:
        for name, value in sorted(self._stats().items()):
            metric = GaugeMetricFamily(
                f"atta_{name}", f"Atta sampler daemon: {name.replace('_', ' ')}", labels=["part"]
            )
            metric.add_metric([self._part], value)
            yield metric


def serve_metrics(port: int, part: int, stats: Callable[[], Mapping[str, float]]) -> None:
    """Serve ``stats()`` at http://0.0.0.0:``port``/metrics, labelled with the partition."""
    registry = CollectorRegistry()
    registry.register(_StatsCollector(part, stats))
    start_http_server(port, registry=registry)
