"""The objects in memory, with one revision counter, a bounded history per kind, and listeners.

Values are never changed in place: each write stores a new dict. Each object is encoded once per revision. Events are
kept as core/v1.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from berth_sim.apiserver.kinds import NEW_EVENTS, SERVED_KINDS, SimulatedKind
from berth_sim.apiserver.status import JsonObject, expired

_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}

_CORE_NAMES = {new: core for core, new in _NEW_NAMES.items()}

_ALWAYS_THERE: dict[str, Any] = {
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
}

_EMPTY_LEFT_OUT = frozenset({"reportingController", "reportingInstance"})


def as_new_event(event: dict[str, Any]) -> dict[str, Any]:
    renamed = {_NEW_NAMES.get(member, member): value for member, value in event.items()}
    return {member: value for member, value in renamed.items() if value != "" or member not in _EMPTY_LEFT_OUT}


def as_core_event(event: dict[str, Any]) -> dict[str, Any]:
    return {_CORE_NAMES.get(member, member): value for member, value in event.items()}


def with_defaults(event: dict[str, Any]) -> dict[str, Any]:
    """A core/v1 Event with the members that the API server always shows."""
    return {**event, **{member: value for member, value in _ALWAYS_THERE.items() if member not in event}}


Key = tuple[str, str]  # namespace (empty for cluster-scoped kinds) and name

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


DEFAULT_HISTORY = 20_000

FIRST_REVISION = 100  # above zero, so that a low resourceVersion is too old, as in an older cluster


class StoredObject:
    __slots__ = ("_body", "key", "kind", "revision", "value")

    def __init__(self, kind: SimulatedKind, key: Key, revision: int, value: JsonObject) -> None:
        self.kind = kind
        self.key = key
        self.revision = revision
        self.value = value
        self._body: bytes | None = None

    def body(self, kind: SimulatedKind) -> bytes:
        """The object's JSON without kind and apiVersion, in the form that `kind` shows (events have two)."""
        if kind is NEW_EVENTS:
            return msgspec.json.encode(as_new_event(self.value))
        if self._body is None:
            self._body = msgspec.json.encode(self.value)
        return self._body

    def encoded(self, kind: SimulatedKind) -> bytes:
        return kind.preamble + self.body(kind)[1:]


class StoreEvent:
    """One revision's change of one object; `before` is None for a creation, `after` for a deletion."""

    __slots__ = ("_lines", "after", "before", "key", "revision")

    def __init__(self, key: Key, revision: int, before: StoredObject | None, after: StoredObject | None) -> None:
        self.key = key
        self.revision = revision
        self.before = before
        self.after = after
        self._lines: dict[tuple[EventType, SimulatedKind], bytes] = {}

    def line(self, event: EventType, kind: SimulatedKind) -> bytes:
        """A line of JSON; DELETED has the last state, with the revision of the deletion."""
        line = self._lines.get((event, kind))
        if line is None:
            shown = self._departed() if event == "DELETED" else self.after
            line = watch_line(event, shown.encoded(kind)) if shown is not None else b""
            self._lines[event, kind] = line
        return line

    def _departed(self) -> StoredObject | None:
        if self.before is None:
            return None
        value = with_revision(self.before.value, self.revision)
        return StoredObject(self.before.kind, self.key, self.revision, value)


