"""The mirror: keeps the bucket ``cluster`` equal to the cluster, as far as plugins read it.

For each key there is a desired value and the value that the bucket is known to hold, and at most one write in flight.
Changes that come while a key waits for its write are written together. Whatever is read back that differs from the
desired value is overwritten: writes of a lower term, and own writes that timed out and were stored late
(docs/protocol.md, 3). A value of a higher term ends this watcher's term.

Large objects are written in a smaller form (``berth.api.trimming``), so that whoever may create pods does not fill the
bucket with some hundred. A pod above LARGE_POD_BYTES lacks what no plugin reads of a placed pod. One that is above
MOST_POD_BYTES even so, and any object that is larger than the bus takes, lacks more and is reported once by its name.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from berth.api.meta import KubernetesObject
from berth.api.pod import Pod, PodStatus, bound_at_text, disruption_condition, is_being_preempted, is_bound
from berth.api.podlimits import MOST_BYTES, pod_affinity_counts, refusal
from berth.api.trimming import as_placed, smaller_forms
from berth.bus.interface import Entry
from berth.errors import DecodeError
from berth.messages.attempts import WATERMARK, MirrorEntry, Watermark, decode_entry, encode_entry, encode_watermark
from berth.messages.subjects import Term
from berth_watcher.events import Effect, LookUpKey, PurgeKey, StepDown, Warn, WriteKey
from berth_watcher.store.objects import nominated_node, without_version

NO_CHANGE: Final = 0

LARGE_POD_BYTES: Final = 16 * 1024
"""As JSON: four times what an ordinary pod has at most, so nothing is done for those. 512 MiB hold 32,000 of it."""

MOST_POD_BYTES: Final = MOST_BYTES + 4096
"""Of a pod as it is written: what it may have while it waits, its node, and what a pod gets there."""

MAX_CHANGES: Final = 4
"""Unstored changes of a key, on average, above which those that follow from others are dropped. Two are enough."""

MIN_COMPACTED: Final = 1024
"""Fewer changes that are not stored are not worth counting again."""

_encode: Final = msgspec.json.Encoder().encode


class DesiredEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The desired value of a key: an object, of which the trimmed form is written, or a watermark.

    It refers to the object as the store has it, and is trimmed whenever it is written or compared: a second form of
    each of 150,000 bound pods took 28 MiB.
    """

    object: KubernetesObject | None = None
    smaller: KubernetesObject | None = None
    """The form to write in place of the trimmed one, which is too large."""
    watermark: str = ""
    """The resourceVersion, for a key that is a watermark."""

    @property
    def form(self) -> KubernetesObject | None:
        """What is written of the object."""
        return self.smaller or (trimmed(self.object) if self.object is not None else None)

    @property
    def bound_at(self) -> str | None:
        """When the API server took the Binding of a pod."""
        return bound_at_text(self.object) if isinstance(self.object, Pod) and is_bound(self.object) else None

    def is_value_of(self, entry: MirrorEntry) -> bool:
        """Whether the bucket's entry is the desired one."""
        return not self.watermark and bytes(entry.object) == self._object and entry.bound_at == self.bound_at

    def writes_the_same_as(self, other: DesiredEntry) -> bool:
        """Whether another object, or another version of it, is the same to the mirror.

        The time of a pod's binding is in its form too.
        """
        return self.watermark == other.watermark and self.form == other.form

    def encoded(self, term: Term) -> bytes:
        if self.watermark:
            return encode_watermark(Watermark(term=term, resource_version=self.watermark))
        return encode_entry(MirrorEntry(term=term, object=msgspec.Raw(self._object), bound_at=self.bound_at))

    @property
    def _object(self) -> bytes:
        """The form as JSON. Its size is known when it is encoded: a large pod is encoded twice, any other once."""
        form = self.form
        data = _encode(form)
        if len(data) <= LARGE_POD_BYTES or self.smaller is not None or not isinstance(form, Pod):
            return data
        return _encode(as_placed(form))


