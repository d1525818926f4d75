"""The mirror: keeps the bucket ``cluster`` equal to the parts of the cluster that plugins read.

Each key has a desired value, the value that the bucket is known to hold, and at most one write in flight; further
changes are written together. An entry read back that differs from the desired value is overwritten (docs/protocol.md,
3). An entry of a higher term ends this watcher's term.

Large objects are written in a smaller form (``berth.api.trimming``), so that a few hundred pods cannot fill the bucket.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from berth.api.devices import PackedSlice, ResourceClaim, ResourceSlice
from berth.api.meta import KubernetesObject
from berth.api.pod import Pod, PodStatus, bound_at_text, disruption_condition, is_being_preempted, is_bound
from berth.api.podlimits import MOST_BYTES, pod_affinity_counts, refusal
from berth.api.trimming import as_placed, smaller_forms
from berth.bus.interface import Entry
from berth.errors import DecodeError
from berth.messages.earmarks import Earmark
from berth.messages.mirror import WATERMARK, MirrorEntry, Watermark, decode_entry, encode_entry, encode_watermark
from berth.messages.subjects import Term
from berth_watcher.events import Effect, LookUpKey, PurgeKey, StepDown, Warn, WriteKey
from berth_watcher.store import nominated_node, without_version

NO_CHANGE: Final = 0

# As JSON: four times the size of a large ordinary pod. 512 MiB hold 32,000 pods of this size.
LARGE_POD_BYTES: Final = 16 * 1024

# As JSON, from which on a slice is written compressed. 128 devices with every attribute that the API takes are 2 MB,
# twice a NATS server's usual maximum payload; a tenth of that when compressed, because names recur.
LARGE_SLICE_BYTES: Final = 256 * 1024

# Of a pod as written: the limit of a waiting pod, plus its node and the fields that a pod gets there.
MOST_POD_BYTES: Final = MOST_BYTES + 4096

# Of a claim as written: as of a waiting pod. Without its requests it is as large as what schedulers and drivers have
# written to it.
MOST_CLAIM_BYTES: Final = MOST_BYTES

# Compact the heap above this many unstored changes per key. Two per key are enough.
MAX_CHANGES: Final = 4

MIN_COMPACTED: Final = 1024  # smaller heaps are not compacted

_encode: Final = msgspec.json.Encoder().encode


class DesiredEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The desired value of a key: an object, written in trimmed form, or a watermark.

    Refers to the store's object and trims it for each write or comparison, because a second form of each of 150,000
    bound pods took 28 MiB.
    """

    object: KubernetesObject | None = None
    smaller: KubernetesObject | None = None  # written in place of the trimmed form, which is too large
    watermark: str = ""  # the resourceVersion, if the key is a watermark
    unread: str = ""  # of a watermark: why the kind cannot be read

    @property
    def form(self) -> KubernetesObject | None:
        return self.smaller or (trimmed(self.object) if self.object is not None else None)

    @property
    def bound_at(self) -> str | None:
        return bound_at_text(self.object) if isinstance(self.object, Pod) and is_bound(self.object) else None

    def is_value_of(self, entry: MirrorEntry) -> bool:
        return not self.watermark and bytes(entry.object) == self._object and entry.bound_at == self.bound_at

    def writes_the_same_as(self, other: DesiredEntry) -> bool:
        """Whether both write the same. The time of a pod's binding is in its form too."""
        return (self.watermark, self.unread) == (other.watermark, other.unread) and self.form == other.form

    def encoded(self, term: Term) -> bytes:
        if self.watermark:
            return encode_watermark(Watermark(term=term, resource_version=self.watermark, unread=self.unread))
        return encode_entry(MirrorEntry(term=term, object=msgspec.Raw(self._object), bound_at=self.bound_at))

    @property
    def _object(self) -> bytes:
        """The form as JSON. Only a large pod or ResourceSlice is encoded twice."""
        form = self.form
        data = _encode(form)
        if isinstance(form, ResourceSlice) and len(data) > LARGE_SLICE_BYTES:
            return _encode(PackedSlice.of(form))
        if len(data) <= LARGE_POD_BYTES or self.smaller is not None or not isinstance(form, Pod):
            return data
        return _encode(as_placed(form))


UNKNOWN_VERSION: Final = "0"  # of a watermark that only says whether its kind can be read

# Any other value in the bucket, or an unknown one. Never equal to a desired value.
FOREIGN: Final = DesiredEntry()


