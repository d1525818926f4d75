"""The events of a recording: requests for pods, Bindings, evictions, waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from heapq import merge
from operator import attrgetter
from typing import TypeVar

import msgspec

from berth.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_CLAIM
from berth.api.pod import Pod
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, PENDING, RANKED
from berth.cluster.buckets import MirroredSnapshot
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.messages.attempts import Decision, Outcome, Pending, Ranked, attempt_of
from berth.messages.encoding import Message, decode
from berth.messages.livedata import NodeSample, decode_sample
from berth.messages.queue import WaitingPod
from berth.messages.subjects import Attempt, key, parse_key
from berth.plugins.dynamicresources.claims import claim_names
from berth.plugins.volumes.claims import claims_of
from berth_cli.recording.file import Recorded, Recording, Source
from berth_cli.recording.measures import LastSamples

M = TypeVar("M", bound=Message)
Claim = tuple[str, str, str]  # kind, namespace and name


class Fate(StrEnum):
    PLACED = "placed"
    WAITS = "waits"
    EVICTED = "evicted"


class PodFate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's end in one run. ``reason``: why it waits."""

    fate: Fate
    node: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPod:
    """A pod of PENDING, without its nomination, which is a result of the recorded decisions."""

    pod: Pod
    attempt: Attempt
    at: datetime


class History:
    """The pods of a recording that were unbound at its begin, and their ends."""

    def __init__(self, recording: Recording) -> None:
        self.asked: list[AskedPod] = []  # every message of PENDING about them, in order
        self.pods: dict[str, Pod] = {}  # by uid, each pod in its first PENDING
        self.bound: dict[str, str] = {}  # by uid, the node
        # by uid of a victim, older pods included: when that was decided, and the uid of the pod or PodGroup that came
        self.evicted: dict[str, tuple[datetime, str]] = {}
        # by uid, the time at which a pod was found deleted, or bound by others, before berth bound it
        self.gone: dict[str, datetime] = {}
        self.samples = _last_samples(recording)
        self._reasons: dict[str, str] = {}
        self._claims: dict[Claim, datetime] = {}
        placed = _placed_at_the_begin(recording)
        for record, pending in decoded(recording, PENDING, Pending):
            if pending.pod.uid not in placed and not pending.error:
                self._ask(pending, record.time)
        for record, ranked in decoded(recording, RANKED, Ranked):
            if ranked.candidates:
                self._use_claims(ranked.pod, record.time)
        for record, decision in decoded(recording, DECISIONS, Decision):
            self._decide(decision, record.time)

    def fate_of(self, uid: str) -> PodFate:
        if uid in self.evicted:
            return PodFate(fate=Fate.EVICTED, node=self.bound.get(uid, ""))
        if uid in self.bound:
            return PodFate(fate=Fate.PLACED, node=self.bound[uid])
        return PodFate(fate=Fate.WAITS, reason=self._reasons.get(uid, ""))

    def is_a_consequence(self, claim: Claim, at: datetime) -> bool:
        """Whether a change of a claim at this time followed from its pod's node."""
        since = self._claims.get(claim)
        return since is not None and at >= since

    def _ask(self, pending: Pending, at: datetime) -> None:
        status = msgspec.structs.replace(pending.pod.status, nominated_node_name="")
        pod = msgspec.structs.replace(pending.pod, status=status)
        self.asked.append(AskedPod(pod=pod, attempt=Attempt.parse(pending.attempt), at=at))
        self.pods.setdefault(pod.uid, pod)

    def _use_claims(self, pod: Pod, at: datetime) -> None:
        namespace = pod.metadata.namespace
        volumes = ((PERSISTENT_VOLUME_CLAIM.name, namespace, use.name) for use in claims_of(pod))
        devices = ((RESOURCE_CLAIM.name, namespace, name) for name in claim_names(pod))
        for claim in (*volumes, *devices, extended_claim_of(pod.uid)):
            self._claims.setdefault(claim, at)

    def _decide(self, decision: Decision, at: datetime) -> None:
        if decision.outcome is Outcome.BOUND:
            self.bound[decision.uid] = decision.node
        elif decision.outcome is Outcome.GONE:
            self.gone.setdefault(decision.uid, at)
            self._reasons[decision.uid] = "gone: deleted, or bound by another client"
        elif decision.outcome is Outcome.PREEMPTING and decision.preemption is not None:
            for victim in decision.preemption.victims:
                self.evicted.setdefault(victim.uid, (at, decision.uid))
        self._reasons.setdefault(decision.uid, "")
        if decision.message:
            self._reasons[decision.uid] = decision.message


def extended_claim_of(uid: str) -> Claim:
    """The claim for the extended resources of the pod with this uid, which is found by the pod."""
    return RESOURCE_CLAIM.name, "", uid