FOREIGN: Final = DesiredEntry()
"""Stands for any other value in the bucket, or one that is not known. It never equals the desired one."""


class _Key(msgspec.Struct, kw_only=True, gc=False, eq=False):
    key: str
    desired: DesiredEntry | None = None
    """``None``: the key must not be there."""
    change: int = NO_CHANGE
    """The number of the latest change of ``desired``."""
    stored: DesiredEntry | None
    """What the bucket is known to hold."""
    stored_change: int = NO_CHANGE
    """The latest change that the bucket is known to hold."""
    sequence: int = 0
    """The key's last sequence in the bucket, as far as known; 0 for a key that is not there."""
    busy: bool = False
    """A write or a look-up is in flight."""
    due: bool = False
    """It waits to be compared with the bucket, and written if it differs."""
    sent: DesiredEntry | None = None
    """What the write in flight writes."""
    sent_change: int = NO_CHANGE
    """The change that the write in flight contains."""
    read: Entry | None = None
    """The newest entry that was read back and not yet compared."""


MAX_COMPARED: Final = 1000
"""Keys compared in one call: some milliseconds, of the tens of thousands that a takeover compares."""


@dataclass(slots=True, kw_only=True)
class _Reduced:
    """An object that is larger than the bus takes, or a pod that is larger than one may be."""

    whole: DesiredEntry | None = None
    """The object; ``None`` after a change, until that has been found too large as well."""
    smaller: Iterator[tuple[str, KubernetesObject]] = field(default_factory=lambda: iter(()))
    """The forms that were not tried yet."""
    left_out: str = ""
    """What the form lacks that is tried; empty when there is none."""
    reason: str = ""
    reported: str | None = None
    """What was last reported to be left out."""