class _Key(msgspec.Struct, kw_only=True, gc=False, eq=False):
    key: str
    desired: DesiredEntry | None = None  # None: the key must be absent
    change: int = NO_CHANGE  # number of the latest change of `desired`
    stored: DesiredEntry | None  # value that the bucket is known to hold
    stored_change: int = NO_CHANGE  # latest change that the bucket is known to hold
    sequence: int = 0  # last known sequence of the key in the bucket; 0 if absent
    busy: bool = False  # a write or a look-up is in flight
    due: bool = False  # to be compared with the bucket, and written if it differs
    sent: DesiredEntry | None = None  # value of the write in flight
    sent_change: int = NO_CHANGE  # change that the write in flight contains
    read: Entry | None = None  # newest entry read back and not yet compared


# Keys compared per call: a few milliseconds. A takeover compares tens of thousands.
MAX_COMPARED: Final = 1000


@dataclass(slots=True, kw_only=True)
class _Reduced:
    """An object above the bus's maximum payload, or a pod above MOST_POD_BYTES."""

    # The object; None after a change, until the new version is found too large too.
    whole: DesiredEntry | None = None
    smaller: Iterator[tuple[str, KubernetesObject]] = field(default_factory=lambda: iter(()))  # forms not tried yet
    left_out: str = ""  # parts that the tried form lacks; empty without a form
    reason: str = ""
    reported: str | None = None  # `left_out` of the last report


