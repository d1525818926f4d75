"""The use of CPU and memory by ``metrics.k8s.io``, through the API server: for clusters without a Prometheus.

metrics-server knows each node's last value only, an average over some seconds. Statistics over the query's range are of
the values that this collector has seen, at ``MOST_POINTS`` of it, so they cover less after a start.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from statistics import fmean
from typing import Annotated, Final, NamedTuple

import msgspec

from berth.api.config.nodeload.queries import LoadQuery, Statistic
from berth.api.resources import QuantityError, exact
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, refusal
from berth.messages.livedata import MAX_USAGE, MeasuredUsage, NodeSample, check_time, utc_time
from berth_metrics_collector.nodenames import NodeNames
from berth_metrics_collector.poller import MatchedSamples, Reporter
from berth_metrics_collector.prometheus import Cause, SourceError
from berth_metrics_collector.queries import MOST_POINTS, QUANTILES
from berth_metrics_collector.samples import NodeSamples
from berth_metrics_collector.usage import MILLI, Allocatable

PATH: Final = "/apis/metrics.k8s.io/v1beta1/nodes"
_FACTORS: Final = {"cpu": MILLI, "memory": 1}


class _Name(msgspec.Struct, frozen=True):
    name: str


class _Item(msgspec.Struct, frozen=True):
    """A node's last values; ``timestamp`` is the end of the time that they cover."""

    metadata: _Name
    timestamp: msgspec.Raw = msgspec.Raw(b"null")
    usage: msgspec.Raw = msgspec.Raw(b"null")


class _ItemList(msgspec.Struct, frozen=True):
    items: list[_Item]


_lists: Final = msgspec.json.Decoder(_ItemList)
_times: Final = msgspec.json.Decoder(Annotated[datetime, msgspec.Meta(tz=True)])
_quantities: Final = msgspec.json.Decoder(dict[str, str])


class MetricsApiMeasurement:
    """Measures by one request for all nodes."""

    def __init__(self, query: LoadQuery, statistics: Collection[Statistic], client: KubeClient) -> None:
        self._client = client
        self._seen = SeenUsage(query.time_range, statistics)

    async def measure(self, nodes: NodeNames, reporter: Reporter) -> MatchedSamples:
        read = read_usage(await self._read())
        reporter.unusable(read.unusable)
        samples = self._seen.samples(read.values, nodes.allocatable)
        return MatchedSamples(
            found=NodeSamples(samples=samples),
            unmatched=tuple(sorted((read.values.keys() | read.unusable.keys()) - nodes.names)),
            missing=tuple(sorted(nodes.names - samples.keys())),
        )

    async def _read(self) -> bytes:
        try:
            response = await self._client.request("GET", PATH)
        except ApiUnreachableError as exc:
            raise SourceError(str(exc), cause="unreachable") from exc
        if response.status == HTTPStatus.NOT_FOUND:
            raise SourceError(
                "the API server does not serve metrics.k8s.io: is metrics-server installed?", cause="unavailable"
            )
        if not response.succeeded:
            raise SourceError(str(refusal("asking metrics.k8s.io", response)), cause=_cause(response.status))
        return response.body


def _cause(status: int) -> Cause:
    return "unavailable" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "refused"


class UsedAt(NamedTuple):
    """One node's last values."""

    at: float  # Unix seconds
    cpu: float | None  # millicores
    memory: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadUsage:
    """An answer by node; ``unusable``: the first reason for each node with a value that is left out."""

    values: dict[str, UsedAt] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)


def read_usage(answer: bytes) -> ReadUsage:
    """Read an answer. A value that cannot be costs its own node only; of two items of one node, the newer counts.

    Raises:
        SourceError: no list of named items.
    """
    read = ReadUsage()
    try:
        items = decode_json(_lists, answer, "an answer of metrics.k8s.io").items
    except DecodeError as exc:
        raise SourceError(str(exc), cause="nonsense") from exc
    for item in items:
        name = item.metadata.name
        try:
            at, usage = _time(item.timestamp), decode_json(_quantities, item.usage, "usage")
        except DecodeError as exc:
            read.unusable.setdefault(name, str(exc))
            continue
        found: dict[str, float] = {}
        for resource, factor in _FACTORS.items():
            try:
                found[resource] = _amount(resource, usage.get(resource), factor)
            except DecodeError as exc:
                read.unusable.setdefault(name, str(exc))
        if found and (name not in read.values or read.values[name].at < at):
            read.values[name] = UsedAt(at, found.get("cpu"), found.get("memory"))
    return read


class SeenUsage:
    """The values of a range that were seen of each node, and their statistics. Pure."""

    def __init__(self, time_range: timedelta, statistics: Collection[Statistic]) -> None:
        self._seconds = time_range.total_seconds()
        self._statistics = statistics
        self._seen: dict[str, deque[UsedAt]] = {}

    def samples(self, values: Mapping[str, UsedAt], nodes: Mapping[str, Allocatable]) -> dict[str, NodeSample]:
        """A sample of each node with a value, which is of the range up to its last value.

        ``nodes``: what each existing node has. One that an answer leaves out keeps its earlier values.
        """
        self._seen = {node: seen for node, seen in self._seen.items() if node in nodes}
        known = values.keys() & nodes.keys()
        self._seen.update({node: self._with(node, values[node]) for node in known})
        return {node: self._sample(self._seen[node], nodes[node]) for node in known}

    def _with(self, node: str, last: UsedAt) -> deque[UsedAt]:
        seen = self._seen.get(node) or deque()
        # An older answer, as of a replica that is behind, does not count; further back, a clock was set back.
        if seen and last.at < seen[-1].at - self._seconds:
            seen.clear()
        if not seen or last.at > seen[-1].at:
            if len(seen) > 1 and seen[-1].at - seen[-2].at < self._seconds / MOST_POINTS:
                seen.pop()  # only the last value may be closer
            seen.append(last)
        while seen[0].at <= last.at - self._seconds:
            seen.popleft()
        return seen

    def _sample(self, seen: Sequence[UsedAt], has: Allocatable) -> NodeSample:
        cpu = [each.cpu for each in seen if each.cpu is not None]
        memory = [each.memory for each in seen if each.memory is not None]
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


def _time(timestamp: msgspec.Raw) -> float:
    found: datetime = decode_json(_times, timestamp, "timestamp")
    check_time(found, "decoding timestamp")
    return found.timestamp()


def _amount(resource: str, quantity: str | None, factor: int) -> float:
    if quantity is None:
        raise DecodeError(f"decoding usage: {resource} is missing")
    try:
        amount = float(exact(quantity) * factor)
    except QuantityError as exc:
        raise DecodeError(f"decoding usage: {resource}: {exc}") from exc
    if not 0 <= amount <= MAX_USAGE:
        raise DecodeError(f"decoding usage: {resource}: want 0 to a petabyte, got {quantity}")
    return amount


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
