"""The watcher's core with a clock that tests advance, and a bucket that answers writes as the real one does."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from berth.api.kinds import WATCHED_KINDS
from berth.api.meta import KubernetesObject, ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod, PodSchedulingGate, PodStatus
from berth.api.workloads import Namespace
from berth.bus.interface import Entry
from berth.framework.profile import Profile
from berth.kube.listwatch import Deleted, Listed, Upserted
from berth.messages.attempts import Decision, Outcome, Pending
from berth.messages.groupattempts import GroupPending, subject_name
from berth.messages.livedata import LiveBucket
from berth.messages.mirror import MirrorEntry, decode_entry, encode_entry
from berth.messages.subjects import Attempt, Term, Uid
from berth.profiles.configuration import profiles_of, read_configuration
from berth_watcher.core import WatcherCore
from berth_watcher.events import (
    BucketComplete,
    BucketEntryRead,
    DecisionReceived,
    Effect,
    Event,
    KeyLookedUp,
    KeyTooLarge,
    KeyWriteFailed,
    KeyWritten,
    LiveDataReceived,
    LookUpKey,
    PublishGroup,
    PublishPending,
    PurgeKey,
    StreamsRead,
    WriteKey,
)
from berth_watcher.queue.queuedpod import Timestamp, always
from berth_watcher.settings import AttemptSettings
from berth_watcher.store import ObjectStore
from harness.builders import objects

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TERM = Term(7)
KINDS = ("pod", "node", "namespace")
_NAMES = {kind.struct: kind.name for kind in WATCHED_KINDS}


def a_pod(
    name: str,
    *,
    priority: int | None = None,
    age_seconds: float = 0,
    version: int = 1,
    node: str = "",
    phase: str = "",
    cpu: str = "1",
    gates: tuple[str, ...] = (),
    labels: dict[str, str] | None = None,
    scheduler: str = "berth",
    uid: str = "",
    deleted: bool = False,
    nominated: str = "",
) -> Pod:
    """A pod that requests one CPU, created ``age_seconds`` before the test began."""
    pod = objects.a_pod(
        name,
        uid=uid or None,
        labels=labels,
        scheduler_name=scheduler,
        priority=priority,
        node_name=node,
        containers=[objects.a_container(cpu=cpu)],
        scheduling_gates=[PodSchedulingGate(name=gate) for gate in gates] or None,
    )
    metadata = msgspec.structs.replace(
        pod.metadata,
        resource_version=str(version),
        creation_timestamp=(EPOCH - timedelta(seconds=age_seconds)).isoformat().replace("+00:00", "Z"),
        deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None,
    )
    status = PodStatus(phase=phase, nominated_node_name=nominated)
    return msgspec.structs.replace(pod, metadata=metadata, status=status)


def a_node(name: str, *, cpu: str = "4", version: int = 1, labels: dict[str, str] | None = None) -> Node:
    node = objects.a_node(name, labels=labels, cpu=cpu)
    metadata = msgspec.structs.replace(node.metadata, uid=f"uid-{name}", resource_version=str(version))
    return msgspec.structs.replace(node, metadata=metadata)


def a_namespace(name: str) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, uid=f"uid-{name}", resource_version="1"))


def foreign_value(thing: msgspec.Struct, term: int = 1) -> bytes:
    """The value that a watcher of another term would write."""
    return encode_entry(MirrorEntry(term=Term(term), object=msgspec.Raw(msgspec.json.encode(thing))))


@dataclass
class WatcherUnderTest:
    """One term of the watcher's core. ``send`` handles events and answers the writes, unless ``hold_writes``."""

    settings: AttemptSettings = field(default_factory=AttemptSettings)
    now: float = 1000.0
    sequence: int = 0
    hold_writes: bool = False
    profiles: Mapping[str, Profile] | None = None
    """None: those of the default configuration."""
    may_continue: Callable[[], bool] = always
    """Whether a slice has time left."""
    max_writes: int = 256
    max_message_bytes: int = 1_000_000
    kinds: tuple[str, ...] = KINDS
    lacks_groups: Callable[[str], str] = lambda _profile: ""

    def __post_init__(self) -> None:
        self.store = ObjectStore(self.kinds)
        self.bucket: dict[str, Entry] = {}
        self.held_writes: list[Effect] = []
        self.published: list[PublishPending] = []
        self.groups_published: list[PublishGroup] = []
        self._last: dict[str, Pending | GroupPending] = {}
        self.other_effects: list[Effect] = []
        self.decisions = 0
        self._unread: list[Entry] = []

    # --- the takeover

    def list_objects(self, *things: KubernetesObject) -> None:
        """The reflectors list objects, before the term begins."""
        for kind in self.kinds:
            listed = [thing for thing in things if _NAMES[type(thing)] == kind]
            self.store.apply(Listed(kind=kind, objects=listed, resource_version="10"))

    def take_over(self, term: Term = TERM) -> None:
        """The term begins. The bus has not been read yet."""
        self.core = WatcherCore(
            term=term,
            store=self.store,
            profiles=self.profiles or profiles_of(read_configuration(None)),
            settings=self.settings,
            started=Timestamp(monotonic=1000.0, wall=EPOCH),
            max_writes=self.max_writes,
            lacks_groups=self.lacks_groups,
        )
        self.steps = 0
        for effects in self.core.begin(self.now):
            self.steps += 1
            self._carry_out(effects)

    def read_bucket(self) -> None:
        """The bucket is read to its end."""
        for entry in list(self.bucket.values()):
            self.send(BucketEntryRead(entry=entry))
        self.send(BucketComplete(position=self.sequence))

    def lead(self, *things: KubernetesObject, streams: StreamsRead | None = None) -> "WatcherUnderTest":
        """The whole takeover at once."""
        self.list_objects(*things)
        self.take_over()
        self.read_bucket()
        self.send(streams or StreamsRead())
        return self

    # --- events

    def send(self, *events: Event) -> None:
        self._carry_out(self.core.handle(events, self.now, self.may_continue))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.send()

    def show(self, *things: KubernetesObject) -> None:
        """The watch shows objects, added or modified."""
        self.send(*self.upserts(*things))

    def upserts(self, *things: KubernetesObject) -> list[Event]:
        return [Upserted(kind=_NAMES[type(thing)], object=thing) for thing in things]

    def put_live_data(self, bucket: LiveBucket, key: str, data: bytes | None, sequence: int) -> None:
        self.send(LiveDataReceived(bucket=bucket, key=key, sequence=sequence, data=data))

    def delete(self, thing: KubernetesObject) -> None:
        self.send(Deleted(kind=_NAMES[type(thing)], object=thing))

    def decide(self, name: str, outcome: Outcome, *, epoch: int = 1, attempt: str = "", **more: object) -> None:
        """The binder decides a pod's latest attempt."""
        self.send(self.decision(name, outcome, epoch=epoch, attempt=attempt, **more))

    def decision(
        self, name: str, outcome: Outcome, *, epoch: int = 1, attempt: str = "", **more: object
    ) -> DecisionReceived:
        self.decisions += 1
        decision = Decision(
            attempt=attempt or self.attempt_of(name),
            epoch=epoch,
            outcome=outcome,
            profile=self._profile_of(name),
            namespace="default",
            pod=name,
            uid=f"uid-{name}",
            **more,
        )
        time = EPOCH + timedelta(seconds=self.now - 1000)
        return DecisionReceived(decision=decision, sequence=self.decisions, time=time)

    # --- the bucket

    def answer_writes(self) -> None:
        """The bucket answers the writes that were held, and the watcher reads them back."""
        held, self.held_writes = self.held_writes, []
        for effect in held:
            self.send(self._answer(effect))
        self.read_back()

    def answer_write(self, key: str) -> None:
        """The same for one key."""
        (held,) = [effect for effect in self.held_writes if effect.key == key]
        self.held_writes.remove(held)
        self.send(self._answer(held))

    def read_back(self) -> None:
        unread, self._unread = self._unread, []
        for entry in unread:
            self.send(BucketEntryRead(entry=entry))

    def put(self, key: str, data: bytes | None) -> Entry:
        """Write a key, whatever its last sequence."""
        self.sequence += 1
        entry = Entry(key=key, sequence=self.sequence, data=data, time=EPOCH)
        self.bucket[key] = entry
        self._unread.append(entry)
        return entry

    # --- results

    @property
    def pods_published(self) -> list[str]:
        return [each.message.pod.metadata.name for each in self.published]

    def attempt_of(self, name: str) -> str:
        return self._last[name].attempt

    def _profile_of(self, name: str) -> str:
        return self._last[name].profile if name in self._last else "berth"

    def stage(self, name: str) -> str:
        queued = self.core.find(f"uid-{name}")
        return str(queued.stage) if queued else "gone"

    def of(self, kind: type) -> list:
        return [effect for effect in self.other_effects if isinstance(effect, kind)]

    def mirrored(self, key: str) -> object:
        """The object that a key of the bucket holds; ``None`` without the key."""
        entry = self.bucket.get(key)
        if entry is None or entry.data is None:
            return None
        return msgspec.json.decode(decode_entry(entry.data).object)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in list(effects):
            if isinstance(effect, PublishPending):
                self.published.append(effect)
                self._last[effect.message.pod.metadata.name] = effect.message
            elif isinstance(effect, PublishGroup):
                self.groups_published.append(effect)
                self._last[subject_name(effect.message.group.key)] = effect.message
            elif isinstance(effect, WriteKey | PurgeKey | LookUpKey):
                if self.hold_writes:
                    self.held_writes.append(effect)
                else:
                    self.send(self._answer(effect))
            else:
                self.other_effects.append(effect)

    def _answer(self, effect: Effect) -> Event:
        if isinstance(effect, WriteKey) and len(effect.data) > self.max_message_bytes:
            return KeyTooLarge(key=effect.key, reason=f"{len(effect.data)} bytes")
        entry = self.bucket.get(effect.key)
        if isinstance(effect, LookUpKey):
            return KeyLookedUp(key=effect.key, entry=entry)
        if (entry.sequence if entry else 0) != effect.expected:
            return KeyWriteFailed(key=effect.key)
        entry = self.put(effect.key, effect.data if isinstance(effect, WriteKey) else None)
        return KeyWritten(key=effect.key, sequence=entry.sequence)


def attempt(name: str, term: int, n: int) -> Attempt:
    return Attempt(uid=Uid(f"uid-{name}"), term=Term(term), n=n)
