"""Films a run of a recording for a page: every node and its pods, in a bounded number of steps.

A film gets the cluster before each change (:class:`berth_cli.recording.whatif.RunObserver`) and keeps the differences
between steps, in the form of the live console's frames.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY
from berth.bus.topology import BANDWIDTH, CLUSTER
from berth.cluster.nodes import info_of_row
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.framework.cycle import Ranking
from berth.messages.livedata import NodeSample, decode_sample
from berth.messages.subjects import parse_key
from berth_cli.console.nodetable import NodeFacts, NodeRequests, NodeTable, TrafficSample, UsageSample
from berth_cli.options import PodName
from berth_cli.recording.file import Recorded, Recording
from berth_cli.recording.history import History, recorded_run

# More steps look no smoother, and the page's slider is 240 pixels wide.
MOST_STEPS: Final = 240
# Nodes times steps; bounds the page's size. 60 steps of 5,000 nodes.
MOST_STATES: Final = 300_000
FEWEST_STEPS: Final = 2


class FilmStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The changes since the step before. The first step has all nodes."""

    nodes: list[NodeFacts] = []
    loads: list[NodeRequests] = []
    traffic: list[TrafficSample] = []
    usage: list[UsageSample] = []
    gone: list[int] = []


@dataclass(slots=True, kw_only=True)
class Stay:
    """A pod's time on a node, from step ``begin`` up to, but not including, step ``end``."""

    pod: PodName
    node: str
    cpu: int
    memory: int
    begin: int
    end: int | None = None

    def is_at(self, step: int) -> bool:
        return self.begin <= step and (self.end is None or step < self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRanking:
    """A pod's last ranking in a run. ``data`` is encoded to save memory, because every pod of a run has one."""

    at: datetime
    profile: str
    data: bytes

    @property
    def ranking(self) -> Ranking:
        return _ranking_decoder.decode(self.data)


_ranking_decoder: Final = msgspec.msgpack.Decoder(Ranking)
_ranking_encoder: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmedEviction:
    """Pods that were evicted for another one, by uid."""

    at: datetime
    uid: str
    node: str
    victims: tuple[str, ...]


@dataclass(slots=True)
class _Run:
    snapshot: Snapshot
    bandwidth: dict[str, dict[str, NodeSample]] = field(default_factory=dict)


class Film:
    def __init__(self, times: Sequence[datetime], samples: Sequence[Recorded] = ()) -> None:
        """``samples``: the records of bandwidth; without them the film has no traffic and no use."""
        self.times = times
        self.steps: list[FilmStep] = []  # the changes of each step
        self.labels: list[str] = []  # texts, to which nodes refer by number
        self.nodes: set[str] = set()  # the names of all nodes that ever existed
        self.rankings: dict[str, LastRanking] = {}  # each pod's last ranking, by uid
        self.evictions: list[FilmedEviction] = []  # in order of time
        self._samples = samples
        self._sampled = 0
        self._run: _Run | None = None
        self._table: NodeTable | None = None
        self._version = 0
        self._here: dict[int, dict[str, Stay]] = {}  # by row and uid, the pods on the node now
        self._by_node: dict[str, list[Stay]] = {}
        self._by_pod: dict[PodName, list[Stay]] = {}

    def until(self, at: datetime, snapshot: Snapshot) -> None:
        """The cluster does not change until this time."""
        while len(self.steps) < len(self.times) - 1 and self.times[len(self.steps)] < at:
            self._step(snapshot)

    def ranked(self, pod: Pod, ranking: Ranking, at: datetime) -> None:
        data = _ranking_encoder.encode(msgspec.structs.replace(ranking, only=None))
        self.rankings[pod.uid] = LastRanking(at=at, profile=pod.spec.scheduler_name, data=data)
        if ranking.nomination is not None and ranking.nomination.victims:
            found = ranking.nomination
            self.evictions.append(FilmedEviction(at=at, uid=pod.uid, node=found.node, victims=found.victims))

    def end(self, snapshot: Snapshot) -> None:
        while len(self.steps) < len(self.times):
            self._step(snapshot)

    def on_node(self, node: str, step: int) -> list[Stay]:
        """Pods on the node at the step, the latest first."""
        return [each for each in reversed(self._by_node.get(node, ())) if each.is_at(step)]

    def stays_of(self, name: PodName) -> list[Stay]:
        return self._by_pod.get(name, [])

    def ends_with(self, uid: str) -> bool:
        """Whether the pod ends placed. A removed node's pods count until they are deleted themselves."""
        return self._run is not None and self._run.snapshot.placed(uid) is not None

    def step_of(self, at: datetime) -> int:
        """The first step that shows changes of this time."""
        return min(bisect_left(self.times, at), len(self.times) - 1)

    def _step(self, snapshot: Snapshot) -> None:
        if self._table is None or self._run is None:
            self._run = _Run(snapshot)
            self._table = NodeTable(self._run)
        self._sample(self.times[len(self.steps)], self._run)
        changed, self._version = snapshot.changed_since(self._version), snapshot.version
        for row in range(snapshot.size) if changed is None else changed.nodes | changed.pods:
            self._follow_pods(snapshot, row)
        changes = self._table.changes(with_samples=bool(self._samples))
        self.labels.extend(changes.labels)
        self.steps.append(
            FilmStep(
                nodes=changes.facts,
                loads=changes.loads,
                traffic=changes.traffic,
                usage=changes.usage,
                gone=changes.gone,
            )
        )

    def _follow_pods(self, snapshot: Snapshot, row: int) -> None:
        here, info = self._here.setdefault(row, {}), info_of_row(snapshot, row)
        if info is None:
            self._leave(here, list(here))
            return
        self.nodes.add(info.name)
        there = {placed.pod.uid: placed for placed in info.placed()}
        self._leave(here, [uid for uid, stay in here.items() if uid not in there or stay.node != info.name])
        for uid, placed in there.items():
            if uid not in here:
                stay = here[uid] = _stay(placed, info.name, len(self.steps))
                self._by_node.setdefault(stay.node, []).append(stay)
                self._by_pod.setdefault(stay.pod, []).append(stay)

    def _leave(self, here: dict[str, Stay], uids: Sequence[str]) -> None:
        for uid in uids:
            here.pop(uid).end = len(self.steps)

    def _sample(self, until: datetime, run: _Run) -> None:
        while self._sampled < len(self._samples) and self._samples[self._sampled].time <= until:
            record = self._samples[self._sampled]
            self._sampled += 1
            with suppress(DecodeError):
                query, node = parse_key(record.subject)
                samples = run.bandwidth.setdefault(node, {})
                if record.payload is None:
                    samples.pop(query, None)
                else:
                    samples[query] = decode_sample(record.payload)


def _stay(placed: PlacedPod, node: str, begin: int) -> Stay:
    metadata, amounts = placed.pod.metadata, placed.pod_class.requests.amounts
    return Stay(
        pod=PodName(namespace=metadata.namespace, name=metadata.name),
        node=node,
        cpu=amounts.get(CPU, 0),
        memory=amounts.get(MEMORY, 0),
        begin=begin,
    )


def film_times(recording: Recording) -> list[datetime]:
    """The times of the steps, evenly from the begin of a recording to its end; a single one for an empty recording."""
    begin, end = recording.header.at, recording.last_time
    if end <= begin:
        return [end]
    nodes = len({record.subject for record in recording.of(CLUSTER) if record.subject.startswith("node.")})
    count = min(MOST_STEPS, max(FEWEST_STEPS, MOST_STATES // max(1, nodes)))
    return [*(begin + (end - begin) * step / (count - 1) for step in range(count - 1)), end]


def recorded_film(recording: Recording, history: History, times: Sequence[datetime]) -> Film:
    film, snapshot = Film(times, recording.of(BANDWIDTH)), Snapshot()
    for at in recorded_run(recording, history, snapshot):
        film.until(at, snapshot)
    film.end(snapshot)
    return film
