"""Watcher, scorer and binder around one API server and one bus, without sockets: bytes go in, and between them.

Whoever writes an object or a message here writes JSON of any shape. Nothing that the cores raise is caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import msgspec

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.api.kinds import WATCHED_KINDS
from berth.api.volumes import BIND_COMPLETED
from berth.bus.interface import Entry, StoredMessage
from berth.cluster.buckets import LiveDataReader
from berth.decoding import MALFORMED
from berth.errors import DecodeError
from berth.framework.interface import CreateClaim, KeepVolume, ReserveClaim, SelectNode
from berth.framework.profile import Profile
from berth.kube.listwatch import ObjectDecoder
from berth.kube.writes import SELECTED_NODE
from berth.messages.attempts import Decision, DecisionSummary, Pending, Ranked, attempt_of
from berth.messages.encoding import Versioned, decode, encode
from berth.messages.groupattempts import GROUP_SCHEMA, GroupPending, GroupRanked, decode_group
from berth.messages.livedata import LiveBucket
from berth.messages.subjects import Attempt, Epoch
from berth.observability.tracing import UnexportedSpan
from berth.profiles.configuration import profiles_of
from berth.profiles.installed import known_plugins
from berth.ranking.ranker import Ranker
from berth_binder.cache import Cache
from berth_binder.core import BinderCore
from berth_binder.events import (
    Ack,
    BindingAnswer,
    ClearNomination,
    DecisionStored,
    EvictionAnswer,
    EvictPods,
    GetPod,
    GroupDelivery,
    Nominate,
    NominationAnswer,
    NominationCleared,
    PodAnswer,
    PodShown,
    PostBinding,
    PublishDecision,
    PutOff,
    RankedDelivery,
    RecordEvent,
    RecordGroup,
    RehearsalAnswer,
    RehearseBinding,
    RejectRanked,
    ReleaseAnswer,
    ReleaseClaims,
    VoidBindings,
    WriteObjects,
    WritesAnswer,
)
from berth_binder.settings import CoreSettings
from berth_scorer.core import ScorerCore
from berth_scorer.events import (
    CountSuspect,
    DeadLetterStored,
    DecisionsRead,
    LogFailure,
    MirrorRead,
    PeerRankingRead,
    PendingReceived,
    PublishRanked,
    RankedRefused,
    RankedStored,
    ReportUndecodable,
    SuspectCounted,
    WriteDeadLetter,
)
from berth_watcher.events import DecisionReceived, LiveDataReceived, PublishDeadLetter, Warn
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest

KINDS: Final = MappingProxyType({kind.name: kind for kind in WATCHED_KINDS})
ONE_MEGABYTE: Final = 1_000_000
MOST_EVENTS: Final = 200_000
"""Of one cycle with all its objects: a loop between the cores does not end by itself."""

# Every plugin, so that whatever one of them reads is read here.
CONFIGURATION: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
parallelism: 16
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 10
percentageOfNodesToScore: 100
leaderElection: {leaderElect: true, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 2s}
clientConnection: {qps: 50, burst: 100}
profiles:
- schedulerName: berth
  percentageOfNodesToScore: 100
  plugins:
    filter: {enabled: [{name: NodeReady}, {name: NetworkTraffic}]}
    score: {enabled: [{name: NetworkTraffic, weight: 2}, {name: NodeScoreLabel, weight: 1},
                      {name: FreeCapacity, weight: 1}]}
  pluginConfig:
  - name: NetworkTraffic
    args: {url: "http://127.0.0.1:9090", range: 1m, scoring: Capacity, capacity: 1G, saturationPercent: 90,
           unknownScore: 50}
  - name: NodeScoreLabel
    args: {key: disk, value: ssd}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 5}
  - name: DefaultPreemption
    args: {minCandidateNodesPercentage: 10, minCandidateNodesAbsolute: 100}
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 600}
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 3, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 1}, {name: example.com/gpu, weight: 3}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
"""


@cache
def default_configuration() -> KubeSchedulerConfiguration:
    return load(CONFIGURATION, known=known_plugins(), preset=DEFAULT)


@dataclass(frozen=True)
class Handed:
    """A delivery of a work queue; the cores only hand it back."""

    sequence: int
    data: bytes
    subject: str
    time: datetime
    delivered: int = 1
    headers: dict[str, str] = field(default_factory=dict)


