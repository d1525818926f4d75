"""The nodes as the page shows them: properties, requests, traffic, and measured use.

Only changed rows are computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from berth.api.resources import CPU, MEMORY
from berth.cluster.nodes import NodeInfo, info_of_row
from berth.cluster.snapshot import Snapshot
from berth.messages.livedata import NodeSample
from berth.plugins.podtopologyspread.constraints import ZONE
from berth_cli.mirror import newest_traffic, newest_usage

S = TypeVar("S")

CORDONED: Final = 1
NOT_READY: Final = 2  # flags of a node
MOST_LABELS: Final = 48  # labels per node that the page can filter by
MOST_TEXTS: Final = 50_000  # distinct labels; more are ignored, so that labels that keep changing cost nothing
MOST_CHARACTERS: Final = 253  # of a name, label or profile, the limit of Kubernetes names; longer ones are cut
MOST_PROFILES: Final = 16  # profiles whose pods are counted per node
HOSTNAME: Final = "kubernetes.io/hostname"  # repeats the name, which the filter finds anyway


class NodeFacts(msgspec.Struct, frozen=True, array_like=True):
    """A node. Allocatable ``cpu`` in millicores, ``memory`` in bytes, ``pods``. ``labels`` are numbers."""

    row: int
    name: str
    zone: str
    cpu: int
    memory: int
    pods: int
    flags: int
    labels: list[int]


class NodeRequests(msgspec.Struct, frozen=True, array_like=True):
    """Load of a node: pods, the sums of their requests, and pods by profile."""

    row: int
    pods: int
    cpu: int
    memory: int
    profiles: dict[str, int]


class TrafficSample(msgspec.Struct, frozen=True, array_like=True):
    """A node's newest sample: bytes per second and its time (Unix seconds); all ``None`` without a sample."""

    row: int
    receive: float | None
    transmit: float | None
    capacity: float | None
    sampled_at: float | None


class UsageSample(msgspec.Struct, frozen=True, array_like=True):
    """A node's newest sample of CPU (millicores) and memory (bytes), means, and its time; ``None`` as for traffic."""

    row: int
    cpu: float | None
    memory: float | None
    sampled_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanges:
    """Changes since the last look, or everything. ``labels`` are texts numbered from ``labels_from``."""

    labels_from: int = 0
    labels: list[str] = field(default_factory=list)
    facts: list[NodeFacts] = field(default_factory=list)
    loads: list[NodeRequests] = field(default_factory=list)
    traffic: list[TrafficSample] = field(default_factory=list)
    usage: list[UsageSample] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)


