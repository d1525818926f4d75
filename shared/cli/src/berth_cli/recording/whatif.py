"""A recording's pods under another configuration, in their order.

The cluster begins as the recording does. Events of others (nodes, objects, pods of other schedulers, deletions) are
repeated at their times. Results of the recorded decisions (Bindings, evictions, volumes and devices of claims) are
replaced by the new ones. A waiting pod is tried again whenever a change may help it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from heapq import merge
from typing import Final, Protocol

import msgspec

from berth.api.devices import ResourceClaim, ResourceClaimStatus
from berth.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_CLAIM
from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY, pod_requests
from berth.api.volumes import PersistentVolume, PersistentVolumeClaim
from berth.bus.topology import BANDWIDTH, CLUSTER, FACTS
from berth.cluster.buckets import LiveDataReader, MirroredSnapshot
from berth.cluster.devices.extended import is_extended_claim
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.snapshot import Snapshot
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.framework.cycle import Ranking, RankOptions, rank
from berth.framework.plugincalls import pre_enqueue
from berth.framework.profile import Profile
from berth.messages.mirror import WATERMARK, decode_entry
from berth.messages.subjects import parse_key
from berth.plugins.dynamicresources.claims import claim_names
from berth_cli.recording.file import Recorded, Recording, Source
from berth_cli.recording.history import AskedPod, Claim, Fate, History, PodFate, apply, extended_claim_of, recorded_end
from berth_cli.recording.measures import MeasuredLoad, Measures, measures_of
from berth_cli.simulate.engine import Simulation

_BUCKETS: Final[tuple[Source, ...]] = (CLUSTER, BANDWIDTH, FACTS)
# Nodes of a ranking with every plugin's points, as many as in RANKED; the recorded one is named too.
_NAMED: Final = 8
_OF_CLAIMS: Final = frozenset({PERSISTENT_VOLUME.name, PERSISTENT_VOLUME_CLAIM.name, RESOURCE_CLAIM.name})
# Rankings of a pod at one time. The victims of its preemption are gone at once, so it fits after the first.
_MOST_TURNS: Final = 3


class ComparedPod(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    uid: str
    recorded: PodFate
    other: PodFate

    @property
    def is_equal(self) -> bool:
        return (self.recorded.fate, self.recorded.node) == (self.other.fate, self.other.node)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run. ``pods``: the pods of PENDING in order, then evicted older pods.

    ``left_out``: number of pods without a profile in the configuration; ``failures``: plugins' errors by pod.
    """

    pods: list[ComparedPod]
    measures: Measures
    left_out: int
    failures: dict[str, str]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs of a recording's pods: with its own configuration and with another.

    The first shows the differences that come from the run itself: pods are placed one after another.
    """

    recorded: Measures
    again: RunResult
    other: RunResult


class RunObserver(Protocol):
    def until(self, at: datetime, snapshot: Snapshot) -> None:
        """The cluster stays as it is up to this time."""

    def end(self, snapshot: Snapshot) -> None:
        pass

    def ranked(self, pod: Pod, ranking: Ranking, at: datetime) -> None:
        """A pod was ranked, or waits for the ranking's reason."""


def what_if(
    recording: Recording,
    own: Mapping[str, Profile],
    other: Mapping[str, Profile],
    *,
    history: History | None = None,
    observer: RunObserver | None = None,
) -> WhatIf:
    """``observer`` observes the run with the other profiles."""
    history = history or History(recording)
    recorded = recorded_end(recording, history)
    largest = max((pod for uid, pod in history.pods.items() if uid in history.bound), key=_size, default=None)
    load = MeasuredLoad(recorded, history.samples)

    def run(profiles: Mapping[str, Profile], observer: RunObserver | None = None) -> RunResult:
        made = OtherRun(recording, profiles, history, observer)
        made.through()
        return RunResult(
            pods=list(made.compared()),
            measures=measures_of(made.snapshot, largest, load),
            left_out=len(history.pods) - len(made.ours),
            failures=made.failures,
        )

    measures = measures_of(recorded, largest, load)
    return WhatIf(recorded=measures, again=run(own), other=run(other, observer))