class Mirror:
    """Changes are numbered from 1. All changes up to ``settled`` are stored."""

    def __init__(self, term: Term, *, max_writes: int) -> None:
        self._term = term
        self._max_writes = max_writes
        self._keys: dict[str, _Key] = {}
        self._changes = NO_CHANGE
        self._unsettled: list[tuple[int, str]] = []
        self._unsettled_names: set[str] = set()
        self._due: deque[_Key] = deque()
        self._busy_keys = 0
        self._reduced: dict[str, _Reduced] = {}
        self._writes_enabled = False
        self.position = 0  # highest known sequence of the bucket

    @property
    def changes(self) -> int:
        return self._changes

    @property
    def settled(self) -> int:
        while self._unsettled and self._is_stored(*self._unsettled[0]):
            heapq.heappop(self._unsettled)
        return self._unsettled[0][0] - 1 if self._unsettled else self._changes

    @property
    def unsettled_keys(self) -> int:
        """Keys whose latest change is not stored."""
        return len(self._unsettled_names)

    @property
    def may_write(self) -> bool:
        """Whether :meth:`take_writes` has work."""
        return self._writes_enabled and bool(self._due) and self._busy_keys < self._max_writes

    @property
    def entries(self) -> int:
        """Entries kept for changes that are not stored."""
        return len(self._unsettled)

    def set_desired(self, name: str, desired: DesiredEntry | None, *, numbered: bool = True) -> int:
        """Set the key's desired value; ``None`` removes the key. Returns the number of the change.

        Returns NO_CHANGE if the value is unchanged. A watermark is not numbered, because no pod waits for it, unless it
        says for the first time that its kind can or cannot be read.
        """
        key = self._keys.get(name)
        if desired is None:
            self._reduced.pop(name, None)
        if key is None:
            if desired is None or (name in self._reduced and _is_same(self._reduced[name].whole, desired)):
                return NO_CHANGE
            key = self._add(name)
        elif numbered and _is_same(self._whole(key), desired):  # of an equal watermark, the time is new
            if key.desired is key.stored and not key.busy and key.read is None and name not in self._reduced:
                # the store no longer refers to the former version of the object
                key.desired = key.stored = key.sent = desired
            return NO_CHANGE
        key.desired = desired
        if (reduced := self._reduced.get(name)) is not None:
            reduced.whole = None
        if numbered:
            self._number(key)
        self._schedule(key)
        return key.change

    def start_writing(self, position: int) -> None:
        """Write differences from now on: the bucket has been read to its end, at ``position``.

        Removals are numbered too, so that ``settled`` covers every difference of a takeover.
        """
        self._writes_enabled = True
        self.position = max(self.position, position)
        for key in self._keys.values():
            if key.desired is None and key.read is not None and key.read.data is not None and not _is_watermark(key):
                self._number(key)
            self._schedule(key)

    def take_writes(self) -> list[Effect]:
        """The next writes, of keys that differ from the bucket, while fewer than ``max_writes`` are in flight."""
        effects: list[Effect] = []
        for _ in range(MAX_COMPARED):
            if not self.may_write:
                break
            key = self._due.popleft()
            key.due = False
            if self._keys.get(key.key) is key and not key.busy:
                effects += self._compare(key)
        return effects

    def on_written(self, name: str, sequence: int) -> list[Effect]:
        key = self._answered(name)
        if key is None:
            return []
        self.position = max(self.position, sequence)
        key.sequence, key.stored_change, key.stored = sequence, key.sent_change, key.sent
        if key.read is not None and key.read.sequence <= sequence and key.desired is not None:
            key.read = None  # the copy of this write, perhaps before its answer, or of the entry that it replaced
        if key.desired is not key.stored or key.read is not None:
            self._schedule(key)
        else:
            self._on_stored(key, key.change)
        return self._report_reduced(key)

    def on_write_failed(self, name: str) -> list[Effect]:
        """Read the key after its write failed, to write it again."""
        return [LookUpKey(key=name)] if name in self._keys else []

    def on_too_large(self, name: str, reason: str) -> list[Effect]:
        """The write in flight is too large for the bus: write a smaller form, or remove the key without one."""
        key = self._answered(name)
        if key is None:
            return []
        self._schedule(key)
        if key.sent is None or key.sent.object is None or key.desired is not key.sent:
            return []
        self._reduce(key, key.sent.object, reason)
        return self._report_reduced(key) if key.desired is None else []

    def _reduce(self, key: _Key, thing: KubernetesObject, reason: str) -> None:
        """Set the key's desired value to the next smaller form of its object, or remove it without one."""
        reduced = self._reduced.setdefault(key.key, _Reduced())
        if reduced.whole is None:
            reduced.whole, reduced.smaller, reduced.reason = key.desired, smaller_forms(trimmed(thing)), reason
        reduced.left_out, smaller = next(reduced.smaller, ("", None))
        key.desired = DesiredEntry(object=thing, smaller=smaller) if smaller is not None else None

    def reduced(self) -> Counter[str]:
        """By kind, the number of objects that are too large: in the bucket without parts that count, or not at all."""
        return Counter(name.partition(".")[0] for name, each in self._reduced.items() if each.whole is not None)

    def on_looked_up(self, name: str, entry: Entry | None) -> None:
        """A key as the bucket holds it after a failed write."""
        key = self._answered(name)
        if key is None:
            return
        if entry is None and key.read is None:
            key.sequence, key.stored = 0, None
        elif entry is not None and (key.read is None or entry.sequence > key.read.sequence):
            key.read = entry
        self._schedule(key)

    def on_read(self, entry: Entry) -> None:
        self.position = max(self.position, entry.sequence)
        key = self._keys.get(entry.key)
        if key is None:
            if entry.data is None:
                return
            key = self._add(entry.key)
        if entry.sequence < key.sequence:
            return
        if entry.sequence == key.sequence and key.stored is not FOREIGN and key.desired is not None:
            return  # the copy of an own write
        if key.read is None or entry.sequence > key.read.sequence:
            key.read = entry
        self._schedule(key)

    def _add(self, name: str) -> _Key:
        """Keep a new key, whose value in the bucket is unknown until it is written, read or looked up."""
        # Unknown, so that an object deleted before its write is removed all the same: scorers know a bound pod from
        # DECISIONS too, and would count it until the next watermark. A full bucket refuses the removal; the look-up
        # after it finds the key absent. Changes of an earlier key of this name are stored.
        key = _Key(key=name, stored=FOREIGN, change=self._changes, stored_change=self._changes)
        self._keys[name] = key
        return key

    def _answered(self, name: str) -> _Key | None:
        key = self._keys.get(name)
        if key is not None and key.busy:
            key.busy = False
            self._busy_keys -= 1
        return key

    def _whole(self, key: _Key) -> DesiredEntry | None:
        """The desired value of the key before any reduction."""
        reduced = self._reduced.get(key.key)
        return key.desired if reduced is None or reduced.whole is None else reduced.whole

    def _report_reduced(self, key: _Key) -> list[Effect]:
        """Warn about an object that is reduced, once per form."""
        reduced = self._reduced.get(key.key)
        if reduced is None:
            return []
        whole = reduced.whole
        if whole is None or whole.object is None:
            if key.sent is key.desired:
                del self._reduced[key.key]  # it fits again, or is deleted
            return []
        if reduced.reported == reduced.left_out:
            return []
        reduced.reported = reduced.left_out
        kind, metadata = key.key.partition(".")[0], whole.object.metadata
        name = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
        left_out = reduced.left_out or "the whole object"
        fields = {"kind": kind, "name": name, "uid": metadata.uid, "left_out": left_out, "reason": reduced.reason}
        return [Warn(message="object is too large for the mirror", fields=fields)]

    def _number(self, key: _Key) -> None:
        self._changes += 1
        key.change = self._changes
        self._unsettled_names.add(key.key)
        heapq.heappush(self._unsettled, (key.change, key.key))
        if len(self._unsettled) > MAX_CHANGES * len(self._unsettled_names) + MIN_COMPACTED:
            self._compact()

    def _compact(self) -> None:
        """Per key, keep the oldest unstored change and the oldest one after the write in flight.

        The rest are redundant: they are stored with one of these.
        A full bucket keeps a change unstored for hours, and all later ones in the heap.
        """
        latest: dict[str, int] = {}
        kept = []
        for change, name in sorted(self._unsettled):
            before, key = latest.get(name), self._keys.get(name)
            if self._is_stored(change, name):
                continue
            if before is None or (key is not None and key.busy and before <= key.sent_change < change):
                latest[name] = change
                kept.append((change, name))
        self._unsettled = kept  # sorted, so a heap

    def _on_stored(self, key: _Key, change: int) -> None:
        key.stored_change = change
        if change == key.change:
            self._unsettled_names.discard(key.key)

    def _is_stored(self, change: int, name: str) -> bool:
        key = self._keys.get(name)
        return key is None or key.stored_change >= change

    def _schedule(self, key: _Key) -> None:
        """Schedule a write of the key, after any in flight."""
        if self._writes_enabled and not key.due and not key.busy:
            key.due = True
            self._due.append(key)

    def _compare(self, key: _Key) -> list[Effect]:
        """Write if the entry read back differs from the desired value."""
        entry, key.read = key.read, None
        if entry is not None and entry.sequence >= key.sequence:
            is_own_write = entry.sequence == key.sequence and key.stored is not FOREIGN
            key.sequence = entry.sequence
            if not is_own_write:
                stored = _decoded(entry)
                if stored is not None and stored.term > self._term:
                    return [StepDown(reason=f"term {stored.term} wrote {key.key!r}", term=stored.term)]
                key.stored = key.desired if _equal(stored, key.desired) else FOREIGN
        effects = self._write(key)
        if key.desired is None and key.stored is None and not key.busy:
            del self._keys[key.key]  # its delete marker was read, or a look-up found it absent
        return effects

    def _write(self, key: _Key) -> list[Effect]:
        if key.desired is None and _is_watermark(key):
            return []  # the former leader's watermark stays until this watcher writes its own
        if key.desired is key.stored:
            self._on_stored(key, key.change)
            return []
        data = self._encoded(key)
        key.busy, key.sent_change, key.sent = True, key.change, key.desired
        self._busy_keys += 1
        if data is None:
            return [PurgeKey(key=key.key, expected=key.sequence)]
        return [WriteKey(key=key.key, data=data, expected=key.sequence)]

    def _encoded(self, key: _Key) -> bytes | None:
        """The value to write; ``None`` for a removal. A pod or claim is reduced until it is small enough."""
        while key.desired is not None:
            data, thing = key.desired.encoded(self._term), key.desired.object
            most = _most_bytes(key.desired.smaller or thing)
            if thing is None or most is None or len(data) <= most:
                return data
            self._reduce(key, thing, f"it takes {len(data)} bytes there, and may take {most}")
        return None


