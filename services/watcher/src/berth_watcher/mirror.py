"""The mirror: what KV ``cluster`` must hold, what it is known to hold, and the writes that make the one the other.

Each key has at most one write under way. What changes meanwhile is written when that is answered, all in one. Whatever
is read back that this watcher did not write, and that says something else, is written over: a lower term's writes, and
its own that timed out and landed late (PROTOCOL 3). A higher term ends its leadership.


Watermarks: up to when each kind is complete on the bus, written about once a second.

A watermark says that everything before it is there, so it is written only after the mirror's changes up to then are.


What the mirror holds of each object: only what plugins read of it, so that a heartbeat writes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.errors import DecodeError
from berth.api.meta import KubernetesObject, ObjectMeta
from berth.api.mirror import WATERMARK, MirrorEntry, Watermark, decode_entry, encode_entry, encode_watermark
from berth.api.pod import Pod, PodStatus, bound_at_text, disruption_condition, is_being_preempted, is_bound
from berth.api.subjects import Term
from berth.bus.interface import Entry
from berth_watcher.events import Effect, LookUpKey, PurgeKey, StepDown, WriteKey
from berth_watcher.hints import nomination

NOTHING: Final = 0
"""The number of no change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEntry:
    """What a key must say: the trimmed object, and for a bound pod since when it is bound; or a watermark's version."""

    object: object = None
    bound_at: str | None = None
    watermark: str = ""

    def says(self, entry: MirrorEntry) -> bool:
        """Whether that is what the key says already."""
        return not self.watermark and bytes(entry.object) == _encode(self.object) and entry.bound_at == self.bound_at

    def encoded(self, term: Term) -> bytes:
        """The value to write."""
        if self.watermark:
            return encode_watermark(Watermark(term=term, resource_version=self.watermark))
        return encode_entry(MirrorEntry(term=term, object=msgspec.Raw(_encode(self.object)), bound_at=self.bound_at))


_encode: Final = msgspec.json.Encoder().encode


UNKNOWN: Final = WantedEntry()
"""What a key says that somebody else wrote: never what is wanted."""


@dataclass(slots=True, kw_only=True)
class _Slot:
    key: str
    wanted: WantedEntry | None = None
    sequence: int = 0
    """At which the key stands in the bucket, as far as is known; 0 for a key that is not there."""
    change: int = NOTHING
    """The latest change that is wanted."""
    stored: int = NOTHING
    """The latest change that the bucket is known to hold."""
    known: WantedEntry | None = None
    """What the bucket is known to say there."""
    sending: int = NOTHING
    """The change that the write under way carries."""
    sent: WantedEntry | None = None
    """What the write under way says."""
    busy: bool = False
    """A write or a look-up is under way."""
    read: Entry | None = None
    """The newest that was read back and not yet compared."""


class Mirror:
    """Changes are numbered from 1; ``settled`` says up to which all are stored, ``position`` where the bucket stood."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._slots: dict[str, _Slot] = {}
        self._changes = NOTHING
        self._unsettled: list[tuple[int, str]] = []
        self._live = False
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
    def under_way(self) -> int:
        """Keys that are not yet as they should be."""
        return len({key for change, key in self._unsettled if not self._is_stored(change, key)})

    def want(self, key: str, wanted: WantedEntry | None, *, quietly: bool = False) -> tuple[int, list[Effect]]:
        """A key must say this, or must not be there. The change's number, or 0 when it is as it was, and the writes.

        ``quietly``: no number is taken, nobody waits for it (watermarks).
        """
        slot = self._slots.get(key)
        if slot is None:
            if wanted is None:
                return NOTHING, []
            slot = self._slots[key] = _Slot(key=key)
        elif slot.wanted == wanted and not quietly:  # a watermark says the same of a later time
            return NOTHING, []
        slot.wanted = wanted
        if not quietly:
            self._number(slot)
        return slot.change, self._write(slot)

    def begin(self, position: int) -> list[Effect]:
        """The bucket has been read to its end: from now on it is held to what is wanted. Writes all differences."""
        self._live = True
        self.position = max(self.position, position)
        return [effect for slot in list(self._slots.values()) for effect in self._compare(slot)]

    def written(self, key: str, sequence: int) -> list[Effect]:
        """The write under way is stored."""
        slot = self._slots.get(key)
        if slot is None:
            return []
        self.position = max(self.position, sequence)
        slot.busy, slot.sequence, slot.stored, slot.known = False, sequence, slot.sending, slot.sent
        if slot.read is None:
            return self._write(slot)
        return self._compare(slot)

    def refused(self, key: str) -> list[Effect]:
        """The write under way was not taken: the key is read, then written again."""
        slot = self._slots.get(key)
        return [] if slot is None else [LookUpKey(key=slot.key)]

    def looked_up(self, key: str, entry: Entry | None) -> list[Effect]:
        """A key as it stands after a refused write."""
        slot = self._slots.get(key)
        if slot is None:
            return []
        slot.busy = False
        if entry is None and slot.read is None:
            slot.sequence, slot.known = 0, None
            return self._write(slot)
        if entry is not None and (slot.read is None or entry.sequence > slot.read.sequence):
            slot.read = entry
        return self._compare(slot)

    def read(self, entry: Entry) -> list[Effect]:
        """An entry was read back from the bucket."""
        self.position = max(self.position, entry.sequence)
        slot = self._slots.get(entry.key)
        if slot is None:
            if entry.data is None:
                return []
            slot = self._slots[entry.key] = _Slot(key=entry.key)
        if entry.sequence < slot.sequence:
            return []
        if slot.read is None or entry.sequence > slot.read.sequence:
            slot.read = entry
        return self._compare(slot) if self._live and not slot.busy else []

    def _number(self, slot: _Slot) -> None:
        self._changes += 1
        slot.change = self._changes
        heapq.heappush(self._unsettled, (slot.change, slot.key))

    def _is_stored(self, change: int, key: str) -> bool:
        slot = self._slots.get(key)
        return slot is None or slot.stored >= change

    def _compare(self, slot: _Slot) -> list[Effect]:
        """Take in what was read back, and write where it is not what is wanted."""
        entry, slot.read = slot.read, None
        if entry is None or entry.sequence < slot.sequence:
            return self._write(slot)
        own = entry.sequence == slot.sequence and slot.known is not UNKNOWN
        slot.sequence = entry.sequence
        if not own:
            there = _decoded(entry)
            if there is not None and there.term > self._term:
                return [StepDown(reason=f"term {there.term} wrote {slot.key!r}", term=there.term)]
            slot.known = slot.wanted if _same(there, slot.wanted) else UNKNOWN
        effects = self._write(slot)
        if slot.wanted is None and slot.known is None and not slot.busy:
            del self._slots[slot.key]  # its marker has been read back: whatever is read after that is news
        return effects

    def _write(self, slot: _Slot) -> list[Effect]:
        if slot.busy or not self._live or _is_others_watermark(slot):
            return []
        if slot.wanted is slot.known:
            slot.stored = slot.change
            return []
        slot.busy, slot.sending, slot.sent = True, slot.change, slot.wanted
        if slot.wanted is None:
            return [PurgeKey(key=slot.key, expected=slot.sequence)]
        return [WriteKey(key=slot.key, data=slot.wanted.encoded(self._term), expected=slot.sequence)]


def _is_others_watermark(slot: _Slot) -> bool:
    """A watermark that this watcher has not written yet stands until it does."""
    return slot.wanted is None and slot.key.startswith(f"{WATERMARK}.")


def _decoded(entry: Entry) -> MirrorEntry | None:
    """What a key says; ``None`` for a removal. What nobody of berth's wrote is of no term."""
    if entry.data is None:
        return None
    try:
        return decode_entry(entry.data)
    except DecodeError:
        return MirrorEntry(term=Term(0))


