"""The metrics of one process as Prometheus reads them. The table is in :mod:`berth.service.meter`."""

from __future__ import annotations

from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from berth.service.meter import METRICS, CounterName, GaugeName, HistogramName, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusMeter:
    """A registry of this process's own, with every metric of the table. Children are kept: a count costs about 1 µs."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._families = {name: self._family(name, metric) for name, metric in METRICS.items()}
        self._children: dict[tuple[str, ...], Counter | Gauge | Histogram] = {}
        self._begin()

    def count(self, name: CounterName, value: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        cast("Counter", self._child(name, labels)).inc(value)

    def set(self, name: GaugeName, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        cast("Gauge", self._child(name, labels)).set(value)

    def clear(self, name: GaugeName, /) -> None:
        """Take a gauge back. One without labels stands at 0 then: Prometheus' client always shows it."""
        family = self._families[name]
        if METRICS[name].labels:
            family.clear()
            self._children = {key: child for key, child in self._children.items() if key[0] != name}
        else:
            cast("Gauge", family).set(0)

    def observe(self, name: HistogramName, value: float, /, **labels: str) -> None:
        """Add a value to a histogram."""
        cast("Histogram", self._child(name, labels)).observe(value)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def _family(self, name: str, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind == "counter":
            return Counter(name, metric.meaning, metric.labels, registry=self._registry)
        if metric.kind == "gauge":
            return Gauge(name, metric.meaning, metric.labels, registry=self._registry)
        return Histogram(name, metric.meaning, metric.labels, registry=self._registry, buckets=metric.buckets)

    def _begin(self) -> None:
        """The series of labels whose values are known stand at 0."""
        for name, metric in METRICS.items():
            for value in metric.values:
                self._child(name, {metric.labels[0]: value})

    def _child(self, name: str, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        key = (name, *labels, *labels.values())
        child = self._children.get(key)
        if child is None:
            family = self._families[name]
            child = family.labels(**labels) if labels else family
            self._children[key] = child
        return child