def _most_bytes(form: KubernetesObject | None) -> int | None:
    if isinstance(form, ResourceClaim):
        return None if form.spec.left_out else MOST_CLAIM_BYTES
    return MOST_POD_BYTES if isinstance(form, Pod) else None


def _is_watermark(key: _Key) -> bool:
    return key.key.startswith(f"{WATERMARK}.")


def _decoded(entry: Entry) -> MirrorEntry | None:
    """The value of an entry; ``None`` for a removal. A value that berth did not write has term 0."""
    if entry.data is None:
        return None
    try:
        return decode_entry(entry.data)
    except DecodeError:
        return MirrorEntry(term=Term(0))


def _equal(stored: MirrorEntry | None, desired: DesiredEntry | None) -> bool:
    if stored is None or desired is None:
        return stored is None and desired is None
    return desired.is_value_of(stored)


def _is_same(known: DesiredEntry | None, desired: DesiredEntry | None) -> bool:
    if known is None or desired is None:
        return known is desired
    return known.writes_the_same_as(desired)


# Between two watermarks of a kind. Ages are shown in seconds, and a busy kind must not double the writes.
WATERMARK_INTERVAL_SECONDS: Final = 1.0


@dataclass(slots=True, kw_only=True)
class _Mark:
    newest_version: str = ""
    newest_change: int = 0  # must be stored before newest_version is written
    next_version: str = ""
    # Of the version to write next. Later events do not move it, so that a busy kind gets a watermark.
    next_change: int = 0
    written_at: float = float("-inf")

    @property
    def due_at(self) -> float:
        """Monotonic time from which the next one may be written."""
        return self.written_at + WATERMARK_INTERVAL_SECONDS