def _same(there: MirrorEntry | None, wanted: WantedEntry | None) -> bool:
    if there is None or wanted is None:
        return there is None and wanted is None
    return wanted.says(there)


SHORTEST_SECONDS: Final = 1.0
"""Between two watermarks of a kind: ages are told to the second, and a busy kind must not double the writes."""


@dataclass(slots=True, kw_only=True)
class _Mark:
    version: str = ""
    newest: int = 0
    """The newest version and the change that it needs."""
    ready: str = ""
    change: int = 0
    """The version to be written next and the change that it needs: not moved on by each event, so that a busy kind
    gets its mark at all."""
    written_at: float = float("-inf")


class Watermarks:
    """What each kind has come to, and what may be written of it."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._marks = {kind: _Mark() for kind in kinds}

    def reached(self, kind: str, version: str, change: int) -> None:
        """A kind is complete up to a version once the mirror's changes up to this one are stored."""
        mark = self._marks[kind]
        if not mark.ready:
            mark.ready, mark.change = version, change
        mark.version, mark.newest = version, change

    def due(self, now: float, settled: int) -> list[tuple[str, str]]:
        """The kinds and versions to write now."""
        found = []
        for kind, mark in self._marks.items():
            if mark.ready and mark.change <= settled and now - mark.written_at >= SHORTEST_SECONDS:
                found.append((kind, mark.version if mark.newest <= settled else mark.ready))
                waits = mark.newest > settled
                mark.ready, mark.change, mark.written_at = (mark.version if waits else ""), mark.newest, now
        return found

    def next_due(self, settled: int) -> float | None:
        """When the next may be written; ``None`` when nothing is new, or when changes are awaited first."""
        times = (
            mark.written_at + SHORTEST_SECONDS for mark in self._marks.values() if mark.ready and mark.change <= settled
        )
        return min(times, default=None)


def held(thing: KubernetesObject) -> KubernetesObject | None:
    """The object as the mirror holds it, without version; ``None`` for a pod that is neither bound nor nominated."""
    if isinstance(thing, Pod):
        return _held_pod(thing)
    return msgspec.structs.replace(thing, metadata=_unversioned(thing.metadata))  # type: ignore[type-var]  # all kinds are Structs


def _held_pod(pod: Pod) -> Pod | None:
    if is_bound(pod):
        status = PodStatus(
            start_time=bound_at_text(pod),  # its own comes a little later and would be one more write a pod
            conditions=[said] if is_being_preempted(pod) and (said := disruption_condition(pod)) else None,
        )
    elif nomination(pod):
        status = PodStatus(nominated_node_name=pod.status.nominated_node_name)
    else:
        return None
    return Pod(metadata=_unversioned(pod.metadata), spec=pod.spec, status=status)


def _unversioned(metadata: ObjectMeta) -> ObjectMeta:
    return msgspec.structs.replace(metadata, resource_version="")