def decoded(recording: Recording, source: Source, kind: type[M]) -> Iterator[tuple[Recorded, M]]:
    """Messages of a source that can be decoded; services ignore the others too."""
    return decoded_records(recording.of(source), kind)


def decoded_records(records: Iterable[Recorded], kind: type[M]) -> Iterator[tuple[Recorded, M]]:
    for record in records:
        try:
            message = decode(record.payload or b"", kind)
            if isinstance(message, Pending | Ranked):
                attempt_of(message)
        except DecodeError:
            continue
        yield record, message


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWaiting:
    pod: WaitingPod
    at: datetime
    draining: bool


class RecordedQueue:
    """Waiting pods by namespace and name, each from the newest list that has it."""

    def __init__(self, recording: Recording) -> None:
        self._known: dict[tuple[str, str], KnownWaiting] = {}
        self.was_asked = bool(recording.waiting)  # whether the recording has a list; without one no watcher answered
        # number of waiting pods missing from the newest list
        self.more = recording.waiting[-1].more if recording.waiting else 0
        for waiting in recording.waiting:
            for pod in waiting.pods:
                known = KnownWaiting(pod=pod, at=waiting.at, draining=waiting.draining)
                self._known[pod.namespace, pod.name] = known

    def __len__(self) -> int:
        return len(self._known)

    def of(self, namespace: str, name: str) -> KnownWaiting | None:
        return self._known.get((namespace, name))


def all_decisions(recording: Recording) -> Iterable[Recorded]:
    """DECISIONS and the last Decisions on waiting pods, which may be older; in stream order."""
    by_sequence = {each.sequence: each for each in (*_of_lists(recording), *recording.of(DECISIONS))}
    return sorted(by_sequence.values(), key=attrgetter("sequence"))


def _of_lists(recording: Recording) -> Iterator[Recorded]:
    for waiting in recording.waiting:
        yield from waiting.decisions


def recorded_run(recording: Recording, history: History, snapshot: Snapshot) -> Iterator[datetime]:
    """Bring a Snapshot through a recording; yields the time before each change.

    A bound pod counts from its Decision on, as for scorers: the mirror may show it later, or not any more.
    """
    mirror, begin = MirroredSnapshot(snapshot), recording.position(CLUSTER)
    changes: list[tuple[datetime, Recorded | Decision]] = []
    for record in recording.of(CLUSTER):
        if record.sequence <= begin:
            apply(mirror, record)
        else:
            changes.append((record.time, record))
    decisions: list[tuple[datetime, Recorded | Decision]] = [
        (record.time, decision)
        for record, decision in decoded(recording, DECISIONS, Decision)
        if decision.outcome is Outcome.BOUND and decision.uid in history.pods
    ]
    ended: set[str] = set()
    for at, event in merge(changes, decisions, key=lambda each: each[0]):
        yield at
        if isinstance(event, Recorded):
            apply(mirror, event)
            if event.payload is None:
                ended.add(event.subject)
        elif snapshot.placed(event.uid) is None and key(POD.name, event.uid) not in ended:
            snapshot.place(history.pods[event.uid], event.node)


def recorded_end(recording: Recording, history: History) -> Snapshot:
    snapshot = Snapshot()
    for _ in recorded_run(recording, history, snapshot):
        pass
    return snapshot


def apply(mirror: MirroredSnapshot, record: Recorded) -> None:
    """Apply a recorded entry of the mirror; undecodable ones are ignored, as in a scorer."""
    with suppress(DecodeError):
        mirror.apply(record.subject, record.payload)


def _placed_at_the_begin(recording: Recording) -> frozenset[str]:
    # A message of a bound pod may still be in PENDING.
    snapshot, end = Snapshot(), recording.position(CLUSTER)
    mirror = MirroredSnapshot(snapshot)
    for record in recording.of(CLUSTER):
        if record.sequence <= end and record.subject.startswith("pod."):
            apply(mirror, record)
    return frozenset(placed.pod.uid for row in range(snapshot.size) for placed in snapshot.placed_on_row(row))


def _last_samples(recording: Recording) -> LastSamples:
    # Of traffic and of usage each of the query whose name comes first.
    found: dict[str, dict[str, NodeSample]] = {}
    for record in recording.of(BANDWIDTH):
        with suppress(DecodeError):
            query, node = parse_key(record.subject)
            sample = None if record.payload is None else decode_sample(record.payload)
            found.setdefault(query, {}).pop(node, None)
            if sample is not None:
                found[query][node] = sample
    queries = [samples for _, samples in sorted(found.items())]
    return LastSamples(
        traffic=next((each for each in queries if any(one.has_traffic for one in each.values())), {}),
        usage=next((each for each in queries if any(one.has_usage for one in each.values())), {}),
    )