def _size(pod: Pod) -> tuple[int, int]:
    amounts = pod_requests(pod.spec).amounts
    return amounts.get(CPU, 0), amounts.get(MEMORY, 0)


class OtherRun:
    def __init__(
        self,
        recording: Recording,
        profiles: Mapping[str, Profile],
        history: History,
        observer: RunObserver | None = None,
    ) -> None:
        # uids of the pods that the profiles place, in order
        self.ours = [uid for uid, pod in history.pods.items() if pod.spec.scheduler_name in profiles]
        self.snapshot = Snapshot()  # the cluster after them
        self._recording = recording
        self._profiles = profiles
        self._history = history
        self._observer = observer
        self._simulation = Simulation(snapshot=self.snapshot, profiles=profiles)
        self._mirror = MirroredSnapshot(self.snapshot)
        sources = frozenset(source for profile in profiles.values() for source in profile.live_sources)
        self._live = LiveDataReader(self.snapshot.live, sources)
        self._is_ours = frozenset(self.ours)
        # Victims of our pods. Groups, and pods without a profile, stay where they were recorded: so do their evictions.
        self._evicted_by_ours = {uid: at for uid, (at, by) in history.evicted.items() if by in self._is_ours}
        self._waiting: dict[str, AskedPod] = {}
        self._nodes: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._victims: dict[str, tuple[str, str]] = {}  # by uid of a pod evicted here: its name and node
        # Our pods that the recorded mirror has shown on a node: a later removal is their end.
        self._seen_bound: set[str] = set()
        self._ended: set[str] = set()
        self._users: dict[str, set[str]] = {}  # by uid of a ResourceClaim, its pods in this run
        self._may_help = False

    @property
    def failures(self) -> dict[str, str]:
        return self._simulation.failures

    def through(self) -> None:
        asked = [(one.at, one) for one in self._history.asked if one.pod.uid in self._is_ours]
        gone = [(at, uid) for uid, at in self._history.gone.items() if uid in self._is_ours]
        events: list[Sequence[tuple[datetime, Source | None, Recorded | AskedPod | str]]] = [
            [(at, None, one) for at, one in asked],
            [(at, None, uid) for at, uid in sorted(gone)],
        ]
        for bucket in _BUCKETS:
            begin = self._recording.position(bucket)
            records = self._recording.of(bucket)
            for record in records:
                if record.sequence <= begin:
                    self._follow(bucket, record)
            events.append([(record.time, bucket, record) for record in records if record.sequence > begin])
        for at, source, event in merge(*events, key=lambda item: item[0]):
            if self._observer is not None:
                self._observer.until(at, self.snapshot)
            self.snapshot.live.observe_time(at.timestamp())
            if isinstance(event, AskedPod):
                self._ask(event, at)
            elif isinstance(event, str):
                self._end(event)
            elif source is not None:
                self._follow(source, event)
        self._try_waiting(self._recording.last_time)
        if self._observer is not None:
            self._observer.end(self.snapshot)

    def compared(self) -> Iterator[ComparedPod]:
        """Every pod of PENDING, then the victims of either run that were placed before the recording."""
        for uid in self.ours:
            recorded, pod = self._history.fate_of(uid), self._history.pods[uid]
            yield ComparedPod(pod=pod.key, uid=uid, recorded=recorded, other=self._fate_of(uid))
        for uid in dict.fromkeys((*self._history.evicted, *self._victims)):
            if uid not in self._is_ours and (compared := self._compared_victim(uid)) is not None:
                yield compared

    def _fate_of(self, uid: str) -> PodFate:
        if uid in self._victims:
            return PodFate(fate=Fate.EVICTED, node=self._victims[uid][1])
        if uid in self._nodes and uid in self._ended and uid in self._history.evicted:  # by a pod that is not ours
            return PodFate(fate=Fate.EVICTED, node=self._nodes[uid])
        if uid in self._nodes:
            return PodFate(fate=Fate.PLACED, node=self._nodes[uid])
        return PodFate(fate=Fate.WAITS, reason=self._reasons.get(uid, ""))

    def _compared_victim(self, uid: str) -> ComparedPod | None:
        """A victim from before the recording; ``None`` for a pod placed in the run."""
        placed = self.snapshot.placed(uid)
        if uid in self._victims:
            name, node = self._victims[uid]
            other = PodFate(fate=Fate.EVICTED, node=node)
        elif placed is not None:
            name, node = placed.pod.key, self.snapshot.node_of(uid) or ""
            other = PodFate(fate=Fate.PLACED, node=node)
        else:
            return None
        is_evicted = uid in self._history.evicted
        recorded = PodFate(fate=Fate.EVICTED if is_evicted else Fate.PLACED, node=node)
        return ComparedPod(pod=name, uid=uid, recorded=recorded, other=other)

    # --- events of others

    def _follow(self, source: Source, record: Recorded) -> None:
        if source != CLUSTER:
            with suppress(DecodeError):
                self._live.apply(source, record.subject, record.payload, record.time)
            self._may_help = True
            return
        kind, name = _key_of(record)
        if kind == POD.name and name in self._is_ours:
            self._follow_ours(name, record)
        elif kind != WATERMARK and not self._is_a_consequence(kind, name, record):
            apply(self._mirror, record)
            self._may_help = True

    def _follow_ours(self, uid: str, record: Recorded) -> None:
        # Its recorded node does not count here; its end does, unless it was evicted for another pod.
        if record.payload is not None:
            if _node_in(record):
                self._seen_bound.add(uid)
        elif uid in self._seen_bound and uid not in self._evicted_by_ours:
            self._end(uid)

    def _end(self, uid: str) -> None:
        """Remove a deleted or finished pod."""
        self._ended.add(uid)
        self._waiting.pop(uid, None)
        self._free_devices(uid)
        self.snapshot.remove_pod(uid)
        self.snapshot.end_nomination(uid)
        self._may_help = True

    def _free_devices(self, uid: str) -> None:
        """As the claim controller does for a pod that ends: claims that no other pod of this run uses are free."""
        placed = self.snapshot.placed(uid)
        if placed is None:
            return
        DeviceLedger.of(self.snapshot).forget_pod(uid)
        claims = self.snapshot.objects(ResourceClaim)
        for name in claim_names(placed.pod):
            claim = claims.named(name, placed.pod.metadata.namespace)
            if claim is None:
                continue
            users = self._users.get(claim.metadata.uid, set())
            users.discard(uid)
            if not users and self._is_left(claim):
                claims.set(claim.metadata.uid, msgspec.structs.replace(claim, status=ResourceClaimStatus()))

    def _is_left(self, claim: ResourceClaim) -> bool:
        reserved = (each.uid for each in claim.status.reserved_for or ())
        return all(uid in self._ended or uid in self._victims or uid in self._is_ours for uid in reserved)

    def _is_a_consequence(self, kind: str, name: str, record: Recorded) -> bool:
        """Whether a change followed from the recorded decisions, or is of a pod that was evicted here."""
        if kind == POD.name:
            evicted_at = self._evicted_by_ours.get(name)
            return name in self._victims or (evicted_at is not None and record.time >= evicted_at)
        claim = _claim_in(kind, record)
        return claim is not None and self._history.is_a_consequence(claim, record.time)

    # --- the pods

    def _ask(self, asked: AskedPod, at: datetime) -> None:
        uid = asked.pod.uid
        if uid in self._nodes or uid in self._ended:
            return
        self._waiting[uid] = asked
        if self._may_help:
            self._try_waiting(at)
        else:
            self._try(asked, at)

    def _try_waiting(self, at: datetime) -> None:
        # All waiting pods that may be helped, in the order of their first PENDING.
        while self._may_help:
            self._may_help = False
            for asked in list(self._waiting.values()):
                self._try(asked, at)

    def _try(self, asked: AskedPod, at: datetime) -> None:
        pod = asked.pod
        profile = self._profiles[pod.spec.scheduler_name]
        admitted = pre_enqueue(profile.pre_enqueues, pod)
        if not admitted.is_success:
            self._reasons[pod.uid] = ", ".join(admitted.reasons)
            self._notify(pod, Ranking(message=self._reasons[pod.uid]), at)
            return
        node = self._history.bound.get(pod.uid, "")
        for _ in range(_MOST_TURNS):
            ranking = rank(
                pod,
                self.snapshot,
                profile,
                attempt=asked.attempt,
                options=RankOptions(best=_NAMED, explained=_NAMED, also=node),
            )
            ranking = _with_first(ranking, node)
            self._notify(pod, ranking, at)
            if not self._carry_out(pod, ranking, at):
                return

    def _notify(self, pod: Pod, ranking: Ranking, at: datetime) -> None:
        if self._observer is not None:
            self._observer.ranked(pod, ranking, at)

    def _carry_out(self, pod: Pod, ranking: Ranking, at: datetime) -> bool:
        """Carry out the ranking. Returns whether the pod may fit now that its victims are gone."""
        victims = ranking.nomination.victims if ranking.nomination is not None else ()
        self._note_victims(victims)
        rejection = self._simulation.carry_out(pod, ranking)
        if ranking.candidates and not rejection:
            self._place(pod, ranking.candidates[0].node, at)
            return False
        self._reasons[pod.uid] = rejection or ranking.error or ranking.message
        if ranking.error:
            self.failures[pod.key] = ranking.error
        return bool(victims)

    def _note_victims(self, victims: Sequence[str]) -> None:
        for uid in victims:
            placed = self.snapshot.placed(uid)
            if placed is not None:
                self._victims[uid] = placed.pod.key, self.snapshot.node_of(uid) or ""
                self._free_devices(uid)
                self._may_help = True  # The next smaller pod may fit beside the preemptor.

    def _place(self, pod: Pod, node: str, at: datetime) -> None:
        del self._waiting[pod.uid]
        self._nodes[pod.uid] = node
        for name in claim_names(pod):
            claim = self.snapshot.objects(ResourceClaim).named(name, pod.metadata.namespace)
            if claim is not None:
                self._users.setdefault(claim.metadata.uid, set()).add(pod.uid)
        placed = self.snapshot.placed(pod.uid)
        if placed is not None:  # With the time, from which its traffic is estimated.
            self.snapshot.place(placed.pod, node, bound_at=at.timestamp())