class Mirror:
    """Changes are numbered from 1. ``settled`` is the change up to which all are stored."""

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
        self.position = 0
        """The highest sequence of the bucket that is known."""

    @property
    def changes(self) -> int:
        """The number of the latest change."""
        return self._changes

    @property
    def settled(self) -> int:
        """Every change up to this one is stored."""
        while self._unsettled and self._is_stored(*self._unsettled[0]):
            heapq.heappop(self._unsettled)
        return self._unsettled[0][0] - 1 if self._unsettled else self._changes

    @property
    def unsettled_keys(self) -> int:
        """Keys whose latest change is not stored yet."""
        return len(self._unsettled_names)

    @property
    def may_write(self) -> bool:
        """Whether :meth:`take_writes` has something to do."""
        return self._writes_enabled and bool(self._due) and self._busy_keys < self._max_writes

    @property
    def entries(self) -> int:
        """How much is kept of changes that are not stored."""
        return len(self._unsettled)

    def set_desired(self, name: str, desired: DesiredEntry | None, *, numbered: bool = True) -> int:
        """Set the desired value of a key; ``None`` removes it. Returns the change's number.

        It is NO_CHANGE when the desired value was the same. A watermark is not numbered: nothing waits for it.
        """
        key = self._keys.get(name)
        if desired is None:
            self._reduced.pop(name, None)
        if key is None:
            if desired is None or (name in self._reduced and _is_same(self._reduced[name].whole, desired)):
                return NO_CHANGE
            key = self._add(name)
        elif numbered and _is_same(self._whole(key), desired):  # of an equal watermark the time is what is new
            if key.desired is key.stored and not key.busy and key.read is None and name not in self._reduced:
                # the store has let go of the former version of the object
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
        """The bucket has been read to its end, at ``position``: from here on differences are written.

        What must be removed is numbered too, so that ``settled`` covers every difference of a takeover.
        """
        self._writes_enabled = True
        self.position = max(self.position, position)
        for key in self._keys.values():
            if key.desired is None and key.read is not None and key.read.data is not None and not _is_watermark(key):
                self._number(key)
            self._schedule(key)

    def take_writes(self) -> list[Effect]:
        """The next writes: keys that differ from the bucket, while fewer than ``max_writes`` are in flight."""
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
        """The write in flight is stored."""
        key = self._answered(name)
        if key is None:
            return []
        self.position = max(self.position, sequence)
        key.sequence, key.stored_change, key.stored = sequence, key.sent_change, key.sent
        if key.read is not None and key.read.sequence <= sequence and key.desired is not None:
            key.read = None  # the copy of this write, which may come before the answer to it, or of what it replaced
        if key.desired is not key.stored or key.read is not None:
            self._schedule(key)
        else:
            self._on_stored(key, key.change)
        return self._report_reduced(key)

    def on_write_failed(self, name: str) -> list[Effect]:
        """The write in flight failed: read the key, then write it again."""
        return [LookUpKey(key=name)] if name in self._keys else []

    def on_too_large(self, name: str, reason: str) -> list[Effect]:
        """The write in flight is larger than the bus takes: write a smaller form, or remove the key if none is left."""
        key = self._answered(name)
        if key is None:
            return []
        self._schedule(key)
        if key.sent is None or key.sent.object is None or key.desired is not key.sent:
            return []
        self._reduce(key, key.sent.object, reason)
        return self._report_reduced(key) if key.desired is None else []

    def _reduce(self, key: _Key, thing: KubernetesObject, reason: str) -> None:
        """Have the key hold the next smaller form of its object, or nothing if none is left."""
        reduced = self._reduced.setdefault(key.key, _Reduced())
        if reduced.whole is None:
            reduced.whole, reduced.smaller, reduced.reason = key.desired, smaller_forms(trimmed(thing)), reason
        reduced.left_out, smaller = next(reduced.smaller, ("", None))
        key.desired = DesiredEntry(object=thing, smaller=smaller) if smaller is not None else None

    def reduced(self) -> Mapping[str, int]:
        """How many objects are too large, and in the bucket without parts that count, or not at all; by kind."""
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
        """An entry was read back from the bucket."""
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
        """A key that was not kept: what the bucket holds is not known until it is written, read or looked up.

        So an object that goes before it was written is removed all the same: scorers know a bound pod from DECISIONS
        too, and would count it on its node until the next watermark. A bucket that is full refuses this; the look-up
        after it finds nothing, and nothing waits for it. If the key was kept before, its changes of then are stored.
        """
        key = _Key(key=name, stored=FOREIGN, change=self._changes, stored_change=self._changes)
        self._keys[name] = key
        return key

    def _answered(self, name: str) -> _Key | None:
        """The key whose write or look-up is answered."""
        key = self._keys.get(name)
        if key is not None and key.busy:
            key.busy = False
            self._busy_keys -= 1
        return key

    def _whole(self, key: _Key) -> DesiredEntry | None:
        """What the key was last asked to hold."""
        reduced = self._reduced.get(key.key)
        return key.desired if reduced is None or reduced.whole is None else reduced.whole

    def _report_reduced(self, key: _Key) -> list[Effect]:
        """Report what is left out, unless that was the last report about the object."""
        reduced = self._reduced.get(key.key)
        if reduced is None:
            return []
        whole = reduced.whole
        if whole is None or whole.object is None:
            if key.sent is key.desired:
                del self._reduced[key.key]  # it fits again, or is gone
            return []
        if reduced.reported == reduced.left_out:
            return []
        reduced.reported = reduced.left_out
        kind, metadata = key.key.partition(".")[0], whole.object.metadata
        name = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
        seen = f"see it without {reduced.left_out}" if reduced.left_out else "do not see it"
        message = f"{kind} {name!r} is too large for the mirror, scorers {seen}"
        return [Warn(message=message, fields={"uid": metadata.uid, "reason": reduced.reason})]

    def _number(self, key: _Key) -> None:
        self._changes += 1
        key.change = self._changes
        self._unsettled_names.add(key.key)
        heapq.heappush(self._unsettled, (key.change, key.key))
        if len(self._unsettled) > MAX_CHANGES * len(self._unsettled_names) + MIN_COMPACTED:
            self._compact()

    def _compact(self) -> None:
        """Keep of each key the earliest change that is not stored, and the earliest after its write in flight.

        The others are stored with one of these. A bucket that is full keeps a change from being stored for hours, and
        all later ones from leaving the heap.
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
        self._unsettled = kept  # in order, so a heap

    def _on_stored(self, key: _Key, change: int) -> None:
        key.stored_change = change
        if change == key.change:
            self._unsettled_names.discard(key.key)

    def _is_stored(self, change: int, name: str) -> bool:
        key = self._keys.get(name)
        return key is None or key.stored_change >= change

    def _schedule(self, key: _Key) -> None:
        """Have the key compared with the bucket, after its write in flight if there is one."""
        if self._writes_enabled and not key.due and not key.busy:
            key.due = True
            self._due.append(key)

    def _compare(self, key: _Key) -> list[Effect]:
        """Compare what was read back with the desired value, and write if they differ."""
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
            del self._keys[key.key]  # its delete marker was read, or a look-up found nothing: what comes is of others
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
        """What to write; ``None`` for a removal. Of a pod the first form that is no larger than a pod may be."""
        while key.desired is not None:
            data, thing = key.desired.encoded(self._term), key.desired.object
            if len(data) <= MOST_POD_BYTES or not isinstance(thing, Pod):
                return data
            self._reduce(key, thing, f"it takes {len(data)} bytes there, a pod may take {MOST_POD_BYTES}")
        return None


def _is_watermark(key: _Key) -> bool:
    return key.key.startswith(f"{WATERMARK}.")


def _decoded(entry: Entry) -> MirrorEntry | None:
    """The value of a key; ``None`` for a removal. A value that berth did not write has term 0."""
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


WATERMARK_INTERVAL_SECONDS: Final = 1.0
"""Between two watermarks of a kind. Ages are shown in seconds, and a busy kind must not double the writes."""


@dataclass(slots=True, kw_only=True)
class _Mark:
    newest_version: str = ""
    newest_change: int = 0
    """The newest version, and the change that must be stored before it may be written."""
    next_version: str = ""
    next_change: int = 0
    """The version to write next, and its change. New events do not move it, so that a busy kind gets a watermark."""
    written_at: float = float("-inf")

    @property
    def due_at(self) -> float:
        """When the next one may be written."""
        return self.written_at + WATERMARK_INTERVAL_SECONDS


class Watermarks:
    """Up to which resourceVersion each kind is complete in the bucket.

    A watermark promises that everything before it is stored, so it is written after the changes that it includes.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._marks = {kind: _Mark() for kind in kinds}
        self._open: dict[str, _Mark] = {}
        """The marks with a version that is to be written."""

    def on_version(self, kind: str, version: str, change: int) -> None:
        """A reflector has reached a version. The mirror's changes up to ``change`` belong to it."""
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
        """When the next one may be written; ``None`` if there is none or its changes must be stored first."""
        return min((mark.due_at for mark in self._open.values() if mark.next_change <= settled), default=None)


def desired_entry(thing: KubernetesObject | None) -> DesiredEntry | None:
    """What the mirror must hold of an object; ``None`` for nothing."""
    if thing is None or (isinstance(thing, Pod) and not is_bound(thing) and not nominated_node(thing)):
        return None
    return DesiredEntry(object=thing)


def left_out(thing: KubernetesObject | None) -> list[Effect]:
    """A warning about a part of a pod that plugins would read and that has too much of something."""
    if not isinstance(thing, Pod) or thing.spec.affinity is None or pod_affinity_counts(thing.spec.affinity):
        return []
    message = f"the affinity of pod {thing.key!r} on a node counts for nobody"
    return [Warn(message=message, fields={"pod": thing.key, "uid": thing.uid, "reason": refusal(thing)})]


def trimmed(thing: KubernetesObject) -> KubernetesObject:
    """The parts of an object that plugins read, so that a heartbeat writes nothing. A pod is bound or nominated."""
    return _trimmed_pod(thing) if isinstance(thing, Pod) else without_version(thing)


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