def watch_line(event: str, encoded: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (event.encode(), encoded)


def with_revision(value: JsonObject, revision: int) -> JsonObject:
    """A copy with this revision, which shares all but the metadata."""
    return {**value, "metadata": {**value["metadata"], "resourceVersion": str(revision)}}


Listener = Callable[[StoreEvent], None]


class Table:
    def __init__(self, kind: SimulatedKind, history: int, first_revision: int) -> None:
        self.kind = kind
        self.items: dict[Key, StoredObject] = {}
        self.listeners: dict[Listener, None] = {}
        # The newest compacted revision: a client at an older one has to list again.
        self.floor = first_revision
        self.newest = first_revision  # revision of this kind's latest change
        self._history: deque[StoreEvent] = deque()
        self._history_limit = history
        self._sorted: list[StoredObject] | None = None

    def listen(self, listener: Listener) -> Listener:
        """Report each change to the listener, within the write; return the listener."""
        self.listeners[listener] = None
        return listener

    def in_order(self) -> list[StoredObject]:
        """Objects by namespace and name; the list is shared and must not be changed."""
        if self._sorted is None:
            self._sorted = [self.items[key] for key in sorted(self.items)]
        return self._sorted

    def as_of(self, revision: int) -> list[StoredObject]:
        """All objects as of a revision.

        Raises:
            StatusError: 410, the history does not reach back that far.
        """
        if revision < self.floor:
            raise expired("The resourceVersion for the provided list is too old.")
        if revision >= self.newest:
            return self.in_order()
        items = dict(self.items)
        for change in self._newer_first(revision):
            if change.before is None:
                items.pop(change.key)
            else:
                items[change.key] = change.before
        return [items[key] for key in sorted(items)]

    def since(self, revision: int) -> list[StoreEvent]:
        """The changes after a revision, oldest first.

        Raises:
            StatusError: 410, some of them are compacted.
        """
        if revision < self.floor:
            raise expired(f"too old resource version: {revision} ({self.floor})")
        return list(self._newer_first(revision))[::-1]

    def _newer_first(self, revision: int) -> Iterator[StoreEvent]:
        for change in reversed(self._history):
            if change.revision <= revision:
                return
            yield change

    def record(self, change: StoreEvent) -> None:
        if change.after is None:
            del self.items[change.key]
        else:
            self.items[change.key] = change.after
        self._sorted = None
        self.newest = change.revision
        self._history.append(change)
        if len(self._history) > self._history_limit:
            self.floor = self._history.popleft().revision
        for listener in tuple(self.listeners):
            listener(change)

    def forget(self, revision: int) -> None:
        self._history.clear()
        self.floor = revision


class Store:
    def __init__(self, history: int = DEFAULT_HISTORY, first_revision: int = FIRST_REVISION) -> None:
        self.revision = first_revision
        tables = {kind: Table(kind, history, first_revision) for kind in SERVED_KINDS if not kind.stored_as}
        core = {kind.plural: table for kind, table in tables.items() if not kind.group}
        self._tables = {kind: core[kind.stored_as] if kind.stored_as else tables[kind] for kind in SERVED_KINDS}

    @property
    def tables(self) -> dict[SimulatedKind, Table]:
        return self._tables

    def table(self, kind: SimulatedKind) -> Table:
        return self._tables[kind]

    def put(self, kind: SimulatedKind, key: Key, value: JsonObject) -> StoredObject:
        table = self._tables[kind]
        self.revision += 1
        stored = StoredObject(table.kind, key, self.revision, with_revision(value, self.revision))
        table.record(StoreEvent(key, self.revision, table.items.get(key), stored))
        return stored

    def remove(self, kind: SimulatedKind, key: Key) -> None:
        """Remove an object; this takes a revision too."""
        table = self._tables[kind]
        self.revision += 1
        table.record(StoreEvent(key, self.revision, table.items[key], None))

    def compact(self) -> None:
        """Compact the history: every older list page and watch ends in 410."""
        for table in self._tables.values():
            table.forget(self.revision)


class DryStore(Store):
    """A view of a store for dry runs: reads are those of the store, writes return what they would store."""

    def __init__(self, store: Store) -> None:
        self.revision = store.revision
        self._tables = store.tables

    def put(self, kind: SimulatedKind, key: Key, value: JsonObject) -> StoredObject:
        return StoredObject(self._tables[kind].kind, key, self.revision, value)

    def remove(self, kind: SimulatedKind, key: Key) -> None:  # noqa: ARG002 - as in a store that keeps its writes
        return
