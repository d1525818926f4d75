"""The use of CPU and memory by ``metrics.k8s.io``, through the API server: for clusters without a Prometheus.

metrics-server knows each node's last value only, an average over some seconds. Statistics over the query's range are of
the values that this collector has seen, so they cover less after a start.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from statistics import fmean
from typing import Annotated, Final, NamedTuple

import msgspec

from berth.api.config.nodeload.queries import LoadQuery, Statistic
from berth.api.meta import ObjectMeta
from berth.api.resources import QuantityError, exact
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, refusal
from berth.messages.livedata import MAX_USAGE, MeasuredUsage, NodeSample, utc_time
from berth_metrics_collector.nodenames import NodeNames
from berth_metrics_collector.poller import MatchedSamples, Reporter
from berth_metrics_collector.prometheus import Cause, SourceError
from berth_metrics_collector.queries import QUANTILES
from berth_metrics_collector.samples import NodeSamples
from berth_metrics_collector.usage import MILLI, NOTHING, Allocatable

PATH: Final = "/apis/metrics.k8s.io/v1beta1/nodes"


class NodeMetrics(msgspec.Struct, frozen=True):
    """A node's last values; ``timestamp`` is the end of the time that they cover."""

    metadata: ObjectMeta
    timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    usage: dict[str, str] = {}


class NodeMetricsList(msgspec.Struct, frozen=True):
    items: list[NodeMetrics]


_lists: Final = msgspec.json.Decoder(NodeMetricsList)


class MetricsApiMeasurement:
    """Measures by one request for all nodes."""

    def __init__(self, query: LoadQuery, statistics: Collection[Statistic], client: KubeClient) -> None:
        self._client = client
        self._seen = SeenUsage(query.time_range, statistics)

    async def measure(self, nodes: NodeNames, _reporter: Reporter) -> MatchedSamples:
        items = await self._read()
        known = [item for item in items if item.metadata.name in nodes.names]
        samples = self._seen.samples(known, nodes.allocatable)
        return MatchedSamples(
            found=NodeSamples(samples=samples),
            unmatched=tuple(sorted({item.metadata.name for item in items} - nodes.names)),
            missing=tuple(sorted(nodes.names - samples.keys())),
        )

    async def _read(self) -> list[NodeMetrics]:
        try:
            response = await self._client.request("GET", PATH)
        except ApiUnreachableError as exc:
            raise SourceError(str(exc), cause="unreachable") from exc
        if not response.succeeded:
            raise SourceError(str(refusal("asking metrics.k8s.io", response)), cause=_cause(response.status))
        try:
            return decode_json(_lists, response.body, "an answer of metrics.k8s.io").items
        except DecodeError as exc:
            raise SourceError(str(exc), cause="nonsense") from exc


def _cause(status: int) -> Cause:
    """Without metrics-server the path is unknown; with one that does not answer it is unavailable."""
    is_away = status == HTTPStatus.NOT_FOUND or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return "unavailable" if is_away else "refused"


class _SeenValues(NamedTuple):
    at: float  # Unix seconds
    cpu: float | None  # millicores
    memory: float | None


class SeenUsage:
    """The values of a range that were seen of each node, and their statistics. Pure."""

    def __init__(self, time_range: timedelta, statistics: Collection[Statistic]) -> None:
        self._seconds = time_range.total_seconds()
        self._statistics = statistics
        self._readings: dict[str, deque[_SeenValues]] = {}

    def samples(
        self, items: Sequence[NodeMetrics], allocatable: Mapping[str, Allocatable] = NOTHING
    ) -> dict[str, NodeSample]:
        """A sample of each node with a value, which is of the range up to its last value."""
        readings = {item.metadata.name: reading for item in items if (reading := _reading(item)) is not None}
        # A node that is left out for longer than the range has nothing to keep.
        self._readings = {node: self._with(node, reading) for node, reading in readings.items()}
        return {node: self._sample(found, allocatable.get(node, NOTHING)) for node, found in self._readings.items()}

    def _with(self, node: str, reading: _SeenValues) -> deque[_SeenValues]:
        seen = self._readings.get(node) or deque()
        if seen and reading.at < seen[-1].at:  # by a clock that was set back, or a server that is behind
            seen.clear()
        if not seen or reading.at > seen[-1].at:
            seen.append(reading)
        while seen[0].at <= reading.at - self._seconds:
            seen.popleft()
        return seen

    def _sample(self, seen: Sequence[_SeenValues], has: Allocatable) -> NodeSample:
        cpu = [reading.cpu for reading in seen if reading.cpu is not None]
        memory = [reading.memory for reading in seen if reading.memory is not None]
        return NodeSample(
            cpu=self._usage(cpu, has.get("cpu")),
            memory=self._usage(memory, has.get("memory")),
            sampled_at=utc_time(seen[-1].at),
        )

    def _usage(self, values: Sequence[float], allocatable: float | None) -> MeasuredUsage | None:
        if not values:
            return None
        found = {statistic: _STATISTICS[statistic](values) for statistic in self._statistics}
        return MeasuredUsage(**found, allocatable=allocatable)


def _reading(item: NodeMetrics) -> _SeenValues | None:
    cpu, memory = _amount(item.usage.get("cpu"), MILLI), _amount(item.usage.get("memory"), 1)
    if item.timestamp is None or (cpu is None and memory is None):
        return None
    return _SeenValues(at=item.timestamp.timestamp(), cpu=cpu, memory=memory)


def _amount(quantity: str | None, factor: int) -> float | None:
    try:
        amount = float(exact(quantity) * factor) if quantity is not None else -1.0
    except QuantityError:
        return None
    return amount if 0 <= amount <= MAX_USAGE else None


def _deviation(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(fmean([(value - mean) ** 2 for value in values]))


def _quantile(values: Sequence[float], quantile: float) -> float:
    """Between the two values next to it in proportion, as Prometheus does."""
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    low = ordered[int(place)]
    return low + (ordered[math.ceil(place)] - low) * (place - int(place))


def _at(quantile: float) -> Callable[[Sequence[float]], float]:
    return lambda values: _quantile(values, quantile)


_STATISTICS: Final[Mapping[Statistic, Callable[[Sequence[float]], float]]] = {
    "average": fmean,
    "deviation": _deviation,
    **{statistic: _at(quantile) for statistic, quantile in QUANTILES.items()},
}