class WholeCycle:
    """The three cores, and what of them people see."""

    def __init__(self, configuration: KubeSchedulerConfiguration | None = None) -> None:
        self.configuration = configuration or default_configuration()
        self.watcher = WatcherUnderTest(profiles=self._profiles(), kinds=tuple(KINDS), max_message_bytes=ONE_MEGABYTE)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        """What the API server has, by kind and namespace/name; objects that are no JSON objects are not kept."""
        self.decisions: list[Decision] = []
        self.events: list[RecordEvent] = []
        """What the binder says of pods at the API server."""
        self.of_groups: list[RecordGroup] = []
        """The same of groups and their members."""
        self.dead_letters: list[str] = []
        self.warnings: list[str] = []
        self.bound: dict[str, str] = {}
        """By uid, the node of each Binding."""
        self.evicted: list[str] = []
        """Names of victims."""
        self.longest_message = 0
        self._version = 1000
        self._sequences: Counter[str] = Counter()
        self._mirrored = 0
        self._published: Counter[str] = Counter()
        self._shown: list[str] = []
        self._handled = 0
        self._decoders = {name: ObjectDecoder(kind) for name, kind in KINDS.items()}
        self.cache = Cache(schedulers=("berth",))
        self.cache.notify(self._shown.append)
        self.watcher.lead()
        self._read_mirror: list[Entry] = []
        put = self.watcher.put

        def noted(key: str, data: bytes | None) -> Entry:
            entry = put(key, data)
            self._read_mirror.append(entry)
            return entry

        self.watcher.put = noted  # type: ignore[method-assign]
        self._read_mirror += self.watcher.bucket.values()
        self._ranker = Ranker(profiles=self._profiles(), config=self.configuration.digest, identity="scorer-1", best=32)
        self.sources = self._ranker.live_sources
        self.scorer = ScorerCore(
            ranker=self._ranker,
            stopwatch=lambda: self.watcher.now,
            spanning=lambda _held: UnexportedSpan(None),
            position_wait=timedelta(seconds=1),
        )
        self.binder = BinderCore(
            cache=self.cache,
            profiles=self._profiles(),
            epoch=Epoch(7),
            config=self.configuration.digest,
            settings=CoreSettings(),
        )

    def _profiles(self) -> dict[str, Profile]:
        return dict(profiles_of(self.configuration))

    # --- what others write

    def apply(self, kind: str, body: dict[str, Any] | bytes, *, deleted: bool = False) -> None:
        """The API server has this object, and shows it to watcher and binder."""
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        known = msgspec.json.decode(raw) if isinstance(body, bytes) and _is_json(raw) else body
        if isinstance(known, dict):
            self._keep(kind, known, deleted=deleted)
        self._show(kind, raw, deleted=deleted)

    def _keep(self, kind: str, body: dict[str, Any], *, deleted: bool) -> None:
        metadata = body.get("metadata")
        if not isinstance(metadata, dict):
            return
        place = (kind, f"{metadata.get('namespace')}/{metadata.get('name')}")
        if deleted:
            self.objects.pop(place, None)
        else:
            self.objects[place] = body

    def _show(self, kind: str, raw: bytes, *, deleted: bool = False) -> None:
        line = b'{"type":"%s","object":%s}' % (b"DELETED" if deleted else b"ADDED", raw)
        event = self._decoders[kind].event(line)
        self.cache.observe(event)  # type: ignore[arg-type] - no Status comes here
        self.watcher.send(event)  # type: ignore[arg-type]

    def pending(self, data: bytes) -> None:
        """A message of PENDING is delivered to the scorer."""
        handed = self._handed("PENDING", "berth.pending.berth.default.web", data)
        pending: Pending | GroupPending
        try:
            if _is_of_group(data):
                pending = decode_group(data, GroupPending)
            else:
                pending = decode(data, Pending)
                attempt_of(pending)
        except DecodeError as error:
            self.dead_letters.append(str(error))
            return
        if pending.profile in self.configuration.scheduler_names:
            self._rank(PendingReceived(delivery=handed, pending=pending))

    def ranked(self, data: bytes, *, is_peers: bool = False) -> None:
        """A message of RANKED is delivered to the binder, and read by a scorer if it is another's."""
        handed = self._handed("RANKED", "berth.ranked.berth.default.web", data)
        if is_peers:
            stored = StoredMessage(subject=handed.subject, sequence=handed.sequence, data=data, time=handed.time)
            self._rank(PeerRankingRead(stored=stored))
        held = {"sequence": handed.sequence, "delivery": handed}
        try:
            if _is_of_group(data):
                plan = decode_group(data, GroupRanked)
                self._commit(GroupDelivery(ranked=plan, attempt=Attempt.parse(plan.attempt), **held))
            else:
                ranked = decode(data, Ranked)
                self._commit(RankedDelivery(ranked=ranked, attempt=attempt_of(ranked), **held))
        except DecodeError as error:
            self.dead_letters.append(str(error))

    def decided(self, data: bytes) -> None:
        """A message of DECISIONS is read by watcher and scorer."""
        handed = self._handed("DECISIONS", "berth.decision.berth.default.web", data)
        stored = StoredMessage(subject=handed.subject, sequence=handed.sequence, data=data, time=handed.time)
        self._rank(DecisionsRead(batch=[stored], position=handed.sequence))
        try:
            decision = decode(data, DecisionSummary)
        except DecodeError as error:
            self.warnings.append(str(error))
            return
        self.watcher.send(DecisionReceived(decision=decision, sequence=handed.sequence, time=handed.time))

    def mirrored(self, key: str, data: bytes) -> None:
        """Another writes a key of the bucket `cluster`: the watcher reads it and writes its own value again."""
        self.watcher.put(key, data)
        self.watcher.read_back()

    def live(self, bucket: LiveBucket, key: str, data: bytes) -> None:
        """A sample or fact is read by all three."""
        sequence = self._next(bucket)
        for snapshot in (self.scorer.view.snapshot, self.cache.snapshot):
            try:
                LiveDataReader(snapshot.live, self.sources).apply(bucket, key, data, self._now())
            except DecodeError as error:
                self.warnings.append(str(error))
        self.watcher.send(LiveDataReceived(bucket=bucket, key=key, sequence=sequence, data=data))

    # --- the cycle

    def settle(self, *, seconds: float = 0.0) -> None:
        """Everything that is under way comes to an end; then time passes, and again."""
        self._turn()
        for _ in range(round(seconds)):
            self.watcher.advance(1.0)
            self._commit()
            self._turn()

    def _turn(self) -> None:
        while True:
            before = self._handled
            self._mirror()
            for published in self._new("pods", self.watcher.published):
                self._bus(encode(published.message), self.pending)
            for published in self._new("groups", self.watcher.groups_published):
                self._bus(encode(published.message), self.pending)
            self._rank()
            while self._shown:
                self._commit(PodShown(uid=self._shown.pop()))
            if self._handled == before:
                return

    def _new(self, of: str, published: list[Any]) -> Iterator[Any]:
        while self._published[of] < len(published):
            self._published[of] += 1
            yield published[self._published[of] - 1]

    def _mirror(self) -> None:
        entries, self._read_mirror = self._read_mirror, []
        if entries:
            self._rank(MirrorRead(entries=entries, position=self.watcher.sequence))
            self.watcher.read_back()

    def _bus(self, data: bytes, to: Callable[[bytes], None]) -> None:
        self.longest_message = max(self.longest_message, len(data))
        to(data)

    def _count(self) -> None:
        self._handled += 1
        assert self._handled < MOST_EVENTS, "the cores answer each other without end"

    def _rank(self, *events: Any) -> None:  # noqa: C901 - one case an effect
        for event in events:
            self._count()
            if isinstance(event, MirrorRead):
                self._mirrored += len(event.entries)
        for effect in self.scorer.handle(events, self.watcher.now, lambda: True):
            match effect:
                case PublishRanked():
                    self._count()
                    data = encode(effect.message)
                    if len(data) > ONE_MEGABYTE:
                        self._rank(RankedRefused(sequence=effect.held.sequence, reason="too large"))
                    else:
                        self._rank(RankedStored(sequence=effect.held.sequence))
                        self._bus(data, self.ranked)
                case WriteDeadLetter():
                    self.dead_letters.append(effect.reason)
                    if effect.in_place_of_answer:
                        self._rank(DeadLetterStored(sequence=effect.held.sequence, is_stored=True))
                case CountSuspect():
                    self._rank(SuspectCounted(tries=1))
                case ReportUndecodable():
                    self.warnings.append(effect.reason)
                case LogFailure():
                    raise effect.error
        self._collect()

    def _commit(self, *events: Any) -> None:
        for _ in events:
            self._count()
        for effect in self.binder.handle(events, self.watcher.now):
            self._answer(effect)
        self._collect()

    def _answer(self, effect: Any) -> None:  # noqa: C901, PLR0912 - one case an effect
        match effect:
            case PublishDecision():
                assert not effect.dead_letter, effect.decision.message
                data = encode(effect.decision)
                decision = decode(data, Decision)  # a Decision that berth cannot read itself helps nobody
                self.decisions.append(decision)
                self._bus(data, self.decided)
                self._commit(DecisionStored(decision=effect.decision))
            case PostBinding():
                self.bound[effect.pod.uid] = effect.node
                self._write("pod", effect.pod.key, lambda body: body["spec"].update(nodeName=effect.node))
                self._commit(BindingAnswer(uid=effect.pod.uid, status=201))
            case RehearseBinding():
                self._commit(RehearsalAnswer(uid=effect.pod.uid, status=201))
            case EvictPods():
                self.evicted += [victim.metadata.name for victim in effect.victims]
                pod = self._nominated(effect.pod, effect.node)
                self._commit(EvictionAnswer(uid=effect.pod.uid, status=200, pod=pod))
            case Nominate():
                pod = self._nominated(effect.pod, effect.node)
                self._commit(NominationAnswer(uid=effect.pod.uid, status=200, pod=pod))
            case ClearNomination():
                self._commit(NominationCleared(uid=effect.pod.uid, status=200))
            case GetPod() | VoidBindings():
                self._commit(PodAnswer(uid=effect.pod.uid, status=200, pod=self.cache.pod(effect.pod.uid)))
            case WriteObjects():
                for request in effect.requests:
                    if isinstance(request, ReserveClaim):
                        self._reserve_claim(request, effect.pod)
                    elif not isinstance(request, CreateClaim):
                        self._write_volume(request)
                self._commit(WritesAnswer(uid=effect.pod.uid, status=200))
            case ReleaseClaims():
                self._commit(ReleaseAnswer(uid=effect.pod.uid, status=200))
            case RecordEvent():
                self.events.append(effect)
            case RecordGroup():
                self.of_groups.append(effect)
            case RejectRanked() | PutOff():
                self.dead_letters.append(effect.reason)
            case Ack():
                pass

    def _reserve_claim(self, request: ReserveClaim, pod: Any) -> None:
        user = {"resource": "pods", "name": pod.metadata.name, "uid": pod.uid}

        def reserve(body: dict[str, Any]) -> None:
            given = (
                {}
                if request.allocation is None
                else {"allocation": msgspec.json.decode(msgspec.json.encode(request.allocation))}
            )
            body["status"] = {**(body.get("status") or {}), **given, "reservedFor": [user]}

        self._write("resourceclaim", f"{request.claim.namespace}/{request.claim.name}", reserve)

    def _write_volume(self, request: KeepVolume | SelectNode) -> None:
        """The API server stores the write, and the controllers make and bind the volume at once."""
        claim = f"{request.claim.namespace}/{request.claim.name}"
        name = request.volume if isinstance(request, KeepVolume) else f"made-for-{request.claim.name}"
        if isinstance(request, SelectNode):
            self.apply(
                "pv", {"metadata": {"name": name, "resourceVersion": "8"}, "spec": {"capacity": {"storage": "1Ti"}}}
            )
        reference = {"namespace": request.claim.namespace, "name": request.claim.name, "uid": request.claim.uid}
        self._write("pv", f"None/{name}", lambda body: body["spec"].update(claimRef=reference))
        node = {SELECTED_NODE: request.node} if isinstance(request, SelectNode) else {}

        def bind(body: dict[str, Any]) -> None:
            body["spec"]["volumeName"] = name
            body["metadata"]["annotations"] = {BIND_COMPLETED: "yes", **node}

        self._write("pvc", claim, bind)

    def _write(self, kind: str, place: str, change: Callable[[dict[str, Any]], object]) -> None:
        """The API server has a new version of the object, unless what it has cannot be changed."""
        body = self.objects.get((kind, place))
        if body is None or not isinstance(body.get("spec"), dict):
            return
        body = msgspec.json.decode(msgspec.json.encode(body))
        change(body)
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.apply(kind, body)

    def _nominated(self, pod: Any, node: str) -> Any:
        status = msgspec.structs.replace(pod.status, nominated_node_name=node)
        self._version += 1
        metadata = msgspec.structs.replace(pod.metadata, resource_version=str(self._version))
        return msgspec.structs.replace(pod, status=status, metadata=metadata)

    def _collect(self) -> None:
        for problems in (self.cache.snapshot.problems, self.scorer.view.snapshot.problems):
            while problems:
                self.warnings.append(problems.popleft())
        for effect in self.watcher.other_effects:
            if isinstance(effect, Warn):
                self.warnings.append(" ".join((effect.message, *effect.fields.values())))
            elif isinstance(effect, PublishDeadLetter):
                self.dead_letters.append(effect.dead_letter.reason)
                self.longest_message = max(self.longest_message, len(encode(effect.dead_letter)))
        self.watcher.other_effects.clear()

    def _handed(self, stream: str, subject: str, data: bytes) -> Handed:
        return Handed(sequence=self._next(stream), data=data, subject=subject, time=self._now())

    def _next(self, stream: str) -> int:
        self._sequences[stream] += 1
        return self._sequences[stream]

    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.watcher.now - 1000)

    def said_of(self, name: str) -> list[str]:
        """What the owner of a pod reads: Events at the pod, or dead letters that name it."""
        found = [
            each.decision.message or str(each.decision.outcome)
            for each in self.events
            if each.pod.metadata.name == name
        ]
        found += [each.decision.message for each in self.of_groups if name in {pod.metadata.name for pod in each.pods}]
        return found + [text for text in (*self.dead_letters, *self.warnings) if name in text]


def _is_of_group(data: bytes) -> bool:
    """Whether services read the message as one about a group."""
    try:
        return msgspec.json.decode(data, type=Versioned).schema == GROUP_SCHEMA
    except MALFORMED:
        return False


def _is_json(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except MALFORMED:
        return False
    return True