def _with_first(ranking: Ranking, node: str) -> Ranking:
    """The ranking with this node first, unless another one is better.

    Ties differ from the recorded scorers' and do not count as elsewhere.
    """
    best = ranking.candidates[:1]
    found = (each for each in ranking.candidates if each.node == node and each.total == best[0].total)
    first = next(found, None)
    if first is None:
        return ranking
    others = (each for each in ranking.candidates if each is not first)
    return msgspec.structs.replace(ranking, candidates=(first, *others))


def _key_of(record: Recorded) -> tuple[str, str]:
    try:
        return parse_key(record.subject)
    except DecodeError:
        return "", ""


def _node_in(record: Recorded) -> str:
    with suppress(DecodeError):
        return decode_json(_pod, decode_entry(record.payload or b"").object, "a mirrored pod").spec.node_name
    return ""


def _claim_in(kind: str, record: Recorded) -> Claim | None:
    """The claim that a mirrored object is, or is a volume of."""
    if record.payload is None or kind not in _OF_CLAIMS:
        return None
    with suppress(DecodeError):
        raw = decode_entry(record.payload).object
        if kind == PERSISTENT_VOLUME_CLAIM.name:
            claim = decode_json(_claim, raw, "a mirrored claim").metadata
            return kind, claim.namespace, claim.name
        if kind == RESOURCE_CLAIM.name:
            return _resource_claim(decode_json(_devices, raw, "a mirrored claim"))
        of = decode_json(_volume, raw, "a mirrored volume").spec.claim_ref
        return (PERSISTENT_VOLUME_CLAIM.name, of.namespace, of.name) if of is not None else None
    return None


def _resource_claim(claim: ResourceClaim) -> Claim:
    owner = next((each.uid for each in claim.metadata.owner_references or () if each.controller), "")
    if is_extended_claim(claim):
        return extended_claim_of(owner)
    return RESOURCE_CLAIM.name, claim.metadata.namespace, claim.metadata.name


_pod: Final = msgspec.json.Decoder(Pod)
_claim: Final = msgspec.json.Decoder(PersistentVolumeClaim)
_devices: Final = msgspec.json.Decoder(ResourceClaim)
_volume: Final = msgspec.json.Decoder(PersistentVolume)