class NodeSource(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def bandwidth(self) -> Mapping[str, Mapping[str, NodeSample]]:
        """Samples by node and query."""


class NodeTable:
    """The nodes of one mirror. A new mirror needs a new table, because rows differ."""

    def __init__(self, mirror: NodeSource) -> None:
        self._mirror = mirror
        self._version = 0
        self._facts: dict[int, NodeFacts] = {}
        self._loads: dict[int, NodeRequests] = {}
        self._traffic = _NewestSamples(newest_traffic, _traffic_of)
        self._usage = _NewestSamples(newest_usage, _usage_of)
        self._labels: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._facts)

    def whole(self) -> NodeChanges:
        """Everything as of the last :meth:`changes`."""
        return NodeChanges(
            labels=list(self._labels),
            facts=list(self._facts.values()),
            loads=list(self._loads.values()),
            traffic=list(self._traffic.shown.values()),
            usage=list(self._usage.shown.values()),
        )

    def changes(self, *, with_samples: bool) -> NodeChanges:
        """Changes since the last call. ``with_samples`` scans every node."""
        snapshot = self._mirror.snapshot
        changed, self._version = snapshot.changed_since(self._version), snapshot.version
        known_labels = len(self._labels)
        rows: Iterable[int] = range(snapshot.size)
        if changed is not None:
            rows = sorted(changed.nodes | changed.pods)
        facts, loads, gone = [], [], []
        for row in rows:
            info = info_of_row(snapshot, row)
            if info is None:
                if self._forget(row):
                    gone.append(row)
                continue
            if (fact := self._facts_of(info)) != self._facts.get(row):
                facts.append(fact)
            if (load := _load_of(info)) != self._loads.get(row):
                loads.append(load)
        self._facts.update((each.row, each) for each in facts)
        self._loads.update((each.row, each) for each in loads)
        labels = list(islice(self._labels, known_labels, None))
        return NodeChanges(
            labels_from=known_labels if labels else 0,
            labels=labels,
            facts=facts,
            loads=loads,
            traffic=self._traffic.changes(self._facts, self._mirror.bandwidth) if with_samples else [],
            usage=self._usage.changes(self._facts, self._mirror.bandwidth) if with_samples else [],
            gone=gone,
        )

    def _forget(self, row: int) -> bool:
        # Returns whether the row had a node.
        self._loads.pop(row, None)
        self._traffic.forget(row)
        self._usage.forget(row)
        return self._facts.pop(row, None) is not None

    def _facts_of(self, info: NodeInfo) -> NodeFacts:
        before = self._facts.get(info.row)
        if before is not None and before.name != info.name:  # The row has another node.
            self._forget(info.row)
        labels = {key: value for key, value in info.labels.items() if key != HOSTNAME}
        texts = sorted(_cut(f"{key}={value}") for key, value in labels.items())[:MOST_LABELS]
        columns = info.snapshot.columns
        return NodeFacts(
            row=info.row,
            name=_cut(info.name),
            zone=_cut(info.labels.get(ZONE, "")),
            cpu=info.allocatable(CPU),
            memory=info.allocatable(MEMORY),
            pods=info.allowed_pods,
            flags=CORDONED * info.unschedulable + NOT_READY * (not columns.ready[info.row]),
            labels=[number for text in texts if (number := self._number_of(text)) is not None],
        )

    def _number_of(self, label: str) -> int | None:
        if label not in self._labels and len(self._labels) < MOST_TEXTS:
            self._labels[label] = len(self._labels)
        return self._labels.get(label)


class _NewestSamples(Generic[S]):
    """Of each node the newest sample of one kind, and what is shown of it."""

    def __init__(
        self, newest: Callable[[Iterable[NodeSample]], NodeSample | None], show: Callable[[int, NodeSample | None], S]
    ) -> None:
        self._newest = newest
        self._show = show
        self._samples: dict[int, NodeSample] = {}
        self.shown: dict[int, S] = {}

    def forget(self, row: int) -> None:
        self._samples.pop(row, None)
        self.shown.pop(row, None)

    def changes(self, nodes: Mapping[int, NodeFacts], samples: Mapping[str, Mapping[str, NodeSample]]) -> list[S]:
        found = []
        for row, facts in nodes.items():
            sample = self._newest(samples.get(facts.name, {}).values())
            if sample is self._samples.get(row):
                continue
            if sample is None:
                del self._samples[row]
            else:
                self._samples[row] = sample
            self.shown[row] = self._show(row, sample)
            found.append(self.shown[row])
        return found


def _load_of(info: NodeInfo) -> NodeRequests:
    profiles = Counter(placed.pod.spec.scheduler_name for placed in info.placed())
    return NodeRequests(
        row=info.row,
        pods=info.pods,
        cpu=info.requested(CPU),
        memory=info.requested(MEMORY),
        profiles={_cut(name): pods for name, pods in profiles.most_common(MOST_PROFILES)},
    )


def _traffic_of(row: int, sample: NodeSample | None) -> TrafficSample:
    if sample is None:
        return TrafficSample(row=row, receive=None, transmit=None, capacity=None, sampled_at=None)
    return TrafficSample(
        row=row,
        receive=sample.receive,
        transmit=sample.transmit,
        capacity=sample.capacity,
        sampled_at=sample.sampled_at.timestamp(),
    )


def _usage_of(row: int, sample: NodeSample | None) -> UsageSample:
    cpu, memory = (None, None) if sample is None else (sample.cpu, sample.memory)
    return UsageSample(
        row=row,
        cpu=None if cpu is None else cpu.average,
        memory=None if memory is None else memory.average,
        sampled_at=None if sample is None else sample.sampled_at.timestamp(),
    )


def _cut(text: str) -> str:
    return text[:MOST_CHARACTERS]
