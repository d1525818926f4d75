"""A meter that tests read from."""

from __future__ import annotations

from berth.observability.metrics import METRICS, CounterName, GaugeName, HistogramName, Kind


class RecordingMeter:
    """Keeps values in two dicts, by name and labels. Like the real meter, it rejects metrics that are not declared."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.observed: dict[tuple[str, ...], list[float]] = {}

    def count(self, name: CounterName, value: float = 1, /, **labels: str) -> None:
        key = _key(name, "counter", labels)
        self.values[key] = self.values.get(key, 0) + value

    def set(self, name: GaugeName, value: float, /, **labels: str) -> None:
        self.values[_key(name, "gauge", labels)] = value

    def clear(self, name: GaugeName, /) -> None:
        for key in [key for key in self.values if key[0] == name]:
            del self.values[key]

    def observe(self, name: HistogramName, value: float, /, **labels: str) -> None:
        self.observed.setdefault(_key(name, "histogram", labels), []).append(value)

    def value(self, name: CounterName | GaugeName, /, **labels: str) -> float:
        """The value of a counter or gauge; 0 when it was never set."""
        return self.values.get(_key(name, METRICS[name].kind, labels), 0)


def _key(name: str, kind: Kind, labels: dict[str, str]) -> tuple[str, ...]:
    metric = METRICS[name]
    if metric.kind != kind or set(labels) != set(metric.labels):
        raise ValueError(f"counting {name}: want {metric.kind} with labels {metric.labels}, got {kind} with {labels}")
    return (name, *(labels[label] for label in metric.labels))