class Watermarks:
    """The resourceVersion up to which each kind is complete in the bucket.

    A watermark promises that everything before it is stored, so it is written after the changes that it includes.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._marks = {kind: _Mark() for kind in kinds}
        self._open: dict[str, _Mark] = {}  # marks with a version to write

    def on_version(self, kind: str, version: str, change: int) -> None:
        """A reflector has reached a version, which includes the mirror's changes up to ``change``."""
        mark = self._marks[kind]
        if not mark.next_version and version:
            mark.next_version, mark.next_change = version, change
            self._open[kind] = mark
        mark.newest_version, mark.newest_change = version, change

    def pop_due(self, now: float, settled: int) -> list[tuple[str, str]]:
        """The kinds and versions to write now."""
        due = [kind for kind, mark in self._open.items() if mark.next_change <= settled and now >= mark.due_at]
        return [(kind, self._pop(kind, now, settled)) for kind in due]

    def _pop(self, kind: str, now: float, settled: int) -> str:
        mark = self._open[kind]
        version, mark.written_at = mark.next_version, now
        if mark.newest_change <= settled:
            version, mark.next_version = mark.newest_version, ""
            del self._open[kind]
        else:
            mark.next_version, mark.next_change = mark.newest_version, mark.newest_change
        return version

    def next_due(self, settled: int) -> float | None:
        """Monotonic time of the next write; ``None`` without one, or if its changes must be stored first."""
        return min((mark.due_at for mark in self._open.values() if mark.next_change <= settled), default=None)


def desired_entry(thing: KubernetesObject | None) -> DesiredEntry | None:
    """The object's entry; ``None`` if the mirror does not hold the object."""
    if thing is None or (isinstance(thing, Pod) and not is_bound(thing) and not nominated_node(thing)):
        return None
    return DesiredEntry(object=thing)


def affinity_warnings(thing: KubernetesObject | None) -> list[Effect]:
    """A warning about an affinity beyond the limits, which plugins do not read."""
    if not isinstance(thing, Pod) or thing.spec.affinity is None or pod_affinity_counts(thing.spec.affinity):
        return []
    fields = {"pod": thing.key, "uid": thing.uid, "reason": refusal(thing)}
    return [Warn(message="ignoring the affinity of a placed pod", fields=fields)]


def trimmed(thing: KubernetesObject) -> KubernetesObject:
    """The parts of an object that plugins read, so that a heartbeat causes no write. A pod is bound or nominated."""
    if isinstance(thing, Pod):
        return _trimmed_pod(thing)
    if isinstance(thing, Earmark):
        return thing
    return without_version(thing)


def _trimmed_pod(pod: Pod) -> Pod:
    if is_bound(pod):
        evicted = disruption_condition(pod) if is_being_preempted(pod) else None
        status = PodStatus(
            start_time=bound_at_text(pod),  # the pod's own start time comes later and would cost one more write per pod
            conditions=[evicted] if evicted else None,
        )
    else:
        status = PodStatus(nominated_node_name=pod.status.nominated_node_name)
    spec, affinity = pod.spec, pod.spec.affinity
    if affinity is not None and not pod_affinity_counts(affinity):
        spec = msgspec.structs.replace(spec, affinity=None)
    metadata = msgspec.structs.replace(pod.metadata, resource_version="", generation=0)
    return Pod(metadata=metadata, spec=spec, status=status)
